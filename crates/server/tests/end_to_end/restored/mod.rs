//! A centre that was restored, or failed over with loss: what it forgot is given back once,
//! and everybody ends equal.

mod cuts;
mod forgotten;
mod identities;
mod physical;

use tempfile::TempDir;

use crate::backend::Backend;
use crate::device::Device;
use crate::world::World;

/// A backup of the centre as it is now.
fn backup<B: Backend>(world: &World<B>) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    world.backend.save(folder.path());
    folder
}

/// Restores the centre from a backup; the remotes find it where it was.
fn restore<B: Backend>(world: &mut World<B>, backup: &TempDir, devices: &[&Device]) {
    world.replace(B::restore(backup.path()));
    redirect(world, devices);
}

fn redirect<B: Backend>(world: &World<B>, devices: &[&Device]) {
    for device in devices {
        device.network.redirect(world.server.address);
    }
}
