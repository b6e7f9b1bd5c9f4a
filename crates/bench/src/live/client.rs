//! A program that calls: a process of its own, which is told what to do on its standard input.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use tidewater_client::{Link, LinkOptions, Request};

use crate::base;
use crate::spread::percentile;

/// What a program is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) server_port: u16,
    pub(super) http_port: u16,
    pub(super) user: String,
    pub(super) password: String,
    pub(super) seconds: f64,
    pub(super) kind: Kind,
}

/// A kind of job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Kind {
    /// Bytes to another thread's socket of this process and back: what the machine can do.
    Raw,
    /// Calls that the server answers itself, by so many threads with pauses.
    Echo { threads: u32, pause_ms: u64 },
    /// The same over HTTP, one after the other.
    EchoHttp,
    /// Calls of a statement.
    Lookup { threads: u32 },
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) count: u64,
    pub(super) seconds: f64,
    pub(super) median_us: f64,
    pub(super) p99_us: f64,
}

/// What is carried: 100 bytes.
fn payload() -> String {
    "x".repeat(100)
}

/// Does what its standard input says.
///
/// # Errors
/// It cannot be done.
pub fn client() -> anyhow::Result<()> {
    let mut input = BufReader::new(std::io::stdin().lock());
    let mut line = String::new();
    input.read_line(&mut line)?;
    let job: Job = serde_json::from_str(&line)?;
    let mut worker = prepare(&job)?;
    println!("ready");
    line.clear();
    input.read_line(&mut line)?;
    let outcome = worker(&job)?;
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

type Worker = Box<dyn FnMut(&Job) -> anyhow::Result<Outcome>>;

fn prepare(job: &Job) -> anyhow::Result<Worker> {
    Ok(match job.kind {
        Kind::Raw => Box::new(raw),
        Kind::EchoHttp => {
            let mut stream = Http::connect(job)?;
            Box::new(move |job| {
                let body = serde_json::json!({ "value": payload() }).to_string();
                one_after_the_other(job, || stream.call("tidewater.echo", &body))
            })
        }
        Kind::Echo { threads, pause_ms } => {
            let link = connect(job)?;
            let request = Request::new("tidewater.echo").with("value", Some(payload().into()));
            let pause = Duration::from_millis(pause_ms);
            Box::new(move |job| {
                let request = request.clone();
                by_threads(
                    job,
                    threads,
                    pause,
                    &link,
                    Arc::new(move |_| request.clone()),
                )
            })
        }
        Kind::Lookup { threads } => {
            let link = connect(job)?;
            Box::new(move |job| {
                let request = |number: u64| {
                    let (employee, purchase) = base::key_of(number);
                    Request::new("lookup")
                        .with("emp", Some(i64::from(employee).into()))
                        .with("purch", Some(i64::from(purchase).into()))
                };
                by_threads(job, threads, Duration::ZERO, &link, Arc::new(request))
            })
        }
    })
}

fn connect(job: &Job) -> anyhow::Result<Link> {
    let url = format!("tcp://127.0.0.1:{}", job.server_port);
    let options = LinkOptions::password(&job.user, &job.password);
    Ok(Link::connect(&url, &options)?)
}

fn raw(job: &Job) -> anyhow::Result<Outcome> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let echo = thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut buffer = [0; 100];
        loop {
            stream.read_exact(&mut buffer)?;
            stream.write_all(&buffer)?;
        }
    });
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut buffer = [0; 100];
    let outcome = one_after_the_other(job, || {
        stream.write_all(&buffer)?;
        Ok(stream.read_exact(&mut buffer)?)
    });
    drop(stream);
    // It ends with the connection.
    let _ = echo.join();
    outcome
}

