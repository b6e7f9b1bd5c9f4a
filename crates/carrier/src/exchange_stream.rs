//! A connection in numbered requests of HTTP and their answers, dialed: for networks that let nothing
//! else through, and for proxies that pass a request on only when all of it is there.
//!
//! A thread of its own has the requests go; the connection above sees a stream of bytes. What is to be
//! sent goes with the next request, what has come is in its answer, and while nothing is to be sent
//! the server holds a request until it has something to say. While it does, one more may be sent,
//! which has the other one answered at once. A request whose answer was lost is repeated under its
//! number. What is said when is [`crate::exchange_client`]'s affair. The specification is docs/protocol.md.

#![allow(
    clippy::disallowed_methods,
    reason = "waiting for the network needs real time"
)]

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cookies::CookieJar;
use crate::dialer::{Dialer, open};
use crate::error::{CarrierError, SCHEME_HEADER};
use crate::exchange_client::{ExchangeClient, ExchangeReply, ExchangeRequest};
use crate::http_response::{HttpResponse, ResponseReader};
use crate::layer::{Layer, is_patience};

/// The header with the name of a connection, which its server has given it.
pub const SESSION: &str = "tidewater-session";

/// The header with the number of a request, from 1.
pub const NUMBER: &str = "tidewater-number";

/// The header that says that nothing more follows in this direction.
pub const END: &str = "tidewater-end";

/// How long a server holds a request. Proxies give many up after half a minute.
pub const HOLD: Duration = Duration::from_secs(25);

/// How much longer an answer may be in coming.
pub const LATE: Duration = Duration::from_secs(20);

/// How often a request is sent, each time a little later: over some twelve seconds in all.
pub const TRIES: u32 = 10;

/// How long it is waited before a request that was sent so many times is sent again.
pub fn pause_after(tries: u32) -> Duration {
    Duration::from_millis(50) * (tries - 1) * tries
}

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;

/// The near end.
#[derive(Debug)]
pub(crate) struct ExchangeStream {
    near: TcpStream,
    ended: Arc<Mutex<Option<CarrierError>>>,
}

/// Begins the requests.
pub(crate) fn begin(
    mut first: Box<dyn Layer>,
    dialer: Dialer,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<ExchangeStream, CarrierError> {
    open(&mut first, &dialer, go_on)?;
    let pair = || -> io::Result<(TcpStream, TcpStream)> {
        let (near, far) = UnixStream::pair()?;
        far.set_nonblocking(true)?;
        Ok((OwnedFd::from(near).into(), OwnedFd::from(far).into()))
    };
    let (near, far) = pair().map_err(CarrierError::Lost)?;
    let ended = Arc::new(Mutex::new(None));
    let told = ended.clone();
    let lines = ExchangePump {
        far,
        dialer,
        idle: vec![first],
        flights: VecDeque::new(),
        requests: ExchangeClient::default(),
        cookies: CookieJar::default(),
    };
    let thread = thread::Builder::new().name("tidewater-http".into());
    let started = thread.spawn(move || {
        let mut lines = lines;
        if let Err(error) = lines.run() {
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
        // Whoever is at the other end may be gone.
        let _ = lines.far.shutdown(Shutdown::Both);
    });
    started.map_err(CarrierError::Lost)?;
    Ok(ExchangeStream { near, ended })
}

impl Read for ExchangeStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.near.read(buffer)?;
        if count > 0 {
            return Ok(count);
        }
        let ended = self
            .ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match ended {
            Some(CarrierError::Lost(error)) => Err(error),
            Some(error) => Err(io::Error::other(error)),
            None => Ok(0),
        }
    }
}

impl Write for ExchangeStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.near.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Layer for ExchangeStream {
    fn close(&mut self) -> io::Result<()> {
        self.near.shutdown(Shutdown::Write)
    }

    fn socket(&self) -> &TcpStream {
        &self.near
    }
}

/// The far end.
struct ExchangePump {
    far: TcpStream,
    dialer: Dialer,
    /// Lines on which nothing is under way.
    idle: Vec<Box<dyn Layer>>,
    flights: VecDeque<RequestInFlight>,
    requests: ExchangeClient,
    /// What the farm has us return, by name.
    cookies: CookieJar,
}

/// A request that is under way.
struct RequestInFlight {
    request: Bytes,
    line: Box<dyn Layer>,
    reading: ResponseReader,
    answer: Option<HttpResponse>,
    since: Instant,
    tries: u32,
}

impl ExchangePump {
    fn run(&mut self) -> Result<(), CarrierError> {
        loop {
            self.take()?;
            self.send()?;
            self.hand_over()?;
            if self.requests.is_done() {
                return Ok(());
            }
            self.wait();
            self.hear()?;
        }
    }

