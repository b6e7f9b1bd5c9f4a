//! `[[publication]]`, its tables, and what is said of each.

use super::{KeyGrammar, SectionGrammar, TakesEffect, ValueKind};

/// A remote has so many numbers at most: the centre writes them down one after the other.
const MOST_BLOCK: i64 = 1_000_000;

pub(super) static PUBLICATION: SectionGrammar = SectionGrammar {
    path: "publication",
    is_repeated: true,
    takes_effect: TakesEffect::Deploy,
    keys: &[
        KeyGrammar::new(
            "name",
            ValueKind::Text,
            "\"main\"",
            "what remotes subscribe to it by: at most 512 bytes, without commas",
        )
        .required(),
        KeyGrammar::new(
            "act_as",
            ValueKind::Several,
            "\"clerk\"",
            "the role of PostgreSQL under which its devices read and write",
        )
        .details(
            "A name, or a section with the `query` that yields it for the user: \
             `{ query = \"SELECT role FROM staff WHERE login = {s.username}\" }`, see \
             [row-security.md](row-security.md)",
        ),
        KeyGrammar::new(
            "upload",
            ValueKind::Choice(&["net", "transactional"]),
            "\"transactional\"",
            "what is uploaded: net changes, or each transaction by itself",
        )
        .default("\"net\"")
        .details("With `\"transactional\"`, each transaction of the application's: see [refused-rows.md](refused-rows.md)"),
        KeyGrammar::new(
            "on_reject",
            ValueKind::Choice(&["set_aside", "abort"]),
            "\"abort\"",
            "what becomes of an upload of which a row is refused",
        )
        .default_told("`\"set_aside\"`; `\"abort\"` with `upload = \"transactional\"`")
        .details(
            "`\"set_aside\"`: the refused rows stay on the remote, and the others take effect; \
             `\"abort\"`: it takes no effect, see [refused-rows.md](refused-rows.md)",
        ),
        KeyGrammar::new(
            "replay",
            ValueKind::Choice(&["auto", "manual"]),
            "\"manual\"",
            "whether devices try refused rows again by themselves",
        )
        .default("\"auto\"")
        .details("`\"manual\"`: only when somebody says so, see [refused-rows.md](refused-rows.md)"),
        KeyGrammar::new(
            "upload_order",
            ValueKind::Choice(&["rows_first", "deletes_first"]),
            "\"deletes_first\"",
            "what upload scripts do first",
        )
        .default("\"rows_first\"")
        .details("See [scripts.md](scripts.md#events)"),
        KeyGrammar::new(
            "script_versions",
            ValueKind::Texts,
            "[\"v2\"]",
            "the versions of scripts that it serves",
        )
        .default_told("all that are no way round another")
        .details("`default` is for devices that name none, see [scripts.md](scripts.md#versions)"),
        KeyGrammar::new(
            "handler",
            ValueKind::TextOrSection,
            "\"https://orders.example.com/tidewater\"",
            "the program that is asked about its syncs",
        )
        .default_told("nobody")
        .details(
            "An address, `\"call:PROCEDURE\"`, the name of a `[[handler]]` or a section like one, \
             see [handlers.md](handlers.md)",
        )
        .takes_effect(TakesEffect::Reload),
    ],
};

pub(super) static PARAMETER: SectionGrammar = SectionGrammar {
    path: "publication.parameter",
    is_repeated: true,
    takes_effect: TakesEffect::Deploy,
    keys: &[
        KeyGrammar::new(
            "name",
            ValueKind::Text,
            "\"month\"",
            "what queries name as {u.NAME}: letters, digits and underscores",
        )
        .required(),
        KeyGrammar::new(
            "allowed",
            ValueKind::Text,
            "\"SELECT store_id FROM manager WHERE login = {s.username}\"",
            "a query for the values that a user may set",
        )
        .default_told("any value"),
    ],
};

pub(super) static ACT_AS: SectionGrammar = SectionGrammar {
    path: "publication.act_as",
    is_repeated: false,
    takes_effect: TakesEffect::Deploy,
    keys: &[KeyGrammar::new(
        "query",
        ValueKind::Text,
        "\"SELECT role FROM staff WHERE login = {s.username}\"",
        "a query that yields the role of a user",
    )
    .required()],
};

