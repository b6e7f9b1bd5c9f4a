//! Control messages. Their encoding is Protocol Buffers; the tags are normative and
//! written down in `docs/protocol.md`.

mod call;
mod channel;
mod name;
mod numbers;
mod parameter;
mod upload;
mod verified_tables;

use prost::Message;

pub use self::call::{Answer, Argument, ArgumentValue, Call, CallFailed, CallKind, Returns};
pub use self::channel::{
    Credit, MAX_ABOVE, MAX_BEARER_BYTES, MAX_DEVICE_NAME, PasswordChange, Ping, Pong, Proof,
    SignIn, SignedIn, bearer_too_long, is_device_name,
};
pub use self::numbers::{NumberBlock, NumbersLeft};
pub use self::parameter::{
    MAX_PARAMETER_NAME, MAX_PARAMETER_VALUE, MAX_PARAMETERS, SubscriptionParameter,
};
pub use self::upload::{
    ForgottenRefusal, GivenUp, MAX_FORGOTTEN_REFUSALS, MAX_GIVEN_UP, MAX_RETRIED, UploadBegin,
    UploadEnd, UploadState,
};
pub use self::verified_tables::{
    MAX_VERIFIED_BYTES, MAX_VERIFIED_KEYS, MAX_VERIFIED_TABLES, VerifiedTable, VerifiedTables,
};

use crate::code::Code;
use crate::pack::RowShape;
use crate::schema::{Table, column_type_from_wire, column_type_to_wire};
use crate::value::ColumnType;

/// The protocol version of this library: major in the high, minor in the low half.
pub const PROTOCOL_VERSION: u32 = (PROTOCOL_MAJOR << 16) | PROTOCOL_MINOR;
/// Peers of different major versions cannot talk to each other.
pub const PROTOCOL_MAJOR: u32 = 1;
/// Minor versions only add.
pub const PROTOCOL_MINOR: u32 = 0;

/// How many former ids a remote names, of each subscription.
pub const MAX_FORMERS: usize = 16;

/// The version that a session with such a peer speaks: the lower minor version of
/// both sides. `None` if the peer is of another major version.
pub fn negotiate(peer: u32) -> Option<u32> {
    (peer >> 16 == PROTOCOL_MAJOR).then(|| peer.min(PROTOCOL_VERSION))
}

/// Everything that travels in a control frame.
#[derive(Clone, PartialEq, Message)]
pub struct Envelope {
    /// The one message.
    #[prost(
        oneof = "Control",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24"
    )]
    pub control: Option<Control>,
}

/// A control message.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Control {
    /// Remote: opens a sync.
    #[prost(message, tag = "1")]
    Hello(Hello),
    /// Server: what it makes of the Hello.
    #[prost(message, tag = "2")]
    Welcome(Welcome),
    /// Remote: an upload begins.
    #[prost(message, tag = "3")]
    UploadBegin(UploadBegin),
    /// Either: the rows that follow on this channel are of this table.
    #[prost(message, tag = "4")]
    TableBegin(TableBegin),
    /// Remote: the upload is complete, or abandoned.
    #[prost(message, tag = "5")]
    UploadEnd(UploadEnd),
    /// Remote: rows that follow are keys that it wants again.
    #[prost(message, tag = "6")]
    RequestBegin(RequestBegin),
    /// Remote: everything is said; send the download.
    #[prost(message, tag = "7")]
    DownloadRequest(DownloadRequest),
    /// Server: what became of an upload; rows follow.
    #[prost(message, tag = "8")]
    ResultBegin(ResultBegin),
    /// Server: the upload's result is complete.
    #[prost(message, tag = "9")]
    ResultEnd(ResultEnd),
    /// Server: the download of a subscription begins.
    #[prost(message, tag = "10")]
    DownloadBegin(DownloadBegin),
    /// Server: the download of a subscription is complete.
    #[prost(message, tag = "11")]
    DownloadEnd(DownloadEnd),
    /// Server: nothing more comes in this sync.
    #[prost(message, tag = "12")]
    SyncEnd(SyncEnd),
    /// Remote: the download is committed.
    #[prost(message, tag = "13")]
    Ack(Ack),
    /// Server: too much to do; come back later.
    #[prost(message, tag = "14")]
    Busy(Busy),
    /// Either: it cannot go on. The sender closes the connection afterwards.
    #[prost(message, tag = "15")]
    Failure(FailureNotice),
    /// Either: so many more bytes of rows and messages may be sent on a channel.
    #[prost(message, tag = "16")]
    Credit(Credit),
    /// Either: are you there?
    #[prost(message, tag = "17")]
    Ping(Ping),
    /// Either: I am.
    #[prost(message, tag = "18")]
    Pong(Pong),
    /// Server: your sync waits for a worker. Sent now and then so that the remote
    /// does not take silence for death.
    #[prost(message, tag = "19")]
    Waiting(SyncWaiting),
    /// Remote: it gives up this sync.
    #[prost(message, tag = "20")]
    Cancel(SyncCancel),
    /// Remote: what it has of a table, as checksums of ranges of keys.
    #[prost(message, tag = "21")]
    CompareTable(CompareTable),
    /// Remote: who it is, on channel 0, once and before everything else.
    #[prost(message, boxed, tag = "22")]
    SignIn(Box<SignIn>),
    /// Server: lets the remote in.
    #[prost(message, boxed, tag = "23")]
    SignedIn(Box<SignedIn>),
    /// Server: the download can be gone on with from here, should it break.
    #[prost(message, tag = "24")]
    DownloadMark(DownloadMark),
}

