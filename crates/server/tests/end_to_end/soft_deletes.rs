//! Deletes that the centre makes something else of: a trigger marks the row, keeps it as it is, or
//! moves it out of its user's scope.

use crate::backend::Backend;
use crate::scenario::Scenario;
use crate::world::World;

/// A trigger that does this in place of a delete; `{old}` is the row's key.
fn instead_of_delete<B: Backend>(statement: &str) -> String {
    let statement = statement.replace("{old}", "OLD.id");
    match B::NAME {
        "sqlite" => format!(
            "CREATE TRIGGER soft BEFORE DELETE ON note BEGIN {statement} SELECT RAISE(IGNORE); END;"
        ),
        _ => format!(
            "CREATE FUNCTION soft() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN {statement} RETURN NULL; END $$;
             CREATE TRIGGER soft BEFORE DELETE ON note FOR EACH ROW EXECUTE FUNCTION soft();"
        ),
    }
}

fn notes<B: Backend>(statement: &str, resolve: &str) -> World<B> {
    let publication = format!(
        "[[publication]]\nname = \"main\"\n[[publication.table]]\nname = \"note\"\n\
         partition = {{ columns = [\"region\"], values = \"SELECT 'north'\" }}\n\
         conflict = {{ resolve = [\"{resolve}\"] }}\n"
    );
    World::open(Scenario {
        schema: format!(
            "CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, region TEXT NOT NULL, body TEXT,
               deleted INTEGER NOT NULL DEFAULT 0);
             INSERT INTO note VALUES (1, 'north', 'a', 0), (2, 'north', 'b', 0), (3, 'north', 'c', 0);
             {}",
            instead_of_delete::<B>(statement)
        ),
        publication: publication.leak(),
        tables: &[],
        users: &["ada", "bob"],
        limits: "",
    })
}

const ROWS: &str = "SELECT id, body, deleted FROM note ORDER BY id";

const MARKED: &str = "UPDATE note SET deleted = 1 WHERE id = {old};";

fn a_delete_that_the_centre_makes_a_mark_of_is_no_conflict<B: Backend>() {
    let out = "UPDATE note SET region = 'attic' WHERE id = {old};";
    for (statement, left) in [
        (MARKED, &["1|a|1", "2|b|0", "3|c|1"][..]),
        ("", &["1|a|0", "2|b|0", "3|c|0"]),
        (out, &["2|b|0"]),
    ] {
        for resolve in ["server_wins", "client_wins", "park"] {
            let world = notes::<B>(statement, resolve);
            let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
            ada.edit("DELETE FROM note WHERE id IN (1, 3)");
            let report = ada.sync();
            assert_eq!((report.refused, report.conflicts), (0, 0), "{statement}");
            assert_eq!(world.server.conflicts(), [], "{statement}");
            assert_eq!(world.server.refused(), [], "{statement}");
            bob.sync();
            for device in [&mut ada, &mut bob] {
                assert_eq!(device.rows(ROWS), left, "{statement} {resolve}");
                assert_eq!(device.pending(), 0);
                // What came back is a row like any other.
                device.edit("UPDATE note SET body = body || '!'");
                assert_eq!(device.sync().conflicts, 0);
                device.edit("UPDATE note SET body = replace(body, '!', '')");
                assert_eq!(device.sync().conflicts, 0);
            }
        }
    }
}

fn a_delete_of_a_row_that_somebody_else_has_changed_stays_a_conflict<B: Backend>() {
    let world = notes::<B>(MARKED, "server_wins");
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    bob.edit("UPDATE note SET body = 'of bob' WHERE id = 1");
    bob.sync();
    ada.edit("DELETE FROM note WHERE id < 3");
    assert_eq!(ada.sync().conflicts, 1);
    assert_eq!(ada.rows(ROWS), ["1|of bob|0", "2|b|1", "3|c|0"]);
    let conflicts = world.server.conflicts();
    assert_eq!(conflicts.len(), 1);
    assert_eq!(conflicts[0].key, "[1]");
}

on_both_adapters!(
    a_delete_that_the_centre_makes_a_mark_of_is_no_conflict,
    a_delete_of_a_row_that_somebody_else_has_changed_stays_a_conflict,
);
