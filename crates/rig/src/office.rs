//! The application of the centre: it edits the tables of PostgreSQL, and knows nothing of
//! Tidewater.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, Transaction};

use crate::application::KEYS_OF_ONE;
use crate::chance::Chance;
use crate::ledger::{Draft, Ledger};
use crate::stage::Stage;
use crate::world::{JudgedTable, PRODUCTS, USERS, WANDERING_REGION};

/// Above those of all devices.
const KEYS_OF_OFFICES: i64 = 1_000;
/// From so many visits on, a region is thinned out.
const MANY_VISITS: i64 = 2_000;

pub(crate) struct Office {
    stage: Arc<Stage>,
    name: String,
    url: String,
    chance: Chance,
    keys: std::ops::Range<i64>,
    next_tag: u64,
    ledger: Ledger,
}

impl Office {
    pub(crate) fn new(stage: &Arc<Stage>, number: i64, url: String, chance: Chance) -> Office {
        let first = (KEYS_OF_OFFICES + number) * KEYS_OF_ONE;
        Office {
            stage: stage.clone(),
            name: format!("c{number}"),
            url,
            chance,
            keys: first..first + KEYS_OF_ONE,
            next_tag: 0,
            ledger: Ledger::default(),
        }
    }

    /// Edits until the end of the run.
    pub(crate) fn run(mut self) -> anyhow::Result<Ledger> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        while self.stage.runs() {
            match runtime.block_on(tidewater_testing::postgres::connect(&self.url)) {
                Ok(client) => self.work(&runtime, client),
                Err(error) => self.stage.note(&format!("{}: {error:#}", self.name)),
            }
            self.stage.pause(Duration::from_millis(100));
        }
        Ok(self.ledger)
    }

    fn work(&mut self, runtime: &Runtime, mut client: Client) {
        while self.stage.runs() {
            let mut next_tag = self.next_tag;
            let name = self.name.clone();
            let mut draft = Draft::new(&name, &mut next_tag);
            let result = runtime.block_on(self.transact(&mut client, &mut draft));
            let edits = draft.edits;
            self.next_tag = next_tag;
            match result {
                Ok(()) => self.ledger.committed.extend(edits),
                Err(error) => {
                    self.stage.note(&format!("{}: {error}", self.name));
                    self.ledger.doubtful.extend(edits);
                    return;
                }
            }
            let pause = Duration::from_millis(self.chance.of_any_size(9));
            runtime.block_on(async { tokio::time::sleep(pause).await });
        }
    }

    async fn transact(
        &mut self,
        client: &mut Client,
        draft: &mut Draft<'_>,
    ) -> Result<(), tokio_postgres::Error> {
        let transaction = client.transaction().await?;
        for _ in 0..self.chance.between(1, 3) {
            self.edit(&transaction, draft).await?;
        }
        let tags: Vec<&str> = draft.edits.iter().map(|it| it.tag.as_str()).collect();
        let journal = "INSERT INTO journal SELECT unnest($1::TEXT[])";
        transaction.execute(journal, &[&tags]).await?;
        if self.chance.percent(5) {
            // Downloads that begin later commit before this one does.
            let open = Duration::from_millis(self.chance.of_any_size(11));
            tokio::time::sleep(open).await;
        }
        transaction.commit().await
    }

    async fn edit(
        &mut self,
        centre: &Transaction<'_>,
        draft: &mut Draft<'_>,
    ) -> Result<(), tokio_postgres::Error> {
        let region = self.chance.between(1, 5) as i32;
        match self.chance.below(100) {
            0..30 => self.add_visit(centre, draft, region).await,
            30..55 => self.change_visits(centre, draft, region, 1).await,
            55..57 => {
                let many = self.chance.of_any_size(10) as i64;
                self.change_visits(centre, draft, region, many).await
            }
            57..65 => self.move_visit(centre, draft, region).await,
            65..72 => self.delete_visits(centre, draft, region, 1).await,
            72..82 => self.change_product(centre, draft).await,
            82..92 => self.move_stock(centre, draft).await,
            92..95 => self.move_user(centre).await,
            _ => self.keep_small(centre, draft, region).await,
        }
    }

    fn next_key(&mut self) -> i64 {
        self.keys.next().expect("nobody makes a billion keys")
    }

    async fn add_visit(
        &mut self,
        centre: &Transaction<'_>,
        draft: &mut Draft<'_>,
        region: i32,
    ) -> Result<(), tokio_postgres::Error> {
        let visit = self.next_key();
        let tag = draft.write(JudgedTable::Visit, visit);
        let payload = "y".repeat(self.chance.of_any_size(8) as usize);
        let sql = "INSERT INTO visit VALUES ($1, $2, false, $3, 1, $4)";
        centre
            .execute(sql, &[&visit, &region, &tag, &payload])
            .await?;
        for _ in 0..self.chance.below(4) {
            let line = self.next_key();
            let tag = draft.write(JudgedTable::Line, line);
            let sql = "INSERT INTO line VALUES ($1, $2, $3, $4, 3)";
            centre.execute(sql, &[&line, &visit, &region, &tag]).await?;
        }
        Ok(())
    }

    /// Some visits of a region that are not a device's own.
    async fn some_visits(
        &self,
        centre: &Transaction<'_>,
        region: i32,
        many: i64,
    ) -> Result<Vec<i64>, tokio_postgres::Error> {
        let sql = "SELECT visit_id FROM visit WHERE region = $1 AND NOT own \
                   ORDER BY random() LIMIT $2 FOR UPDATE";
        let rows = centre.query(sql, &[&region, &many]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    async fn change_visits(
        &mut self,
        centre: &Transaction<'_>,
        draft: &mut Draft<'_>,
        region: i32,
        many: i64,
    ) -> Result<(), tokio_postgres::Error> {
        let visits = self.some_visits(centre, region, many).await?;
        let write = |&visit: &i64| draft.write(JudgedTable::Visit, visit);
        let tags: Vec<String> = visits.iter().map(write).collect();
        let sql = "UPDATE visit SET tag = new.tag, amount = amount + 1 \
                   FROM unnest($1::BIGINT[], $2::TEXT[]) AS new (visit_id, tag) \
                   WHERE visit.visit_id = new.visit_id";
        centre.execute(sql, &[&visits, &tags]).await?;
        Ok(())
    }

    /// Into another region, with its lines.
    async fn move_visit(
        &mut self,
        centre: &Transaction<'_>,
        draft: &mut Draft<'_>,
        region: i32,
    ) -> Result<(), tokio_postgres::Error> {
        let target = self.chance.between(1, 5) as i32;
        for visit in self.some_visits(centre, region, 1).await? {
            let tag = draft.write(JudgedTable::Visit, visit);
            let sql = "UPDATE visit SET tag = $2, region = $3 WHERE visit_id = $1";
            centre.execute(sql, &[&visit, &tag, &target]).await?;
            for line in lines(centre, visit).await? {
                let tag = draft.write(JudgedTable::Line, line);
                let sql = "UPDATE line SET tag = $2, region = $3 WHERE line_id = $1";
                centre.execute(sql, &[&line, &tag, &target]).await?;
            }
        }
        Ok(())
    }

    async fn delete_visits(
        &mut self,
        centre: &Transaction<'_>,
        draft: &mut Draft<'_>,
        region: i32,
        many: i64,
    ) -> Result<(), tokio_postgres::Error> {
        let visits = self.some_visits(centre, region, many).await?;
        for &visit in &visits {
            draft.delete(JudgedTable::Visit, visit);
        }
        let sql = "DELETE FROM visit WHERE visit_id = ANY ($1)";
        centre.execute(sql, &[&visits]).await?;
        Ok(())
    }

    async fn change_product(
        &mut self,
        centre: &Transaction<'_>,
        draft: &mut Draft<'_>,
    ) -> Result<(), tokio_postgres::Error> {
        let product = self.chance.between(1, PRODUCTS) as i64;
        let tag = draft.write(JudgedTable::Product, product);
        let sql = "UPDATE product SET tag = $2, name = 'renamed' WHERE product_id = $1";
        centre.execute(sql, &[&product, &tag]).await?;
        Ok(())
    }

    async fn move_stock(
        &mut self,
        centre: &Transaction<'_>,
        draft: &mut Draft<'_>,
    ) -> Result<(), tokio_postgres::Error> {
        let movement = self.next_key();
        let tag = draft.write(JudgedTable::Movement, movement);
        let product = self.chance.between(1, PRODUCTS) as i64;
        let sql = "INSERT INTO movement VALUES ($1, $2, $3, 5)";
        centre.execute(sql, &[&movement, &product, &tag]).await?;
        Ok(())
    }

    /// A user gains or loses the region that wanders.
    async fn move_user(&mut self, centre: &Transaction<'_>) -> Result<(), tokio_postgres::Error> {
        let (login, _) = self.chance.pick(&USERS);
        let region = WANDERING_REGION as i32;
        let lose = "DELETE FROM member WHERE login = $1 AND region = $2";
        if centre.execute(lose, &[&login, &region]).await? == 0 {
            let gain = "INSERT INTO member VALUES ($1, $2) ON CONFLICT DO NOTHING";
            centre.execute(gain, &[&login, &region]).await?;
        }
        Ok(())
    }

    async fn keep_small(
        &mut self,
        centre: &Transaction<'_>,
        draft: &mut Draft<'_>,
        region: i32,
    ) -> Result<(), tokio_postgres::Error> {
        let sql = "SELECT count(*) FROM visit WHERE region = $1 AND NOT own";
        let count: i64 = centre.query_one(sql, &[&region]).await?.get(0);
        if count > MANY_VISITS {
            let many = MANY_VISITS / 2;
            self.delete_visits(centre, draft, region, many).await?;
        }
        Ok(())
    }
}

/// The lines of a visit, which nobody takes away until the transaction ends: what is written to a
/// line that is gone would be missed at the end.
async fn lines(centre: &Transaction<'_>, visit: i64) -> Result<Vec<i64>, tokio_postgres::Error> {
    let sql = "SELECT line_id FROM line WHERE visit_id = $1 FOR UPDATE";
    let rows = centre.query(sql, &[&visit]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
