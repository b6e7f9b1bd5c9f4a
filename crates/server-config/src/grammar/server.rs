//! The top level, `[server]` and the sections below it, `[retention]` and `[log]`.

use super::{KeyGrammar, SectionGrammar, TakesEffect, ValueKind};

/// The most that a count can be.
const MOST: i64 = 1_000_000;

/// So many workers no database gives a connection each.
const MOST_WORKERS: i64 = 1_000;

const WORKERS_HINT: &str = "write a number from 1 to 1000: each worker has a connection to the \
                            database";

/// A piece of an answer has so many bytes.
const LEAST_MESSAGE_BYTES: u64 = 64 << 10;

/// A call or an event goes in one frame, and both sides hold it in memory.
const MOST_MESSAGE_BYTES: u64 = tidewater_protocol::frame::MAX_MESSAGE_BYTES as u64;

/// The levels of the packing that has the most of them.
const MOST_LEVEL: i64 = 19;

pub(super) static ROOT: SectionGrammar = SectionGrammar {
    path: "",
    is_repeated: false,
    takes_effect: TakesEffect::Deploy,
    keys: &[KeyGrammar::new(
        "scripts",
        ValueKind::Path,
        "\"scripts\"",
        "the folder of SQL that takes the place of what is generated",
    )
    .default_told("`\"scripts\"`, if there is such a folder")
    .details(
        "Its files are `FOLDER/VERSION/TABLE/EVENT.sql`: see [scripts.md](scripts.md). The key \
         stands before the first section",
    )],
};

pub(super) static SERVER: SectionGrammar = SectionGrammar {
    path: "server",
    is_repeated: false,
    takes_effect: TakesEffect::Start,
    keys: &[
        KeyGrammar::new(
            "listen",
            ValueKind::Texts,
            "[\"tcp://127.0.0.1:7439\"]",
            "addresses at which remotes connect; off loopback use tls://, and [server.tls] below",
        )
        .default("[\"tcp://127.0.0.1:7439\"]")
        .details(
            "Each is `tls://host:port`, `wss://`, `https://`, `tcp://`, `ws://` or `http://`: what \
             carries connections there ([network.md](network.md)). Several with the same host and \
             port share one listener, also with `http` below. The port may be left out (7439; 443 \
             of `wss` and `https`, 80 of `ws` and `http`); port 0 takes a free one",
        ),
        KeyGrammar::new(
            "admin",
            ValueKind::Text,
            "\"http://127.0.0.1:7440\"",
            "the address of the admin endpoint: health and figures",
        )
        .details(
            "`http://host:port`; the port may be left out (7440), see \
             [operations](operations.md#seen-from-outside)",
        ),
        KeyGrammar::new(
            "http",
            ValueKind::Text,
            "\"http://127.0.0.1:7441\"",
            "the address of the web protocol",
        )
        .details(
            "`http://host:port` or `https://host:port` (with the certificate of `[server.tls]`); \
             the port may be left out (7441), see [calls](calls.md#over-http)",
        ),
        KeyGrammar::new(
            "consolidated",
            ValueKind::Text,
            "\"postgres://user@host:5432/database\"",
            "the consolidated database: postgres://user:password@host:5432/database or sqlite:path",
        )
        .required(),
        KeyGrammar::new(
            "insecure",
            ValueKind::Flag,
            "true",
            "allow addresses that encrypt nothing off loopback",
        )
        .default("false")
        .details(
            "`tcp://`, `ws://` and `http://` encrypt nothing, and `admin` asks nobody who he is",
        )
        .takes_effect(TakesEffect::Reload),
        KeyGrammar::new(
            "compression",
            ValueKind::Text,
            "\"auto\"",
            "how what the server sends is packed, for remotes that can read that",
        )
        .default("\"auto\"")
        .details(
            "`\"auto\"` where the line is slower than packing, with the best that the remote reads; \
             `\"zstd\"` or `\"deflate\"` always, with the other where the remote reads only that; \
             `\"off\"` not at all. What remotes send they pack as they like. A running server takes \
             another setting for new connections: see [compression](operations.md#compression)",
        )
        .takes_effect(TakesEffect::Reload),
        KeyGrammar::new(
            "compression_level",
            ValueKind::Number(1, MOST_LEVEL),
            "3",
            "how far it packs: a small number is fast, a large one packs small",
        )
        .default_told("as is usual")
        .details("With deflate 9 is the most")
        .takes_effect(TakesEffect::Reload),
        KeyGrammar::new(
            "proxies",
            ValueKind::Texts,
            "[\"10.0.0.0/8\", \"127.0.0.1\"]",
            "addresses and networks of the balancers and web servers in front",
        )
        .default("[]")
        .details(
            "Their word counts about whom a connection (PROXY protocol, version 2 or 1) or a \
             request (`Forwarded`, `X-Forwarded-For`) comes from: \
             [farm.md](farm.md#addresses-of-clients)",
        ),
        KeyGrammar::new(
            "drain_delay",
            ValueKind::Duration(0),
            "\"10s\"",
            "how long a server that is told to end serves everybody as before",
        )
        .default("\"0s\"")
        .details("It says that it is not ready meanwhile, and drains then: [farm.md](farm.md#health)")
        .takes_effect(TakesEffect::Reload),
        KeyGrammar::new(
            "verify_every",
            ValueKind::Number(1, MOST),
            "100",
            "after so many syncs a remote compares everything with the centre",
        )
        .default_told("never")
        .details(
            "It does so in the course of a sync; differences are repaired and told: \
             [explain.md](explain.md#verified-by-themselves)",
        )
        .hint(
            "write a number of syncs from 1 to 1000000, or leave the key out: then no remote \
             verifies by itself",
        )
        .takes_effect(TakesEffect::Reload),
    ],
};

