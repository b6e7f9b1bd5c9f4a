//! What a running server says of itself at its admin endpoint, for `tidewater status`.
//!
//! Owns the asking and the reading of OpenMetrics text. What the figures mean is the server's.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read, Write as _};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use serde::Serialize;
use tidewater_server::Config;
use tidewater_terminal::Failure;
use tidewater_terminal::output::{TextTable, bytes, duration, printable};

/// How long the endpoint may take to be there, and to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// More is not read.
const MAX_ANSWER_BYTES: usize = 512 << 10;

/// The server that the configuration file is for, as `--json` shows it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ServerStatus {
    /// Its admin endpoint, if one is configured.
    admin: Option<String>,
    reachable: bool,
    ready: bool,
    /// Why it cannot be reached, or is not ready.
    reason: Option<String>,
    figures: Vec<Figure>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Figure {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl ServerStatus {
    /// Asks it.
    pub(crate) fn ask(config: &Config) -> Result<ServerStatus, Failure> {
        let Some(address) = config.admin_address()? else {
            return Ok(ServerStatus::default());
        };
        let mut server = ServerStatus {
            admin: Some(format!("http://{address}")),
            ..ServerStatus::default()
        };
        let answers = get(&address, "/readyz").and_then(|it| Ok((it, get(&address, "/metrics")?)));
        match answers {
            Ok(((status, said), (200, text))) if [200, 503].contains(&status) => {
                server.reachable = true;
                server.ready = status == 200;
                server.reason = (status == 503).then(|| said.trim().to_owned());
                server.figures = text.lines().filter_map(figure).collect();
            }
            Ok(_) => server.reason = Some("whoever answers there is no Tidewater server".into()),
            Err(error) => server.reason = Some(error.to_string()),
        }
        Ok(server)
    }

    /// Whether it runs, as far as its admin endpoint tells.
    pub(crate) fn is_reachable(&self) -> bool {
        self.reachable
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        let Some(admin) = &self.admin else {
            return "server     not asked: the configuration has no admin endpoint \
                    (admin = \"http://127.0.0.1:7440\" under [server])\n"
                .to_owned();
        };
        let reason = printable(self.reason.as_deref().unwrap_or_default());
        let mut text = match (self.reachable, self.ready) {
            (false, _) => format!("server     {admin} does not answer: {reason}\n"),
            (true, false) => format!("server     {admin} is not ready: {reason}\n"),
            (true, true) => format!("server     {admin} is ready\n"),
        };
        let mut table = TextTable::new(&["server", "of", ">now"]);
        for figure in &self.figures {
            if let Some(value) = self.shown(figure) {
                let labels = figure.labels.values();
                let of = labels.map(String::as_str).collect::<Vec<_>>().join(", ");
                table.row([figure.title(), of, value]);
            }
        }
        if !table.is_empty() {
            let _ = write!(text, "\n{}\n", table.render(0).trim_end());
        }
        text
    }

    /// What is shown of a figure; of a histogram its count, and the mean.
    fn shown(&self, figure: &Figure) -> Option<String> {
        let Figure { name, value, .. } = figure;
        if name.ends_with("_bucket") || name.ends_with("_sum") {
            return None;
        }
        if let Some(histogram) = name.strip_suffix("_seconds_count") {
            let sum = format!("{histogram}_seconds_sum");
            let is_sum = |it: &&Figure| it.name == sum && it.labels == figure.labels;
            let sum = self.figures.iter().find(is_sum)?.value;
            let mean_ms = if *value > 0.0 {
                sum * 1_000.0 / value
            } else {
                0.0
            };
            return Some(format!("{value} of {mean_ms:.1} ms"));
        }
        Some(if name.contains("_bytes") {
            bytes(*value as u64)
        } else if name.ends_with("_seconds") {
            duration((value * 1_000.0) as u64)
        } else {
            value.to_string()
        })
    }
}

impl Figure {
    /// The name in words.
    fn title(&self) -> String {
        let name = self.name.strip_prefix("tidewater_").unwrap_or(&self.name);
        let units = ["_total", "_bytes", "_seconds_count", "_seconds"];
        let strip = |name, unit: &&str| str::strip_suffix(name, *unit).unwrap_or(name);
        units.iter().fold(name, strip).replace('_', " ")
    }
}

/// Reads `name{label="value"} 1.5`; `None` for comments and what is no number.
fn figure(line: &str) -> Option<Figure> {
    let (name, rest) = line.split_at(line.find(['{', ' '])?);
    if name.starts_with('#') {
        return None;
    }
    let mut labels = BTreeMap::new();
    let mut rest = rest.strip_prefix('{').unwrap_or(rest);
    while let Some((label, value)) = rest.split_once("=\"").filter(|it| !it.0.contains(' ')) {
        let mut read = String::new();
        let mut characters = value.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => read.push(match characters.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => read.push(other),
            }
        };
        labels.insert(label.trim_start_matches(',').to_owned(), read);
        rest = &value[end + 1..];
    }
    let value = rest.trim_start_matches('}').split_whitespace().next()?;
    Some(Figure {
        name: name.to_owned(),
        labels,
        value: value.parse().ok().filter(|it: &f64| it.is_finite())?,
    })
}