/// Again and again, as long as the job says.
fn one_after_the_other(
    job: &Job,
    mut once: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Outcome> {
    // The first ones wake everybody up.
    for _ in 0..100 {
        once()?;
    }
    let mut times = Vec::new();
    let begun = Instant::now();
    let mut last = begun;
    while last.duration_since(begun).as_secs_f64() < job.seconds {
        once()?;
        let now = Instant::now();
        times.push((now - last).as_secs_f64() * 1e6);
        last = now;
    }
    Ok(summary(times, (last - begun).as_secs_f64()))
}

fn summary(mut times: Vec<f64>, seconds: f64) -> Outcome {
    let count = times.len() as u64;
    times.sort_by(f64::total_cmp);
    Outcome {
        count,
        seconds,
        median_us: percentile(&times, 0.5),
        p99_us: percentile(&times, 0.99),
    }
}

fn by_threads(
    job: &Job,
    threads: u32,
    pause: Duration,
    link: &Link,
    request: Arc<dyn Fn(u64) -> Request + Send + Sync>,
) -> anyhow::Result<Outcome> {
    if threads == 1 {
        let mut number = 0;
        return one_after_the_other(job, || {
            number += 1;
            link.call(&request(number))?;
            Ok(())
        });
    }
    let begun = Instant::now();
    let length = Duration::from_secs_f64(job.seconds);
    let threads = (0..threads).map(|index| {
        let (link, request) = (link.clone(), request.clone());
        thread::spawn(move || -> anyhow::Result<Vec<f64>> {
            let mut times = Vec::new();
            // Not all at the same moment.
            if !pause.is_zero() {
                thread::sleep(pause.mul_f64(f64::from(index % 64) / 64.0));
            }
            let mut number = u64::from(index) << 32;
            while begun.elapsed() < length {
                let started = Instant::now();
                number += 1;
                link.call(&request(number))?;
                times.push(started.elapsed().as_secs_f64() * 1e6);
                if !pause.is_zero() {
                    thread::sleep(pause);
                }
            }
            Ok(times)
        })
    });
    let threads: Vec<_> = threads.collect();
    let mut all = Vec::new();
    for thread in threads {
        let times = thread.join();
        let times = times.map_err(|_| anyhow::anyhow!("a thread has panicked"))??;
        all.extend(times);
    }
    Ok(summary(all, begun.elapsed().as_secs_f64()))
}

/// A connection that is kept, with a token.
struct Http {
    stream: TcpStream,
    token: String,
    buffer: Vec<u8>,
}

impl Http {
    fn connect(job: &Job) -> anyhow::Result<Http> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, job.http_port))?;
        stream.set_nodelay(true)?;
        let mut http = Http {
            stream,
            token: String::new(),
            buffer: Vec::new(),
        };
        let body = serde_json::json!({ "user": job.user, "password": job.password });
        let answer = http.post("/v1/sign-in", &body.to_string())?;
        let answer: serde_json::Value = serde_json::from_slice(&answer)?;
        let token = answer["token"].as_str().context("no token was given")?;
        http.token = format!("authorization: Bearer {token}\r\n");
        Ok(http)
    }

    fn call(&mut self, procedure: &str, body: &str) -> anyhow::Result<()> {
        self.post(&format!("/v1/call/{procedure}"), body)
            .map(|_| ())
    }

    fn post(&mut self, path: &str, body: &str) -> anyhow::Result<Vec<u8>> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: bench\r\n{}content-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        );
        self.stream.write_all(request.as_bytes())?;
        self.buffer.clear();
        let mut piece = [0; 4_096];
        loop {
            let head = self.buffer.windows(4).position(|it| it == b"\r\n\r\n");
            if let Some(head) = head {
                let text = std::str::from_utf8(&self.buffer[..head])?.to_ascii_lowercase();
                ensure!(text.starts_with("http/1.1 2"), "the server answers: {text}");
                let mut lines = text.lines();
                let length = lines.find_map(|it| it.strip_prefix("content-length: "));
                let length: usize = length.context("an answer without length")?.trim().parse()?;
                let end = head + 4 + length;
                if self.buffer.len() >= end {
                    return Ok(self.buffer[head + 4..end].to_vec());
                }
            }
            match self.stream.read(&mut piece)? {
                0 => bail!("the server has closed the connection"),
                count => self.buffer.extend_from_slice(&piece[..count]),
            }
        }
    }
}