impl Control {
    /// Encodes the message for a control frame.
    pub fn to_payload(self) -> Vec<u8> {
        Envelope {
            control: Some(self),
        }
        .encode_to_vec()
    }

    /// Decodes the payload of a control frame. `None` for a message that this
    /// version does not know.
    ///
    /// # Errors
    /// The payload is not a message.
    pub fn from_payload(payload: &[u8]) -> Result<Option<Control>, prost::DecodeError> {
        Envelope::decode(payload).map(|envelope| envelope.control)
    }
}

/// See [`Control::Hello`].
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    /// What the remote subscribes to.
    #[prost(message, repeated, tag = "1")]
    pub subscriptions: Vec<HelloSubscription>,
}

/// One subscription as the remote knows it.
#[derive(Clone, PartialEq, Message)]
pub struct HelloSubscription {
    /// The publication's name.
    #[prost(string, tag = "1")]
    pub publication: String,
    /// The last upload that the server acknowledged; 0 if none.
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
    /// Its id, 16 bytes; empty if none.
    #[prost(bytes = "vec", tag = "3")]
    pub upload_id: Vec<u8>,
    /// The id of the upload with the next sequence number, if one was taken.
    #[prost(bytes = "vec", tag = "4")]
    pub pending_upload_id: Vec<u8>,
    /// What the last download left for safekeeping; empty if none.
    #[prost(bytes = "vec", tag = "5")]
    pub checkpoint: Vec<u8>,
    /// The hash of the schema that the remote has; empty if none.
    #[prost(bytes = "vec", tag = "6")]
    pub schema_hash: Vec<u8>,
    /// Checksums of the tables follow ([`CompareTable`]); no upload does.
    #[prost(bool, tag = "7")]
    pub compares: bool,
    /// What the remote uploaded under ids that it had before, and still keeps.
    #[prost(message, repeated, tag = "8")]
    pub formers: Vec<FormerId>,
    /// How many numbers it has for the tables of which it has any.
    #[prost(message, repeated, tag = "9")]
    pub numbers: Vec<NumbersLeft>,
    /// The parameters that are set.
    #[prost(message, repeated, tag = "10")]
    pub parameters: Vec<SubscriptionParameter>,
    /// The lowest number of an upload of which the remote still keeps something as refused; 0 if
    /// it keeps nothing.
    #[prost(uint64, tag = "11")]
    pub refused_from: u64,
    /// The last [`DownloadBegin::settled_after`].
    #[prost(uint64, tag = "12")]
    pub settled_after: u64,
    /// What was not equal when the remote verified itself for [`DownloadBegin::verify`].
    #[prost(message, optional, tag = "13")]
    pub verified: Option<VerifiedTables>,
    /// What has come of a download that broke, which began from this checkpoint. Not with `compares`.
    #[prost(message, optional, tag = "14")]
    pub partial: Option<PartialDownload>,
    /// The SHA-256 of the image that the remote has begun from, as long as nothing else has come:
    /// the checkpoint is the image's. Otherwise empty.
    #[prost(bytes = "vec", tag = "15")]
    pub image: Vec<u8>,
}

