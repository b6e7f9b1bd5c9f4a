//! New remotes that begin from an image: each with an identity of its own, equal to what it would
//! be by rows, and what is no image of the centre's is told.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tidewater_centre::records::RetentionTimes;
use tidewater_client::{ImageStart, RemoteDatabase};
use tidewater_protocol::Code;
use tidewater_protocol::image::Manifest;
use tidewater_server::images::{ImageOf, describe};

use crate::backend::Backend;
use crate::compare::assert_converged;
use crate::device::Device;
use crate::scenario::{SHOP_PUBLICATION, audited_shop, shop};
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
        let mut database = RemoteDatabase::open(path).unwrap();
        database.begin_from_image(self.start()).unwrap();
    }

    fn start(&self) -> ImageStart<'_> {
        let manifest = &self.manifest;
        ImageStart {
            sha256: &manifest.sha256,
            publication: &manifest.publication,
            schema_hash: &manifest.schema_hash,
            checkpoint: &manifest.checkpoint,
        }
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

/// I1 with files that were one.
fn i1_remotes_from_one_image_have_identities_of_their_own_and_upload_once<B: Backend>() {
    let world = World::<B>::open(audited_shop::<B>());
    let image = Image::of(&world, "bob");
    let mut devices = [image.begun(&world, "bob"), image.begun(&world, "ada")];
    for (number, device) in (60..).zip(&devices) {
        // Before the first sync, as soon as the file is there.
        device.edit(&format!("INSERT INTO product VALUES ({number}, 'new', 1)"));
        device.edit("UPDATE product SET stock = stock + 1 WHERE product_id = 2");
    }
    for device in &mut devices {
        device.sync();
    }
    for device in &mut devices {
        device.sync();
        assert_eq!(device.pending(), 0);
    }
    let id = |device: &mut Device| device.remote.account().unwrap().remote_id.unwrap();
    let [bob, ada] = &mut devices;
    assert_ne!(id(bob), id(ada));
    let written = "SELECT count(*) FROM audit WHERE line LIKE 'product|insert|6%'";
    assert_eq!(world.rows(written), ["2"]);
    assert_converged(&world, &[bob, ada]);
}

/// Nothing of the remote of which it was made is in an image.
fn an_image_holds_nothing_of_its_maker<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut maker = world.synced("bob");
    let account = maker.remote.account().unwrap();
    let file = maker.path.with_extension("image");
    maker.remote.database().unwrap().write_image(&file).unwrap();
    let bytes = std::fs::read(&file).unwrap();
    for secret in [
        account.credential.unwrap(),
        account.token.unwrap(),
        account.remote_id.unwrap().to_vec(),
        account.server.into_bytes(),
    ] {
        let mut places = bytes.windows(secret.len());
        assert!(!places.any(|it| it == secret));
    }
    // What is not only the centre's is not given to others.
    maker.edit("INSERT INTO product VALUES (70, 'mine', 1)");
    let again = maker.path.with_extension("again");
    let refused = maker.remote.database().unwrap().write_image(&again);
    assert_eq!(refused.unwrap_err().code(), Code::ImageInvalid);
}

/// I5: whoever has an image of others' partitions gets his own rows, and hears of no other.
fn i5_who_holds_other_partitions_than_the_image_gets_his_own<B: Backend>() {
    let world = World::<B>::open(shop());
    let image = Image::of(&world, "ada");
    change(&world);
    world.execute("INSERT INTO customer VALUES (4711, 1, 'nobody else''s', NULL, 1)");
    let mut bob = image.begun(&world, "bob");
    // What he must not write, he cannot write by the scope of an image.
    bob.edit("UPDATE customer SET name = 'stolen' WHERE customer_id = 1");
    bob.sync();
    bob.sync();
    let stolen = "SELECT count(*) FROM customer WHERE name = 'stolen'";
    assert_eq!(world.rows(stolen), ["0"]);
    assert_eq!(
        bob.rows("SELECT count(*) FROM customer WHERE region = 1"),
        ["0"]
    );
    assert_converged(&world, &[&bob]);
}

