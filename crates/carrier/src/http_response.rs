//! Answers of HTTP/1.1, as they come in: heads, and bodies of known length, in chunks, or up to the
//! end of the connection (RFC 9112). Proxies on the way may have changed one into the other.

use bytes::{Buf, Bytes, BytesMut};

/// A longer head is none of a server of ours, nor of a decent proxy.
const MAX_HEAD_BYTES: usize = 32 << 10;

/// More than any answer that was asked for.
const MAX_BODY_BYTES: u64 = 4 << 20;

/// Headers that are looked at.
const MAX_HEADERS: usize = 64;

/// What is interesting in a head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResponseHead {
    pub(crate) status: u16,
    pub(crate) reason: String,
    headers: Vec<(String, String)>,
}

impl ResponseHead {
    /// The value of a header; the first one of several. The name is in small letters.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(it, _)| it == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Every value of a header.
    pub(crate) fn all<'h>(&'h self, name: &'h str) -> impl Iterator<Item = &'h str> {
        let named = self.headers.iter().filter(move |(it, _)| it == name);
        named.map(|(_, value)| value.as_str())
    }

    /// For people: the status, and where it points to.
    pub(crate) fn summary(&self) -> String {
        let said = format!("{} {}", self.status, self.reason);
        let said = said.trim_end();
        match (self.header("location"), self.header("content-type")) {
            (Some(location), _) => format!("{said}, go to {location}"),
            (None, Some(kind)) => format!("{said} with {kind}"),
            (None, None) => said.to_owned(),
        }
    }

    fn has(&self, name: &str, token: &str) -> bool {
        let mut tokens = self.all(name).flat_map(|it| it.split(','));
        tokens.any(|it| it.trim().eq_ignore_ascii_case(token))
    }
}

/// Takes a head from the beginning of what has come, if it is there as a whole.
///
/// # Errors
/// It is none.
pub(crate) fn take_head(buffer: &mut BytesMut) -> Result<Option<ResponseHead>, String> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(buffer) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if buffer.len() > MAX_HEAD_BYTES => {
            return Err("the head of its answer is too long".into());
        }
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err("what it answers is not HTTP".into()),
    };
    let text = |value: &[u8]| String::from_utf8_lossy(value).trim().to_owned();
    let head = ResponseHead {
        status: response.code.unwrap_or_default(),
        reason: response.reason.unwrap_or_default().to_owned(),
        headers: response
            .headers
            .iter()
            .map(|it| (it.name.to_ascii_lowercase(), text(it.value)))
            .collect(),
    };
    buffer.advance(length);
    Ok(Some(head))
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) head: ResponseHead,
    pub(crate) body: Bytes,
    /// Whether another request may go over the same connection.
    pub(crate) is_reusable: bool,
}

/// An answer on its way.
#[derive(Debug, Default)]
pub(crate) struct ResponseReader {
    pub(crate) buffer: BytesMut,
    head: Option<(ResponseHead, BodyLength)>,
    body: BytesMut,
}

/// Where a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyLength {
    /// After so many more bytes.
    Known(u64),
    /// After the last of its chunks.
    Chunks(ChunkPhase),
    /// With the connection.
    UntilEnd,
}

/// What comes next of a body in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkPhase {
    Size,
    Bytes(u64),
    /// The end of a line.
    After,
    /// Lines up to an empty one.
    Trailer,
}

impl ResponseReader {
    /// The answer, if all of it is in the buffer.
    ///
    /// # Errors
    /// It is none, or larger than any that was asked for.
    pub(crate) fn take(&mut self) -> Result<Option<HttpResponse>, String> {
        loop {
            let Some((_, length)) = &mut self.head else {
                match take_head(&mut self.buffer)? {
                    None => return Ok(None),
                    // One that only says to go on.
                    Some(head) if (100..200).contains(&head.status) => continue,
                    Some(head) => {
                        let length = body_length(&head)?;
                        self.head = Some((head, length));
                        continue;
                    }
                }
            };
            let (body, buffer) = (&mut self.body, &mut self.buffer);
            if body.len() as u64 > MAX_BODY_BYTES {
                return Err("its answer is too long".into());
            }
            let is_complete = match length {
                BodyLength::Known(left) => {
                    move_bytes(buffer, body, left);
                    *left == 0
                }
                BodyLength::UntilEnd => {
                    body.unsplit(buffer.split());
                    false
                }
                BodyLength::Chunks(chunk) => match take_chunk(chunk, buffer, body)? {
                    ReadStep::More => continue,
                    ReadStep::Wait => false,
                    ReadStep::End => true,
                },
            };
            return Ok(is_complete.then(|| self.answer()).flatten());
        }
    }

