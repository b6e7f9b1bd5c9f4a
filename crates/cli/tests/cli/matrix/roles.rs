//! A publication whose devices act under a role of the database.

use super::actions::said;
use super::world::{Cell, World};
use crate::shop::add_user;

/// Devices write and read under the role, and see what its row security shows.
pub(super) fn act_as(world: &mut World) -> Cell {
    let url = world.centre.url();
    let clerk = format!("clerk_{}", url.rsplit('_').next().expect("a number"));
    world.centre.execute(&format!(
        "CREATE ROLE {clerk};
         GRANT SELECT, INSERT, UPDATE, DELETE ON note TO {clerk};
         GRANT SELECT ON topic TO {clerk};
         CREATE TABLE audit (role TEXT NOT NULL, id INTEGER NOT NULL);
         GRANT INSERT ON audit TO {clerk};
         CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN INSERT INTO audit VALUES (current_user, NEW.id); RETURN NEW; END';
         CREATE TRIGGER audit AFTER INSERT ON note FOR EACH ROW EXECUTE FUNCTION audit();
         ALTER TABLE note ENABLE ROW LEVEL SECURITY;
         CREATE POLICY own ON note TO {clerk} USING (topic = 1)"
    ));
    if world.kind == super::kinds::Kind::TimestampDownload {
        world
            .centre
            .execute(&format!("GRANT SELECT, INSERT ON gone TO {clerk}"));
    }
    let act_as = format!("act_as = \"{clerk}\"");
    world.configure(
        "tidewater.toml",
        &world.publication("\"everyone\"", "", &act_as),
    );
    let deployed = world.place.tidewater(&["deploy"]);
    let cell = match deployed.code {
        0 if said(&deployed).contains("act_as has no effect") => Cell::Refused(said(&deployed)),
        0 => {
            add_user(&world.place, "nancy");
            world.serve();
            used(world, &clerk);
            world.stop();
            Cell::Works
        }
        _ => Cell::Refused(said(&deployed)),
    };
    world
        .centre
        .execute(&format!("DROP OWNED BY {clerk}; DROP ROLE {clerk}"));
    cell
}

fn used(world: &World, clerk: &str) {
    let device = world.device("clerk");
    let seen = "SELECT id FROM note ORDER BY id";
    assert_eq!(device.rows(seen), ["1", "2", "3", "4", "5"]);
    device
        .execute("INSERT INTO note (id, topic, body) VALUES (701, 1, 'hers'), (702, 2, 'unseen')");
    device.sync().exits(6);
    assert_eq!(world.note(701), world.written(1, "hers"));
    assert!(world.note(702).is_empty());
    let audited = world
        .centre
        .rows("SELECT role, id FROM audit WHERE id > 700");
    assert_eq!(audited, [format!("{clerk}|701")]);
}