/// What a remote keeps of a download that broke: everything up to a [`DownloadMark`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PartialDownload {
    /// The hash of the schema that it came in.
    #[prost(bytes = "vec", tag = "1")]
    pub schema_hash: Vec<u8>,
    /// Its [`DownloadBegin::checkpoint`].
    #[prost(bytes = "vec", tag = "2")]
    pub checkpoint: Vec<u8>,
    /// The last [`DownloadMark::mark`].
    #[prost(bytes = "vec", tag = "3")]
    pub mark: Vec<u8>,
}

/// An id that the remote had before its file was restored or copied.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct FormerId {
    /// The id, 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub remote_id: Vec<u8>,
    /// The last upload under this id that the remote keeps.
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
    /// Its id, 16 bytes.
    #[prost(bytes = "vec", tag = "3")]
    pub upload_id: Vec<u8>,
}

/// See [`Control::Welcome`].
#[derive(Clone, PartialEq, Message)]
pub struct Welcome {
    /// In the order of the Hello.
    #[prost(message, repeated, tag = "1")]
    pub subscriptions: Vec<WelcomeSubscription>,
    /// With [`UploadState::NewIdentity`]: the remote's new id, unless SignedIn gave it one.
    #[prost(bytes = "vec", tag = "2")]
    pub remote_id: Vec<u8>,
    /// The credential that goes with it.
    #[prost(bytes = "vec", tag = "3")]
    pub credential: Vec<u8>,
}

/// What the server says to one subscription.
#[derive(Clone, PartialEq, Message)]
pub struct WelcomeSubscription {
    /// What the server makes of sequence and upload id.
    #[prost(enumeration = "UploadState", tag = "1")]
    pub upload_state: i32,
    /// The publication's schema, when it is another than the remote's.
    #[prost(bytes = "vec", tag = "2")]
    pub schema: Vec<u8>,
    /// With [`UploadState::CentreRestored`] and [`UploadState::NewIdentity`]: the last
    /// upload that the centre has of the remote under its old id; 0 if none.
    #[prost(uint64, tag = "3")]
    pub sequence: u64,
    /// Its id, 16 bytes; empty if none.
    #[prost(bytes = "vec", tag = "4")]
    pub upload_id: Vec<u8>,
    /// The centre does not know the history of the checkpoint: the session ends, and
    /// the remote opens another with [`HelloSubscription::compares`].
    #[prost(bool, tag = "5")]
    pub compare: bool,
    /// For each former id of the Hello, in its order: the centre has the uploads up to this
    /// number. With [`UploadState::CentreRestored`].
    #[prost(uint64, repeated, tag = "6")]
    pub formers: Vec<u64>,
    /// Numbers that are the remote's from now on.
    #[prost(message, repeated, tag = "7")]
    pub blocks: Vec<NumberBlock>,
    /// So many bytes of the pending upload's rows have come with an earlier sync that broke: whole
    /// rows. The upload may go on behind them.
    #[prost(uint64, tag = "8")]
    pub received_bytes: u64,
    /// Their CRC-32 (IEEE).
    #[prost(uint32, tag = "9")]
    pub received_checksum: u32,
}

/// See [`Control::TableBegin`].
#[derive(Clone, PartialEq, Message)]
pub struct TableBegin {
    /// The table's name on remotes.
    #[prost(string, tag = "1")]
    pub table: String,
    /// The columns of the rows that follow.
    #[prost(message, repeated, tag = "2")]
    pub columns: Vec<ColumnHeader>,
    /// Download: these rows are all that the remote's partitions hold; others go.
    #[prost(bool, tag = "3")]
    pub replace: bool,
    /// How many rows follow, where that is known; for progress.
    #[prost(uint64, tag = "4")]
    pub expected_rows: u64,
    /// The key, as indexes into `columns`, in key order: whoever does not have the
    /// table, or not any more, can still tell its rows apart.
    #[prost(uint32, repeated, tag = "5")]
    pub key: Vec<u32>,
    /// Download, with `replace`: the rows that follow are all only in these intervals
    /// of keys, which ascend.
    #[prost(message, repeated, tag = "6")]
    pub ranges: Vec<KeyInterval>,
    /// Download, with `replace`: what the centre changed in the table since the remote's
    /// checkpoint has come before these rows. What still differs was changed by nobody but the
    /// remote.
    #[prost(bool, tag = "7")]
    pub follows_changes: bool,
    /// Download, of a table that the remote compares: rows of its partitions that have no key (a
    /// column of it is NULL), and so can be on no remote.
    #[prost(uint64, tag = "8")]
    pub keyless_rows: u64,
    /// Download, with `follows_changes`: nobody tells remotes of rows that the centre deletes. One
    /// that only the remote has may be the user's, or may be deleted.
    #[prost(bool, tag = "9")]
    pub deletes_unknown: bool,
}

