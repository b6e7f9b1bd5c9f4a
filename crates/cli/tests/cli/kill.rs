//! Processes that are killed in the middle of a sync: SIGKILL, at every frame, on every
//! kind of consolidated database.
//!
//! Nothing is cleaned up, flushed or said by whoever is killed; the next sync finds what was
//! left. Cuts of the connection alone are tested by the server's `end_to_end`.

use std::net::SocketAddr;
use std::process::{Child, Stdio};

use tidewater_testing::FrameProxy;
use tidewater_testing::proxy::{Accident, Place as Frame, Way};

use crate::centre::{Centre, sqlite_rows};
use crate::program::{Place, Server, sqlite};
use crate::shop::{SCHEMA, TABLES, add_user, configure, password};

/// No sync of these tests has so many frames in one direction.
const MANY_FRAMES: usize = 100;

/// A line for every product that anybody changes in the centre.
const SQLITE_AUDIT: &str = "
    CREATE TABLE audit (id INTEGER PRIMARY KEY, line TEXT NOT NULL);
    CREATE TRIGGER audit_insert AFTER INSERT ON product BEGIN
        INSERT INTO audit (line) VALUES ('insert ' || NEW.product_id || ' ' || NEW.name);
    END;
    CREATE TRIGGER audit_update AFTER UPDATE ON product BEGIN
        INSERT INTO audit (line) VALUES ('update ' || NEW.product_id || ' ' || NEW.name);
    END;
    CREATE TRIGGER audit_delete AFTER DELETE ON product BEGIN
        INSERT INTO audit (line) VALUES ('delete ' || OLD.product_id);
    END;
";

/// The same on PostgreSQL.
pub(crate) const POSTGRES_AUDIT: &str = "
    CREATE TABLE audit (id BIGSERIAL PRIMARY KEY, line TEXT NOT NULL);
    CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP = 'DELETE' THEN
            INSERT INTO audit (line) VALUES ('delete ' || OLD.product_id);
        ELSE
            INSERT INTO audit (line)
                VALUES (lower(TG_OP) || ' ' || NEW.product_id || ' ' || NEW.name);
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON product
        FOR EACH ROW EXECUTE FUNCTION audit();
";

/// A shop whose only remote syncs through a network that stalls where a test says.
struct Stage {
    // The server goes first: it holds files in the folder open.
    server: Option<Server>,
    network: FrameProxy,
    centre: Centre,
    place: Place,
    /// Lines that the audit must have, each once.
    ledger: Vec<String>,
}

/// Who is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    Server,
    Remote,
}

impl Stage {
    /// With lines of the configuration's `[server]`.
    fn set(place: Place, centre: Centre, audit: &str) -> Stage {
        centre.execute(SCHEMA);
        centre.execute(audit);
        configure(&place, &centre, "", TABLES);
        place.tidewater(&["deploy"]).done();
        add_user(&place, "nancy");
        let server = place.serve(&[]);
        let network = FrameProxy::start(address(&server)).expect("a port is free");
        let first = [
            "sync",
            "nancy.db",
            "--server",
            &network.url(),
            "--user",
            "nancy",
            "--publication",
            "main",
        ];
        place.tidewater_as(&password("nancy"), &first).done();
        Stage {
            server: Some(server),
            network,
            centre,
            place,
            ledger: Vec::new(),
        }
    }

    /// Something to upload and something to download.
    fn make_a_day(&mut self, day: usize) {
        let (own, theirs) = (1_000 + day, 3_000 + day);
        let remote = sqlite(&self.place.path("nancy.db"));
        let edits = format!(
            "BEGIN;
             INSERT INTO product VALUES ({own}, 'own {day}');
             UPDATE product SET name = 'updated {day}' WHERE product_id = 1;
             DELETE FROM product WHERE product_id = {own} - 1;
             COMMIT;"
        );
        remote.execute_batch(&edits).expect("valid SQL");
        self.centre.execute(&format!(
            "INSERT INTO product VALUES ({theirs}, 'theirs {day}');
             UPDATE customer SET note = 'note {day}' WHERE customer_id = 10;
             DELETE FROM product WHERE product_id = {theirs} - 1;"
        ));
        self.ledger.push(format!("insert {own} own {day}"));
        self.ledger.push(format!("update 1 updated {day}"));
        self.ledger.push(format!("insert {theirs} theirs {day}"));
        if day > 0 {
            self.ledger.push(format!("delete {}", own - 1));
            self.ledger.push(format!("delete {}", theirs - 1));
        }
    }

