//! The server's own tables, for any database; an adapter adds those of its change logs.

use super::system_table::{SystemColumn, SystemIndex, SystemTable, SystemType};

/// All that every database has. `META` is the first that is dropped and the last that is made: where
/// it has its row, the others are there.
pub const ALL: &[&SystemTable] = &[
    &META,
    &SIGNING_KEY,
    &USER_ACCOUNT,
    &REMOTE,
    &REMOVED_REMOTE,
    &GIVEN_BACK,
    &SUBSCRIPTION,
    &PUBLICATION,
    &RULE,
    &SCOPE_PIECE,
    &PAST_SCHEMA,
    &CONFLICT,
    &REFUSED,
    &SETTLED_REFUSAL,
    &SYNC_HISTORY,
    &IDENTITY_BLOCK,
    &ROW_WRITER,
    &ONCE,
    &SPACE,
    &EVENT,
    &INCIDENT,
];

/// The journal of a deployment. Only databases have it whose DDL is not transactional.
pub static DEPLOYMENT_STEP: SystemTable = SystemTable {
    name: "deployment_step",
    comment: "The steps of the running deployment that are not done yet. As \
 long as there are any, no server serves.",
    columns: &[
        SystemColumn::new("number", SystemType::Integer),
        SystemColumn::new("description", SystemType::Text),
        SystemColumn::new("is_of_state", SystemType::Boolean)
            .comment("Whether it makes or drops the server's own tables."),
    ],
    primary_key: &["number"],
    indexes: &[],
};

pub(in crate::engine) static META: SystemTable = SystemTable {
    name: "meta",
    comment: "`centre` is by what remotes know the centre again when it was \
 restored.",
    columns: &[
        SystemColumn::new("format_version", SystemType::Integer),
        SystemColumn::new("centre", SystemType::Text),
        SystemColumn::new("deployment", SystemType::Integer)
            .default("0")
            .comment(
                "Counts deployments: servers notice by it that there was another \
 one.",
            ),
    ],
    primary_key: &[],
    indexes: &[],
};

pub(in crate::engine) static SIGNING_KEY: SystemTable = SystemTable {
    name: "signing_key",
    comment: "",
    columns: &[
        SystemColumn::new("id", SystemType::Integer),
        SystemColumn::new("secret", SystemType::Blob),
        SystemColumn::new("created_ms", SystemType::Integer),
    ],
    primary_key: &["id"],
    indexes: &[],
};

pub(in crate::engine) static USER_ACCOUNT: SystemTable = SystemTable {
    name: "user_account",
    comment: "",
    columns: &[
        SystemColumn::new("name", SystemType::ShortText),
        SystemColumn::new("password_hash", SystemType::Text),
        SystemColumn::new("disabled", SystemType::Boolean),
        SystemColumn::new("created_ms", SystemType::Integer),
        SystemColumn::new("proven_ms", SystemType::Integer)
            .default("0")
            .comment(
                "What was said of the user at the last sign-in without a password \
 of this database: when, by whom, and claims as JSON.",
            ),
        SystemColumn::new("proven_by", SystemType::Text).default("''"),
        SystemColumn::new("claims", SystemType::Text).default("''"),
    ],
    primary_key: &["name"],
    indexes: &[],
};

pub(in crate::engine) static REMOTE: SystemTable = SystemTable {
    name: "remote",
    comment: "",
    columns: &[
        SystemColumn::new("id", SystemType::ShortBlob),
        SystemColumn::new("user_name", SystemType::ShortText),
        SystemColumn::new("revoked", SystemType::Boolean),
        SystemColumn::new("credential_hash", SystemType::Blob),
        SystemColumn::new("previous_credential_hash", SystemType::Blob),
        SystemColumn::new("rotated_ms", SystemType::Integer),
        SystemColumn::new("created_ms", SystemType::Integer),
        SystemColumn::new("last_sync_ms", SystemType::Integer),
        SystemColumn::new("held_schemas", SystemType::Text)
            .default("''")
            .comment("Which schemas it has."),
        SystemColumn::new("unverified", SystemType::Integer)
            .default("0")
            .comment("How many times it has synced since it last compared everything."),
        SystemColumn::new("device_name", SystemType::Text)
            .default("''")
            .comment("What people call the device; empty if nobody has named it."),
    ],
    primary_key: &["id"],
    indexes: &[SystemIndex {
        name: "tidewater_remote_user",
        columns: &["user_name"],
    }],
};

