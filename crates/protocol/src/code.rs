//! Stable numeric codes of everything that can go wrong, in one table.
//!
//! Codes are only ever added. Their names appear in `--json` output and logs,
//! their numbers on the wire and in every binding.

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// What went wrong, by number and by name. Hundreds tell whose fault it is:
        /// 1 the peer misbehaved, 2 the two cannot work together, 3 not allowed in,
        /// 4 try again later, 5 the server or its database failed, 6 the remote
        /// database or its user, 7 the reason why a row was refused, 8 the
        /// outcome of a call or an event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u16)]
        pub enum Code {
            $($(#[$doc])* $variant = $number,)*
        }

        impl Code {
            /// Every code there is, in ascending order.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// The code of this number, if this version knows it.
            pub fn from_number(number: u32) -> Option<Code> {
                match number {
                    $($number => Some(Code::$variant),)*
                    _ => None,
                }
            }

            /// The stable name, as it appears in JSON and logs.
            pub fn name(self) -> &'static str {
                match self {
                    $(Code::$variant => $name,)*
                }
            }
        }
    };
}

codes! {
    /// A frame's header is impossible.
    MalformedFrame = 100, "malformed_frame";
    /// A message or row cannot be decoded.
    MalformedMessage = 101, "malformed_message";
    /// A message came where the protocol does not allow it.
    UnexpectedMessage = 102, "unexpected_message";
    /// Something is larger than the agreed limit.
    LimitExceeded = 103, "limit_exceeded";
    /// A checksum or count does not agree with what arrived.
    ChecksumMismatch = 104, "checksum_mismatch";
    /// The peer was silent for too long.
    Timeout = 105, "timeout";
    /// The peer closed the connection in the middle.
    ConnectionLost = 106, "connection_lost";

    /// The peer speaks another protocol version.
    ProtocolVersion = 200, "protocol_version";
    /// The remote's schema and the publication's cannot be reconciled.
    SchemaMismatch = 201, "schema_mismatch";
    /// The server has no publication of this name.
    UnknownPublication = 202, "unknown_publication";
    /// The remote's rows are those of another centre.
    AnotherCentre = 203, "another_centre";
    /// The branch's headquarters is the branch itself, or is below it.
    OwnDescendant = 204, "own_descendant";
    /// What a new remote begins from is no image of this centre, or is damaged.
    ImageInvalid = 205, "image_invalid";

    /// User and password do not fit.
    WrongPassword = 300, "wrong_password";
    /// The session token has run out; the credential still works.
    TokenExpired = 301, "token_expired";
    /// The remote's credential is not, or no longer, valid.
    CredentialInvalid = 302, "credential_invalid";
    /// The user is disabled.
    UserDisabled = 303, "user_disabled";
    /// This remote was revoked.
    RemoteRevoked = 304, "remote_revoked";
    /// Too many failed attempts; wait.
    TooManyAttempts = 305, "too_many_attempts";
    /// The server's certificate is not trusted.
    CertificateInvalid = 306, "certificate_invalid";
    /// The user may not give a parameter this value.
    ParameterNotAllowed = 307, "parameter_not_allowed";
    /// The centre has no role under which the user's remotes could act.
    NoRole = 308, "no_role";
    /// A token or a certificate, in place of a password, proves nothing here.
    ProofRejected = 309, "proof_rejected";
    /// Whoever is proven is no user of the server.
    UnknownUser = 310, "unknown_user";
    /// The user was proven too long ago: the credential works again once somebody signs in.
    SignInAgain = 311, "sign_in_again";
    /// A handler of the server refuses the sync.
    SyncRefused = 312, "sync_refused";

    /// The server is busy; try again after the given time.
    Busy = 400, "busy";
    /// The server is shutting down.
    ShuttingDown = 401, "shutting_down";
    /// The server cannot reach its consolidated database.
    ConsolidatedUnavailable = 402, "consolidated_unavailable";
    /// The server cannot be reached.
    Unreachable = 403, "unreachable";
    /// The user cancelled.
    Cancelled = 404, "cancelled";
    /// Another sync of this remote is under way.
    SyncInProgress = 405, "sync_in_progress";
    /// What is published was changed while the sync ran.
    Redeployed = 406, "redeployed";
    /// Whoever knows the users, an identity provider or a directory, does not answer the server.
    IdentityUnavailable = 407, "identity_unavailable";
    /// A handler of the server, a program that it asks in each sync, does not answer the server.
    HandlerAway = 408, "handler_away";

    /// The consolidated database refused an operation of the server.
    ConsolidatedRefused = 500, "consolidated_refused";
    /// A defect of Tidewater.
    Internal = 501, "internal";
    /// The server's configuration and what is deployed disagree.
    NotDeployed = 502, "not_deployed";
    /// A script of the server's operator has failed.
    ScriptFailed = 503, "script_failed";
    /// A handler of the server answers what it must not.
    HandlerFailed = 504, "handler_failed";

    /// The file is not a remote database.
    NotARemote = 600, "not_a_remote";
    /// The application holds a lock on the remote database.
    RemoteLocked = 601, "remote_locked";
    /// The remote file was written by a newer version.
    RemoteTooNew = 602, "remote_too_new";
    /// SQLite failed on the remote.
    RemoteDatabase = 603, "remote_database";
    /// Wrong usage or configuration.
    Usage = 604, "usage";
    /// The remote has tables that are in the way of the publication's.
    TableInTheWay = 605, "table_in_the_way";

    /// A value that must not be NULL is NULL.
    RowNotNull = 700, "not_null";
    /// A key is in use.
    RowKeyInUse = 701, "key_in_use";
    /// A referenced row is missing, or the row is still referenced.
    RowForeignKey = 702, "foreign_key";
    /// A CHECK constraint is violated.
    RowCheck = 703, "check";
    /// The row is not in the user's partitions.
    RowOutOfScope = 704, "out_of_scope";
    /// A value cannot be stored in its column.
    RowBadValue = 705, "bad_value";
    /// Another rule of the consolidated database refused it.
    RowConstraint = 706, "constraint";
    /// The table takes no uploads, or the column.
    RowDownloadOnly = 707, "download_only";
    /// The publication does not have the table, its key or a column any more as the
    /// remote knew it when the row was changed.
    RowNotPublished = 708, "not_published";
    /// The row may have been changed on the remote while nothing tracked it, or by an upload that
    /// a restored centre has forgotten and that was not kept, and is another one in the centre.
    RowUntracked = 709, "untracked";
    /// A restored centre may have forgotten that the remote deleted the row, which is back.
    RowForgotten = 710, "forgotten";
    /// Another row of the same upload was refused, and nothing of the upload takes effect.
    RowAborted = 711, "aborted";
    /// A handler of the server refused it.
    RowHandler = 712, "handler_refused";

    /// There is no procedure of this name.
    NoSuchProcedure = 800, "no_such_procedure";
    /// The user may not call it, publish there, or subscribe to that.
    NotAllowed = 801, "not_allowed";
    /// An argument is missing, unknown, or not what the procedure declares.
    BadArgument = 802, "bad_argument";
    /// The time that the caller gave, or the procedure's own, is over.
    DeadlineExceeded = 803, "deadline_exceeded";
    /// Nobody who provides the procedure is connected.
    NoProvider = 804, "no_provider";
    /// Whoever had the call has gone, and may have done it or not.
    ProviderGone = 805, "provider_gone";
    /// The procedure itself refused.
    ProcedureFailed = 806, "procedure_failed";
    /// The answer is larger than the limit.
    AnswerTooLarge = 807, "answer_too_large";
    /// The name belongs to somebody else.
    NameTaken = 808, "name_taken";
    /// There is no space of this name.
    NoSuchSpace = 809, "no_such_space";
    /// A subject or a pattern that cannot be one.
    BadSubject = 810, "bad_subject";
    /// A call that is to be done once only was begun before, and nobody knows how it ended.
    OutcomeUnknown = 811, "outcome_unknown";
}

impl Code {
    /// The number, as it travels on the wire.
    pub fn number(self) -> u32 {
        u32::from(self as u16)
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            Code::TooManyAttempts
                | Code::Timeout
                | Code::ConnectionLost
                | Code::Busy
                | Code::ShuttingDown
                | Code::ConsolidatedUnavailable
                | Code::Unreachable
                | Code::SyncInProgress
                | Code::Redeployed
                | Code::IdentityUnavailable
                | Code::HandlerAway
                | Code::RemoteLocked
                | Code::NoProvider
                | Code::DeadlineExceeded
        )
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique_and_go_both_ways() {
        let mut names = std::collections::HashSet::new();
        for &code in Code::ALL {
            assert_eq!(Code::from_number(code.number()), Some(code));
            assert!(names.insert(code.name()), "{code} stands twice");
        }
        assert_eq!(Code::from_number(1), None);
    }
}
