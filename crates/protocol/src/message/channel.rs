//! What channel 0 carries beside failures: who a remote is, credit, pings.

use prost::Message;

/// See [`Control::SignIn`](super::Control::SignIn).
#[derive(Clone, PartialEq, Message)]
pub struct SignIn {
    /// The protocol that the remote speaks, see [`PROTOCOL_VERSION`](super::PROTOCOL_VERSION).
    #[prost(uint32, tag = "1")]
    pub protocol_version: u32,
    /// 16 bytes; empty as long as it has none.
    #[prost(bytes = "vec", tag = "2")]
    pub remote_id: Vec<u8>,
    /// Whose remote it is. Empty with a proof that tells by itself, if nobody has told the remote.
    #[prost(string, tag = "3")]
    pub user: String,
    /// One of the proofs of it.
    #[prost(oneof = "Proof", tags = "4, 5, 6, 10, 11, 13")]
    pub proof: Option<Proof>,
    /// The program that speaks, for logs.
    #[prost(string, tag = "7")]
    pub client: String,
    /// The name of the centre that gave the remote its id, see [`SignedIn::centre`]; empty as
    /// long as it has none.
    #[prost(string, tag = "8")]
    pub centre: String,
    /// A program without a file signs in as its user: it syncs nothing, gets no remote id and no
    /// credential, and proves itself by anything but a credential.
    #[prost(bool, tag = "9")]
    pub is_program: bool,
    /// What people call the device, see [`is_device_name`]; empty if nobody has named it. It proves
    /// nothing, and several may have the same.
    #[prost(string, tag = "12")]
    pub device_name: String,
}

/// The name of a device has no more characters.
pub const MAX_DEVICE_NAME: usize = 64;

/// Whether people can call a device so: some characters, and none that moves a cursor.
pub fn is_device_name(name: &str) -> bool {
    let mut characters = name.chars();
    let count = characters.by_ref().take(MAX_DEVICE_NAME + 1).count();
    (1..=MAX_DEVICE_NAME).contains(&count) && !name.contains(char::is_control)
}

/// A token of an identity provider has no more bytes: a SignIn has to fit into what a server reads
/// of a stranger.
pub const MAX_BEARER_BYTES: usize = 64 << 10;

/// Why a token with so many bytes is not taken, in the words of both sides and of every carrier.
pub fn bearer_too_long(bytes: usize) -> String {
    format!(
        "it has {bytes} bytes, and servers take {MAX_BEARER_BYTES}: have the identity provider put \
         less into it"
    )
}

/// How a remote proves who it is.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Proof {
    /// A signed session token of an earlier SignedIn.
    #[prost(bytes, tag = "4")]
    Token(Vec<u8>),
    /// The remote's own credential.
    #[prost(bytes, tag = "5")]
    Credential(Vec<u8>),
    /// The user's password: at the first sync, or after the credential was lost.
    #[prost(string, tag = "6")]
    Password(String),
    /// A token that an identity provider has signed (a JWT in its compact form), in place of a
    /// password.
    #[prost(string, tag = "10")]
    Bearer(String),
    /// The client certificate of the TLS connection, in place of a password; always true.
    #[prost(bool, tag = "11")]
    Certificate(bool),
    /// The user's password, and another one that takes its place.
    #[prost(message, tag = "13")]
    PasswordChange(PasswordChange),
}

/// See [`Proof::PasswordChange`].
#[derive(Clone, PartialEq, Message)]
pub struct PasswordChange {
    /// The password so far.
    #[prost(string, tag = "1")]
    pub password: String,
    /// The password from now on.
    #[prost(string, tag = "2")]
    pub new_password: String,
}

/// See [`Control::SignedIn`](super::Control::SignedIn).
#[derive(Clone, PartialEq, Message)]
pub struct SignedIn {
    /// The protocol of this connection: the lower of both sides' minor versions.
    #[prost(uint32, tag = "1")]
    pub protocol_version: u32,
    /// The remote's id: its own, its first, or another one, if the server does not know it any
    /// more.
    #[prost(bytes = "vec", tag = "2")]
    pub remote_id: Vec<u8>,
    /// A session token; empty if the one that was presented goes on.
    #[prost(bytes = "vec", tag = "3")]
    pub token: Vec<u8>,
    /// A new credential; empty if the old one stays.
    #[prost(bytes = "vec", tag = "4")]
    pub credential: Vec<u8>,
    /// The server's program and version, for logs.
    #[prost(string, tag = "5")]
    pub server: String,
    /// The name that the centre was given when it was deployed for the first time, and has in
    /// every backup: opaque to the remote.
    #[prost(string, tag = "6")]
    pub centre: String,
    /// The user's name, if that is another one than the SignIn says: the proof has told it.
    #[prost(string, tag = "7")]
    pub user: String,
    /// The names of the centres above this one, nearest first, where it is a branch's: the one that
    /// it syncs with, the one that that one syncs with, and so on. At most [`MAX_ABOVE`].
    #[prost(string, repeated, tag = "8")]
    pub above: Vec<String>,
    /// The largest message and the largest event that the server takes, and sends, in bytes, up to
    /// [`MAX_MESSAGE_BYTES`](crate::frame::MAX_MESSAGE_BYTES); 0 for
    /// [`DEFAULT_MESSAGE_BYTES`](crate::frame::DEFAULT_MESSAGE_BYTES).
    #[prost(uint32, tag = "9")]
    pub message_bytes: u32,
}

/// So many centres above its own a server names.
pub const MAX_ABOVE: usize = 64;

/// See [`Control::Credit`](super::Control::Credit).
#[derive(Clone, PartialEq, Message)]
pub struct Credit {
    /// The channel.
    #[prost(uint32, tag = "1")]
    pub channel: u32,
    /// So many more bytes of rows and messages may be sent.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
}

/// See [`Control::Ping`](super::Control::Ping).
#[derive(Clone, PartialEq, Message)]
pub struct Ping {
    /// Comes back in the Pong.
    #[prost(uint64, tag = "1")]
    pub nonce: u64,
}

/// See [`Control::Pong`](super::Control::Pong).
#[derive(Clone, PartialEq, Message)]
pub struct Pong {
    /// The Ping's.
    #[prost(uint64, tag = "1")]
    pub nonce: u64,
    /// The program that answers, and its version.
    #[prost(string, tag = "2")]
    pub server: String,
    /// The protocol that it speaks.
    #[prost(uint32, tag = "3")]
    pub protocol_version: u32,
}
