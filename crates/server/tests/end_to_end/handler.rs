//! A handler of a test's own: HTTP on loopback, with answers of any kind.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

/// A program that is asked; it ends when this is dropped.
pub(crate) struct Handler {
    pub(crate) url: String,
    state: Arc<State>,
}

/// Says something of what was asked.
pub(crate) type Answer = Box<dyn FnMut(&Asked) -> Say + Send>;

struct State {
    asked: Mutex<Vec<Asked>>,
    answer: Mutex<Answer>,
    ends: AtomicBool,
}

/// Something that it was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The headers, in lower case.
    pub(crate) head: String,
    pub(crate) text: String,
    pub(crate) body: Value,
}

/// What it says.
pub(crate) enum Say {
    Json(Value),
    /// Of this content type.
    Text(&'static str, String),
    Status(u16),
    /// Nothing: the connection ends.
    Nothing,
}

impl Asked {
    pub(crate) fn event(&self) -> &str {
        self.body["event"].as_str().unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let mut lines = self.head.lines();
        let found = lines.find_map(|it| it.strip_prefix(name)?.strip_prefix(": "));
        found.unwrap_or_else(|| panic!("no {name}: {}", self.head))
    }

    pub(crate) fn rows(&self) -> &Vec<Value> {
        self.body["rows"].as_array().unwrap()
    }

    /// The keys of its rows.
    pub(crate) fn keys(&self) -> Vec<String> {
        let keys = self.rows().iter().map(|it| &it["idempotency_key"]);
        keys.map(|it| it.as_str().unwrap().to_owned()).collect()
    }

    /// Says something of each row.
    pub(crate) fn each(&self, verdict: impl Fn(&Value) -> Value) -> Say {
        let rows = self.rows().iter().map(|row| {
            let mut said = verdict(row);
            said["idempotency_key"] = row["idempotency_key"].clone();
            said
        });
        Say::Json(json!({ "rows": rows.collect::<Vec<_>>() }))
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handler {
    pub(crate) fn start(answer: impl FnMut(&Asked) -> Say + Send + 'static) -> Handler {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/tidewater", listener.local_addr().unwrap());
        let state = Arc::new(State {
            asked: Mutex::default(),
            answer: Mutex::new(Box::new(answer)),
            ends: AtomicBool::new(false),
        });
        let serving = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.ends.load(Ordering::SeqCst) {
                    return;
                }
                let (stream, state) = (stream.unwrap(), serving.clone());
                std::thread::spawn(move || while state.serve(&stream).is_some() {});
            }
        });
        Handler { url, state }
    }

    /// Says something else from now on.
    pub(crate) fn says(&self, answer: impl FnMut(&Asked) -> Say + Send + 'static) {
        *lock(&self.state.answer) = Box::new(answer);
    }

    /// What it was asked since this was last asked.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut lock(&self.state.asked))
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::SeqCst);
        let address = self.url.trim_start_matches("http://");
        let address = address.split('/').next().unwrap_or_default();
        // It wakes up, and sees that.
        let _ = TcpStream::connect(address);
    }
}

impl State {
    /// One request; `None` if there is no other after it.
    fn serve(&self, stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let head = head.to_lowercase().replace('\r', "");
        let length = head
            .lines()
            .find_map(|it| it.strip_prefix("content-length: "));
        let mut body = vec![0; length?.parse().ok()?];
        reader.read_exact(&mut body).ok()?;
        let text = String::from_utf8(body).unwrap();
        let mut lines = text
            .lines()
            .filter_map(|it| serde_json::from_str::<Value>(it).ok());
        let mut body = lines.next().unwrap_or_default();
        if body["rows"].is_null() {
            body["rows"] = lines.collect();
        }
        let asked = Asked { head, text, body };
        let said = lock(&self.answer)(&asked);
        lock(&self.asked).push(asked);
        let (status, content_type, body) = match said {
            Say::Json(json) => (200, "application/json", json.to_string()),
            Say::Text(content_type, text) => (200, content_type, text),
            Say::Status(status) => (status, "text/plain", "out of order".to_owned()),
            Say::Nothing => return None,
        };
        let answer = format!(
            "HTTP/1.1 {status} x\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = stream;
        stream.write_all(answer.as_bytes()).ok()
    }
}
