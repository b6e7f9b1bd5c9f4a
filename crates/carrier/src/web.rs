//! Single requests of HTTP and their answers, for a program that blocks: what is fetched from a web
//! server or a CDN, piece by piece.
//!
//! Owns one line that is used again and dialed anew where it has ended. No redirect is followed, so
//! that nobody but whom the user named is believed.

use std::io::{self, Read, Write};
use std::ops::ControlFlow;

use bytes::Bytes;

use crate::cookies::CookieJar;
use crate::dialer::{DialOptions, Dialer, open};
use crate::error::CarrierError;
use crate::http_response::ResponseReader;
use crate::layer::Layer;
use crate::url::ServerUrl;

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;

/// A web server.
#[derive(Debug)]
pub struct WebSite {
    dialer: Dialer,
    line: Option<Box<dyn Layer>>,
    /// So that an image is fetched from the server of a farm that has given its manifest.
    cookies: CookieJar,
}

/// What it has answered.
#[derive(Clone, Debug)]
pub struct WebPage {
    /// 200 and so on.
    pub status: u16,
    /// For people: the status, and where it points to.
    pub summary: String,
    /// At most 4 MiB.
    pub body: Bytes,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct WebSiteRequest<'a> {
    /// `GET` or `POST`.
    pub method: &'a str,
    /// It begins with a slash.
    pub path: &'a str,
    /// Beside those that every request has.
    pub headers: &'a [(&'a str, &'a str)],
    /// Empty for none.
    pub body: &'a [u8],
}

impl WebSite {
    /// The one at this `http://` or `https://` address, whatever its path.
    ///
    /// # Errors
    /// The options cannot be used, or everything would travel readable.
    pub fn new(url: &ServerUrl, options: &DialOptions<'_>) -> Result<WebSite, CarrierError> {
        Ok(WebSite {
            dialer: Dialer::new(url, options)?,
            line: None,
            cookies: CookieJar::default(),
        })
    }

    /// Asks, and waits for the whole answer as long as `go_on` does not break. It has to be
    /// something that may be asked twice.
    ///
    /// # Errors
    /// The server cannot be reached, or answers what is no HTTP.
    pub fn ask(
        &mut self,
        asked: WebSiteRequest<'_>,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<WebPage, CarrierError> {
        let request = self.request(asked);
        if let Some(line) = self.line.take() {
            // It may have ended while nothing was asked.
            match self.over(line, &request, go_on) {
                Err(CarrierError::Unreachable { .. } | CarrierError::Other { .. }) => {}
                answered => return answered,
            }
        }
        let mut line = self.dialer.dial(go_on)?;
        open(&mut line, &self.dialer, go_on)?;
        self.over(line, &request, go_on)
    }

    fn request(&self, asked: WebSiteRequest<'_>) -> Vec<u8> {
        let mut head = format!(
            "{} {} HTTP/1.1\r\nhost: {}\r\n",
            asked.method,
            asked.path,
            self.dialer.url.authority()
        );
        if let Some(cookies) = self.cookies.header() {
            head += &format!("cookie: {cookies}\r\n");
        }
        for (name, value) in asked.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !asked.body.is_empty() {
            head += &format!("content-length: {}\r\n", asked.body.len());
        }
        head += "\r\n";
        [head.as_bytes(), asked.body].concat()
    }

    fn over(
        &mut self,
        mut line: Box<dyn Layer>,
        request: &[u8],
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<WebPage, CarrierError> {
        let socket = line.socket().try_clone().map_err(CarrierError::Lost)?;
        let mut unsent = request;
        let mut reading = ResponseReader::default();
        let mut buffer = vec![0; READ_BYTES];
        let answer = self.dialer.handshake().agree(&socket, go_on, || {
            while !unsent.is_empty() {
                match line.write(unsent)? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    count => unsent = &unsent[count..],
                }
            }
            while line.owes() {
                line.write_own()?;
            }
            loop {
                if let Some(answer) = reading.take().map_err(io::Error::other)? {
                    return Ok(Some(answer));
                }
                match line.read(&mut buffer)? {
                    0 => {
                        let end = reading.end();
                        return end.map(Some).ok_or(io::ErrorKind::UnexpectedEof.into());
                    }
                    count => reading.buffer.extend_from_slice(&buffer[..count]),
                }
            }
        })?;
        self.cookies.take(&answer.head);
        if answer.is_reusable {
            self.line = Some(line);
        }
        Ok(WebPage {
            status: answer.head.status,
            summary: answer.head.summary(),
            body: answer.body,
        })
    }
}
