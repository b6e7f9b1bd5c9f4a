//! A program that speaks HTTP alone.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::world::{LiveServer, PASSWORD};

/// Long enough for whatever has to happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// A program that has signed in.
pub(crate) struct WebProgram<'s> {
    server: &'s LiveServer,
    token: String,
}

impl WebProgram<'_> {
    pub(crate) fn sign_in<'s>(server: &'s LiveServer, user: &str) -> WebProgram<'s> {
        let body = format!(r#"{{"user": "{user}", "password": "{PASSWORD}"}}"#);
        let answer = whole(send(server, "POST /v1/sign-in HTTP/1.1", &body));
        WebProgram {
            server,
            token: member(&answer, "token").to_owned(),
        }
    }

    /// Sends a request, such as `GET /v1/events/log`; other headers may follow on lines of their
    /// own.
    pub(crate) fn ask(&self, request: &str, body: &str) -> BufReader<TcpStream> {
        let line = request.lines().next().unwrap_or_default();
        let headers = &request[line.len()..];
        let token = &self.token;
        let head = format!("{line} HTTP/1.1\r\nauthorization: Bearer {token}{headers}");
        send(self.server, &head, body)
    }

    /// Whether a call that it was given is somebody's no longer, soon.
    pub(crate) fn is_rid_of(&self, call: &str) -> bool {
        // What tells no failure ends nothing, as long as somebody waits.
        let fail = format!("POST /v1/fail/{call}");
        let is_over = |_| whole(self.ask(&fail, "x")).starts_with("HTTP/1.1 404 ");
        (0..20_000).any(is_over)
    }
}

pub(crate) fn send(server: &LiveServer, head: &str, body: &str) -> BufReader<TcpStream> {
    let address = server.http.as_ref().expect("it speaks HTTP");
    let address = address.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let request =
        format!("{head}\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    BufReader::new(stream)
}

pub(crate) fn whole(mut answer: BufReader<TcpStream>) -> String {
    let mut text = String::new();
    answer.read_to_string(&mut text).unwrap();
    text
}

/// A text in the object that an answer is.
pub(crate) fn member<'a>(answer: &'a str, name: &str) -> &'a str {
    let begins = format!("\"{name}\":\"");
    let rest = answer.split_once(&begins).map(|(_, rest)| rest);
    let value = rest.and_then(|it| it.split('"').next());
    value.unwrap_or_else(|| panic!("no {name}: {answer}"))
}
