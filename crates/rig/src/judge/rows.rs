//! Every row of every remote against the centre's, and what must be true of each side alone.

use std::collections::HashMap;

use super::centre::Rows;
use super::{Judge, Witness};
use crate::world::JudgedTable;

impl Judge<'_> {
    /// Compares after everything that was refused has been given up: no row may differ.
    pub(crate) fn judge_rows(&mut self, witnesses: &[Witness]) -> anyhow::Result<()> {
        let mut centre = HashMap::new();
        for table in JudgedTable::ALL {
            centre.insert(table, self.centre.rows(table)?);
        }
        for witness in witnesses {
            let regions = self.centre.regions(witness.device.user)?;
            for table in JudgedTable::ALL {
                self.compare(witness, table, &centre[&table], &regions)?;
            }
            self.judge_file(witness)?;
        }
        self.judge_centre()
    }

    fn compare(
        &mut self,
        witness: &Witness,
        table: JudgedTable,
        centre: &Rows,
        regions: &[i64],
    ) -> anyhow::Result<()> {
        let connection = witness.device.open()?;
        let mut statement = connection.prepare(&table.select("own"))?;
        let remote = statement
            .query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))))?
            .collect::<rusqlite::Result<Rows>>()?;
        for what in differences(&remote, centre, regions) {
            self.finding(format!("{} {table:?} {what}", witness.device.name));
        }
        self.checked.rows += remote.len() as u64;
        Ok(())
    }

    /// The file is whole, nothing is pending, and the product agrees that it is equal.
    fn judge_file(&mut self, witness: &Witness) -> anyhow::Result<()> {
        let name = &witness.device.name;
        let connection = witness.device.open()?;
        let ask = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, String>(0));
        let whole = ask("PRAGMA integrity_check")?;
        if whole != "ok" {
            self.finding(format!("{name}: {whole}"));
        }
        for table in JudgedTable::ALL
            .iter()
            .filter(|it| **it != JudgedTable::Stock)
        {
            let table = table.name();
            let sql = format!("SELECT count(*) || '' FROM tidewater_change_{table}");
            let pending = ask(&sql)?;
            if pending != "0" {
                self.finding(format!("{name} {table}: {pending} changes are pending"));
            }
        }
        let run = witness.device.verify()?;
        let is_equal = run.json().is_some_and(|it| it["is_equal"] == true);
        if run.code != Some(0) || !is_equal {
            self.finding(format!("{name} is not equal, says verify: {run:?}"));
        }
        Ok(())
    }

    /// Each movement counts once in the stock, and nobody thinks that the centre was restored.
    fn judge_centre(&mut self) -> anyhow::Result<()> {
        let wrong = "SELECT s.product_id || ': ' || s.quantity || ', not ' || coalesce(m.sum, 0)
                     FROM stock s LEFT JOIN (SELECT product_id, sum(quantity) AS sum
                                             FROM movement GROUP BY 1) m USING (product_id)
                     WHERE s.quantity <> coalesce(m.sum, 0)";
        for stock in self.centre.texts(wrong)? {
            self.finding(format!("stock of product {stock}"));
        }
        let incidents = "SELECT kind || ' ' || user_name || ': ' || detail FROM tidewater.incident";
        for incident in self.centre.texts(incidents)? {
            self.finding(format!("incident: {incident}"));
        }
        let orphans = self.centre.count(
            "SELECT count(*) FROM line l JOIN visit v USING (visit_id) WHERE l.region <> v.region",
        )?;
        self.stage.note(&format!(
            "lines in another region than their visit: {orphans}"
        ));
        Ok(())
    }
}

/// In what a remote differs from the centre's rows of its regions.
fn differences(remote: &Rows, centre: &Rows, regions: &[i64]) -> Vec<String> {
    let mut found = Vec::new();
    for (key, row) in remote {
        let theirs = centre.get(key);
        if theirs != Some(row) {
            found.push(format!("{key} is {row:?}, in the centre {theirs:?}"));
        } else if !is_in_scope(row.0, regions) {
            found.push(format!("{key} is out of scope: {row:?}"));
        }
    }
    let missing = centre
        .iter()
        .filter(|(key, row)| is_in_scope(row.0, regions) && !remote.contains_key(key));
    found.extend(missing.map(|(key, row)| format!("{key} is missing: {row:?}")));
    found
}

fn is_in_scope(region: i64, regions: &[i64]) -> bool {
    region == 0 || regions.contains(&region)
}

#[cfg(test)]
mod tests;
