//! Tunnels: connections that a server opens to a relay and keeps idle, until the relay gives one of
//! them to a device.
//!
//! Owns what the two say to each other over a tunnel, and how long each waits for the other. Who may
//! register, and which tunnel a device gets, are the affairs of the relay; dialing is the server's.
//! The specification is docs/protocol.md.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use rustls::pki_types::DnsName;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep_until, timeout};

use super::header_reader::PeekedStream;
use super::{ByteStream, IncomingStream};
use crate::proxy_header::{self, ConnectionOrigin, HeaderScan};

/// What the first line of a registration begins with: the version, too.
const WORD: &str = "TIDEWATER-LINE 1";

/// The longest line of text, its end included.
const TEXT_BYTES: usize = 1_024;

/// The longest name of a server.
pub const NAME_BYTES: usize = 253;

/// The longest token.
const TOKEN_BYTES: usize = 512;

/// Somebody is there: from the relay, and back from the server.
const PING: u8 = b'.';

/// The server has taken the device.
const TAKEN: u8 = b'+';

/// How often a relay pings an idle tunnel.
const PING_EVERY: Duration = Duration::from_secs(20);

/// A tunnel on which nothing has come for so long is given up, by either side.
const SILENCE: Duration = Duration::from_secs(60);

/// How long each waits for the other's text.
const TEXT_WITHIN: Duration = Duration::from_secs(10);

/// How long a relay waits for a server to take a device, before it tries another tunnel.
const TAKEN_WITHIN: Duration = Duration::from_secs(3);

/// Who a server is, and how it proves that. Without a token, by the certificate that it has shown.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerRegistration {
    /// The host name by which devices know it.
    pub name: String,
    /// By which a relay tells the servers of one name apart: drawn by each when it starts.
    pub instance: u64,
    /// What only the server knows.
    pub token: Option<RelayToken>,
}

/// The token stays out of logs.
impl fmt::Debug for ServerRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("name", &self.name)
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

impl ServerRegistration {
    /// A name as registrations have it: a host name, in lower case.
    pub fn name(text: &str) -> Option<String> {
        let name = text.trim_end_matches('.').to_ascii_lowercase();
        let is_name = name.len() <= NAME_BYTES && DnsName::try_from(name.as_str()).is_ok();
        is_name.then_some(name)
    }

    /// What a server says.
    pub fn text(&self) -> String {
        let token = self.token.as_ref().map_or("-", |it| &it.0);
        let ServerRegistration { name, instance, .. } = self;
        format!("{WORD} {name} {instance:016x} {token}\n")
    }

    /// Reads that, without the end of the line.
    ///
    /// # Errors
    /// It is something else.
    pub fn read(text: &str) -> Result<ServerRegistration, RegistrationRefusal> {
        let Some(rest) = text.strip_prefix(WORD) else {
            let is_other = text.starts_with("TIDEWATER-LINE ");
            return Err(match is_other {
                true => RegistrationRefusal::Version,
                false => RegistrationRefusal::Malformed,
            });
        };
        let words: Vec<&str> = rest.split(' ').collect();
        let ["", name, instance, token] = words[..] else {
            return Err(RegistrationRefusal::Malformed);
        };
        let name = ServerRegistration::name(name).ok_or(RegistrationRefusal::Malformed)?;
        let is_hex = instance.len() == 16 && instance.bytes().all(|it| it.is_ascii_hexdigit());
        let instance = u64::from_str_radix(instance, 16).ok().filter(|_| is_hex);
        Ok(ServerRegistration {
            name,
            instance: instance.ok_or(RegistrationRefusal::Malformed)?,
            token: match token {
                "-" => None,
                token => Some(token.parse().map_err(|_| RegistrationRefusal::Malformed)?),
            },
        })
    }
}

/// What a server proves itself with: visible ASCII characters.
#[derive(Clone, PartialEq, Eq)]
pub struct RelayToken(String);

impl RelayToken {
    /// The SHA-256 of it, which is all that a relay has: written `sha256:` and hexadecimal digits.
    /// It is to be drawn by chance, or whoever sees the hash guesses it.
    pub fn hash(&self) -> String {
        let digest = Sha256::digest(&self.0);
        let digits = digest.iter().map(|byte| format!("{byte:02x}"));
        format!("sha256:{}", digits.collect::<String>())
    }
}

impl std::str::FromStr for RelayToken {
    type Err = ();

    fn from_str(text: &str) -> Result<RelayToken, ()> {
        let is_token = (8..=TOKEN_BYTES).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_token.then(|| RelayToken(text.to_owned())).ok_or(())
    }
}