/// A column of the rows that follow.
#[derive(Clone, PartialEq, Message)]
pub struct ColumnHeader {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its type's number.
    #[prost(uint32, tag = "2")]
    pub column_type: u32,
    /// For decimals: the scale plus one, 0 for none.
    #[prost(uint32, tag = "3")]
    pub scale_plus_one: u32,
}

impl ColumnHeader {
    /// The header of a column.
    pub fn new(name: impl Into<String>, column_type: ColumnType) -> ColumnHeader {
        let (column_type, scale_plus_one) = column_type_to_wire(column_type);
        ColumnHeader {
            name: name.into(),
            column_type,
            scale_plus_one,
        }
    }

    /// The column's type, if this version knows it.
    pub fn column_type(&self) -> Option<ColumnType> {
        column_type_from_wire(self.column_type, self.scale_plus_one)
    }
}

impl TableBegin {
    /// The header of a table's rows, all columns in the schema's order.
    pub fn for_table(table: &Table) -> TableBegin {
        let columns = table.columns.iter();
        let columns = columns.map(|it| ColumnHeader::new(it.name.as_str(), it.column_type));
        TableBegin {
            table: table.name.clone(),
            columns: columns.collect(),
            replace: false,
            expected_rows: 0,
            key: table.key.iter().map(|&index| index as u32).collect(),
            ranges: Vec::new(),
            follows_changes: false,
            keyless_rows: 0,
            deletes_unknown: false,
        }
    }

    /// How rows under this header are packed, by what it says itself; without
    /// partition columns. `None` if it names no key or one that cannot be, or a type
    /// that this version does not know.
    pub fn shape(&self) -> Option<RowShape> {
        let columns = self.columns.iter().map(ColumnHeader::column_type);
        let columns = columns.collect::<Option<Vec<_>>>()?;
        let mut key = Vec::with_capacity(self.key.len().min(columns.len()));
        for &index in &self.key {
            let index = usize::try_from(index).ok()?;
            if index >= columns.len() || key.contains(&index) {
                return None;
            }
            key.push(index);
        }
        (!key.is_empty()).then_some(RowShape { columns, key })
    }

    /// The names and types of the key's columns, as far as the header has them.
    pub fn key_headers(&self) -> impl Iterator<Item = &ColumnHeader> {
        let key = self.key.iter();
        key.filter_map(|&index| self.columns.get(usize::try_from(index).ok()?))
    }

    /// Whether the header names the key of this table: the same columns of the same
    /// types in the same order.
    pub fn has_key_of(&self, table: &Table) -> bool {
        self.key.len() == table.key.len()
            && self.key_headers().count() == table.key.len()
            && self
                .key_headers()
                .zip(table.key_columns())
                .all(|(header, column)| {
                    header.name == column.name && header.column_type() == Some(column.column_type)
                })
    }
}

/// See [`Control::RequestBegin`].
#[derive(Clone, PartialEq, Message)]
pub struct RequestBegin {
    /// The index of the subscription in the Hello.
    #[prost(uint32, tag = "1")]
    pub subscription: u32,
}

/// See [`Control::DownloadRequest`].
#[derive(Clone, PartialEq, Message)]
pub struct DownloadRequest {
    /// Only the results of uploads are wanted, no download.
    #[prost(bool, tag = "1")]
    pub upload_only: bool,
}

/// See [`Control::ResultBegin`].
#[derive(Clone, PartialEq, Message)]
pub struct ResultBegin {
    /// The index of the subscription in the Hello.
    #[prost(uint32, tag = "1")]
    pub subscription: u32,
    /// The upload that was applied.
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
    /// Its id.
    #[prost(bytes = "vec", tag = "3")]
    pub upload_id: Vec<u8>,
}