    /// Takes what is to be sent.
    fn take(&mut self) -> Result<(), CarrierError> {
        let mut piece = [0; READ_BYTES];
        while self.requests.takes() {
            match self.far.read(&mut piece) {
                Ok(0) => self.requests.close(),
                Ok(count) => self.requests.take(&piece[..count]),
                Err(error) if is_patience(&error) => break,
                Err(error) => return Err(CarrierError::Lost(error)),
            }
        }
        Ok(())
    }

    /// Has requests go, as many as there may be.
    fn send(&mut self) -> Result<(), CarrierError> {
        while let Some(request) = self.requests.next_request() {
            let request = self.request(&request);
            let mut flight = RequestInFlight {
                request,
                line: match self.idle.pop() {
                    Some(line) => line,
                    None => self.new_line()?,
                },
                reading: ResponseReader::default(),
                answer: None,
                since: Instant::now(),
                tries: 1,
            };
            if let Err(error) = flight.write(self.dialer.timeout) {
                // One that was idle for too long.
                self.repeat(&mut flight, error)?;
            }
            self.flights.push_back(flight);
        }
        Ok(())
    }

    /// A request as it looks in HTTP.
    fn request(&self, request: &ExchangeRequest) -> Bytes {
        let (url, body) = (&self.dialer.url, &request.body);
        let mut head = format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/octet-stream\r\n\
             content-length: {}\r\n{NUMBER}: {}\r\n",
            url.path,
            url.authority(),
            body.len(),
            request.number,
        );
        let mut header = |name: &str, value: &str| head += &format!("{name}: {value}\r\n");
        if let Some(session) = &request.session {
            header(SESSION, session);
        }
        if request.ends {
            header(END, "1");
        }
        if let Some(cookies) = self.cookies.header() {
            header("cookie", &cookies);
        }
        head += "\r\n";
        let mut whole = BytesMut::with_capacity(head.len() + body.len());
        whole.extend_from_slice(head.as_bytes());
        whole.extend_from_slice(body);
        whole.freeze()
    }

    /// A new line, for which the connection above waits.
    fn new_line(&mut self) -> Result<Box<dyn Layer>, CarrierError> {
        let go_on = &mut || ControlFlow::Continue(());
        let mut line = self.dialer.dial(go_on)?;
        open(&mut line, &self.dialer, go_on)?;
        Ok(line)
    }

    /// Sends a request again, over a new line, whatever has become of the old one.
    fn repeat(
        &mut self,
        flight: &mut RequestInFlight,
        mut error: io::Error,
    ) -> Result<(), CarrierError> {
        while flight.tries < TRIES {
            thread::sleep(pause_after(flight.tries));
            flight.tries += 1;
            let sent = self.new_line().and_then(|line| {
                flight.line = line;
                flight.reading = ResponseReader::default();
                flight.since = Instant::now();
                flight
                    .write(self.dialer.timeout)
                    .map_err(CarrierError::Lost)
            });
            match sent {
                Ok(()) => return Ok(()),
                Err(CarrierError::Lost(another)) => error = another,
                Err(CarrierError::Unreachable { source, .. }) => error = source,
                Err(other) => return Err(other),
            }
        }
        Err(CarrierError::Lost(error))
    }

    /// Until something can be done.
    fn wait(&mut self) {
        let mut wants = PollFlags::empty();
        if self.requests.takes() {
            wants |= PollFlags::IN;
        }
        if !self.requests.came().is_empty() {
            wants |= PollFlags::OUT;
        }
        let mut places = vec![PollFd::new(&self.far, wants)];
        for flight in self.flights.iter().filter(|it| it.answer.is_none()) {
            places.push(PollFd::new(flight.line.socket(), PollFlags::IN));
        }
        let patience = Timespec::try_from(Duration::from_secs(1)).ok();
        // Whatever comes of it, what follows finds out.
        let _ = poll(&mut places, patience.as_ref());
    }

    /// Hears what is answered, and hands it on in the order of the requests.
    fn hear(&mut self) -> Result<(), CarrierError> {
        let mut flights = std::mem::take(&mut self.flights);
        for flight in flights.iter_mut().filter(|it| it.answer.is_none()) {
            self.listen(flight)?;
        }
        self.flights = flights;
        while let Some(mut flight) = self.flights.pop_front() {
            let Some(answer) = flight.answer.take() else {
                self.flights.push_front(flight);
                return Ok(());
            };
            self.handle_answer(&answer)?;
            if answer.is_reusable {
                self.idle.push(flight.line);
            }
        }
        Ok(())
    }

    /// Takes the answer to a request if it has come, and repeats the request if none will.
    fn listen(&mut self, flight: &mut RequestInFlight) -> Result<(), CarrierError> {
        match flight.read() {
            // A balancer whose server has just gone.
            Ok(Some(HttpResponse { head, .. }))
                if matches!(head.status, 502..=504)
                    && head.header(SESSION).is_none()
                    && flight.tries < TRIES =>
            {
                self.repeat(flight, io::Error::other(head.summary()))
            }
            Ok(Some(answer)) => {
                flight.answer = Some(answer);
                Ok(())
            }
            Ok(None) if flight.since.elapsed() < HOLD + LATE => Ok(()),
            Ok(None) => self.repeat(flight, ErrorKind::TimedOut.into()),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                // Over TLS it may be a line that damages what goes over it, which passes.
                Err(match self.dialer.url.transport.is_encrypted() {
                    true => self.other(error.to_string()),
                    false => CarrierError::Mistaken {
                        server: self.dialer.url.to_string(),
                        what: "what answers there does not speak HTTP".into(),
                    },
                })
            }
            Err(error) => self.repeat(flight, error),
        }
    }

    fn handle_answer(&mut self, answer: &HttpResponse) -> Result<(), CarrierError> {
        let head = &answer.head;
        self.cookies.take(head);
        let Some(session) = head.header(SESSION) else {
            let summary = io::Error::other(head.summary());
            let is_of_server = head.header("content-type") == Some("application/problem+json");
            return Err(match head.status {
                // The server has given the connection up, or another one answers.
                _ if is_of_server && self.requests.session().is_some() => {
                    CarrierError::Lost(summary)
                }
                502..=504 => self.dialer.handshake().unreachable(summary),
                _ if is_of_server => self.other(head.summary()),
                status => CarrierError::by_answer(
                    self.dialer.url.to_string(),
                    status,
                    head.summary(),
                    head.header(SCHEME_HEADER),
                ),
            });
        };
        let reply = ExchangeReply {
            session: session.to_owned(),
            number: head.header(NUMBER).and_then(|it| it.parse().ok()),
            body: answer.body.clone(),
            is_last: head.header(END).is_some(),
        };
        if head.status != 200 || self.requests.handle_reply(reply).is_err() {
            let what = String::from_utf8_lossy(&answer.body);
            let what = format!("{}: {}", head.summary(), what.trim());
            return Err(CarrierError::Lost(io::Error::other(what)));
        }
        Ok(())
    }

    /// Hands over what has come.
    fn hand_over(&mut self) -> Result<(), CarrierError> {
        while !self.requests.came().is_empty() {
            match self.far.write(self.requests.came()) {
                Ok(count) => self.requests.drop_handed_over(count),
                Err(error) if is_patience(&error) => break,
                Err(error) => return Err(CarrierError::Lost(error)),
            }
        }
        Ok(())
    }

    /// Something else answers than a server of ours.
    fn other(&self, what: String) -> CarrierError {
        CarrierError::Other {
            server: self.dialer.url.to_string(),
            what,
        }
    }
}