impl fmt::Debug for RelayToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Why a relay takes no tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistrationRefusal {
    /// It speaks another version.
    #[error("it is of another version, and does not understand this server")]
    Version,
    /// It does not understand what is said.
    #[error("it does not understand what this server says")]
    Malformed,
    /// Its configuration names no server like that.
    #[error("its configuration has no [[server]] of this name")]
    Name,
    /// Neither token nor certificate prove anything.
    #[error("neither the token nor the certificate of this server proves that it has this name")]
    Proof,
    /// It has as many tunnels as it may have.
    #[error("it has as many lines as it may have")]
    Full,
    /// It is about to end.
    #[error("it is shutting down")]
    Leaving,
    /// Something that only later versions say.
    #[error("it says why in a word of a later version")]
    Other,
}

const REFUSALS: [(RegistrationRefusal, &str); 7] = [
    (RegistrationRefusal::Version, "version"),
    (RegistrationRefusal::Malformed, "malformed"),
    (RegistrationRefusal::Name, "name"),
    (RegistrationRefusal::Proof, "proof"),
    (RegistrationRefusal::Full, "full"),
    (RegistrationRefusal::Leaving, "leaving"),
    (RegistrationRefusal::Other, "other"),
];

impl RegistrationRefusal {
    /// Whether it will be the same again until somebody changes a configuration.
    pub fn is_lasting(self) -> bool {
        !matches!(
            self,
            RegistrationRefusal::Full | RegistrationRefusal::Leaving
        )
    }

    /// As it is written.
    pub fn word(self) -> &'static str {
        let known = REFUSALS.iter().find(|(refusal, _)| *refusal == self);
        known.map_or("other", |(_, word)| word)
    }

    fn from_word(word: &str) -> RegistrationRefusal {
        let known = REFUSALS.iter().find(|(_, known)| *known == word);
        known.map_or(RegistrationRefusal::Other, |(refusal, _)| *refusal)
    }
}

/// Why there is no tunnel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TunnelError {
    /// The relay refuses it.
    #[error("{0}")]
    Refused(RegistrationRefusal),
    /// What answers is no relay.
    #[error("what answers is no relay")]
    NoRelay,
    /// The connection broke.
    #[error("{0}")]
    Lost(#[from] io::Error),
}

/// One line of text, without its end.
async fn read_text(stream: &mut Box<dyn ByteStream>) -> io::Result<Option<String>> {
    let reading = async {
        let mut text = Vec::new();
        while text.len() < TEXT_BYTES && text.last() != Some(&b'\n') {
            // Not a byte of what follows.
            let byte = match stream.read_u8().await {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return io::Result::Ok(None);
                }
                byte => byte?,
            };
            text.push(byte);
        }
        let is_whole = text.pop() == Some(b'\n');
        Ok(String::from_utf8(text).ok().filter(|_| is_whole))
    };
    timeout(TEXT_WITHIN, reading).await.map_err(late)?
}

fn late(_: impl std::error::Error) -> io::Error {
    ErrorKind::TimedOut.into()
}

/// Sends all of it, to somebody who takes it.
async fn send(stream: &mut Box<dyn ByteStream>, bytes: &[u8]) -> io::Result<()> {
    let sending = async {
        stream.write_all(bytes).await?;
        stream.flush().await
    };
    timeout(SILENCE, sending).await.map_err(late)?
}

/// The server's end of a tunnel that a relay has taken.
pub struct RelayTunnel {
    stream: Box<dyn ByteStream>,
}

impl RelayTunnel {
    /// Registers at the relay that was dialed.
    ///
    /// # Errors
    /// The relay refuses that, is none, or is gone.
    pub async fn open(
        mut stream: Box<dyn ByteStream>,
        registration: &ServerRegistration,
    ) -> Result<RelayTunnel, TunnelError> {
        send(&mut stream, registration.text().as_bytes()).await?;
        let answer = read_text(&mut stream).await?;
        match answer
            .as_deref()
            .map(|it| it.split_once(' ').unwrap_or((it, "")))
        {
            Some(("OK", "")) => Ok(RelayTunnel { stream }),
            Some(("NO", word)) => Err(TunnelError::Refused(RegistrationRefusal::from_word(word))),
            _ => Err(TunnelError::NoRelay),
        }
    }

    /// Waits until the relay gives it to a device, and answers its pings until then. The peer of
    /// what comes is the device, by the word of the relay.
    ///
    /// # Errors
    /// The relay is gone, or says something else.
    pub async fn taken(self) -> io::Result<IncomingStream> {
        let mut stream = self.stream;
        let mut seen = BytesMut::new();
        loop {
            let reading = stream.read_buf(&mut seen);
            if timeout(SILENCE, reading).await.map_err(late)?? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let pings = seen.iter().take_while(|it| **it == PING).count();
            seen.advance(pings);
            if pings > 0 {
                send(&mut stream, &[PING]).await?;
            }
            match proxy_header::read(&seen) {
                Ok(HeaderScan::Unfinished) => {}
                Ok(HeaderScan::Header {
                    bytes,
                    from: ConnectionOrigin::Client(client),
                }) => {
                    seen.advance(bytes);
                    send(&mut stream, &[TAKEN]).await?;
                    return Ok(IncomingStream {
                        stream: begun(seen, stream),
                        peer: client.to_string(),
                    });
                }
                _ => return Err(ErrorKind::InvalidData.into()),
            }
        }
    }
}