pub(super) static TABLE: SectionGrammar = SectionGrammar {
    path: "publication.table",
    is_repeated: true,
    takes_effect: TakesEffect::Deploy,
    keys: &[
        KeyGrammar::new(
            "name",
            ValueKind::Text,
            "\"customer\"",
            "the table in the consolidated database, with its schema where that is needed",
        )
        .required()
        .details(
            "Remotes have it without the schema: `sales.visit` is `visit` there, and so a \
             publication cannot have two tables of one name",
        ),
        KeyGrammar::new(
            "partition",
            ValueKind::Several,
            "\"everyone\"",
            "which rows a remote holds",
        )
        .required()
        .details("`\"everyone\"`, a rule, or a list of rules: see below"),
        KeyGrammar::new(
            "direction",
            ValueKind::Choice(&["both", "download", "upload"]),
            "\"download\"",
            "both; download: changed in the centre only; or upload",
        )
        .default("\"both\"")
        .details("`\"upload\"`: only from remotes, see below"),
        KeyGrammar::new(
            "columns",
            ValueKind::Texts,
            "[\"id\", \"name\"]",
            "the published columns; the primary key must be among them",
        )
        .default_told("all"),
        KeyGrammar::new(
            "tracking",
            ValueKind::Choice(&["log", "row", "off"]),
            "\"row\"",
            "how changes in the centre are noticed: log; row also sees logical replication; or off",
        )
        .default("\"log\""),
        KeyGrammar::new(
            "identity",
            ValueKind::Section,
            "{ column = \"invoice_id\", block = 1000, refill_below = 200 }",
            "numbers for rows that remotes insert",
        )
        .details("See [keys.md](keys.md)"),
        KeyGrammar::new(
            "filled_by_centre",
            ValueKind::Texts,
            "[\"fulltext\"]",
            "columns that remotes may leave NULL because the centre fills them",
        )
        .default("[]")
        .details("See [keys.md](keys.md)"),
        KeyGrammar::new(
            "on_unseen_children",
            ValueKind::Choice(&["conflict", "cascade"]),
            "\"cascade\"",
            "what a delete from a device means to children that its upload does not delete, too",
        )
        .default("\"conflict\"")
        .details("Of the parent's table; see below"),
        KeyGrammar::new(
            "write",
            ValueKind::Section,
            "{ columns = [\"technician\"], values = \"SELECT {s.username}\" }",
            "which of these rows a remote may write",
        )
        .default_told("what is held"),
        KeyGrammar::new(
            "read_only",
            ValueKind::Texts,
            "[\"approved_at\"]",
            "the columns that remotes do not write",
        )
        .default("[]"),
        KeyGrammar::new(
            "hand_over",
            ValueKind::Flag,
            "true",
            "whether a row may be changed so that its remote loses it",
        )
        .default("false")
        .details("It does not hold it, or may not write it, any more"),
        KeyGrammar::new(
            "conflict",
            ValueKind::Section,
            "{ detect = \"column\", resolve = \"later(changed_at)\" }",
            "what becomes of rows that two sides have changed",
        )
        .default_told("the first to arrive wins")
        .details("See [conflicts.md](conflicts.md)"),
        KeyGrammar::new(
            "handler",
            ValueKind::TextOrSection,
            "\"https://orders.example.com/tidewater\"",
            "the program that is asked about its rows",
        )
        .default_told("nobody")
        .details(
            "An address, `\"call:PROCEDURE\"`, the name of a `[[handler]]` or a section like one, \
             see [handlers.md](handlers.md)",
        )
        .takes_effect(TakesEffect::Reload),
        KeyGrammar::new(
            "upload",
            ValueKind::Choice(&["centre", "handler"]),
            "\"handler\"",
            "who keeps uploaded rows: the centre, or the handler alone",
        )
        .default("\"centre\""),
        KeyGrammar::new(
            "download",
            ValueKind::Choice(&["centre", "handler"]),
            "\"handler\"",
            "who tells what is new: the centre, or the handler",
        )
        .default("\"centre\""),
    ],
};

