//! Names of devices: given at the first sync, shown wherever people see a remote, and understood where
//! they name one.

use serde_json::Value;

use crate::program::until;
use crate::shop::{Remote, Shop, password};

const VAN: &str = "Nancy's van";

fn listed(shop: &Shop) -> Vec<Value> {
    let list = shop.place.tidewater(&["remote", "list", "--json"]).done();
    let remotes = list.json()["remotes"].clone();
    remotes.as_array().expect("a list").clone()
}

/// The names of all devices, in order. The server notes them beside the sync.
fn names_become(shop: &Shop, expected: &[&str]) {
    let names = || {
        let mut names: Vec<String> = listed(shop)
            .iter()
            .map(|it| it["device_name"].as_str().expect("text").to_owned())
            .collect();
        names.sort();
        names
    };
    until(&format!("{expected:?}"), || names() == expected);
}

/// The remote of a user, whose first sync names the device.
fn named(shop: &Shop, user: &str, name: &str) -> Remote {
    let url = shop.server.url();
    let more = ["--device-name", name];
    shop.place.first_sync(user, url, "main", &more).done();
    shop.remote_in(&format!("{user}.db"))
}

#[test]
fn a_device_is_called_after_its_host_unless_somebody_names_it() {
    Shop::on_both_centres(|shop| {
        let host = std::process::Command::new("uname").arg("-n").output();
        let host = String::from_utf8(host.expect("uname runs").stdout).expect("text");
        let nancy = shop.remote("nancy");
        names_become(&shop, &[host.trim()]);
        let rename = ["sync", &nancy.name, "--device-name", VAN];
        shop.place.tidewater(&rename).done();
        names_become(&shop, &[VAN]);
        // It is kept.
        shop.sync(&nancy).done();
        names_become(&shop, &[VAN]);
        let status = shop.place.tidewater(&["status", &nancy.name]).done();
        assert!(status.stdout.contains(&format!("device     {VAN}\n")));
        let status = shop.place.tidewater(&["status", &nancy.name, "--json"]);
        assert_eq!(status.done().json()["device_name"], VAN);
        for wrong in ["", &"x".repeat(65), "two\nlines", "red\u{1b}[31m"] {
            let rename = ["sync", &nancy.name, "--device-name", wrong];
            let refused = shop.place.tidewater(&rename).exits(1);
            refused.tells(&["cannot be the name of a device", "1 to 64 characters"]);
        }
        names_become(&shop, &[VAN]);
    });
}

#[test]
fn whatever_is_told_of_a_remote_names_its_device() {
    Shop::on_both_centres(|shop| {
        let nancy = named(&shop, "nancy", VAN);
        names_become(&shop, &[VAN]);
        nancy.execute(
            "INSERT INTO customer VALUES (12, 1, ' ', NULL);
             UPDATE product SET name = 'mine' WHERE product_id = 1",
        );
        shop.centre
            .execute("UPDATE product SET name = 'theirs' WHERE product_id = 1");
        shop.sync(&nancy).exits(6);
        let centre = ["-c", "tidewater.toml"];
        for command in [
            &["remote", "list"][..],
            &["status"],
            &["refused", "list"],
            &["conflicts", "list"],
            &["conflicts", "export", "--format", "csv"],
        ] {
            let told = shop.place.tidewater(&[command, &centre].concat()).done();
            assert!(told.stdout.contains(VAN), "{command:?}: {told:#?}");
        }
        let json = |command: &[&str]| {
            let arguments = [command, &centre, &["--json"]].concat();
            shop.place.tidewater(&arguments).done().json()
        };
        assert_eq!(json(&["refused", "list"])["refused"][0]["device_name"], VAN);
        let conflicts = json(&["conflicts", "list"]);
        assert_eq!(conflicts["conflicts"][0]["device_name"], VAN);
        assert_eq!(json(&["status"])["syncs"][0]["device_name"], VAN);
        assert!(shop.server.log().contains(VAN), "{}", shop.server.log());
    });
}

#[test]
fn a_remote_is_meant_by_the_name_of_its_device_if_only_one_is_called_so() {
    Shop::on_both_centres(|shop| {
        let nancy = named(&shop, "nancy", VAN);
        let steve = named(&shop, "steve", "the office");
        names_become(&shop, &[VAN, "the office"]);
        let explain = ["explain", "--remote", VAN, "product", "1"];
        shop.place.tidewater(&explain).done();
        shop.place.tidewater(&["remote", "revoke", VAN]).done();
        shop.sync(&nancy).exits(3);
        shop.place.tidewater(&["remote", "restore", VAN]).done();
        shop.sync(&nancy).done();
        let unknown = shop.place.tidewater(&["remote", "revoke", "nobody's"]);
        unknown.exits(1).tells(&["no device is called so"]);
        let rename = ["sync", &steve.name, "--device-name", VAN];
        shop.place.tidewater(&rename).done();
        names_become(&shop, &[VAN, VAN]);
        let refused = shop.place.tidewater(&["remote", "revoke", VAN]).exits(1);
        let ids: Vec<String> = listed(&shop)
            .iter()
            .map(|it| it["id"].as_str().expect("text").to_owned())
            .collect();
        refused.tells(&["2 devices are called", &ids[0], &ids[1]]);
    });
}

#[test]
fn a_copied_file_keeps_the_name_of_its_device() {
    let shop = Shop::open();
    let nancy = named(&shop, "nancy", VAN);
    std::fs::copy(shop.place.path(&nancy.name), shop.place.path("copy.db"))
        .expect("it can be copied");
    let copy = shop.remote_in("copy.db");
    for remote in [&nancy, &copy] {
        remote.execute(
            "INSERT INTO product (product_id, name) SELECT 1 + max(product_id), 'x' FROM product",
        );
        let sync = ["sync", &remote.name, "--json"];
        let run = shop.place.tidewater_as(&password("nancy"), &sync);
        assert!(matches!(run.code, 0 | 6), "{run:#?}");
    }
    names_become(&shop, &[VAN, VAN]);
}