/// Asks for a path; the status and the body of the answer.
fn get(address: &str, path: &str) -> io::Result<(u16, String)> {
    let mut last = io::Error::other("the address has no host");
    for address in address.to_socket_addrs()? {
        let stream = match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => stream,
            Err(error) => {
                last = error;
                continue;
            }
        };
        stream.set_write_timeout(Some(PATIENCE))?;
        // With 1.0 the answer comes in one piece, and ends with the connection.
        write!(&stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
        let answer = String::from_utf8_lossy(&read(stream)?).into_owned();
        return parsed(&answer).ok_or_else(|| io::Error::other("it does not answer in HTTP"));
    }
    Err(last)
}

/// All that comes until the other side ends it.
#[allow(
    clippy::disallowed_methods,
    reason = "nothing of a sync: somebody waits for an answer"
)]
fn read(mut stream: TcpStream) -> io::Result<Vec<u8>> {
    let until = Instant::now() + PATIENCE;
    let (mut answer, mut piece) = (Vec::new(), [0; 8 << 10]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || answer.len() > MAX_ANSWER_BYTES {
            return Err(io::Error::other("its answer takes no end"));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece)? {
            0 => return Ok(answer),
            count => answer.extend_from_slice(&piece[..count]),
        }
    }
}

fn parsed(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?;
    Some((status.parse().ok()?, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_with_their_labels() {
        let read = |line: &str| {
            let figure = figure(line)?;
            let labels = figure.labels.into_iter();
            let labels: Vec<_> = labels
                .map(|(name, value)| format!("{name}:{value}"))
                .collect();
            Some((figure.name, labels.join(" "), figure.value))
        };
        let is = |name: &str, labels: &str, value| Some((name.into(), labels.into(), value));
        assert_eq!(read("a_total 7"), is("a_total", "", 7.0));
        assert_eq!(read("a{} 0.5"), is("a", "", 0.5));
        assert_eq!(
            read("a{lane=\"up\",table=\"a \\\"b\\\", c=\\\\\"} 2 # {x=\"y\"} 1"),
            is("a", "lane:up table:a \"b\", c=\\", 2.0)
        );
        for nothing in ["# HELP a b", "", "a", "a NaN", "a{b=\"c", "# EOF"] {
            assert_eq!(read(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn a_histogram_is_told_by_its_mean() {
        let lines = [
            "tidewater_phase_seconds_sum{phase=\"apply\"} 3.0",
            "tidewater_phase_seconds_count{phase=\"apply\"} 4",
            "tidewater_phase_seconds_bucket{le=\"+Inf\",phase=\"apply\"} 4",
            "tidewater_memory_bytes 2048",
        ];
        let server = ServerStatus {
            admin: Some("http://127.0.0.1:7440".into()),
            reachable: true,
            ready: true,
            figures: lines.iter().filter_map(|line| figure(line)).collect(),
            ..ServerStatus::default()
        };
        let text = server.describe();
        for told in ["is ready", "4 of 750.0 ms", "phase", "apply", "memory"] {
            assert!(text.contains(told), "{told}: {text}");
        }
        assert_eq!(text.matches("apply").count(), 1, "{text}");
    }
}
