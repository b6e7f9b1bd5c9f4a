//! `[[space]]`.

use super::{KeyGrammar, SectionGrammar, TakesEffect, ValueKind};

/// The smallest queue: a chunk of events as it comes from the network.
const LEAST_QUEUE_BYTES: u64 = 64 << 10;

/// The largest one.
const MOST_QUEUE_BYTES: u64 = 1 << 30;

/// The shortest time for which events are kept: the subscriber must have time to come back.
const LEAST_DURABLE_MS: u64 = 60_000;

pub(super) static SPACE: SectionGrammar = SectionGrammar {
    path: "space",
    is_repeated: true,
    takes_effect: TakesEffect::Reload,
    keys: &[
        KeyGrammar::new(
            "name",
            ValueKind::Text,
            "\"fleet\"",
            "what its subjects begin with: letters, digits, `_` and `-`, at most 64 bytes",
        )
        .required(),
        KeyGrammar::new(
            "publish",
            ValueKind::Several,
            "[\"unit.{s.username}.>\"]",
            "who may publish to what",
        )
        .required(),
        KeyGrammar::new(
            "subscribe",
            ValueKind::Several,
            "\"everyone\"",
            "who may subscribe to what",
        )
        .required(),
        KeyGrammar::new(
            "durable",
            ValueKind::Duration(LEAST_DURABLE_MS),
            "\"7d\"",
            "how long events are kept in the consolidated database",
        )
        .details(
            "They get a position that a subscriber can go on from; without it an event reaches \
             those who listen at that moment",
        )
        .hint(
            "write how long a subscriber may be away, such as \"7d\", or leave the key out for \
             events that are not kept",
        ),
        KeyGrammar::new(
            "last_value",
            ValueKind::Flag,
            "true",
            "whoever subscribes gets the newest event of each subject first",
        )
        .default("false")
        .details(
            "Half of `queue_size` is kept of them, those that are oldest go first, and after a start \
             there are none. Of a durable space the database knows them, and the newest of each \
             subject stays however old it is",
        ),
        KeyGrammar::new(
            "overflow",
            ValueKind::Choice(&["drop_oldest", "disconnect"]),
            "\"disconnect\"",
            "what happens to a subscriber that is slower than the events",
        )
        .default("\"drop_oldest\"")
        .details(
            "`\"drop_oldest\"`: the oldest events are dropped of the publisher of whom most wait, \
             and the subscriber is told how many it missed; `\"disconnect\"`: it is cut off. Of a \
             durable space nothing is dropped: a slow subscriber gets what does not fit from the \
             database",
        ),
        KeyGrammar::new(
            "queue_size",
            ValueKind::Size(LEAST_QUEUE_BYTES, MOST_QUEUE_BYTES),
            "\"1MiB\"",
            "events that may wait for a subscriber before it is too slow",
        )
        .default("\"4MiB\"")
        .details(
            "Where the events that wait for all subscribers together take more than \
             `server.limits.memory`, each may have 64 KiB",
        )
        .hint("write a number of bytes from \"64KiB\" to \"1GiB\"; without the key it is \"4MiB\""),
    ],
};

pub(super) static PUBLISH: SectionGrammar = SectionGrammar {
    path: "space.publish",
    is_repeated: false,
    takes_effect: TakesEffect::Reload,
    keys: RULE,
};

pub(super) static SUBSCRIBE: SectionGrammar = SectionGrammar {
    path: "space.subscribe",
    is_repeated: false,
    takes_effect: TakesEffect::Reload,
    keys: RULE,
};

const RULE: &[KeyGrammar] = &[
    KeyGrammar::new(
        "patterns",
        ValueKind::Several,
        "[\"unit.{s.username}.>\"]",
        "patterns of subjects, without the space",
    )
    .required(),
    KeyGrammar::new(
        "allow",
        ValueKind::Text,
        "\"SELECT 1 FROM staff WHERE login = {s.username}\"",
        "a query that must yield a row for the user, too",
    ),
];