/// See [`Control::ResultEnd`].
#[derive(Clone, PartialEq, Message)]
pub struct ResultEnd {
    /// Rows that the upload changed in the centre, by operation: inserted.
    #[prost(uint64, tag = "1")]
    pub inserts: u64,
    /// Updated.
    #[prost(uint64, tag = "2")]
    pub updates: u64,
    /// Deleted.
    #[prost(uint64, tag = "3")]
    pub deletes: u64,
    /// Changes that lost against the centre.
    #[prost(uint64, tag = "4")]
    pub conflicts: u64,
    /// Changes that the centre refused.
    #[prost(uint64, tag = "5")]
    pub refused: u64,
    /// CRC-32 (IEEE) of all rows' bytes of the result.
    #[prost(uint32, tag = "6")]
    pub checksum: u32,
    /// The next download has to compare: the upload may have reached partitions that neither
    /// the remote's checkpoint nor this sync's download knows of.
    #[prost(bool, tag = "7")]
    pub compare: bool,
}

/// See [`Control::DownloadBegin`].
#[derive(Clone, PartialEq, Message)]
pub struct DownloadBegin {
    /// The index of the subscription in the Hello.
    #[prost(uint32, tag = "1")]
    pub subscription: u32,
    /// Partitions were gained or lost since the last download: what was refused for
    /// its scope may be tried again.
    #[prost(bool, tag = "2")]
    pub scope_changed: bool,
    /// Refused rows of the remote that an operator has settled.
    #[prost(message, repeated, tag = "3")]
    pub settled: Vec<SettledRefusal>,
    /// There are more of them: the next Hello says this number. 0 if that is all.
    #[prost(uint64, tag = "4")]
    pub settled_after: u64,
    /// Another number when something else is deployed, or tables were altered: what was refused
    /// may be tried again. 0 if that is not known.
    #[prost(fixed64, tag = "5")]
    pub deployment: u64,
    /// What was refused is tried again only when somebody says so.
    #[prost(bool, tag = "6")]
    pub keeps_refused: bool,
    /// The next sync is to compare everything, and the remote tells what was not equal.
    #[prost(bool, tag = "7")]
    pub verify: bool,
    /// Where the snapshot is from which it comes, or from which the first part of it came. The
    /// remote presents it if the download breaks after a [`DownloadMark`]; empty if there are none.
    #[prost(bytes = "vec", tag = "8")]
    pub checkpoint: Vec<u8>,
    /// It goes on behind the mark that the remote has presented. Otherwise what was kept of an
    /// earlier one is of no use any more.
    #[prost(bool, tag = "9")]
    pub resumed: bool,
    /// The tables that the remote compares, and that the server does not compare.
    #[prost(message, repeated, tag = "10")]
    pub uncompared: Vec<UncomparedTable>,
}

/// A table that the server does not compare.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct UncomparedTable {
    /// Its name on remotes.
    #[prost(string, tag = "1")]
    pub table: String,
    /// Why.
    #[prost(enumeration = "UncomparedReason", tag = "2")]
    pub reason: i32,
}

/// Why a table is not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum UncomparedReason {
    /// The server does not say.
    Unknown = 0,
    /// Scripts tell what is new in it, and nobody knows all that a remote is to hold.
    Script = 1,
    /// Its handler has not told all that a remote is to hold.
    Handler = 2,
}

/// See [`Control::DownloadMark`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DownloadMark {
    /// Where the download is, in the server's own terms.
    #[prost(bytes = "vec", tag = "1")]
    pub mark: Vec<u8>,
    /// CRC-32 (IEEE) of all rows' bytes of the download so far.
    #[prost(uint32, tag = "2")]
    pub checksum: u32,
    /// How many rows of the table have come, for people.
    #[prost(uint64, tag = "3")]
    pub rows: u64,
}

/// A refused row that an operator has settled. The centre's row counts from now on.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SettledRefusal {
    /// The table's name on remotes.
    #[prost(string, tag = "1")]
    pub table: String,
    /// The key, as a JSON array.
    #[prost(string, tag = "2")]
    pub key: String,
    /// The number of the upload with which it was refused: what was refused again since is not
    /// meant.
    #[prost(uint64, tag = "3")]
    pub sequence: u64,
    /// When, in milliseconds since 1970.
    #[prost(int64, tag = "4")]
    pub at_ms: i64,
    /// Who.
    #[prost(string, tag = "5")]
    pub by: String,
    /// `replayed`, `edited` or `discarded`.
    #[prost(string, tag = "6")]
    pub outcome: String,
}