pub(in crate::engine) static REMOVED_REMOTE: SystemTable = SystemTable {
    name: "removed_remote",
    comment: "Tells a remote that is unknown because it was removed from one \
 that is not known yet.",
    columns: &[SystemColumn::new("id", SystemType::ShortBlob)],
    primary_key: &["id"],
    indexes: &[],
};

pub(in crate::engine) static GIVEN_BACK: SystemTable = SystemTable {
    name: "given_back",
    comment: "Uploads that were forgotten, and have come back.",
    columns: &[
        SystemColumn::new("upload_id", SystemType::ShortBlob),
        SystemColumn::new("at_ms", SystemType::Integer),
    ],
    primary_key: &["upload_id"],
    indexes: &[],
};

pub(in crate::engine) static SUBSCRIPTION: SystemTable = SystemTable {
    name: "subscription",
    comment: "",
    columns: &[
        SystemColumn::new("remote_id", SystemType::ShortBlob),
        SystemColumn::new("publication", SystemType::ShortText),
        SystemColumn::new("sequence", SystemType::Integer).default("0"),
        SystemColumn::new("upload_id", SystemType::Blob).nullable(),
        SystemColumn::new("result", SystemType::Blob).nullable(),
        SystemColumn::new("uploaded_ms", SystemType::Integer)
            .default("0")
            .comment("When it was applied."),
        SystemColumn::new("scope_serial", SystemType::Integer)
            .default("0")
            .comment(
                "The last scope handed out, the one that the remote held when it \
 was, and the one whose lost partitions have taken their last \
 upload.",
            ),
        SystemColumn::new("previous_serial", SystemType::Integer).default("0"),
        SystemColumn::new("graced_serial", SystemType::Integer).default("0"),
        SystemColumn::new("given_back_serial", SystemType::Integer)
            .nullable()
            .comment(
                "Which scope was the newest when the remote gave back last: \
 checkpoints with older ones know nothing of what became of that.",
            ),
    ],
    primary_key: &["remote_id", "publication"],
    indexes: &[],
};

pub(in crate::engine) static PUBLICATION: SystemTable = SystemTable {
    name: "publication",
    comment: "",
    columns: &[
        SystemColumn::new("name", SystemType::ShortText),
        SystemColumn::new("definition", SystemType::Text),
        SystemColumn::new("encoded_schema", SystemType::Blob),
    ],
    primary_key: &["name"],
    indexes: &[],
};

pub(in crate::engine) static RULE: SystemTable = SystemTable {
    name: "rule",
    comment: "By which rows of a published table a remote holds; another number \
 when its partition columns are others.",
    columns: &[
        SystemColumn::new("id", SystemType::Serial),
        SystemColumn::new("publication", SystemType::Text),
        SystemColumn::new("table_name", SystemType::Text),
        SystemColumn::new("identity", SystemType::Text),
    ],
    primary_key: &["id"],
    indexes: &[],
};

pub(in crate::engine) static SCOPE_PIECE: SystemTable = SystemTable {
    name: "scope_piece",
    comment: "Partitions of which checkpoints have a digest; see \
 engine/scope/difference.rs.",
    columns: &[
        SystemColumn::new("digest", SystemType::ShortBlob),
        SystemColumn::new("at_ms", SystemType::Integer),
        SystemColumn::new("content", SystemType::Blob),
    ],
    primary_key: &["digest"],
    indexes: &[],
};

pub(in crate::engine) static PAST_SCHEMA: SystemTable = SystemTable {
    name: "past_schema",
    comment: "Schemas that are not deployed any more: some remotes still have \
 them.",
    columns: &[
        SystemColumn::new("hash", SystemType::ShortBlob),
        SystemColumn::new("publication", SystemType::Text),
        SystemColumn::new("encoded_schema", SystemType::Blob),
    ],
    primary_key: &["hash"],
    indexes: &[],
};

pub(in crate::engine) static CONFLICT: SystemTable = SystemTable {
    name: "conflict",
    comment: "",
    columns: &[
        SystemColumn::new("id", SystemType::Serial),
        SystemColumn::new("at_ms", SystemType::Integer),
        SystemColumn::new("remote_id", SystemType::Blob),
        SystemColumn::new("user_name", SystemType::Text),
        SystemColumn::new("publication", SystemType::Text),
        SystemColumn::new("table_name", SystemType::Text),
        SystemColumn::new("row_key", SystemType::Text),
        SystemColumn::new("operation", SystemType::Text),
        SystemColumn::new("pre_image", SystemType::Text).nullable(),
        SystemColumn::new("uploaded", SystemType::Text).nullable(),
        SystemColumn::new("winner", SystemType::Text).nullable(),
        SystemColumn::new("replaced", SystemType::Text).nullable(),
        SystemColumn::new("outcome", SystemType::Text),
        SystemColumn::new("settled_ms", SystemType::Integer).nullable(),
        SystemColumn::new("settled_by", SystemType::Text).nullable(),
        SystemColumn::new("settled_as", SystemType::Text).nullable(),
        SystemColumn::new("sync_notes", SystemType::Text)
            .default("''")
            .comment("What the scripts of the sync went by."),
    ],
    primary_key: &["id"],
    indexes: &[],
};