impl RequestInFlight {
    /// Sends the request.
    fn write(&mut self, timeout: Duration) -> io::Result<()> {
        self.line.socket().set_nonblocking(true)?;
        let end = Instant::now() + timeout;
        let mut left = self.request.clone();
        while !left.is_empty() || self.line.owes() {
            let written = match self.line.owes() {
                true => self.line.write_own().map(|_| 0),
                false => self.line.write(&left),
            };
            match written {
                Ok(count) => left.advance(count),
                Err(error) if is_patience(&error) => {
                    let mut places = [PollFd::new(self.line.socket(), PollFlags::OUT)];
                    let patience = Timespec::try_from(Duration::from_millis(200)).ok();
                    // Whatever comes of it, the next try finds out.
                    let _ = poll(&mut places, patience.as_ref());
                }
                Err(error) => return Err(error),
            }
            if Instant::now() >= end {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    /// The answer, if all of it has come.
    fn read(&mut self) -> io::Result<Option<HttpResponse>> {
        let mut piece = [0; READ_BYTES];
        loop {
            let take = |reading: &mut ResponseReader| {
                let taken = reading.take();
                taken.map_err(|what| io::Error::new(ErrorKind::InvalidData, what))
            };
            match self.line.read(&mut piece) {
                Ok(0) => {
                    let answer = self.reading.end();
                    return answer.map(Some).ok_or(ErrorKind::UnexpectedEof.into());
                }
                Ok(count) => {
                    self.reading.buffer.extend_from_slice(&piece[..count]);
                    if let Some(answer) = take(&mut self.reading)? {
                        return Ok(Some(answer));
                    }
                }
                Err(error) if is_patience(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}
