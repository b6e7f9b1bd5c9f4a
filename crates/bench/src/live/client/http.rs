//! The web protocol, over one connection.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use anyhow::{Context, bail, ensure};

use super::{Job, USER};

/// A connection that is kept, with a token.
pub(super) struct Http {
    stream: TcpStream,
    token: String,
    buffer: Vec<u8>,
}

impl Http {
    pub(super) fn connect(job: &Job) -> anyhow::Result<Http> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, job.http_port))?;
        stream.set_nodelay(true)?;
        let mut http = Http {
            stream,
            token: String::new(),
            buffer: Vec::new(),
        };
        let body = serde_json::json!({ "user": USER, "password": job.password });
        let answer = http.post("/v1/sign-in", &body.to_string())?;
        let answer: serde_json::Value = serde_json::from_slice(&answer)?;
        let token = answer["token"].as_str().context("no token was given")?;
        http.token = format!("authorization: Bearer {token}\r\n");
        Ok(http)
    }

    pub(super) fn call(&mut self, procedure: &str, body: &str) -> anyhow::Result<()> {
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