pub(in crate::engine) static REFUSED: SystemTable = SystemTable {
    name: "refused",
    comment: "",
    columns: &[
        SystemColumn::new("id", SystemType::Serial),
        SystemColumn::new("at_ms", SystemType::Integer),
        SystemColumn::new("remote_id", SystemType::ShortBlob),
        SystemColumn::new("user_name", SystemType::Text),
        SystemColumn::new("publication", SystemType::ShortText),
        SystemColumn::new("table_name", SystemType::Text),
        SystemColumn::new("row_key", SystemType::Text),
        SystemColumn::new("operation", SystemType::Text),
        SystemColumn::new("uploaded", SystemType::Text),
        SystemColumn::new("code", SystemType::Text),
        SystemColumn::new("reason", SystemType::Text),
        SystemColumn::new("sequence", SystemType::Integer).comment("The number of the upload."),
        SystemColumn::new("pre_image", SystemType::Text).nullable(),
        SystemColumn::new("parent_table", SystemType::Text)
            .nullable()
            .comment("The refused row that it refers to, if it was refused for that."),
        SystemColumn::new("parent_key", SystemType::Text).nullable(),
        SystemColumn::new("sync_notes", SystemType::Text).default("''"),
    ],
    primary_key: &["id"],
    indexes: &[SystemIndex {
        name: "tidewater_refused_remote",
        columns: &["remote_id", "publication"],
    }],
};

pub(in crate::engine) static SETTLED_REFUSAL: SystemTable = SystemTable {
    name: "settled_refusal",
    comment: "Refused rows that are settled, each once, by the number of its \
 last attempt.",
    columns: &[
        SystemColumn::new("id", SystemType::Integer),
        SystemColumn::new("at_ms", SystemType::Integer),
        SystemColumn::new("remote_id", SystemType::ShortBlob),
        SystemColumn::new("user_name", SystemType::Text),
        SystemColumn::new("publication", SystemType::ShortText),
        SystemColumn::new("table_name", SystemType::Text),
        SystemColumn::new("row_key", SystemType::Text),
        SystemColumn::new("operation", SystemType::Text),
        SystemColumn::new("uploaded", SystemType::Text),
        SystemColumn::new("code", SystemType::Text),
        SystemColumn::new("reason", SystemType::Text),
        SystemColumn::new("sequence", SystemType::Integer),
        SystemColumn::new("pre_image", SystemType::Text).nullable(),
        SystemColumn::new("parent_table", SystemType::Text).nullable(),
        SystemColumn::new("parent_key", SystemType::Text).nullable(),
        SystemColumn::new("attempts", SystemType::Integer),
        SystemColumn::new("settled_ms", SystemType::Integer),
        SystemColumn::new("settled_by", SystemType::Text),
        SystemColumn::new("settled_as", SystemType::Text),
        SystemColumn::new("settled_row", SystemType::Text).nullable(),
        SystemColumn::new("settled_reason", SystemType::Text).nullable(),
    ],
    primary_key: &["id"],
    indexes: &[SystemIndex {
        name: "tidewater_settled_refusal_remote",
        columns: &["remote_id", "publication", "id"],
    }],
};

pub(in crate::engine) static SYNC_HISTORY: SystemTable = SystemTable {
    name: "sync_history",
    comment: "",
    columns: &[
        SystemColumn::new("id", SystemType::Serial),
        SystemColumn::new("remote_id", SystemType::Blob).nullable(),
        SystemColumn::new("user_name", SystemType::Text),
        SystemColumn::new("publications", SystemType::Text),
        SystemColumn::new("started_ms", SystemType::Integer),
        SystemColumn::new("duration_ms", SystemType::Integer),
        SystemColumn::new("inserts", SystemType::Integer),
        SystemColumn::new("updates", SystemType::Integer),
        SystemColumn::new("deletes", SystemType::Integer),
        SystemColumn::new("upserts", SystemType::Integer),
        SystemColumn::new("removals", SystemType::Integer),
        SystemColumn::new("conflicts", SystemType::Integer),
        SystemColumn::new("refused", SystemType::Integer),
        SystemColumn::new("bytes_received", SystemType::Integer),
        SystemColumn::new("bytes_sent", SystemType::Integer),
        SystemColumn::new("error", SystemType::Text),
    ],
    primary_key: &["id"],
    indexes: &[SystemIndex {
        name: "tidewater_sync_history_started",
        columns: &["started_ms"],
    }],
};