pub(super) static PARTITION: SectionGrammar = SectionGrammar {
    path: "publication.table.partition",
    is_repeated: false,
    takes_effect: TakesEffect::Deploy,
    keys: &[
        KeyGrammar::new(
            "columns",
            ValueKind::Texts,
            "[\"region\"]",
            "the partition columns; with `values`",
        ),
        KeyGrammar::new(
            "values",
            ValueKind::Text,
            "\"SELECT region FROM member WHERE login = {s.username}\"",
            "a query for the values that the user of a remote holds, a result column for each column",
        ),
        KeyGrammar::new(
            "follows",
            ValueKind::Text,
            "\"orders\"",
            "the table of the publication to whose rows these rows refer",
        ),
        KeyGrammar::new(
            "by",
            ValueKind::Texts,
            "[\"order_id\"]",
            "the columns of the foreign key to it, where there are several",
        ),
        KeyGrammar::new(
            "window",
            ValueKind::Section,
            "{ column = \"order_date\", last = \"90 days\" }",
            "only the newest rows",
        )
        .default_told("all rows"),
    ],
};

pub(super) static WINDOW: SectionGrammar = SectionGrammar {
    path: "publication.table.partition.window",
    is_repeated: false,
    takes_effect: TakesEffect::Deploy,
    keys: &[
        KeyGrammar::new(
            "column",
            ValueKind::Text,
            "\"order_date\"",
            "the column that tells how new a row is",
        )
        .required(),
        KeyGrammar::new(
            "last",
            ValueKind::Window,
            "\"90 days\"",
            "how far back it goes: hours, days, weeks, months or years, or a number",
        )
        .required(),
    ],
};

pub(super) static IDENTITY: SectionGrammar = SectionGrammar {
    path: "publication.table.identity",
    is_repeated: false,
    takes_effect: TakesEffect::Deploy,
    keys: &[
        KeyGrammar::new(
            "column",
            ValueKind::Text,
            "\"invoice_id\"",
            "the column that remotes fill",
        )
        .required(),
        KeyGrammar::new(
            "block",
            ValueKind::Number(1, MOST_BLOCK),
            "500",
            "how many numbers a remote gets at once",
        )
        .default("1000"),
        KeyGrammar::new(
            "refill_below",
            ValueKind::Number(1, MOST_BLOCK),
            "200",
            "below how many numbers a remote gets the next block",
        )
        .default_told("a fifth of `block`"),
    ],
};

pub(super) static WRITE: SectionGrammar = SectionGrammar {
    path: "publication.table.write",
    is_repeated: false,
    takes_effect: TakesEffect::Deploy,
    keys: &[
        KeyGrammar::new(
            "columns",
            ValueKind::Texts,
            "[\"technician\"]",
            "the columns that tell who may write a row",
        )
        .required(),
        KeyGrammar::new(
            "values",
            ValueKind::Text,
            "\"SELECT {s.username}\"",
            "a query for their values, as in partition",
        )
        .required(),
    ],
};

pub(super) static CONFLICT: SectionGrammar = SectionGrammar {
    path: "publication.table.conflict",
    is_repeated: false,
    takes_effect: TakesEffect::Deploy,
    keys: &[
        KeyGrammar::new(
            "detect",
            ValueKind::Choice(&["row", "column"]),
            "\"column\"",
            "what a conflict is: both have changed the row, or the same column of it",
        )
        .default("\"row\"")
        .details("With `\"column\"`, the others merge by themselves"),
        KeyGrammar::new(
            "resolve",
            ValueKind::OneOrMoreTexts,
            "\"later(changed_at)\"",
            "one resolver, or a list",
        )
        .default_told("`\"server_wins\"`")
        .details(
            "`\"server_wins\"`, `\"client_wins\"`, `\"client_wins(users)\"`, `\"later(column)\"`, \
             `\"earlier(column)\"`, `\"maximum(column)\"`, `\"minimum(column)\"`, \
             `\"priority(column)\"`, `\"rank\"`, `\"park\"`, and `\"additive(columns)\"`, \
             `\"average(columns)\"`, `\"merge_text(columns)\"`; or `\"handler\"`, which the table's \
             handler decides",
        ),
        KeyGrammar::new(
            "rank",
            ValueKind::Text,
            "\"SELECT level FROM staff WHERE login = {s.username}\"",
            "a query for the rank of a user, a whole number",
        )
        .details(
            "With `resolve = \"rank\"`; or `\"{s.claims.NAME}\"`, see [ranks of \
             users](conflicts.md#ranks-of-users)",
        ),
        KeyGrammar::new(
            "centre_rank",
            ValueKind::Number(i64::MIN, i64::MAX),
            "5",
            "the rank of what no upload has written",
        )
        .default_told("above all users"),
    ],
};