fn what_is_no_image_of_the_centre_is_told_and_others_go_on<B: Backend>() {
    let world = World::<B>::open(shop());
    let image = Image::of(&world, "bob");
    for damage in 0..3 {
        let mut manifest = image.manifest.clone();
        match damage {
            0 => manifest.sha256[0] ^= 1,
            1 => *manifest.checkpoint.last_mut().unwrap() ^= 1,
            _ => manifest.checkpoint.truncate(10),
        }
        let file = image.file.with_extension(format!("forged-{damage}"));
        std::fs::copy(&image.file, &file).unwrap();
        let forge = "UPDATE product SET name = 'forged' WHERE product_id = 1";
        let forger = rusqlite::Connection::open(&file).unwrap();
        assert_eq!(forger.execute(forge, []).unwrap(), 1);
        drop(forger);
        let mut bob = Image { file, manifest }.begun(&world, "bob");
        let kept = 80 + damage;
        bob.edit(&format!("INSERT INTO product VALUES ({kept}, 'kept', 1)"));
        let error = bob.try_sync().unwrap_err();
        assert_eq!(error.code(), Code::ImageInvalid, "{error}");
        // Whoever asks for that has the file compared, and what was written goes up.
        let go_on = &mut |_: &_| ControlFlow::Continue(());
        assert!(bob.remote.verify(true, go_on).unwrap().is_equal);
        let name = format!("SELECT name FROM product WHERE product_id = {kept}");
        assert_eq!(world.rows(&name), ["kept"]);
        assert_converged(&world, &[&bob]);
    }
    // Another centre's, with the same publication.
    let other = World::<B>::open(shop());
    let error = image.begun(&other, "bob").try_sync().unwrap_err();
    let told = [Code::ImageInvalid, Code::AnotherCentre];
    assert!(told.contains(&error.code()), "{error}");
    // Others go on.
    let bob = other.synced("bob");
    assert_converged(&other, &[&bob]);
}

/// A file in which what is begun from cannot be written down would present what its forger has
/// written there: here, the index by which the row is found that is to change is empty.
fn a_file_that_keeps_what_it_presents_is_no_image<B: Backend>() {
    let world = World::<B>::open(shop());
    let image = Image::of(&world, "bob");
    let file = image.file.with_extension("forged");
    std::fs::copy(&image.file, &file).unwrap();
    let forger = rusqlite::Connection::open(&file).unwrap();
    let forge = "PRAGMA legacy_alter_table = ON;
        CREATE TABLE forged AS SELECT * FROM tidewater_subscription;
        DROP TABLE tidewater_subscription;
        ALTER TABLE forged RENAME TO tidewater_subscription;
        CREATE TABLE hollow (id);
        CREATE INDEX empty_one ON hollow (id);
        CREATE INDEX all_of_it ON tidewater_subscription (id);
        ANALYZE tidewater_subscription;
        UPDATE sqlite_stat1 SET stat = '1000000 1 unordered' WHERE idx = 'all_of_it';
        PRAGMA writable_schema = ON;
        UPDATE sqlite_schema SET rootpage =
          (SELECT rootpage FROM sqlite_schema WHERE name = 'empty_one') WHERE name = 'all_of_it';";
    forger.execute_batch(forge).unwrap();
    drop(forger);
    let mut forged = RemoteDatabase::open(&file).unwrap();
    let error = forged.begin_from_image(image.start()).unwrap_err();
    assert_eq!(error.code(), Code::ImageInvalid);
    assert!(
        error.to_string().contains("cannot be begun from"),
        "{error}"
    );
}

/// A checkpoint of a remote's own is none of an image, nor the other way round.
fn a_checkpoint_of_one_kind_is_none_of_the_other<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let subscriptions = ada.remote.database().unwrap().subscriptions().unwrap();
    let mut image = Image::of(&world, "bob");
    image.manifest.checkpoint = subscriptions[0].checkpoint.clone();
    let error = image.begun(&world, "bob").try_sync().unwrap_err();
    assert_eq!(error.code(), Code::ImageInvalid, "{error}");
}

fn an_image_that_is_too_old_still_ends_right<B: Backend>() {
    let mut world = World::<B>::open(shop());
    let image = Image::of(&world, "bob");
    change(&world);
    // What has happened since is not known any more.
    world.server.ask(async |centre| {
        let nothing = RetentionTimes {
            log_ms: 0,
            history_ms: 0,
            conflicts_ms: 0,
        };
        centre.prune(nothing, 1 << 42).await.unwrap();
    });
    let mut bob = image.begun(&world, "bob");
    bob.sync();
    bob.sync();
    assert_converged(&world, &[&bob]);
    // Another schema.
    let image = Image::of(&world, "bob");
    world.execute("UPDATE product SET stock = 99 WHERE product_id = 2");
    world.execute("ALTER TABLE product ADD COLUMN colour TEXT");
    world.republish(SHOP_PUBLICATION);
    let mut bob = image.begun(&world, "bob");
    bob.sync();
    assert_converged(&world, &[&bob]);
}

on_both_adapters!(
    a_remote_that_begins_from_an_image_gets_what_has_changed,
    i1_remotes_from_one_image_have_identities_of_their_own_and_upload_once,
    an_image_holds_nothing_of_its_maker,
    i5_who_holds_other_partitions_than_the_image_gets_his_own,
    what_is_no_image_of_the_centre_is_told_and_others_go_on,
    a_file_that_keeps_what_it_presents_is_no_image,
    a_checkpoint_of_one_kind_is_none_of_the_other,
    an_image_that_is_too_old_still_ends_right,
);
