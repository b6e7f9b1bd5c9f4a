//! The feature matrix: each kind of table with each feature, tried with the program, a real server
//! and real files. Each cell works, or is refused with its reason; `docs/feature-matrix.md` shows
//! the same table.

mod actions;
mod kinds;
mod roles;
mod transfers;
mod world;

use std::fmt::Write;

use kinds::{KINDS, Kind};
use world::{Cell, World};

const PAGE: &str = "../../docs/feature-matrix.md";
const BEGIN: &str = "<!-- matrix: begin -->\n";
const END: &str = "<!-- matrix: end -->";

/// The features in the order in which a world tries them, with what the page says of each.
const ACTIONS: [(&str, &str); 15] = [
    ("upload", "inserts, updates and deletes of a device"),
    ("replay", "`refused replay`"),
    ("edit", "`refused edit`"),
    ("resolve", "`conflicts resolve`"),
    ("verify", "`verify`, `verify --repair`"),
    ("preview", "`preview`"),
    ("explain", "`explain --remote`"),
    ("simulate", "`simulate`"),
    ("wake", "`live`: a change of the centre wakes devices"),
    ("image", "`image build`, `sync --image`"),
    ("resumed download", "a first download that broke goes on"),
    ("resumed upload", "an upload that broke goes on"),
    (
        "hierarchy",
        "the table of headquarters, with a branch below",
    ),
    (
        "restored centre",
        "devices give back what a restored centre forgot",
    ),
    ("act as", "`act_as` (PostgreSQL)"),
];

/// A cell that is refused.
struct Refusal {
    action: &'static str,
    kinds: &'static [Kind],
    /// Only there; elsewhere it works.
    on_postgres: bool,
    /// What is said, in part.
    says: &'static str,
    /// The footnote of the page.
    reason: &'static str,
}

const OWN_DOWNLOADS: &[Kind] = &[Kind::TimestampDownload, Kind::DownloadHandler];

const REFUSALS: &[Refusal] = &[
    Refusal {
        action: "resolve",
        kinds: &[Kind::DownloadHandler],
        on_postgres: false,
        says: "upload = \"handler\" says that the handler keeps what is uploaded",
        reason: "The database has no rows of the table, so no conflict arises in it: the handler sees \
                 the row as the device had it and wants it, and decides. `deploy` refuses `conflict` \
                 beside `upload = \"handler\"`.",
    },
    Refusal {
        action: "verify",
        kinds: &[Kind::TimestampDownload],
        on_postgres: false,
        says: "note was not compared: scripts tell what is new in it, and only they know all its rows",
        reason: "Only the script knows which rows are the device's. `verify` names the tables that it \
                 did not compare, and does not say that they are equal.",
    },
    Refusal {
        action: "preview",
        kinds: OWN_DOWNLOADS,
        on_postgres: false,
        says: "write partition = \"everyone\"",
        reason: "The script or the handler says who gets which rows, so there is no other partition to \
                 preview: `preview`, `check` and `deploy` refuse one beside it.",
    },
    Refusal {
        action: "explain",
        kinds: OWN_DOWNLOADS,
        on_postgres: false,
        says: "says what comes down of the table, and the centre keeps no record of what it said",
        reason: "`explain` names the script or the handler that says what comes down: the centre keeps \
                 no record of what it said.",
    },
    Refusal {
        action: "wake",
        kinds: OWN_DOWNLOADS,
        on_postgres: false,
        says: "its changes wake no live device",
        reason: "Only the script or the handler knows whom a change concerns. `check` and `deploy` say \
                 so, and live devices fetch changes with their regular syncs (`--every`).",
    },
    Refusal {
        action: "simulate",
        kinds: &[Kind::TimestampDownload],
        on_postgres: true,
        says: "the translation into SQLite leaves out the trigger",
        reason: "On PostgreSQL, where triggers of the table may write the time that the script compares: \
                 `simulate` translates the database into SQLite, leaves triggers out, and refuses such \
                 a table by name. On SQLite it works.",
    },
    Refusal {
        action: "resumed download",
        kinds: OWN_DOWNLOADS,
        on_postgres: false,
        says: "a download that breaks begins anew",
        reason: "The script or the handler is asked anew, so everything comes again; the rows are right. \
                 `check` and `deploy` say so.",
    },
    Refusal {
        action: "image",
        kinds: OWN_DOWNLOADS,
        on_postgres: false,
        says: "there can be no image of \"main\"",
        reason: "What comes down differs from user to user as the script or the handler decides, so one \
                 image cannot serve them. `image build` refuses it, and names the script or the handler.",
    },
    Refusal {
        action: "act as",
        kinds: &[Kind::DownloadHandler],
        on_postgres: false,
        says: "note: act_as has no effect on it",
        reason: "The handler keeps the rows, and no role of the database is asked. `check` and `deploy` \
                 say so.",
    },
];

fn refusal(action: &str, kind: Kind, is_postgres: bool) -> Option<(usize, &'static Refusal)> {
    let mut all = REFUSALS.iter().enumerate();
    all.find(|(_, it)| {
        let is_here = is_postgres || !it.on_postgres;
        is_here && it.action == action && it.kinds.contains(&kind)
    })
}