pub(super) static TLS: SectionGrammar = SectionGrammar {
    path: "server.tls",
    is_repeated: false,
    takes_effect: TakesEffect::Reload,
    keys: &[
        KeyGrammar::new(
            "certificate",
            ValueKind::Path,
            "\"FILE.pem\"",
            "PEM file with the server's certificate, followed by those that lead to its issuer",
        )
        .required(),
        KeyGrammar::new(
            "key",
            ValueKind::Path,
            "\"FILE.pem\"",
            "PEM file with its private key",
        )
        .required(),
    ],
};

pub(super) static LIMITS: SectionGrammar = SectionGrammar {
    path: "server.limits",
    is_repeated: false,
    takes_effect: TakesEffect::Start,
    keys: &[
        KeyGrammar::new(
            "connections",
            ValueKind::Number(1, MOST),
            "2000",
            "connections at the same time; one more is told to come back later",
        )
        .default("10000"),
        KeyGrammar::new(
            "backlog",
            ValueKind::Number(1, MOST),
            "1000",
            "syncs that wait for a worker; one more is told to come back later",
        )
        .default("5000"),
        KeyGrammar::new(
            "memory",
            ValueKind::Size(1, u64::MAX),
            "\"512MiB\"",
            "memory for rows on their way through the server",
        )
        .default("\"256MiB\"")
        .details(
            "What does not fit goes to temporary files (in `TMPDIR`). What can only be in memory, \
             as a very long row, may go beyond, for one sync at a time",
        ),
        KeyGrammar::new(
            "session_workers",
            ValueKind::Number(1, MOST_WORKERS),
            "4",
            "database connections that look up who signs in and write the sync history",
        )
        .default("2")
        .hint(WORKERS_HINT),
        workers(
            "upload_workers",
            "database connections that apply uploads at the same time; a number fixes it",
        ),
        workers(
            "download_workers",
            "database connections that read downloads at the same time; a number fixes it",
        ),
        workers(
            "call_workers",
            "database connections that run calls at the same time; a number fixes it",
        ),
        KeyGrammar::new(
            "min_workers",
            ValueKind::Number(1, MOST_WORKERS),
            "2",
            "the fewest of each of these three, where no number is fixed",
        )
        .default("1")
        .hint(WORKERS_HINT),
        KeyGrammar::new(
            "max_workers",
            ValueKind::Number(1, MOST_WORKERS),
            "8",
            "the most of each of these three, where no number is fixed",
        )
        .default("16")
        .details("The server looks for the best number between the two")
        .hint(WORKERS_HINT),
        KeyGrammar::new(
            "upload_size",
            ValueKind::Size(1, u64::MAX),
            "\"1GiB\"",
            "packed bytes of the uploads of one sync",
        )
        .default("\"4GiB\""),
        KeyGrammar::new(
            "upload_rows",
            ValueKind::Number(1, i64::MAX),
            "1000000",
            "rows of the uploads of one sync",
        )
        .default("50000000")
        .hint("write a number from 1, or direction = \"download\" below tables that take no uploads"),
        KeyGrammar::new(
            "row_size",
            ValueKind::Size(1, u64::MAX),
            "\"16MiB\"",
            "packed bytes of one uploaded row",
        )
        .default("\"80MiB\""),
        KeyGrammar::new(
            "message_size",
            ValueKind::Size(LEAST_MESSAGE_BYTES, MOST_MESSAGE_BYTES),
            "\"4MiB\"",
            "bytes of one call, of one event with its subject, and of what a provider answers",
        )
        .default("\"1MiB\"")
        .details(
            "Each connection may hold as much in memory in either \
             direction. Clients are told when they sign in; one that does not know the key sends up \
             to 1 MiB, and cannot stay connected to a server that sends it more",
        )
        .hint("write a size from \"64KiB\" to \"16MiB\""),
        KeyGrammar::new(
            "answer_size",
            ValueKind::Size(1, u64::MAX),
            "\"64MiB\"",
            "bytes of the rows of one answer that is complete before it is sent",
        )
        .default("\"16MiB\"")
        .details("The server has all of it in memory until the caller has taken it"),
        KeyGrammar::new(
            "answer_stream_size",
            ValueKind::Size(1, u64::MAX),
            "\"4GiB\"",
            "bytes of the rows of one answer that is sent while it is read",
        )
        .default("\"1GiB\"")
        .details(
            "See [calls.md](calls.md#what-is-promised); what its caller has not taken yet is in \
             temporary files (in `TMPDIR`)",
        ),
        KeyGrammar::new(
            "subscriptions",
            ValueKind::Number(1, MOST),
            "16",
            "publications in one sync",
        )
        .default("64"),
        KeyGrammar::new(
            "password_checks",
            ValueKind::Number(1, MOST),
            "1",
            "passwords checked at the same time",
        )
        .default_told("half of the cores")
        .details(
            "Each takes 19 MiB and some ten milliseconds of a core. Sixty-four more wait for each \
             that is checked; everybody else is told when to come back",
        ),
        KeyGrammar::new(
            "handshake_timeout",
            ValueKind::Duration(1),
            "\"30s\"",
            "time from a connection to the end of its first message",
        )
        .default("\"15s\""),
        KeyGrammar::new(
            "idle_timeout",
            ValueKind::Duration(1),
            "\"90s\"",
            "silence of a remote that has something to say, takes nothing, or does not sync",
        )
        .default("\"60s\""),
        KeyGrammar::new("sync_timeout", ValueKind::Duration(1), "\"2h\"", "time of one sync")
            .default("\"1h\""),
        KeyGrammar::new(
            "shutdown_timeout",
            ValueKind::Duration(1),
            "\"10s\"",
            "time that running syncs are given when the server shuts down",
        )
        .default("\"30s\""),
        KeyGrammar::new(
            "keepalive_interval",
            ValueKind::Duration(1),
            "\"10s\"",
            "how often a waiting remote is told that the server is alive",
        )
        .default("\"5s\""),
    ],
};

