//! The examples of docs/handlers.md, run as they stand there, on ports that are free.

use crate::desk::Desk;
use crate::manual::blocks;

const MANUAL: &str = include_str!("../../../../docs/handlers.md");
const HANDLER: &str = include_str!("../../../../examples/handlers/python/handler.py");

#[test]
fn what_the_manual_of_handlers_shows_works() {
    let desk = Desk::new();
    let commands = blocks(MANUAL, "sh");
    let [shop, prepare, sync] = &commands[..] else {
        panic!("the manual has other examples: {commands:#?}");
    };
    desk.place.write("handler.py", HANDLER);
    let handler = desk.start(shop);
    handler.prints("listening on");
    let configurations = blocks(MANUAL, "toml");
    // The first one shows a table alone.
    desk.place
        .write("tidewater.toml", &desk.text(&configurations[1]));
    desk.run(prepare);
    let _server = desk.place.serve_as_configured();
    let told = desk.run(sync);
    assert!(told.contains("1|10\n2|100\n"), "{told}");
    assert!(!told.contains("3|0"), "{told}");
    assert!(
        told.contains("an order has a quantity of at least 1"),
        "{told}"
    );
    // The others are parts of one.
    let others = [&*configurations[2], &*configurations[3]].concat();
    let whole = format!("{}\n{others}", configurations[1]);
    desk.place.write("other.toml", &desk.text(&whole));
    let deployed = desk
        .place
        .tidewater(&["deploy", "--dry-run", "-c", "other.toml"]);
    // There is no table to deploy.
    deployed.exits(1).tells(&["note"]);
}