pub(in crate::engine) static IDENTITY_BLOCK: SystemTable = SystemTable {
    name: "identity_block",
    comment: "Which remote has which numbers for the rows that it inserts.",
    columns: &[
        SystemColumn::new("id", SystemType::Serial),
        SystemColumn::new("table_name", SystemType::ShortText),
        SystemColumn::new("column_name", SystemType::Text),
        SystemColumn::new("remote_id", SystemType::Blob),
        SystemColumn::new("user_name", SystemType::Text),
        SystemColumn::new("first", SystemType::Integer),
        SystemColumn::new("last", SystemType::Integer),
        SystemColumn::new("at_ms", SystemType::Integer),
    ],
    primary_key: &["id"],
    indexes: &[SystemIndex {
        name: "tidewater_identity_block_table",
        columns: &["table_name", "last"],
    }],
};

pub(in crate::engine) static ROW_WRITER: SystemTable = SystemTable {
    name: "row_writer",
    comment: "Who has written a row last by an upload, where conflicts go by the \
 rank of users; as long as the row is what that upload made of it, \
 which the image tells.",
    columns: &[
        SystemColumn::new("publication", SystemType::ShortText),
        SystemColumn::new("table_name", SystemType::ShortText),
        SystemColumn::new("row_key", SystemType::ShortBlob),
        SystemColumn::new("user_name", SystemType::Text),
        SystemColumn::new("user_rank", SystemType::Integer)
            .nullable()
            .comment("NULL: none."),
        SystemColumn::new("image", SystemType::Blob),
        SystemColumn::new("at_ms", SystemType::Integer),
    ],
    primary_key: &["publication", "table_name", "row_key"],
    indexes: &[SystemIndex {
        name: "tidewater_row_writer_at",
        columns: &["at_ms"],
    }],
};

pub(in crate::engine) static ONCE: SystemTable = SystemTable {
    name: "once",
    comment: "What takes effect once, by a key that its user chose; the outcome \
 is NULL until it is known.",
    columns: &[
        SystemColumn::new("user_name", SystemType::ShortText),
        SystemColumn::new("call_key", SystemType::ShortBlob),
        SystemColumn::new("kind", SystemType::Integer),
        SystemColumn::new("procedure_name", SystemType::Text),
        SystemColumn::new("at_ms", SystemType::Integer),
        SystemColumn::new("outcome", SystemType::Blob).nullable(),
    ],
    primary_key: &["user_name", "call_key"],
    indexes: &[SystemIndex {
        name: "tidewater_once_at",
        columns: &["at_ms"],
    }],
};

pub(in crate::engine) static SPACE: SystemTable = SystemTable {
    name: "space",
    comment: "The number of the last event of each space.",
    columns: &[
        SystemColumn::new("name", SystemType::ShortText),
        SystemColumn::new("last", SystemType::Integer),
    ],
    primary_key: &["name"],
    indexes: &[],
};

pub(in crate::engine) static EVENT: SystemTable = SystemTable {
    name: "event",
    comment: "",
    columns: &[
        SystemColumn::new("space", SystemType::ShortText),
        SystemColumn::new("id", SystemType::Integer),
        SystemColumn::new("check_bytes", SystemType::Blob)
            .comment("Random, to tell the event from another one of this number."),
        SystemColumn::new("subject", SystemType::ShortText),
        SystemColumn::new("payload", SystemType::Blob),
        SystemColumn::new("user_name", SystemType::Text),
        SystemColumn::new("at_ms", SystemType::Integer),
    ],
    primary_key: &["space", "id"],
    indexes: &[SystemIndex {
        name: "tidewater_event_subject",
        columns: &["space", "subject", "id"],
    }],
};

pub(in crate::engine) static INCIDENT: SystemTable = SystemTable {
    name: "incident",
    comment: "What remotes and the centre were found at odds about.",
    columns: &[
        SystemColumn::new("id", SystemType::Serial),
        SystemColumn::new("at_ms", SystemType::Integer),
        SystemColumn::new("kind", SystemType::Text),
        SystemColumn::new("remote_id", SystemType::Blob).nullable(),
        SystemColumn::new("user_name", SystemType::Text),
        SystemColumn::new("publication", SystemType::Text),
        SystemColumn::new("detail", SystemType::Text),
    ],
    primary_key: &["id"],
    indexes: &[],
};