fn begun(seen: BytesMut, stream: Box<dyn ByteStream>) -> Box<dyn ByteStream> {
    match seen.is_empty() {
        true => stream,
        false => Box::new(PeekedStream {
            seen: seen.freeze(),
            stream,
        }),
    }
}

/// The relay's end of a tunnel that no device has yet.
pub struct IdleTunnel {
    stream: Box<dyn ByteStream>,
    /// When the server said something last.
    heard: Instant,
    next_ping: Instant,
}

impl IdleTunnel {
    /// What somebody who has dialed wants to register as; he waits for an answer then.
    ///
    /// # Errors
    /// He says something else, which is to be refused with this, or nothing.
    pub async fn registration(
        stream: &mut Box<dyn ByteStream>,
    ) -> Result<ServerRegistration, TunnelError> {
        let text = read_text(stream).await?;
        let text = text.ok_or(TunnelError::Refused(RegistrationRefusal::Malformed))?;
        ServerRegistration::read(&text).map_err(TunnelError::Refused)
    }

    /// Says no to it.
    ///
    /// # Errors
    /// He is gone.
    pub async fn refuse(
        mut stream: Box<dyn ByteStream>,
        why: RegistrationRefusal,
    ) -> io::Result<()> {
        let answer = format!("NO {}\n", why.word());
        send(&mut stream, answer.as_bytes()).await?;
        timeout(TEXT_WITHIN, stream.shutdown())
            .await
            .map_err(late)?
    }

    /// Says yes to it.
    ///
    /// # Errors
    /// The server is gone.
    pub async fn admit(mut stream: Box<dyn ByteStream>) -> io::Result<IdleTunnel> {
        send(&mut stream, b"OK\n").await?;
        let now = Instant::now();
        Ok(IdleTunnel {
            stream,
            heard: now,
            next_ping: now + PING_EVERY,
        })
    }

    /// Asks again and again whether the server is there, until it is not: gives why. May be
    /// dropped and called again.
    pub async fn keep(&mut self) -> io::Error {
        loop {
            let silent = self.heard + SILENCE;
            let mut bytes = [0; 16];
            tokio::select! {
                read = self.stream.read(&mut bytes) => match read {
                    Ok(0) => return ErrorKind::UnexpectedEof.into(),
                    Ok(count) if bytes[..count].iter().all(|it| *it == PING) => {
                        self.heard = Instant::now();
                    }
                    Ok(_) => return ErrorKind::InvalidData.into(),
                    Err(error) => return error,
                },
                () = sleep_until(self.next_ping.min(silent)) => {
                    if Instant::now() >= silent {
                        return ErrorKind::TimedOut.into();
                    }
                    self.next_ping = Instant::now() + PING_EVERY;
                    if let Err(error) = send(&mut self.stream, &[PING]).await {
                        return error;
                    }
                }
            }
        }
    }

    /// Gives it to a device that has this address and began with these bytes.
    ///
    /// # Errors
    /// The server does not take it: the device may have another tunnel.
    pub async fn give(mut self, client: IpAddr, begins: &[u8]) -> io::Result<Box<dyn ByteStream>> {
        let giving = async {
            let bytes = [&proxy_header::header(client), begins].concat();
            send(&mut self.stream, &bytes).await?;
            // Answers to pings may still be on their way.
            loop {
                match self.stream.read_u8().await? {
                    PING => {}
                    TAKEN => return io::Result::Ok(()),
                    _ => return Err(ErrorKind::InvalidData.into()),
                }
            }
        };
        timeout(TAKEN_WITHIN, giving).await.map_err(late)??;
        Ok(self.stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Box<dyn ByteStream>, Box<dyn ByteStream>) {
        let (one, other) = tokio::io::duplex(256);
        (Box::new(one), Box::new(other))
    }

    fn registration() -> ServerRegistration {
        ServerRegistration {
            name: "sync.example.com".into(),
            instance: 7,
            token: Some("a-token-of-a-test".parse().unwrap()),
        }
    }

    /// A tunnel as both have it.
    async fn line() -> (RelayTunnel, IdleTunnel) {
        let (server, mut relay) = pair();
        let opening = tokio::spawn(async move { RelayTunnel::open(server, &registration()).await });
        let came = IdleTunnel::registration(&mut relay).await.unwrap();
        assert_eq!(came, registration());
        let idle = IdleTunnel::admit(relay).await.unwrap();
        (opening.await.unwrap().unwrap(), idle)
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_is_idle_for_days_and_then_a_devices() {
        let (line, mut idle) = line().await;
        let taken = tokio::spawn(line.taken());
        let days = Duration::from_secs(3 * 24 * 3_600);
        assert!(timeout(days, idle.keep()).await.is_err());
        let client: IpAddr = "192.0.2.7".parse().unwrap();
        let mut device = idle.give(client, b"hello").await.unwrap();
        let mut incoming = taken.await.unwrap().unwrap();
        assert_eq!(incoming.peer, "192.0.2.7");
        device.write_all(b" there").await.unwrap();
        incoming.stream.write_all(b"..+hi").await.unwrap();
        drop((device.shutdown().await, incoming.stream.shutdown().await));
        let mut all = Vec::new();
        incoming.stream.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"hello there");
        all.clear();
        device.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"..+hi", "what the device gets is the server's only");
    }