/// A feature, and how it is tried.
type Attempt = (&'static str, fn(&World) -> Cell);

/// Tries a feature and holds the cell against the table; says what is otherwise.
fn judge(
    action: &str,
    (kind, is_postgres): (Kind, bool),
    attempt: impl FnOnce() -> Cell,
) -> Option<String> {
    assert!(ACTIONS.iter().any(|it| it.0 == action), "{action}");
    // The other cells are tried all the same.
    let cell = std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt));
    match (cell, refusal(action, kind, is_postgres)) {
        (Ok(Cell::Works), None) => None,
        (Ok(Cell::Refused(said)), Some((_, refusal))) if said.contains(refusal.says) => None,
        (cell, expected) => Some(format!(
            "{action} with {}: {}, expected {:?}",
            kind.name(),
            cell.map_or_else(|_| "it failed".to_owned(), |it| format!("{it:?}")),
            expected.map_or("Works", |(_, it)| it.says)
        )),
    }
}

/// All features but roles, in one world.
fn try_all(kind: Kind, is_postgres: bool) {
    let mut world = World::open(kind, is_postgres);
    let all: [Attempt; 13] = [
        ("upload", actions::upload),
        ("replay", actions::replay),
        ("edit", actions::edit),
        ("resolve", actions::resolve),
        ("verify", actions::verify),
        ("preview", actions::preview),
        ("explain", actions::explain),
        ("simulate", actions::simulate),
        ("wake", actions::wake),
        ("image", transfers::image),
        ("resumed download", transfers::resumed_download),
        ("resumed upload", transfers::resumed_upload),
        ("hierarchy", transfers::hierarchy),
    ];
    let place = (kind, is_postgres);
    let all = all.into_iter();
    let tried = all.filter_map(|(action, attempt)| judge(action, place, || attempt(&world)));
    let mut otherwise: Vec<String> = tried.collect();
    actions::edit_untracked(&world);
    let last = || transfers::restored_centre(&mut world);
    otherwise.extend(judge("restored centre", place, last));
    assert!(
        otherwise.is_empty(),
        "{}\n{}",
        otherwise.join("\n"),
        world.faults.join("\n")
    );
}

fn try_roles(kind: Kind) {
    let mut world = World::prepare(kind, true);
    let otherwise = judge("act as", (kind, true), || roles::act_as(&mut world));
    assert_eq!(otherwise, None);
}

macro_rules! kinds {
    ($($name:ident: $kind:ident;)*) => {
        mod sqlite {
            $(#[test] fn $name() { super::try_all(super::Kind::$kind, false); })*
        }
        mod postgres {
            $(#[test] fn $name() { super::try_all(super::Kind::$kind, true); })*
        }
        mod as_role {
            $(#[test] fn $name() { super::try_roles(super::Kind::$kind); })*
        }
    };
}

kinds! {
    generated: Generated;
    row_scripts: RowScripts;
    set_scripts: SetScripts;
    timestamp_download: TimestampDownload;
    upload_handler: UploadHandler;
    download_handler: DownloadHandler;
}

/// The table of the page.
fn table() -> String {
    let mut text = String::from("| |");
    for kind in KINDS {
        let _ = write!(text, " {} |", kind.name());
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(KINDS.len()));
    let mut works = 0;
    let mut refused = 0;
    for (action, what) in ACTIONS {
        let _ = write!(text, "\n| **{action}**: {what} |");
        for kind in KINDS {
            match refusal(action, kind, true) {
                None => {
                    works += 1;
                    text.push_str(" works |");
                }
                Some((at, refusal)) => {
                    refused += 1;
                    let told = match refusal.on_postgres {
                        true => "refused on PostgreSQL",
                        false => "refused",
                    };
                    let _ = write!(text, " {told} [{}] |", at + 1);
                }
            }
        }
    }
    let _ = writeln!(text, "\n\n{works} cells work, {refused} are refused:\n");
    for (at, refusal) in REFUSALS.iter().enumerate() {
        let _ = writeln!(text, "{}. {}", at + 1, refusal.reason);
    }
    text
}

#[test]
fn the_page_shows_the_matrix() {
    let page = std::fs::read_to_string(PAGE).expect("the page is there");
    let (head, rest) = page.split_once(BEGIN).expect("the table begins");
    let (shown, tail) = rest.split_once(END).expect("the table ends");
    let table = table();
    if std::env::var_os("TIDEWATER_WRITE_MATRIX").is_some() {
        std::fs::write(PAGE, format!("{head}{BEGIN}{table}{END}{tail}")).expect("it is written");
        return;
    }
    assert_eq!(shown, table, "TIDEWATER_WRITE_MATRIX=1 writes it");
}

#[test]
fn every_refusal_names_a_feature_of_the_matrix() {
    for refusal in REFUSALS {
        let named = ACTIONS.iter().any(|it| it.0 == refusal.action);
        assert!(named && !refusal.kinds.is_empty(), "{}", refusal.action);
    }
}
