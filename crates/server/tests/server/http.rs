//! The web protocol: signing in, calls, providers, and what is told of errors.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use tidewater_centre::Centre;
use tidewater_client::{Answer, ColumnType, Datum, Link, LinkOptions};

use crate::centre::{Handle, MemoryCentre};
use crate::world::{HOUR_MS, PASSWORD, World};

const HEAD: &str = "[server]\nlisten = [\"tcp://127.0.0.1:0\"]\nhttp = \"http://127.0.0.1:0\"\n";

const PROCEDURES: &str = r#"
[[procedure]]
name = "double"
provided_by = "bob"
allow = "everyone"
arguments = { number = "integer", note = "text?" }
"#;

async fn world() -> World {
    World::try_start(&MemoryCentre::new(), HEAD, PROCEDURES)
        .await
        .unwrap()
}

/// One request on a connection of its own: the status, the headers in lower case, the body.
pub(crate) fn request(
    world: &World,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String, String) {
    request_to(address(world), method, path, headers, body)
}

fn address(world: &World) -> &str {
    let address = world.running.http.as_ref().unwrap();
    address.strip_prefix("http://").unwrap()
}

fn request_to(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_lowercase(), body.to_owned())
}

fn sign_in(world: &World, user: &str) -> String {
    let body = json!({ "user": user, "password": PASSWORD }).to_string();
    let (status, _, body) = request(world, "POST", "/v1/sign-in", &[], &body);
    assert_eq!(status, 200, "{body}");
    let token: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(token["token_type"], "Bearer");
    format!("Bearer {}", token["token"].as_str().unwrap())
}