    /// Kills somebody when a frame of a sync stalls there, or right after it was let through.
    /// False if the sync was over before.
    fn kill_at(&mut self, way: Way, frame: usize, passes: bool, victim: Victim) -> bool {
        self.network.plan(Frame::frame(way, frame), Accident::Stall);
        let mut sync = self
            .place
            .command(&["sync", "nancy.db", "--json"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        if !self.stalls(&mut sync) {
            return false;
        }
        if passes {
            self.network.release();
        }
        match victim {
            // It may have been faster, if the frame was its last.
            Victim::Remote => drop(sync.kill()),
            Victim::Server => drop(self.server.take()),
        }
        self.network.break_connections();
        sync.wait().expect("the program ends");
        if victim == Victim::Server {
            let server = self.place.serve(&[]);
            self.network.redirect(address(&server));
            self.server = Some(server);
        }
        true
    }

    /// Whether the sync comes to the frame that stalls.
    fn stalls(&self, sync: &mut Child) -> bool {
        std::thread::scope(|scope| {
            let network = &self.network;
            let waits = scope.spawn(move || network.wait_for_stall().is_ok());
            while !waits.is_finished() {
                if sync.try_wait().expect("it is our child").is_some() {
                    network.give_up_stall();
                    break;
                }
                std::thread::yield_now();
            }
            waits.join().expect("waiting does not panic")
        })
    }

    /// After a plain sync both ends are equal, and everything happened once.
    fn assert_recovered(&self) {
        self.place.tidewater(&["sync", "nancy.db", "--json"]).done();
        let remote = sqlite(&self.place.path("nancy.db"));
        for sql in [
            "SELECT product_id, name FROM product ORDER BY 1",
            "SELECT customer_id, rep_id, name, note FROM customer WHERE rep_id = 1 ORDER BY 1",
            "SELECT rep_id, login FROM rep ORDER BY 1",
        ] {
            assert_eq!(self.centre.rows(sql), sqlite_rows(&remote, sql));
        }
        let mut audit = self.centre.rows("SELECT line FROM audit ORDER BY line");
        let mut ledger = self.ledger.clone();
        audit.sort();
        ledger.sort();
        assert_eq!(audit, ledger);
        let pending = "SELECT count(*) FROM tidewater_change_product";
        assert_eq!(sqlite_rows(&remote, pending), ["0"]);
    }

    fn kill_everywhere(mut self, victim: Victim) {
        let mut days = 0..;
        for way in [Way::Up, Way::Down] {
            let mut moments = (0..MANY_FRAMES).flat_map(|frame| [(frame, false), (frame, true)]);
            let end = moments.find(|&(frame, passes)| {
                self.make_a_day(days.next().expect("days do not end"));
                let was_killed = self.kill_at(way, frame, passes, victim);
                self.assert_recovered();
                !was_killed
            });
            let (frames, _) = end.expect("a sync has an end");
            assert!(frames > 4, "a sync has more than {frames} frames");
        }
    }
}

fn address(server: &Server) -> SocketAddr {
    let address = server.url().trim_start_matches("tcp://");
    address.parse().expect("a server tells its address")
}

fn on_sqlite() -> Stage {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    Stage::set(place, centre, SQLITE_AUDIT)
}

fn on_postgres() -> Stage {
    Stage::set(Place::new(), Centre::postgres(), POSTGRES_AUDIT)
}

#[test]
fn i1_a_server_killed_at_any_frame_applies_every_change_once_on_sqlite() {
    on_sqlite().kill_everywhere(Victim::Server);
}

#[test]
fn i1_a_server_killed_at_any_frame_applies_every_change_once_on_postgresql() {
    on_postgres().kill_everywhere(Victim::Server);
}

#[test]
fn i1_a_remote_killed_at_any_frame_applies_every_change_once_on_sqlite() {
    on_sqlite().kill_everywhere(Victim::Remote);
}

#[test]
fn i1_a_remote_killed_at_any_frame_applies_every_change_once_on_postgresql() {
    on_postgres().kill_everywhere(Victim::Remote);
}
