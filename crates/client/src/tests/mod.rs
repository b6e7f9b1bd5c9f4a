//! Syncs and pings against small scripted servers on loopback.

mod applying;
mod encrypted;
mod outbox;
mod plain;
mod retrying;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;
use tidewater_carrier::tls;

use tidewater_remote::database::RemoteDatabase;
use tidewater_remote::{Report, SyncError, SyncProgress};
use tidewater_testing::scripted::{Reply, SentMessages, first_reply};

use crate::{ClientError, SyncOptions, driver};

/// What a server does with one connection.
type Behaviour = Box<dyn FnOnce(&mut Peer) + Send>;

/// A server that serves its connections one after the other, each by its own script.
struct Server {
    url: String,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn tcp(behaviours: Vec<Behaviour>) -> Server {
        Server::start("tcp", None, behaviours)
    }

    fn tls(certificate: &Certificate, behaviours: Vec<Behaviour>) -> Server {
        Server::start("tls", Some(certificate.server_config()), behaviours)
    }

    fn start(scheme: &str, tls: Option<Arc<ServerConfig>>, behaviours: Vec<Behaviour>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let thread = std::thread::spawn(move || {
            for behaviour in behaviours {
                let (socket, _) = listener.accept().unwrap();
                let limit = Some(Duration::from_secs(60));
                socket.set_read_timeout(limit).unwrap();
                socket.set_write_timeout(limit).unwrap();
                let stream: Box<dyn Stream> = match &tls {
                    None => Box::new(socket),
                    Some(config) => {
                        let connection = ServerConnection::new(config.clone()).unwrap();
                        Box::new(StreamOwned::new(connection, socket))
                    }
                };
                let mut peer = Peer {
                    stream,
                    sent: SentMessages::default(),
                };
                behaviour(&mut peer);
            }
        });
        Server {
            url: format!("{scheme}://127.0.0.1:{port}"),
            thread: Some(thread),
        }
    }

    /// Waits until all connections were served; a panic of the server is one of the test.
    fn done(mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Answers a sync as the script says and waits for the remote to close.
fn serve(script: fn(&SentMessages) -> Reply) -> Behaviour {
    Box::new(move |peer| {
        peer.read_until("DownloadRequest");
        let reply = script(&peer.sent);
        peer.write(&reply.0);
        peer.read_to_end();
        assert_eq!(peer.sent.names().last(), Some(&"Ack"));
    })
}

trait Stream: Read + Write {}
impl Stream for TcpStream {}
impl Stream for StreamOwned<ServerConnection, TcpStream> {}

/// The server's side of one connection.
struct Peer {
    stream: Box<dyn Stream>,
    sent: SentMessages,
}

impl Peer {
    /// Reads until a message of this name has come.
    fn read_until(&mut self, name: &str) {
        self.read_while(|sent| !sent.names().contains(&name));
    }

    fn read_while(&mut self, goes_on: impl Fn(&SentMessages) -> bool) {
        let mut buffer = vec![0; 64 << 10];
        while goes_on(&self.sent) {
            let count = self.stream.read(&mut buffer).unwrap();
            assert!(count > 0, "the remote closed too early");
            self.sent.push(&buffer[..count]);
        }
    }

    /// Reads until the remote closes.
    fn read_to_end(&mut self) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => self.sent.push(&buffer[..count]),
                Err(error) if ended(&error) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
        self.stream.flush().unwrap();
    }
}

fn ended(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    )
}

/// A certificate that signs itself, for 127.0.0.1 and localhost or for another name.
struct Certificate {
    certified: rcgen::CertifiedKey<rcgen::KeyPair>,
    folder: TempDir,
}

impl Certificate {
    fn for_names(names: &[&str]) -> Certificate {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        Certificate {
            certified: rcgen::generate_simple_self_signed(names).unwrap(),
            folder: TempDir::new().unwrap(),
        }
    }

    /// For 127.0.0.1, from one year's beginning to another's.
    fn valid(from: i32, until: i32) -> Certificate {
        let names = vec!["127.0.0.1".to_owned()];
        let mut parameters = rcgen::CertificateParams::new(names).unwrap();
        parameters.not_before = rcgen::date_time_ymd(from, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(until, 1, 1);
        let signing_key = rcgen::KeyPair::generate().unwrap();
        let cert = parameters.self_signed(&signing_key).unwrap();
        Certificate {
            certified: rcgen::CertifiedKey { cert, signing_key },
            folder: TempDir::new().unwrap(),
        }
    }

    fn here() -> Certificate {
        Certificate::for_names(&["127.0.0.1", "localhost"])
    }

    /// A PEM file to trust it by.
    fn file(&self) -> PathBuf {
        let path = self.folder.path().join("ca.pem");
        std::fs::write(&path, self.certified.cert.pem()).unwrap();
        path
    }

    fn server_config(&self) -> Arc<ServerConfig> {
        let key = self.folder.path().join("key.pem");
        std::fs::write(&key, self.certified.signing_key.serialize_pem()).unwrap();
        tls::server(&self.file(), &key).unwrap()
    }
}

/// Options with patience for a machine that has other things to do.
fn options() -> SyncOptions {
    SyncOptions {
        password: Some("secret".into()),
        timeout: Duration::from_secs(60),
        ..SyncOptions::default()
    }
}

/// Points a remote at a server, whatever it knew before, and syncs.
fn sync(remote: &File, server: &str, options: &SyncOptions) -> Result<Report, ClientError> {
    sync_watched(remote, server, options, &mut |_| ControlFlow::Continue(()))
}

fn sync_watched(
    remote: &File,
    server: &str,
    options: &SyncOptions,
    progress: &mut dyn FnMut(&SyncProgress) -> ControlFlow<()>,
) -> Result<Report, ClientError> {
    remote.point_at(server);
    driver::sync(remote.open(), options, None, &mut None, false, progress).1
}

/// A remote's file.
struct File {
    folder: TempDir,
}

impl File {
    /// One that has never synced.
    fn new() -> File {
        let file = File {
            folder: TempDir::new().unwrap(),
        };
        file.open()
            .subscribe("tcp://127.0.0.1:7439", "ann", &["sales"])
            .unwrap();
        file
    }

    /// One that holds the rows (1, one) and (2, two).
    fn synced() -> File {
        let file = File::new();
        let server = Server::tcp(vec![serve(|_| first_reply())]);
        sync(&file, &server.url, &options()).unwrap();
        server.done();
        file
    }

    /// The same, with (3, three) inserted by the application.
    fn changed() -> File {
        let file = File::synced();
        file.run("INSERT INTO item VALUES (3, 'three')");
        file
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("remote.db")
    }

    fn open(&self) -> RemoteDatabase {
        RemoteDatabase::open(&self.path()).unwrap()
    }

    /// Makes the remote believe that this was its server all along.
    fn point_at(&self, server: &str) {
        let connection = Connection::open(self.path()).unwrap();
        connection
            .execute("UPDATE tidewater_state SET server = ?1", [server])
            .unwrap();
    }

    fn run(&self, sql: &str) {
        let application = Connection::open(self.path()).unwrap();
        application.execute_batch(sql).unwrap();
    }

    /// The rows of table `item`.
    fn items(&self) -> Vec<(i64, String)> {
        let connection = Connection::open(self.path()).unwrap();
        let mut rows = connection
            .prepare("SELECT id, name FROM item ORDER BY id")
            .unwrap();
        let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        rows.unwrap().map(Result::unwrap).collect()
    }
}