    /// The connection has ended; the answer, if that was its end.
    pub(crate) fn end(&mut self) -> Option<HttpResponse> {
        match self.head {
            Some((_, BodyLength::UntilEnd)) => self.answer(),
            _ => None,
        }
    }

    fn answer(&mut self) -> Option<HttpResponse> {
        let (head, length) = self.head.take()?;
        Some(HttpResponse {
            is_reusable: length != BodyLength::UntilEnd
                && self.buffer.is_empty()
                && !head.has("connection", "close"),
            body: std::mem::take(&mut self.body).freeze(),
            head,
        })
    }
}

fn body_length(head: &ResponseHead) -> Result<BodyLength, String> {
    if matches!(head.status, 204 | 304) {
        return Ok(BodyLength::Known(0));
    }
    if head.has("transfer-encoding", "chunked") {
        return Ok(BodyLength::Chunks(ChunkPhase::Size));
    }
    let Some(length) = head.header("content-length") else {
        return Ok(BodyLength::UntilEnd);
    };
    let length = length.parse().ok().filter(|it| *it <= MAX_BODY_BYTES);
    let length = length.ok_or("its answer has no length that can be")?;
    Ok(BodyLength::Known(length))
}

fn move_bytes(from: &mut BytesMut, to: &mut BytesMut, left: &mut u64) {
    let count = usize::try_from(*left).map_or(from.len(), |left| left.min(from.len()));
    to.extend_from_slice(&from.split_to(count));
    *left -= count as u64;
}

enum ReadStep {
    More,
    Wait,
    End,
}

fn take_chunk(
    chunk: &mut ChunkPhase,
    buffer: &mut BytesMut,
    body: &mut BytesMut,
) -> Result<ReadStep, String> {
    let malformed = || "the chunks of its answer are malformed".to_owned();
    match chunk {
        ChunkPhase::Size => match httparse::parse_chunk_size(buffer) {
            Ok(httparse::Status::Complete((length, size))) => {
                if size > MAX_BODY_BYTES {
                    return Err("its answer is too long".into());
                }
                buffer.advance(length);
                *chunk = match size {
                    0 => ChunkPhase::Trailer,
                    size => ChunkPhase::Bytes(size),
                };
            }
            Ok(httparse::Status::Partial) if buffer.len() <= MAX_HEAD_BYTES => {
                return Ok(ReadStep::Wait);
            }
            _ => return Err(malformed()),
        },
        ChunkPhase::Bytes(left) => {
            move_bytes(buffer, body, left);
            if *left > 0 {
                return Ok(ReadStep::Wait);
            }
            *chunk = ChunkPhase::After;
        }
        ChunkPhase::After => {
            if buffer.len() < 2 {
                return Ok(ReadStep::Wait);
            }
            if buffer.split_to(2) != "\r\n" {
                return Err(malformed());
            }
            *chunk = ChunkPhase::Size;
        }
        ChunkPhase::Trailer => {
            let Some(at) = buffer.windows(2).position(|it| it == b"\r\n") else {
                return match buffer.len() > MAX_HEAD_BYTES {
                    true => Err(malformed()),
                    false => Ok(ReadStep::Wait),
                };
            };
            buffer.advance(at + 2);
            if at == 0 {
                return Ok(ReadStep::End);
            }
        }
    }
    Ok(ReadStep::More)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of an answer that arrives byte by byte, and then the end.
    fn read(answer: &str) -> Result<(u16, String, bool), String> {
        let mut reading = ResponseReader::default();
        let mut found = None;
        for byte in answer.bytes() {
            reading.buffer.extend_from_slice(&[byte]);
            if found.is_none() {
                found = reading.take()?;
            }
        }
        let found = found.or_else(|| reading.end()).ok_or("not all of it")?;
        let body = String::from_utf8_lossy(&found.body).into_owned();
        Ok((found.head.status, body, found.is_reusable))
    }

    #[test]
    fn bodies_end_by_length_by_chunks_or_with_the_connection() {
        for (answer, body, is_reusable) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
                "abc",
                true,
            ),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\nConnection: \
                 keep-alive, close\r\n\r\nx",
                "x",
                false,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\n\
                 Trailer: 1\r\n\r\n",
                "abc",
                true,
            ),
            ("HTTP/1.0 200\r\n\r\nabc", "abc", false),
            ("HTTP/1.1 204 No Content\r\n\r\n", "", true),
        ] {
            let status = if answer.contains("204") { 204 } else { 200 };
            assert_eq!(read(answer), Ok((status, body.to_owned(), is_reusable)));
        }
    }

    #[test]
    fn what_is_no_answer_or_too_long_is_told() {
        let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n", "y".repeat(40_000));
        for answer in [
            "SSH-2.0-OpenSSH_9.2\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffff\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc",
            &long,
        ] {
            assert!(read(answer).is_err(), "{answer}");
        }
    }
}
