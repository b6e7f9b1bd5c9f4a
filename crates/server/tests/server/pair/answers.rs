//! A server that is busy, slow or shuts down, and tokens that expire: nothing of it costs
//! a change or applies one twice.

use std::time::Duration;

use tokio::time::sleep;

use tidewater_connection::device::DeviceError;
use tidewater_protocol::Code;
use tidewater_remote::SyncError;

use super::device::Device;
use super::simulation::{Simulation, simulate};
use super::wire::{Direction, Fault, Kind, Weather};
use crate::centre::{Fate, MemoryCentre};

async fn synced(limits: &str) -> (Simulation, Device) {
    let simulation = Simulation::start(MemoryCentre::new(), 1, limits).await;
    let mut device = Device::new("ada", 2);
    device.settle(&simulation).await;
    (simulation, device)
}

fn assert_applied_once(simulation: &Simulation, device: &mut Device, changes: usize) {
    let state = simulation.centre.state();
    assert_eq!(state.changes.len(), changes);
    assert!(state.changes.iter().all(|(_, fate)| *fate == Fate::Applied));
    assert_eq!(device.notes(), state.notes());
    assert!(device.is_settled());
}

/// Waits as long as the server says, at least.
async fn come_back(error: &SyncError) {
    let after_ms = error.retry_after_ms().unwrap();
    assert!(after_ms > 0);
    sleep(Duration::from_millis(after_ms)).await;
}

#[test]
fn who_finds_no_place_is_told_so_and_comes_back_with_the_same_upload() {
    simulate(async {
        let (simulation, mut device) = synced("connections = 1").await;
        device.write(1, Some("one"));
        // The server notices first that the connection of the sync before is over.
        sleep(Duration::from_secs(20)).await;
        let other = simulation.dial().unwrap();
        let error = device.sync(&simulation, Weather::fine()).await.unwrap_err();
        assert_eq!(error.code(), Code::Busy, "{error}");
        drop(other);
        come_back(&error).await;
        device.settle(&simulation).await;
        assert_applied_once(&simulation, &mut device, 1);
    });
}

#[test]
fn who_finds_a_full_backlog_comes_back_with_the_same_upload() {
    simulate(async {
        let (simulation, mut ada) = synced("backlog = 1\nupload_workers = 1").await;
        let mut bob = Device::new("bob", 3);
        let mut third = Device::new("ada", 4);
        bob.settle(&simulation).await;
        third.settle(&simulation).await;
        ada.write(1, Some("one"));
        bob.write(2, Some("two"));
        third.write(3, Some("three"));
        simulation.centre.apply_gate.send_replace(false);
        let others = async {
            // Ada's is with the worker by then, and Bob's waits for it.
            sleep(Duration::from_secs(1)).await;
            let error = third.sync(&simulation, Weather::fine()).await.unwrap_err();
            assert_eq!(error.code(), Code::Busy, "{error}");
            simulation.centre.apply_gate.send_replace(true);
            come_back(&error).await;
        };
        let first = ada.sync(&simulation, Weather::fine());
        let second = async {
            sleep(Duration::from_millis(10)).await;
            bob.sync(&simulation, Weather::fine()).await
        };
        let (first, second, ()) = tokio::join!(first, second, others);
        // Applied they are; their downloads may find the backlog full in their turn.
        for outcome in [first, second] {
            assert!(matches!(
                outcome,
                Ok(_) | Err(SyncError::Connection(DeviceError::Busy { .. }))
            ));
        }
        for device in [&mut third, &mut ada, &mut bob] {
            device.settle(&simulation).await;
            assert_applied_once(&simulation, device, 3);
        }
    });
}

#[test]
fn an_upload_that_a_shutdown_cut_off_is_not_applied_again_by_the_next_server() {
    simulate(async {
        let (mut simulation, mut device) = synced("shutdown_timeout = \"1s\"").await;
        device.write(1, Some("one"));
        simulation.centre.download_gate.send_replace(false);
        let stopped = simulation.stop_server();
        // The upload is applied by then, and its answer waits for the download.
        let stop = async {
            sleep(Duration::from_secs(1)).await;
            stopped.await;
        };
        let (outcome, ()) = tokio::join!(device.sync(&simulation, Weather::fine()), stop);
        let error = outcome.unwrap_err();
        assert_eq!(error.code(), Code::ShuttingDown, "{error}");
        assert_eq!(simulation.centre.state().changes.len(), 1);
        simulation.centre.download_gate.send_replace(true);
        let error = device.sync(&simulation, Weather::fine()).await.unwrap_err();
        assert_eq!(error.code(), Code::ConnectionLost, "nobody listens");
        simulation.start_server("").await;
        device.settle(&simulation).await;
        assert_applied_once(&simulation, &mut device, 1);
    });
}

#[test]
fn a_sync_that_waits_longer_than_it_bears_silence_is_kept_alive() {
    simulate(async {
        let (simulation, mut device) = synced("").await;
        device.write(1, Some("one"));
        simulation.centre.apply_gate.send_replace(false);
        let open = async {
            sleep(Duration::from_secs(10 * 60)).await;
            simulation.centre.apply_gate.send_replace(true);
        };
        let (outcome, ()) = tokio::join!(device.sync(&simulation, Weather::fine()), open);
        outcome.unwrap();
        assert!(simulation.now().ticks_ms >= 10 * 60 * 1_000);
        device.settle(&simulation).await;
        assert_applied_once(&simulation, &mut device, 1);
    });
}

#[test]
fn an_expired_token_is_replaced_within_the_same_sync_by_the_credential() {
    simulate(async {
        let (simulation, mut device) = synced("").await;
        let before = device.account();
        device.write(1, Some("one"));
        sleep(Duration::from_secs(2 * 60 * 60)).await;
        let report = device.sync(&simulation, Weather::fine()).await.unwrap();
        assert_eq!(report.uploaded.inserts, 1);
        let after = device.account();
        assert_ne!(before.token, after.token);
        assert_eq!(before.remote_id, after.remote_id);
        let lines = simulation.history();
        assert!(
            lines
                .iter()
                .any(|line| line.contains("again with Credential")),
            "{lines:#?}"
        );
        device.settle(&simulation).await;
        assert_applied_once(&simulation, &mut device, 1);
    });
}

#[test]
fn an_upload_that_waits_for_a_worker_while_its_remote_reconnects_is_applied_once() {
    simulate(async {
        let (simulation, mut device) = synced("").await;
        device.write(1, Some("one"));
        simulation.centre.apply_gate.send_replace(false);
        // All is sent by then; the answer is lost with its first byte.
        let lost = Weather::with(Fault {
            direction: Direction::Down,
            after: 1,
            kind: Kind::Cut,
        });
        let error = device.sync(&simulation, lost).await.unwrap_err();
        assert_eq!(error.code(), Code::ConnectionLost, "{error}");
        device.write(1, Some("one again"));
        let open = async {
            sleep(Duration::from_secs(20)).await;
            assert_eq!(simulation.centre.state().changes.len(), 0);
            simulation.centre.apply_gate.send_replace(true);
        };
        let (outcome, ()) = tokio::join!(device.sync(&simulation, Weather::fine()), open);
        assert_eq!(outcome.unwrap().uploaded.inserts, 1);
        device.settle(&simulation).await;
        assert_applied_once(&simulation, &mut device, 2);
    });
}