    #[tokio::test(start_paused = true)]
    async fn each_gives_up_when_the_other_is_silent() {
        let (line, mut idle) = line().await;
        // Its socket is open, and nobody reads.
        assert_eq!(idle.keep().await.kind(), ErrorKind::TimedOut);
        let client: IpAddr = "::1".parse().unwrap();
        let error = idle.give(client, b"hello").await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        drop(line);

        let (line, idle) = self::line().await;
        let error = line.taken().await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        drop(idle);

        let (line, mut idle) = self::line().await;
        drop(line);
        assert_eq!(idle.keep().await.kind(), ErrorKind::UnexpectedEof);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_refused_is_told_why() {
        for (why, _) in REFUSALS {
            let (server, mut relay) = pair();
            let opening =
                tokio::spawn(async move { RelayTunnel::open(server, &registration()).await });
            IdleTunnel::registration(&mut relay).await.unwrap();
            IdleTunnel::refuse(relay, why).await.unwrap();
            let error = opening.await.unwrap().err().unwrap();
            assert!(
                matches!(error, TunnelError::Refused(it) if it == why),
                "{error}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_registration_is_refused() {
        let long = format!("{WORD} {}\n", "a".repeat(2_000));
        for (text, why) in [
            (
                "TIDEWATER-LINE 2 a 0000000000000001 -\n",
                RegistrationRefusal::Version,
            ),
            (
                "TIDEWATER-LINE 1 a 0000000000000001\n",
                RegistrationRefusal::Malformed,
            ),
            (
                "TIDEWATER-LINE 1 a_/b 0000000000000001 -\n",
                RegistrationRefusal::Malformed,
            ),
            (
                "TIDEWATER-LINE 1 a 000000000000000g -\n",
                RegistrationRefusal::Malformed,
            ),
            (
                "TIDEWATER-LINE 1 a +000000000000001 -\n",
                RegistrationRefusal::Malformed,
            ),
            (
                "TIDEWATER-LINE 1 a 0000000000000001 short\n",
                RegistrationRefusal::Malformed,
            ),
            ("GET / HTTP/1.1\r\n", RegistrationRefusal::Malformed),
            (&long, RegistrationRefusal::Malformed),
            ("", RegistrationRefusal::Malformed),
        ] {
            let (mut server, mut relay) = pair();
            let text = text.to_owned();
            let said = tokio::spawn(async move {
                let _ = server.write_all(text.as_bytes()).await;
                let _ = server.shutdown().await;
                server
            });
            let error = IdleTunnel::registration(&mut relay).await.err().unwrap();
            assert!(
                matches!(error, TunnelError::Refused(it) if it == why),
                "{error}"
            );
            drop(relay);
            said.await.unwrap();
        }
        // Who says nothing.
        let (_server, mut relay) = pair();
        let error = IdleTunnel::registration(&mut relay).await.err().unwrap();
        assert!(matches!(error, TunnelError::Lost(_)), "{error}");
        // And what is no relay.
        let (server, mut other) = pair();
        other
            .write_all(b"HTTP/1.1 400 Bad Request\r\n")
            .await
            .unwrap();
        let error = RelayTunnel::open(server, &registration())
            .await
            .err()
            .unwrap();
        assert!(matches!(error, TunnelError::NoRelay), "{error}");
    }

    #[test]
    fn a_token_is_known_by_its_hash() {
        let token: RelayToken = "abcdefgh".parse().unwrap();
        let hash = "sha256:9c56cc51b374c3ba189210d5b6d4bf57790d351c96c47c02190ecf1e430635ab";
        assert_eq!(token.hash(), hash);
        for none in ["", "short", "with space", "umlaut-ä-and-more"] {
            assert!(none.parse::<RelayToken>().is_err(), "{none}");
        }
    }
}
