//! What a slow remote can cost the worker that has its upload early, in simulated time: to
//! the millisecond, however busy the machine is.

use std::time::Duration;

use tokio::time::sleep;

use tidewater_protocol::message::Control;

use super::simulation::{PASSWORD, Simulation, simulate};
use crate::centre::MemoryCentre;
use crate::client::{Client, Remote, inserts, pending};

const ROWS: u64 = 1_000;

/// What a worker may wait for an upload for which it had nothing to do so far, and the
/// milliseconds that timers are coarse.
const PATIENCE: Duration = Duration::from_millis(202);

#[test]
fn a_remote_that_trickles_holds_a_worker_for_its_patience_once_in_an_upload() {
    simulate(async {
        let limits = "early_upload = 1\nupload_workers = 1";
        let simulation = Simulation::start(MemoryCentre::new(), 1, limits).await;
        for (uploads, pause_ms) in [1, 3, 10, 150, 1_000].into_iter().enumerate() {
            let mut ada = Remote::new("ada");
            let mut client = Client::over(Box::new(simulation.dial().unwrap()));
            client.preface();
            let reply = client.sync(ada.password(PASSWORD)).await;
            ada.learn(&reply);
            let first = uploads as i64 * ROWS as i64;
            let rows = inserts(first..first + ROWS as i64, &"n".repeat(1_000));
            client.put(Control::Hello(pending(ada.token(), 1)));
            client.put_upload_begin(1, 1, &rows, ROWS);
            for piece in rows.chunks(rows.len() / 100) {
                client.put_rows(piece);
                client.flush().await;
                sleep(Duration::from_millis(pause_ms)).await;
            }
            client.put_upload_end(&rows, ROWS);
            client.put_request();
            client.flush().await;
            let reply = client.reply().await;
            assert_eq!(reply.results[0].inserts, ROWS, "{reply:?}");
            let state = simulation.centre.state();
            let held = state.early_held.last().expect("a worker had it");
            assert!(*held <= PATIENCE, "{held:?} with pauses of {pause_ms} ms");
            // A hundred pauses of a millisecond are short enough; of those that are longer
            // each upload has one attempt, and then waits for its end.
            assert_eq!(state.early.len(), uploads + 1);
            assert_eq!(*state.early.last().expect("it is over"), pause_ms == 1);
            assert_eq!(state.notes().len() as u64, (uploads as u64 + 1) * ROWS);
        }
    });
}
