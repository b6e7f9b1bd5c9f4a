//! Where handlers stand in a configuration, and what cannot be said of them.

use super::*;

/// A configuration with a table of these lines, and whatever follows.
fn with_table(lines: &str, more: &str) -> String {
    format!(
        "[server]\nconsolidated = \"sqlite:x\"\n[[publication]]\nname = \"p\"\n\
         [[publication.table]]\nname = \"sales.orders\"\npartition = \"everyone\"\n{lines}\n{more}"
    )
}

#[test]
fn a_handler_stands_where_it_is_asked_or_has_a_name() {
    let text = with_table(
        "handler = { url = \"https://h.x/o?a=1\", secret = [\"${EMPTY}x\", \"y\"], batch_rows = 7 }\n\
         conflict = { resolve = \"handler\" }",
        "[[publication.table]]\nname = \"note\"\npartition = \"everyone\"\nhandler = \"own\"\n\
         upload = \"handler\"\ndownload = \"handler\"\n\
         [[publication.table]]\nname = \"tag\"\npartition = \"everyone\"\n\
         handler = \"http://127.0.0.1:1/\"\n\
         [[handler]]\nname = \"own\"\nurl = \"call:notes\"\nretries = 0\n\
         [[procedure]]\nname = \"notes\"\nprovided_by = \"office\"\nallow = \"everyone\"\n\
         arguments = { request = \"json\" }\n\
         [sign_in]\npasswords = \"handler\"\nhandler = \"http://127.0.0.1:1/\"\n",
    );
    let config = parse(&text).unwrap();
    let names: Vec<&str> = config.handlers.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["own", "https://h.x/o?a=1", "http://127.0.0.1:1/"]);
    let of = |table: &str| &config.handling.tables[&("p".to_owned(), table.to_owned())];
    let orders = of("orders");
    assert_eq!(
        (orders.upload, orders.resolve, orders.download),
        (true, true, false)
    );
    let handler = &config.handlers[1];
    assert_eq!(
        (handler.secrets.len(), handler.rows, handler.retries),
        (2, 7, 2)
    );
    let note = of("note");
    assert_eq!(note.handler, "own");
    assert!(note.keeps_uploads && note.download && !note.resolve);
    let handled = config.publications[0].tables.iter().map(|it| it.handled);
    let handled: Vec<_> = handled
        .map(|it| (it.upload, it.keeps_uploads, it.download))
        .collect();
    assert_eq!(
        handled,
        [
            (true, false, false),
            (true, true, true),
            (true, false, false)
        ]
    );
    assert_eq!(
        config.handling.sign_in.as_deref(),
        Some("http://127.0.0.1:1/")
    );
    assert!(config.handler_warnings().is_empty());
    let unused = with_table(
        "",
        "[[handler]]\nname = \"h\"\nurl = \"http://localhost/\"\n",
    );
    assert_eq!(parse(&unused).unwrap().handler_warnings().len(), 1);
}

#[test]
fn a_handler_that_cannot_be_is_told_with_what_to_write() {
    let named =
        |more: &str| format!("[[handler]]\nname = \"h\"\nurl = \"http://localhost/\"\n{more}");
    for (lines, more, message, hint) in [
        (
            "handler = \"https://h.x/\"",
            String::new(),
            "there is no secret",
            "secret = \"${VARIABLE}\"",
        ),
        (
            "handler = \"http://h.x/\"",
            String::new(),
            "unencrypted",
            "https://",
        ),
        (
            "handler = \"hh\"",
            named(""),
            "no handler \"hh\"",
            "did you mean \"h\"",
        ),
        (
            "handler = { name = \"x\" }",
            String::new(),
            "has no url",
            "https://HOST/PATH",
        ),
        (
            "handler = \"call:f\"",
            String::new(),
            "no such procedure",
            "arguments = { request = \"json\" }",
        ),
        (
            "upload = \"handler\"",
            String::new(),
            "there is none",
            "write handler =",
        ),
        (
            "conflict = { resolve = \"handler\" }",
            String::new(),
            "there is none",
            "write handler =",
        ),
        (
            "handler = \"h\"\nupload = \"handlr\"",
            named(""),
            "upload is \"handlr\"",
            "did you mean",
        ),
        (
            "handler = \"h\"\nupload = \"handler\"\nconflict = { resolve = \"server_wins\" }",
            named(""),
            "compares it with nothing",
            "remove conflict",
        ),
        (
            "handler = \"h\"\nupload = \"handler\"\nconflict = { resolve = \"handler\" }",
            named(""),
            "compares it with nothing",
            "remove conflict",
        ),
        (
            "handler = \"h\"\ndownload = \"handler\"\ntracking = \"row\"",
            named(""),
            "nothing is read from the table",
            "remove tracking",
        ),
        (
            "handler = \"h\"\ndownload = \"handler\"",
            named("events = [\"upload\"]"),
            "download is a handler's affair",
            "add \"download\"",
        ),
        (
            "handler = \"h\"\ndirection = \"download\"",
            named(""),
            "asked about nothing",
            "remove handler",
        ),
        (
            "handler = \"h\"\ndirection = \"download\"\nupload = \"handler\"",
            named(""),
            "what direction leaves out",
            "",
        ),
        (
            "handler = \"h\"",
            named("events = [\"uplod\"]"),
            "event is \"uplod\"",
            "did you mean",
        ),
        (
            "handler = \"h\"",
            named("batch_rows = 0"),
            "batch_rows is 0",
            "from 1",
        ),
        (
            "handler = \"h\"",
            named("secret = \"\""),
            "secret is empty",
            "secret_file",
        ),
        (
            "handler = \"h\"",
            named("secret = [\"a\", \"b\", \"c\"]"),
            "3 secrets",
            "two",
        ),
        (
            "handler = \"h\"",
            named("") + &named(""),
            "two handlers",
            "of its own",
        ),
        (
            "",
            "[[handler]]\nurl = \"http://localhost/\"\n".into(),
            "has no name",
            "name =",
        ),
        (
            "",
            named("tiemout = \"1s\""),
            "unknown key \"tiemout\" in [[handler]]",
            "timeout",
        ),
        (
            "",
            "[sign_in]\npasswords = \"handler\"\n".into(),
            "there is none",
            "handler =",
        ),
        (
            "",
            named("") + "[sign_in]\nhandler = \"h\"\n",
            "nobody asks it",
            "passwords",
        ),
    ] {
        let (told, advice) = error_of(&with_table(lines, &more));
        assert!(told.contains(message), "{told} has no {message}");
        assert!(advice.contains(hint), "{advice} has no {hint}");
    }
}
