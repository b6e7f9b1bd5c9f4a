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
    ("resumed download", "a download that broke goes on"),
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
    /// What is said, in part.
    says: &'static str,
    /// The footnote of the page.
    reason: &'static str,
}

const REFUSALS: &[Refusal] = &[];

fn refusal(action: &str, kind: Kind) -> Option<(usize, &'static Refusal)> {
    let mut all = REFUSALS.iter().enumerate();
    all.find(|(_, it)| it.action == action && it.kinds.contains(&kind))
}

/// Holds a cell against the table.
#[track_caller]
fn judge(action: &str, kind: Kind, cell: &Cell) {
    assert!(ACTIONS.iter().any(|it| it.0 == action), "{action}");
    match (cell, refusal(action, kind)) {
        (Cell::Works, None) => {}
        (Cell::Refused(said), Some((_, refusal))) if said.contains(refusal.says) => {}
        (cell, expected) => panic!(
            "{action} with {}: {cell:?}, expected {:?}",
            kind.name(),
            expected.map(|(_, it)| it.says)
        ),
    }
}

/// All features but roles, in one world.
fn try_all(kind: Kind, is_postgres: bool) {
    let mut world = World::open(kind, is_postgres);
    let all: [(&str, fn(&World) -> Cell); 13] = [
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
    for (action, attempt) in all {
        judge(action, kind, &attempt(&world));
    }
    judge(
        "restored centre",
        kind,
        &transfers::restored_centre(&mut world),
    );
}

fn try_roles(kind: Kind) {
    let mut world = World::prepare(kind, true);
    judge("act as", kind, &roles::act_as(&mut world));
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
            match refusal(action, kind) {
                None => {
                    works += 1;
                    text.push_str(" works |");
                }
                Some((at, _)) => {
                    refused += 1;
                    let _ = write!(text, " refused [{}] |", at + 1);
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