fn ask(world: &World, who: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
    let (status, head, body) = request(world, method, path, &[("authorization", who)], body);
    if status >= 400 {
        assert!(head.contains("application/problem+json"), "{head}");
    }
    (status, serde_json::from_str(&body).unwrap_or(Value::Null))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_with_http_alone_provides_and_calls() {
    let world = world().await;
    tokio::task::block_in_place(|| {
        let (ada, bob) = (sign_in(&world, "ada"), sign_in(&world, "bob"));
        let echo = ask(
            &world,
            &ada,
            "POST",
            "/v1/call/tidewater.echo",
            r#"{"value": [1]}"#,
        );
        assert_eq!(echo, (200, json!([1])));
        let nothing = ask(&world, &bob, "GET", "/v1/provide/double?wait=0", "");
        assert_eq!(nothing, (204, Value::Null));
        thread::scope(|scope| {
            scope.spawn(|| {
                let (status, call) = ask(&world, &bob, "GET", "/v1/provide/double", "");
                assert_eq!((status, &call["arguments"]["number"]), (200, &json!(21)));
                assert_eq!(
                    (&call["user"], &call["procedure"]),
                    (&json!("ada"), &json!("double"))
                );
                let path = format!("/v1/answer/{}", call["call"].as_str().unwrap());
                let foreign = ask(&world, &ada, "POST", &path, "1");
                assert_eq!(foreign.0, 404, "it is bob's");
                assert_eq!(ask(&world, &bob, "POST", &path, "42").0, 204);
                assert_eq!(
                    ask(&world, &bob, "POST", &path, "43").0,
                    404,
                    "it is answered"
                );
                let (_, call) = ask(&world, &bob, "GET", "/v1/provide/double", "");
                let path = format!("/v1/fail/{}", call["call"].as_str().unwrap());
                let failure = r#"{"message": "too large", "code": "E17"}"#;
                assert_eq!(ask(&world, &bob, "POST", &path, failure).0, 204);
            });
            let body = r#"{"number": "21"}"#;
            let answer = ask(&world, &ada, "POST", "/v1/call/double", body);
            assert_eq!(answer, (200, json!(42)));
            let (status, problem) = ask(&world, &ada, "POST", "/v1/call/double", body);
            assert_eq!((status, &problem["own_code"]), (422, &json!("E17")));
            assert_eq!(problem["detail"], "too large");
        });
        assert_eq!(ask(&world, &bob, "DELETE", "/v1/provide/double", "").0, 204);
        let gone = ask(&world, &ada, "POST", "/v1/call/double", r#"{"number": 1}"#);
        assert_eq!((gone.0, &gone.1["code"]), (503, &json!("no_provider")));
        // One that speaks the binary protocol is as good.
        let options = LinkOptions::password("bob", PASSWORD);
        let bob = Link::connect(&world.running.addresses[0], &options).unwrap();
        bob.provide("double", |called| {
            let number = Datum::Integer(called.integer("number")? * 2);
            Ok(Answer::value(ColumnType::Integer, &number))
        })
        .unwrap();
        let answer = ask(&world, &ada, "POST", "/v1/call/double", r#"{"number": 4}"#);
        assert_eq!(answer, (200, json!(8)));
    });
}

/// Gets the next call of `double`, and answers it.
fn answer_next(world: &World, provider: &str, number: i64, answer: &str) {
    let (status, call) = ask(world, provider, "GET", "/v1/provide/double", "");
    assert_eq!(
        (status, &call["arguments"]["number"]),
        (200, &json!(number))
    );
    let path = format!("/v1/answer/{}", call["call"].as_str().unwrap());
    assert_eq!(ask(world, provider, "POST", &path, answer).0, 204);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_waits_for_is_accepted_before_it_is_done() {
    let world = world().await;
    tokio::task::block_in_place(|| {
        let (ada, bob) = (sign_in(&world, "ada"), sign_in(&world, "bob"));
        assert_eq!(
            ask(&world, &bob, "GET", "/v1/provide/double?wait=0", "").0,
            204
        );
        let headers = [("authorization", &*ada), ("prefer", "respond-async")];
        let call = |path: &str, body: &str| request(&world, "POST", path, &headers, body);
        let (status, _, body) = call("/v1/call/double", r#"{"number": 21}"#);
        assert_eq!((status, body.as_str()), (202, ""));
        answer_next(&world, &bob, 21, "42");
        // What cannot be called is not accepted.
        assert_eq!(call("/v1/call/tripel", "").0, 404);
        assert_eq!(call("/v1/call/double", "").0, 400);
    });
}

#[tokio::test]
async fn what_counts_at_the_next_start_is_told_as_long_as_it_differs_from_the_last() {
    let world = World::try_start(&MemoryCentre::new(), HEAD, "")
        .await
        .unwrap();
    for (limits, told) in [
        ("backlog = 7", &["server.limits"][..]),
        (
            "backlog = 7\n[log]\nlevel = \"warn\"",
            &["server.limits", "log"],
        ),
        ("", &[]),
    ] {
        let config = World::config(HEAD, limits).unwrap();
        assert_eq!(world.running.reconfigure(config).await.unwrap(), told);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_for_calls_gets_them_once_the_procedure_is_declared_again() {
    let world = world().await;
    let asked = |who: &str| ask(&world, who, "GET", "/v1/provide/double?wait=0", "");
    let called = |who: &str| ask(&world, who, "POST", "/v1/call/double", r#"{"number": 1}"#);
    let reconfigure = async |procedures: &str| {
        let config = World::config(HEAD, procedures).unwrap();
        world.running.reconfigure(config).await.unwrap();
    };
    let (ada, bob) = tokio::task::block_in_place(|| {
        let (ada, bob) = (sign_in(&world, "ada"), sign_in(&world, "bob"));
        assert_eq!(asked(&bob).0, 204);
        (ada, bob)
    });
    reconfigure("").await;
    tokio::task::block_in_place(|| {
        for (status, problem) in [asked(&bob), called(&ada)] {
            assert_eq!(
                (status, &problem["code"]),
                (404, &json!("no_such_procedure"))
            );
        }
    });
    reconfigure(PROCEDURES).await;
    tokio::task::block_in_place(|| {
        thread::scope(|scope| {
            let answered = scope.spawn(|| called(&ada));
            answer_next(&world, &bob, 1, "2");
            assert_eq!(answered.join().unwrap(), (200, json!(2)));
        });
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_are_problems_that_say_what_to_do() {
    let world = world().await;
    let ada = tokio::task::block_in_place(|| sign_in(&world, "ada"));
    tokio::task::block_in_place(|| {
        let call = |path: &str, body: &str| {
            let (status, problem) = ask(&world, &ada, "POST", path, body);
            assert!(
                problem["hint"].as_str().is_some_and(|it| !it.is_empty()),
                "{problem}"
            );
            assert_eq!(problem["status"], json!(status));
            (status, problem["code"].as_str().unwrap().to_owned())
        };
        let problem = |status: u16, code: &str| (status, code.to_owned());
        assert_eq!(
            call("/v1/call/tripel", ""),
            problem(404, "no_such_procedure")
        );
        assert_eq!(call("/v1/call/double", "{"), problem(400, "usage"));
        assert_eq!(call("/v1/call/double", "[]"), problem(400, "usage"));
        assert_eq!(call("/v1/call/double", "{}"), problem(400, "bad_argument"));
        assert_eq!(call("/v1/nowhere", ""), problem(404, "usage"));
        assert_eq!(call("/openapi.json", ""), problem(405, "usage"));
        assert_eq!(call("/v1/provide/double", ""), problem(405, "usage"));
        let (status, taken) = ask(&world, &ada, "GET", "/v1/provide/double", "");
        assert_eq!((status, &taken["code"]), (409, &json!("name_taken")));
        for header in ["Bearer x", "Bearer AAAA", "Basic eDp5", ""] {
            let (status, head, _) = request(
                &world,
                "POST",
                "/v1/call/double",
                &[("authorization", header)],
                "{}",
            );
            assert_eq!(status, 401, "{header}");
            assert!(head.contains("www-authenticate: bearer"));
        }
        for (name, value) in [("tidewater-timeout", "soon"), ("idempotency-key", "7")] {
            let headers = [("authorization", ada.as_str()), (name, value)];
            let (status, _, body) = request(&world, "POST", "/v1/call/double", &headers, "{}");
            assert_eq!(status, 400, "{body}");
        }
        let large = format!("{{\"note\": \"{}\"}}", "x".repeat(1 << 20));
        let (status, _, _) = {
            let headers = [("authorization", ada.as_str())];
            request(&world, "POST", "/v1/call/double", &headers, &large)
        };
        assert_eq!(status, 413);
        let problem = |method: &str, path: &str, body: &str| {
            let (status, problem) = ask(&world, &ada, method, path, body);
            assert_eq!(problem["status"], json!(status), "{problem}");
            assert!(!problem["hint"].as_str().unwrap().is_empty(), "{problem}");
            (status, problem["code"].as_str().unwrap().to_owned())
        };
        let told = |status: u16, code: &str| (status, code.to_owned());
        // What the libraries refuse is told as all else.
        assert_eq!(
            problem("POST", "/v1/call/double", &large),
            told(413, "limit_exceeded")
        );
        for path in ["/v1/provide/double?wait=long", "/v1/provide/%ff"] {
            assert_eq!(problem("GET", path, ""), told(400, "usage"), "{path}");
        }
        let wrong = json!({ "user": "ada", "password": "wrong" }).to_string();
        let (status, _, body) = request(&world, "POST", "/v1/sign-in", &[], &wrong);
        assert_eq!(status, 401, "{body}");
    });
    let handle = Handle(world.centre.clone());
    assert!(handle.set_disabled("ada", true).await.unwrap());
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    tokio::task::block_in_place(|| {
        let (status, problem) = ask(&world, &ada, "POST", "/v1/call/double", "{}");
        assert_eq!((status, &problem["code"]), (403, &json!("user_disabled")));
    });
}

/// The next answer on a connection that stays open.
fn next_answer(stream: &mut TcpStream) -> (u16, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let (_, length) = head.split_once("content-length: ").unwrap();
    let length = length.split('\r').next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, String::from_utf8(body).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_serves_one_request_after_the_other() {
    let world = world().await;
    tokio::task::block_in_place(|| {
        let ada = sign_in(&world, "ada");
        let address = world.running.http.as_ref().unwrap();
        let address = address.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        for (path, body, expected) in [
            ("tidewater.echo", "{\"value\": 1}", (200, "1")),
            ("nothing", "", (404, "no_such_procedure")),
            ("tidewater.echo", "{\"value\": 2}", (200, "2")),
            ("double", "{", (400, "usage")),
            ("tidewater.echo", "{\"value\": 3}", (200, "3")),
        ] {
            let length = body.len();
            let request = format!(
                "POST /v1/call/{path} HTTP/1.1\r\nhost: x\r\nauthorization: {ada}\r\n\
                 content-length: {length}\r\n\r\n{body}"
            );
            stream.write_all(request.as_bytes()).unwrap();
            let (status, body) = next_answer(&mut stream);
            assert_eq!(status, expected.0, "{body}");
            assert!(body.contains(expected.1), "{body}");
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_and_never_reads_keeps_his_place_for_a_while_only() {
    let limits = "connections = 1\nidle_timeout = \"1s\"";
    let world = World::try_start(&MemoryCentre::new(), HEAD, limits)
        .await
        .unwrap();
    tokio::task::block_in_place(|| {
        let mut deaf = TcpStream::connect(address(&world)).unwrap();
        deaf.set_write_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        let questions = "GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(100);
        // Until nobody takes them any more, because nobody takes the answers.
        while deaf.write_all(questions.as_bytes()).is_ok() {}
        let mut waited = 0;
        while request(&world, "GET", "/openapi.json", &[], "").0 != 200 {
            waited += 1;
            assert!(waited < 600, "he keeps the place");
            thread::sleep(Duration::from_millis(100));
        }
        drop(deaf);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_runs_out_over_a_call_is_asked_for_with_the_next_one() {
    let world = world().await;
    tokio::task::block_in_place(|| {
        let (ada, bob) = (sign_in(&world, "ada"), sign_in(&world, "bob"));
        thread::scope(|scope| {
            let body = r#"{"number": 1}"#;
            let path = "/v1/provide/double";
            let provided = scope.spawn(|| ask(&world, &bob, "GET", path, ""));
            let called = scope.spawn(|| {
                loop {
                    let (status, answer) = ask(&world, &ada, "POST", "/v1/call/double", body);
                    // Nobody asks for calls yet.
                    if status != 503 {
                        break (status, answer);
                    }
                }
            });
            let (_, call) = provided.join().unwrap();
            world.clock.advance(2 * HOUR_MS);
            let bob = sign_in(&world, "bob");
            let path = format!("/v1/answer/{}", call["call"].as_str().unwrap());
            assert_eq!(ask(&world, &bob, "POST", &path, "2").0, 204);
            assert_eq!(called.join().unwrap(), (200, json!(2)));
            let (status, problem) = ask(&world, &ada, "POST", "/v1/call/double", body);
            assert_eq!((status, &problem["code"]), (401, &json!("token_expired")));
        });
    });
}

const SPACES: &str = r#"
[[space]]
name = "news"
publish = "everyone"
subscribe = "everyone"
queue_size = "64KiB"
"#;

/// Reads a stream of events until one of these lines has come; whether one has.
fn reads(stream: &mut TcpStream, line: &str) -> bool {
    let mut lines = BufReader::new(stream).lines();
    lines.any(|it| it.is_ok_and(|it| it == line))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_hears_that_the_server_is_there_what_he_missed_and_is_cut_off() {
    let world = World::try_start(&MemoryCentre::new(), HEAD, SPACES)
        .await
        .unwrap();
    let subscribe = |ada: &str| {
        let mut stream = TcpStream::connect(address(&world)).unwrap();
        let request =
            format!("GET /v1/events/news HTTP/1.1\r\nhost: x\r\nauthorization: {ada}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        assert!(reads(&mut stream, "content-type: text/event-stream"));
        stream
    };
    let (mut slow, mut silent) = tokio::task::block_in_place(|| {
        let ada = sign_in(&world, "ada");
        let mut slow = subscribe(&ada);
        let mut silent = subscribe(&sign_in(&world, "eve"));
        let options = LinkOptions::password("bob", PASSWORD);
        let bob = Link::connect(&world.running.addresses[0], &options).unwrap();
        // More than the network takes and may wait.
        let payload = [b'x'; 32 << 10];
        for _ in 0..1_000 {
            bob.publish("news", "a", &payload).unwrap();
        }
        assert!(reads(&mut slow, "event: missed"));
        // Nothing more comes but a sign of life.
        assert!(reads(&mut silent, ":"));
        (slow, silent)
    });
    let handle = Handle(world.centre.clone());
    assert!(handle.set_disabled("ada", true).await.unwrap());
    assert!(handle.remove_user("eve").await.unwrap());
    tokio::task::block_in_place(|| {
        for stream in [&mut slow, &mut silent] {
            // The last piece of an answer.
            assert!(reads(stream, "0"));
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sign_in_is_short_and_comes_at_once() {
    let world = World::try_start(&MemoryCentre::new(), HEAD, "handshake_timeout = \"500ms\"")
        .await
        .unwrap();
    tokio::task::block_in_place(|| {
        let mut stream = TcpStream::connect(address(&world)).unwrap();
        let begun = "POST /v1/sign-in HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{";
        stream.write_all(begun.as_bytes()).unwrap();
        let mut answer = String::new();
        // The connection ends, and with it what it takes.
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert!(answer.contains("application/problem+json"), "{answer}");
        let long = "x".repeat(129 << 10);
        let (status, _, problem) = request(&world, "POST", "/v1/sign-in", &[], &long);
        assert_eq!(status, 413, "{problem}");
        sign_in(&world, "ada");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_leaves_and_comes_back_has_another_seat() {
    let world = world().await;
    tokio::task::block_in_place(|| {
        let (ada, bob) = (sign_in(&world, "ada"), sign_in(&world, "bob"));
        let path = "/v1/provide/double";
        let wait = |seconds: u32| ask(&world, &bob, "GET", &format!("{path}?wait={seconds}"), "");
        thread::scope(|scope| {
            let former = scope.spawn(|| wait(1));
            // If it comes too late, it has the new seat.
            thread::sleep(Duration::from_millis(100));
            assert_eq!(ask(&world, &bob, "DELETE", path, "").0, 204);
            assert_eq!(wait(0).0, 204);
            assert_eq!(former.join().unwrap().0, 204);
        });
        // Whoever takes calls now gets them.
        thread::scope(|scope| {
            scope.spawn(|| answer_next(&world, &bob, 1, "2"));
            let body = r#"{"number": 1}"#;
            let called = scope.spawn(|| ask(&world, &ada, "POST", "/v1/call/double", body));
            assert_eq!(called.join().unwrap(), (200, json!(2)));
        });
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_called_before_a_shutdown_is_answered() {
    let world = world().await;
    let address = address(&world).to_owned();
    let (ada, bob) =
        tokio::task::block_in_place(|| (sign_in(&world, "ada"), sign_in(&world, "bob")));
    let of = |who: &str| -> Vec<(&'static str, String)> { vec![("authorization", who.to_owned())] };
    let send = |who: &str, method: &'static str, path: String, body: &'static str| {
        let (address, headers) = (address.clone(), of(who));
        thread::spawn(move || {
            let headers: Vec<(&str, &str)> = headers
                .iter()
                .map(|(name, it)| (*name, it.as_str()))
                .collect();
            request_to(&address, method, &path, &headers, body)
        })
    };
    let provided = send(&bob, "GET", "/v1/provide/double".into(), "");
    let called = thread::spawn({
        let (address, ada) = (address.clone(), ada.clone());
        move || loop {
            let headers = [("authorization", ada.as_str())];
            let body = r#"{"number": 1}"#;
            let answer = request_to(&address, "POST", "/v1/call/double", &headers, body);
            // Nobody asks for calls yet.
            if answer.0 != 503 {
                break answer;
            }
        }
    });
    let (status, _, call) = tokio::task::block_in_place(|| provided.join().unwrap());
    assert_eq!(status, 200, "{call}");
    let call: Value = serde_json::from_str(&call).unwrap();
    let ended = tokio::spawn(world.running.shutdown());
    tokio::task::block_in_place(|| {
        // Nothing new is begun.
        let begin = || send(&ada, "POST", "/v1/call/tidewater.echo".into(), "{}");
        while begin().join().unwrap().0 != 503 {}
        let path = format!("/v1/answer/{}", call["call"].as_str().unwrap());
        assert_eq!(send(&bob, "POST", path, "2").join().unwrap().0, 204);
        let (status, _, answer) = called.join().unwrap();
        assert_eq!((status, answer.as_str()), (200, "2"));
    });
    ended.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_while_a_shutdown_begins_is_answered() {
    let world = world().await;
    let address = address(&world).to_owned();
    let ada = tokio::task::block_in_place(|| sign_in(&world, "ada"));
    // Of some nothing has been heard yet, and one was served before.
    let connections = (0..8).map(|_| TcpStream::connect(&address).unwrap());
    let mut connections: Vec<TcpStream> = connections.collect();
    let ask =
        format!("DELETE /v1/provide/double HTTP/1.1\r\nhost: x\r\nauthorization: {ada}\r\n\r\n");
    tokio::task::block_in_place(|| {
        let served = &mut connections[0];
        served.write_all(ask.as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            served.read_exact(&mut byte).unwrap();
            answer.extend(byte);
        }
        assert!(answer.starts_with(b"HTTP/1.1 204"), "{answer:?}");
    });
    let ended = tokio::spawn(world.running.shutdown());
    tokio::task::block_in_place(|| {
        let begin = || request_to(&address, "DELETE", "/v1/provide/double", &[], "").0;
        while begin() != 503 {}
        for stream in &mut connections {
            stream.write_all(ask.as_bytes()).unwrap();
        }
        for stream in &mut connections {
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 503"), "{answer:?}");
            assert!(answer.contains("connection: close"), "{answer}");
        }
    });
    ended.await.unwrap();
}

/// Takes a document on its standard input, and says what is wrong with it.
const VALIDATE: &str = "
import json, sys
import openapi_spec_validator as validator
validate = getattr(validator, 'validate', None) or validator.validate_spec
validate(json.load(sys.stdin))
";

/// With an argument of each type.
const TYPES: &str = r#"
[[procedure]]
name = "all.types"
provided_by = "bob"
allow = "everyone"

[procedure.arguments]
an_integer = "integer"
a_real = "real?"
a_boolean = "boolean"
a_text = "text?"
a_blob = "blob"
a_decimal = "decimal?"
a_timestamptz = "timestamptz"
a_date = "date"
a_time = "time?"
a_timestamp = "timestamp"
an_uuid = "uuid"
some_json = "json?"
"#;

/// A published validator (openapi-spec-validator, which scripts/test.sh installs) has nothing to say against it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_description_is_one() {
    let text = format!("{PROCEDURES}{TYPES}{SPACES}");
    let world = World::try_start(&MemoryCentre::new(), HEAD, &text)
        .await
        .unwrap();
    tokio::task::block_in_place(|| {
        let (_, _, document) = request(&world, "GET", "/openapi.json", &[], "");
        let validate = |document: &str| {
            let mut command = Command::new("python3");
            command.args(["-c", VALIDATE]).stdin(Stdio::piped());
            let mut validator = command.stderr(Stdio::piped()).spawn().unwrap();
            let mut input = validator.stdin.take().unwrap();
            input.write_all(document.as_bytes()).unwrap();
            drop(input);
            validator.wait_with_output().unwrap()
        };
        let told = validate(&document);
        assert!(
            told.status.success(),
            "{}",
            String::from_utf8_lossy(&told.stderr)
        );
        let wrong = document.replacen("\"operationId\":\"publish\"", "\"operationId\":7", 1);
        assert!(!validate(&wrong).status.success(), "it looks");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_be_called_is_described() {
    let world = world().await;
    tokio::task::block_in_place(|| {
        let (status, _, body) = request(&world, "GET", "/openapi.json", &[], "");
        assert_eq!(status, 200);
        let document: Value = serde_json::from_str(&body).unwrap();
        let double = &document["paths"]["/v1/call/double"]["post"];
        let schema = &double["requestBody"]["content"]["application/json"]["schema"];
        assert_eq!(schema["required"], json!(["number"]));
        assert_eq!(
            schema["properties"]["note"]["type"],
            json!(["string", "null"])
        );
    });
}
