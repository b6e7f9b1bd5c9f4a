//! Defects that take statements out of triggers: whoever prepares one that fires them leaves
//! these out.

use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use super::list::{Defect, current};

/// The defects that are made so.
const LEAVE_OUT: &[Defect] = &[
    Defect::DisplacedNotTracked,
    Defect::MoveLoggedOnce,
    Defect::DeleteNotLogged,
    Defect::DisplacedNotLogged,
    Defect::ParentMoveNotLogged,
    Defect::ParentGoneNotLogged,
    Defect::RefusalNotShown,
];

/// Leaves out, in what this connection prepares from now on, what the defect is about.
pub(crate) fn leave_out(connection: &Connection) {
    if let Some(defect) = current().filter(|defect| LEAVE_OUT.contains(defect)) {
        leave_out_of(connection, defect);
    }
}

/// The same, of a connection of a server's.
pub(crate) fn leave_out_serving(connection: &Connection) {
    match current() {
        Some(Defect::BranchNotTracked) => leave_out_of(connection, Defect::BranchNotTracked),
        _ => leave_out(connection),
    }
}

fn leave_out_of(connection: &Connection, defect: Defect) {
    connection.authorizer(Some(move |context: AuthContext<'_>| {
        let AuthAction::Insert { table_name } = context.action else {
            return Authorization::Allow;
        };
        match is_left_out(defect, table_name, context.accessor) {
            true => Authorization::Ignore,
            false => Authorization::Allow,
        }
    }));
}

/// Whether nothing is inserted into a table, by this trigger or otherwise.
fn is_left_out(defect: Defect, table: &str, trigger: Option<&str>) -> bool {
    let by = |endings: &[&str]| {
        let trigger = trigger.unwrap_or_default();
        trigger.starts_with("tidewater_") && endings.iter().any(|it| trigger.ends_with(it))
    };
    match defect {
        Defect::DisplacedNotTracked => {
            let trigger = trigger.unwrap_or_default();
            table.starts_with("tidewater_change_") && trigger.contains("_displacing_")
        }
        Defect::MoveLoggedOnce => by(&["_move"]),
        Defect::DeleteNotLogged => by(&["_delete"]),
        Defect::ParentMoveNotLogged => by(&["_above_1_moved", "_above_2_moved"]),
        Defect::ParentGoneNotLogged => by(&["_above_1_gone", "_above_2_gone"]),
        Defect::DisplacedNotLogged => by(&["_before_insert", "_before_update"]),
        Defect::BranchNotTracked => table.starts_with("tidewater_change_"),
        // In the remote's file as in the centre's.
        Defect::RefusalNotShown => [
            "tidewater_refused",
            "tidewater_centre_refused",
            "tidewater_centre_settled_refusal",
        ]
        .contains(&table),
        _ => false,
    }
}
