//! Scripts: what the operator's have written down is what was done, once.

use rusqlite::{Connection, OptionalExtension};

/// What scripts wrote down of products is not what remotes did to them, or what operators sent again
/// for these. Whatever has two words was written by a remote once; an operator who settles a conflict
/// with what both began with writes that again.
pub(crate) fn written_otherwise(centre: &Connection) -> rusqlite::Result<Option<String>> {
    let found = |sql: &str| {
        let mut statement = centre.prepare_cached(sql)?;
        let found = statement.query_row([], |row| row.get::<_, String>(0));
        found.optional()
    };
    let twice = "SELECT text FROM script_journal AS j WHERE event = 'write' AND text LIKE '% r%'
         GROUP BY text HAVING count(*) > 1 + (SELECT count(*) FROM tidewater_centre_conflict
             WHERE pre_image ->> 'name' = j.text AND settled_as = 'pre-image')";
    if let Some(text) = found(twice)? {
        return Ok(Some(format!("I1: a script has run twice for {text:?}")));
    }
    let undone = "SELECT text FROM script_journal AS j WHERE event = 'write' AND text LIKE '% r%'
         AND NOT EXISTS (SELECT 1 FROM audit WHERE \"table\" = 'product' AND text = j.text)";
    if let Some(text) = found(undone)? {
        return Ok(Some(format!(
            "I2: of the script that was refused for {text:?} something stayed"
        )));
    }
    let passed_over = "SELECT text FROM audit AS a WHERE \"table\" = 'product' AND text LIKE '% r%'
         AND operation = 'update' AND NOT EXISTS
             (SELECT 1 FROM script_journal WHERE event = 'write' AND text = a.text)";
    if let Some(text) = found(passed_over)? {
        return Ok(Some(format!("I2: {text:?} was written without its script")));
    }
    let open = "SELECT text FROM script_journal WHERE event IN ('begin', 'end')
         GROUP BY text HAVING sum(iif(event = 'begin', 1, -1)) <> 0";
    if let Some(remote) = found(open)? {
        return Ok(Some(format!(
            "I1: an upload of {remote} has begun, and not ended"
        )));
    }
    Ok(None)
}