/// See [`Control::DownloadEnd`].
#[derive(Clone, PartialEq, Message)]
pub struct DownloadEnd {
    /// What the remote keeps and presents at its next sync; empty if the old one
    /// stays.
    #[prost(bytes = "vec", tag = "1")]
    pub checkpoint: Vec<u8>,
    /// Rows sent.
    #[prost(uint64, tag = "2")]
    pub upserts: u64,
    /// Keys and partitions sent for removal.
    #[prost(uint64, tag = "3")]
    pub removals: u64,
    /// CRC-32 (IEEE) of all rows' bytes of the download.
    #[prost(uint32, tag = "4")]
    pub checksum: u32,
}

/// See [`Control::SyncEnd`].
#[derive(Clone, PartialEq, Message)]
pub struct SyncEnd {}

/// See [`Control::Ack`].
#[derive(Clone, PartialEq, Message)]
pub struct Ack {}

/// See [`Control::Busy`].
#[derive(Clone, PartialEq, Message)]
pub struct Busy {
    /// When to come back, in milliseconds from now.
    #[prost(uint64, tag = "1")]
    pub retry_after_ms: u64,
}

/// See [`Control::Failure`].
#[derive(Clone, PartialEq, Message)]
pub struct FailureNotice {
    /// The number of a [`Code`].
    #[prost(uint32, tag = "1")]
    pub code: u32,
    /// What is wrong.
    #[prost(string, tag = "2")]
    pub message: String,
    /// What to do next.
    #[prost(string, tag = "3")]
    pub hint: String,
    /// When to come back, in milliseconds from now; 0 if that does not help.
    #[prost(uint64, tag = "4")]
    pub retry_after_ms: u64,
    /// What it is about: of [`Code::UnknownPublication`] the publication; of [`Code::ScriptFailed`]
    /// the publication whose upload took no effect, if it is about an upload.
    #[prost(string, tag = "5")]
    pub subject: String,
}

impl FailureNotice {
    /// A failure with a hint.
    pub fn new(code: Code, message: impl Into<String>, hint: impl Into<String>) -> FailureNotice {
        FailureNotice {
            code: code.number(),
            message: message.into(),
            hint: hint.into(),
            retry_after_ms: 0,
            subject: String::new(),
        }
    }
}

/// See [`Control::Waiting`].
#[derive(Clone, PartialEq, Message)]
pub struct SyncWaiting {
    /// Syncs before this one.
    #[prost(uint64, tag = "1")]
    pub ahead: u64,
    /// It is a handler's turn: the server has asked a program of its operator, and waits for the
    /// answer.
    #[prost(bool, tag = "2")]
    pub handler: bool,
}

/// See [`Control::Cancel`].
#[derive(Clone, PartialEq, Message)]
pub struct SyncCancel {}

/// See [`Control::CompareTable`]. Several messages for one table append.
#[derive(Clone, PartialEq, Message)]
pub struct CompareTable {
    /// The index of the subscription in the Hello.
    #[prost(uint32, tag = "1")]
    pub subscription: u32,
    /// The table: name, columns and key as the remote has them.
    #[prost(message, optional, boxed, tag = "2")]
    pub table: Option<Box<TableBegin>>,
    /// The ranges, ascending in range order; the first begins at the beginning.
    #[prost(message, repeated, tag = "3")]
    pub ranges: Vec<KeyRange>,
    /// The table was changed while nothing tracked it: what differs may be the user's. If the
    /// server does not compare the table, it sends the table whole.
    #[prost(bool, tag = "4")]
    pub untracked: bool,
}

/// What a remote has between two keys: after the bound of the range before, up to
/// and with its own.
#[derive(Clone, PartialEq, Message)]
pub struct KeyRange {
    /// The packed key of the range's last possible key; empty for the last range.
    #[prost(bytes = "vec", tag = "1")]
    pub until: Vec<u8>,
    /// The rows in it.
    #[prost(uint64, tag = "2")]
    pub rows: u64,
    /// The wrapping sum of their checksums.
    #[prost(fixed64, tag = "3")]
    pub checksum: u64,
}

/// The keys after one packed key, up to and with another.
#[derive(Clone, PartialEq, Message)]
pub struct KeyInterval {
    /// Where it begins, exclusive; empty for the beginning.
    #[prost(bytes = "vec", tag = "1")]
    pub after: Vec<u8>,
    /// Where it ends, inclusive; empty for the end.
    #[prost(bytes = "vec", tag = "2")]
    pub until: Vec<u8>,
}
