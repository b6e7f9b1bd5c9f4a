//! For whom a transaction runs, as triggers of the application read it.

use tidewater_centre::engine::connection::{SystemStatement, system_sql};

/// Says for whom a transaction runs.
pub(super) fn say_caller(user: &str, remote_id: &str) -> [SystemStatement; 2] {
    let say = system_sql!(
        "INSERT INTO tidewater.uploading (username, remote_id) VALUES (?1, ?2)",
        user,
        remote_id,
    );
    [forget_caller(), say]
}

/// Has a transaction run for nobody, as every one does in the end.
pub(super) fn forget_caller() -> SystemStatement {
    system_sql!("DELETE FROM tidewater.uploading")
}
