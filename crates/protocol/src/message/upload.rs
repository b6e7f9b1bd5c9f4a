//! What begins and ends an upload.

use prost::Message;

/// How many refused rows an upload gives up.
pub const MAX_GIVEN_UP: usize = 1_000;

/// How many refusals an upload tells to a centre that has forgotten them.
pub const MAX_FORGOTTEN_REFUSALS: usize = 1_000;

/// So many numbers of uploads are told in [`UploadBegin::retried`], and no more.
pub const MAX_RETRIED: usize = 1_000;

/// What the server makes of a remote's sequence and upload id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum UploadState {
    /// They follow; a pending upload is welcome.
    InSequence = 0,
    /// The pending upload was applied already; its result follows without it.
    AlreadyApplied = 1,
    /// They do not follow: the remote was restored or copied. It has been given a
    /// new remote id, starts with sequence 0, keeps what is pending, and signs in
    /// on another connection. Unless it has acknowledged the upload that the answer names,
    /// and later ones: then it is the centre that was restored, as below.
    NewIdentity = 2,
    /// The centre was restored: it has forgotten uploads that it acknowledged, under
    /// the remote's id or under a former one. What it has is in the answer; the remote
    /// gives back what it kept of the others, and opens another session.
    CentreRestored = 3,
}

/// See [`Control::UploadBegin`](super::Control::UploadBegin).
#[derive(Clone, PartialEq, Message)]
pub struct UploadBegin {
    /// The index of the subscription in the Hello.
    #[prost(uint32, tag = "1")]
    pub subscription: u32,
    /// The number of the upload: one more than the last acknowledged.
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
    /// Its random id, 16 bytes.
    #[prost(bytes = "vec", tag = "3")]
    pub upload_id: Vec<u8>,
    /// An upper bound of its rows.
    #[prost(uint64, tag = "4")]
    pub rows: u64,
    /// An estimate of its size in packed bytes, which the server reserves.
    #[prost(uint64, tag = "5")]
    pub bytes: u64,
    /// It was acknowledged before, and the centre has forgotten it. If another copy of
    /// the remote's file has given it back already, nothing of it is done.
    #[prost(bool, tag = "6")]
    pub given_back: bool,
    /// Refused rows that the user has given up; no more than [`MAX_GIVEN_UP`].
    #[prost(message, repeated, tag = "7")]
    pub given_up: Vec<GivenUp>,
    /// Its rows go on behind [`WelcomeSubscription::received_bytes`](super::WelcomeSubscription::received_bytes), which is this. Counts and
    /// checksum at its end are of all. 0: they begin.
    #[prost(uint64, tag = "8")]
    pub behind_bytes: u64,
    /// The remote's file is a copy or was restored, and these changes were made before it was told
    /// so: the original may have sent them, too.
    #[prost(bool, tag = "9")]
    pub copied: bool,
    /// It has changes that were refused before, or were made from such before the remote heard that an
    /// operator has settled them: the numbers of the uploads with which they were refused last, each
    /// once; no more than [`MAX_RETRIED`]. An only 0: of whatever uploads.
    #[prost(uint64, repeated, tag = "10")]
    pub retried: Vec<u64>,
    /// Refused inserts that the centre may have forgotten, and of which the remote has the values only:
    /// what refers to them is refused with them. No more than [`MAX_FORGOTTEN_REFUSALS`].
    #[prost(message, repeated, tag = "11")]
    pub forgotten_refusals: Vec<ForgottenRefusal>,
}

/// A refused row that its user has given up.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GivenUp {
    /// The table's name on remotes.
    #[prost(string, tag = "1")]
    pub table: String,
    /// The key, as a JSON array.
    #[prost(string, tag = "2")]
    pub key: String,
    /// The number of the upload with which it was refused last.
    #[prost(uint64, tag = "3")]
    pub sequence: u64,
}

/// An insert that was refused, and that the remote cannot send again.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ForgottenRefusal {
    /// The table's name on remotes.
    #[prost(string, tag = "1")]
    pub table: String,
    /// The key, as a JSON array.
    #[prost(string, tag = "2")]
    pub key: String,
    /// The values by which rows of other tables refer to it, as a JSON object.
    #[prost(string, tag = "3")]
    pub values: String,
}

/// See [`Control::UploadEnd`](super::Control::UploadEnd).
#[derive(Clone, PartialEq, Message)]
pub struct UploadEnd {
    /// The number of inserts sent.
    #[prost(uint64, tag = "1")]
    pub inserts: u64,
    /// The number of updates sent.
    #[prost(uint64, tag = "2")]
    pub updates: u64,
    /// The number of deletes sent.
    #[prost(uint64, tag = "3")]
    pub deletes: u64,
    /// CRC-32 (IEEE) of all rows' bytes of the upload.
    #[prost(uint32, tag = "4")]
    pub checksum: u32,
    /// The remote stopped sending because the server has the upload already, or
    /// knows it under another identity: forget what came.
    #[prost(bool, tag = "5")]
    pub abandoned: bool,
}
