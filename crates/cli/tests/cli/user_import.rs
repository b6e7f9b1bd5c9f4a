//! Many users from a file.

use crate::centre::on_both_centres;
use crate::program::Place;
use crate::shop::{Shop, password, prepared};

/// The hash of "light", cheap to check.
fn light_hash() -> &'static str {
    "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2U"
}

#[test]
fn users_of_a_file_sign_in_with_its_passwords() {
    let shop = Shop::open();
    shop.place.write(
        "users.csv",
        "name,password\ncarol,\"secret, really\"\nnancy,changed\n",
    );
    let import = ["user", "import", "users.csv", "--json"];
    let run = shop.place.tidewater(&import).exits(1);
    let error = run.json()["error"]["message"].to_string();
    assert!(error.contains("line 3: there is a user"), "{error}");
    let list = shop.place.tidewater(&["user", "list"]).done().stdout;
    assert!(!list.contains("carol"), "all or none: {list}");

    let import = [&import[..], &["--update"]].concat();
    let done = shop.place.tidewater(&import).done().json();
    assert_eq!((&done["added"], &done["updated"]), (&1.into(), &1.into()));
    shop.first_sync("nancy", &[]).exits(3);
    for (user, password) in [("nancy", "changed"), ("carol", "secret, really")] {
        let (file, url) = (format!("{user}.db"), shop.server.url());
        let account = ["--user", user, "--publication", "main"];
        let arguments = [&["sync", &file, "--server", url][..], &account].concat();
        shop.place.tidewater_as(password, &arguments).done();
    }
}

#[test]
fn thousands_of_hashed_users_are_imported_from_standard_input_on_both_centres() {
    on_both_centres(|place, centre| {
        centre.execute(crate::shop::SCHEMA);
        crate::shop::configure(place, centre, "", crate::shop::TABLES);
        let lines = (0..5_000).map(|number| format!("user {number},{}\n", light_hash()));
        let text = format!("name,password_hash\n{}", lines.collect::<String>());
        let quoted = text.replace(",$", ",\"$").replace("U\n", "U\"\n");
        place
            .tidewater_with_input(&["user", "import", "-"], &quoted)
            .exits(1)
            .tells(&["tidewater deploy"]);
        place.tidewater(&["deploy"]).done();
        let run = place
            .tidewater_with_input(&["user", "import", "-"], &quoted)
            .done();
        assert!(
            run.stderr.contains("5000 users added, 0 updated"),
            "{run:?}"
        );
        let users = place.tidewater(&["user", "list", "--json"]).done().json();
        assert_eq!(users["users"].as_array().unwrap().len(), 5_000);
    });
}

#[test]
fn a_wrong_line_is_told_and_nothing_is_imported() {
    let place = Place::new();
    let _centre = prepared(&place);
    place.write("users.csv", "name,password\ncarol,x\n,y\ndave\n");
    place
        .tidewater(&["user", "import", "users.csv"])
        .exits(1)
        .tells(&["nothing was imported", "line 3: ", "line 4: 1 value, not 2"]);
    place
        .tidewater(&["user", "import", "nowhere.csv"])
        .exits(1)
        .tells(&["nowhere.csv", "check the path"]);
    let list = place.tidewater(&["user", "list"]).done().stdout;
    assert!(!list.contains("carol"), "{list}");
    let completions = place.tidewater(&["completions", "bash"]).done().stdout;
    assert!(completions.contains("import") && completions.contains("rotate"));
    assert!(!completions.contains(&password("nancy")));
}
