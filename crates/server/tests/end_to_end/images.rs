//! New remotes that begin from an image: each with an identity of its own, equal to what it would
//! be by rows, and what is no image of the centre's is told.

use std::path::{Path, PathBuf};

use tidewater_client::{Database, ImageStart};
use tidewater_protocol::Code;
use tidewater_protocol::image::Manifest;
use tidewater_server::images::{ImageOf, describe};

use crate::backend::Backend;
use crate::compare::assert_converged;
use crate::device::Device;
use crate::scenario::{audited_shop, shop};
use crate::world::World;

/// In 2025, as whoever makes images says.
const NOW_MS: i64 = 1_750_000_000_000;

/// An image as it lies in a folder.
struct Image {
    file: PathBuf,
    manifest: Manifest,
}

impl Image {
    /// Made of what this user holds.
    fn of<B: Backend>(world: &World<B>, user: &str) -> Image {
        let mut maker = world.synced(user);
        let file = maker.path.with_extension("image");
        let content = maker.remote.database().unwrap().write_image(&file).unwrap();
        let of = ImageOf {
            remote_id: content.remote_id,
            centre: &content.centre,
            publication: &content.publication,
            schema_hash: &content.schema_hash,
            checkpoint: &content.checkpoint,
        };
        let described = world
            .server
            .ask(async |centre| describe(centre, of, &file, NOW_MS).await);
        Image {
            manifest: described.unwrap(),
            file,
        }
    }

    /// A new remote that begins from it.
    fn begun<B: Backend>(&self, world: &World<B>, user: &str) -> Device {
        let mut device = world.device(user);
        let path = device.path.clone();
        device.reopen(|| self.put(&path));
        device
    }

    fn put(&self, path: &Path) {
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", path.display()));
        }
        std::fs::copy(&self.file, path).unwrap();
        let manifest = &self.manifest;
        let start = ImageStart {
            sha256: &manifest.sha256,
            publication: &manifest.publication,
            schema_hash: &manifest.schema_hash,
            checkpoint: &manifest.checkpoint,
        };
        Database::open(path)
            .unwrap()
            .begin_from_image(start)
            .unwrap();
    }
}

/// Everything that can happen to rows.
fn change<B: Backend>(world: &World<B>) {
    world.execute(
        "INSERT INTO customer VALUES (10, 2, 'new', NULL, 1), (11, 1, 'elsewhere', NULL, 1);
         INSERT INTO invoice VALUES (20, 2, 10, 'new');
         UPDATE customer SET name = 'changed' WHERE customer_id = 2;
         DELETE FROM invoice WHERE invoice_id = 4;
         UPDATE product SET product_id = 40 WHERE product_id = 1;
         UPDATE customer SET region = 2 WHERE customer_id = 3;
         DELETE FROM product WHERE product_id = 3;",
    );
}

fn a_remote_that_begins_from_an_image_gets_what_has_changed<B: Backend>() {
    let world = World::<B>::open(shop());
    let text = "x".repeat(500);
    let rows = (1_000..2_000).map(|it| format!("({it}, '{text}', 0)"));
    let rows = rows.collect::<Vec<_>>().join(", ");
    world.execute(&format!("INSERT INTO product VALUES {rows}"));
    let image = Image::of(&world, "bob");
    change(&world);
    let mut bob = image.begun(&world, "bob");
    let report = bob.sync();
    assert!(
        report.bytes_received < 50_000,
        "only what has changed comes"
    );
    assert_converged(&world, &[&bob]);
    // It goes on like any other.
    bob.edit("UPDATE customer SET name = 'mine' WHERE customer_id = 2");
    bob.sync();
    bob.sync();
    assert_eq!(bob.pending(), 0);
    assert_converged(&world, &[&bob]);
}

on_both_adapters!(a_remote_that_begins_from_an_image_gets_what_has_changed);