const fn workers(name: &'static str, summary: &'static str) -> KeyGrammar {
    KeyGrammar::new(name, ValueKind::Number(1, MOST_WORKERS), "4", summary)
        .default_told("found by trying")
        .hint(WORKERS_HINT)
}

/// A signing key that another one has superseded must outlive the moment at which every server has
/// heard of that.
const MIN_LOG_MS: u64 = 60_000;

pub(super) static RETENTION: SectionGrammar = SectionGrammar {
    path: "retention",
    is_repeated: false,
    takes_effect: TakesEffect::Reload,
    keys: &[
        KeyGrammar::new(
            "log",
            ValueKind::Duration(MIN_LOG_MS),
            "\"90d\"",
            "how long changes are remembered; a remote that stays away longer compares what it holds",
        )
        .default("\"60d\"")
        .details(
            "Keys of calls and events that take effect once are remembered for as long, and no \
             longer",
        )
        .hint("write at least \"1m\"; for remotes that are offline for weeks, months are better"),
        KeyGrammar::new(
            "history",
            ValueKind::Duration(1),
            "\"30d\"",
            "how long finished syncs and incidents stay listed in `tidewater status`",
        )
        .default("\"14d\""),
        KeyGrammar::new(
            "conflicts",
            ValueKind::Duration(1),
            "\"365d\"",
            "how long conflicts and refused rows are kept for you to look at",
        )
        .default("\"180d\"")
        .details("Open or settled; a parked conflict stays until it is settled"),
        KeyGrammar::new(
            "interval",
            ValueKind::Duration(1),
            "\"6h\"",
            "how often what is older is dropped",
        )
        .default("\"1h\""),
    ],
};

pub(super) static LOG: SectionGrammar = SectionGrammar {
    path: "log",
    is_repeated: false,
    takes_effect: TakesEffect::Start,
    keys: &[
        KeyGrammar::new(
            "format",
            ValueKind::Choice(&["text", "json"]),
            "\"json\"",
            "how lines are written",
        )
        .default("\"text\"")
        .details("`\"text\"` for people, `\"json\"` for one JSON object a line"),
        KeyGrammar::new(
            "level",
            ValueKind::Text,
            "\"info,tidewater_server=debug\"",
            "error, warn, info, debug, trace, or directives for single parts",
        )
        .default("\"info\""),
    ],
};
