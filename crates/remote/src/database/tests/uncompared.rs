//! Facts about tables that the server leaves out of a compare.

use tidewater_protocol::message::{DownloadBegin, UncomparedReason, UncomparedTable};

use super::comparing::CENTRE;
use super::*;
use crate::database::CompareDue;

/// The server may leave a table out: what the user changed is still to be found out then.
#[test]
fn a_table_that_the_server_does_not_compare_stays_untracked_until_it_comes_whole() {
    let mut remote = with_items();
    remote.run(
        "DROP TRIGGER tidewater_update_item; DROP TRIGGER tidewater_insert_item; \
         UPDATE item SET name = 'mine' WHERE id = 1; \
         INSERT INTO item VALUES (4, 'new', 40)",
    );
    let mut state = remote.begin();
    state.compares = true;
    let mut applier = remote.applier_of(&state, None);
    let begin = DownloadBegin {
        uncompared: vec![UncomparedTable {
            table: "item".into(),
            reason: UncomparedReason::Script.into(),
        }],
        ..DownloadBegin::default()
    };
    applier.take_refused_terms(&begin).unwrap();
    applier.download_begin(0, false).unwrap();
    applier.download_end(b"checkpoint").unwrap();
    let summary = remote.commit(applier);
    assert!(!summary.tracks_again);
    assert_eq!(remote.state().compare_due, CompareDue::Yes);
    let table = &remote.schema.tables[0];
    assert!(remote.database().is_untracked(table).unwrap());
    // It comes whole; whether a row that is only here was deleted there, nobody tells.
    let mut state = remote.begin();
    state.compares = true;
    let shape = remote.schema.tables[0].shape();
    let summary = remote.download_into(&state, None, |server| {
        let begin = TableBegin {
            replace: true,
            follows_changes: true,
            deletes_unknown: true,
            ..TableBegin::for_table(&items().tables[0])
        };
        server.applier.table_begin(&begin).unwrap();
        let mut rows = RowsWriter::new(&shape);
        for (id, name, amount) in CENTRE {
            rows.row(Op::Upsert, &item(id, name, amount));
        }
        server.applier.rows(&rows.take()).unwrap();
    });
    assert!(summary.tracks_again);
    assert_eq!(remote.state().compare_due, CompareDue::No);
    assert_eq!(
        remote.query("SELECT id || name || amount FROM item ORDER BY id"),
        ["1mine10", "2b20", "3c30"]
    );
    assert_eq!(
        remote.kept_values(),
        [r#"{"amount":40,"id":4,"name":"new"}"#]
    );
    assert_eq!(
        remote.upload(),
        [update(&item(1, "a", 10), &item(1, "mine", 10))]
    );
}
