//! The examples of docs/network.md, run as they stand there, on ports that are free.

use crate::desk::Desk;
use crate::manual::blocks;

const MANUAL: &str = include_str!("../../../../docs/network.md");

#[test]
fn what_the_manual_of_networks_shows_works() {
    let desk = Desk::new();
    let commands = blocks(MANUAL, "sh");
    let [shop, prepare, several] = &commands[..] else {
        panic!("the manual has other examples: {commands:#?}");
    };
    desk.run(shop);
    let configuration = &blocks(MANUAL, "toml")[0];
    desk.place
        .write("tidewater.toml", &desk.text(configuration));
    desk.run(prepare);
    let _server = desk.place.serve_as_configured();
    let told = desk.run(several);
    let first = desk.text("http://127.0.0.1:7439,tls://127.0.0.1:1");
    assert_eq!(told.lines().last(), Some(first.as_str()), "{told}");
}
