//! Over TLS.

use tidewater_carrier::CarrierError;
use tidewater_protocol::Code;

use super::*;
use tidewater_testing::scripted::later_reply;

fn serve_first() -> Behaviour {
    Box::new(|peer| {
        peer.read_until("DownloadRequest");
        peer.write(&first_reply().0);
        peer.read_to_end();
        assert_eq!(peer.sent.names().last(), Some(&"Ack"));
    })
}

/// The handshake fails, whoever notices it first.
fn refuse() -> Behaviour {
    Box::new(|peer| {
        let mut buffer = [0; 100];
        let _ = peer.stream.read(&mut buffer);
    })
}

fn trusting(certificate: &Certificate) -> SyncOptions {
    SyncOptions {
        ca_file: Some(certificate.file()),
        ..options()
    }
}

#[test]
fn a_sync_goes_through_an_encrypted_connection() {
    let certificate = Certificate::here();
    let server = Server::tls(&certificate, vec![serve_first()]);
    let remote = File::new();
    let report = sync(&remote, &server.url, &trusting(&certificate)).unwrap();
    assert_eq!(report.downloaded.upserts, 2);
    assert_eq!(remote.items().len(), 2);
    server.done();
}

#[test]
fn a_large_upload_goes_through_an_encrypted_connection() {
    let certificate = Certificate::here();
    let remote = File::synced();
    remote.run(
        "WITH RECURSIVE n(i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i < 900)
         INSERT INTO item SELECT i, printf('%.*c', 1000, 'x') FROM n",
    );
    let server = Server::tls(
        &certificate,
        vec![Box::new(|peer| {
            peer.read_until("DownloadRequest");
            let reply = later_reply(&peer.sent);
            peer.write(&reply.0);
            peer.read_to_end();
        })],
    );
    let report = sync(&remote, &server.url, &trusting(&certificate)).unwrap();
    assert!(report.bytes_sent > 890_000);
    server.done();
}

#[test]
fn the_certificate_file_is_remembered_by_the_remote() {
    let certificate = Certificate::here();
    let server = Server::tls(&certificate, vec![serve_first()]);
    let folder = TempDir::new().unwrap();
    let mut remote = crate::Remote::open(folder.path().join("new.db")).unwrap();
    remote.subscribe(&server.url, "ann", &["sales"]).unwrap();
    remote.set_ca_file(Some(&certificate.file())).unwrap();
    let mut remote = crate::Remote::open(folder.path().join("new.db")).unwrap();
    remote.set_password("secret");
    remote.sync(&mut |_| ControlFlow::Continue(())).unwrap();
    server.done();
}

#[test]
fn a_certificate_that_nobody_vouches_for_is_refused() {
    let certificate = Certificate::here();
    let server = Server::tls(&certificate, vec![refuse(), refuse()]);
    let remote = File::changed();
    let error = sync(&remote, &server.url, &options()).unwrap_err();
    assert_eq!(error.code(), Code::CertificateInvalid, "{error}");
    assert!(error.hint().contains("--ca"));
    let other = Certificate::here();
    let error = sync(&remote, &server.url, &trusting(&other)).unwrap_err();
    assert_eq!(error.code(), Code::CertificateInvalid, "{error}");
    server.done();
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    let certificate = Certificate::for_names(&["sync.example.com"]);
    let server = Server::tls(&certificate, vec![refuse()]);
    let error = sync(&File::changed(), &server.url, &trusting(&certificate)).unwrap_err();
    assert_eq!(error.code(), Code::CertificateInvalid, "{error}");
    server.done();
}

/// To a device whose clock is wrong by years, a good certificate is one of these.
#[test]
fn a_certificate_of_another_time_is_told_with_the_clock() {
    for (from, until) in [(1990, 2001), (2990, 3001)] {
        let certificate = Certificate::valid(from, until);
        let server = Server::tls(&certificate, vec![refuse()]);
        let remote = File::changed();
        let before = remote.items();
        let error = sync(&remote, &server.url, &trusting(&certificate)).unwrap_err();
        assert_eq!(error.code(), Code::CertificateInvalid, "{error}");
        assert!(error.hint().contains("date and time"), "{}", error.hint());
        assert_eq!(remote.items(), before);
        server.done();
    }
}

#[test]
fn the_wrong_scheme_is_told_either_way() {
    let certificate = Certificate::here();
    let server = Server::tls(&certificate, vec![refuse()]);
    let plain = server.url.replace("tls://", "tcp://");
    let error = sync(&File::changed(), &plain, &options()).unwrap_err();
    assert!(error.hint().contains("tls://"), "{error}");
    server.done();
    // A server without TLS does not answer what is no preface.
    let server = Server::tcp(vec![Box::new(|peer| {
        let mut buffer = [0; 4];
        let _ = peer.stream.read(&mut buffer);
    })]);
    let encrypted = server.url.replace("tcp://", "tls://");
    let error = sync(&File::changed(), &encrypted, &trusting(&certificate)).unwrap_err();
    assert!(
        matches!(error, ClientError::Carrier(CarrierError::Tls { .. })),
        "{error}"
    );
    server.done();
}

#[test]
fn an_encrypted_connection_that_ends_in_the_middle_is_a_lost_connection() {
    let certificate = Certificate::here();
    let server = Server::tls(
        &certificate,
        vec![Box::new(|peer| {
            peer.read_until("DownloadRequest");
            let reply = later_reply(&peer.sent);
            peer.write(&reply.0[..100]);
        })],
    );
    let remote = File::changed();
    let before = remote.items();
    let error = sync(&remote, &server.url, &trusting(&certificate)).unwrap_err();
    assert_eq!(error.code(), Code::ConnectionLost, "{error}");
    assert_eq!(remote.items(), before);
    server.done();
}

#[test]
fn a_certificate_file_that_is_none_is_told() {
    let folder = TempDir::new().unwrap();
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "no certificate").unwrap();
    for file in [empty, folder.path().join("missing.pem")] {
        let options = SyncOptions {
            ca_file: Some(file.clone()),
            ..options()
        };
        let error = sync(&File::changed(), "tls://127.0.0.1:1", &options).unwrap_err();
        assert_eq!(error.code(), Code::Usage);
        assert!(error.to_string().contains(file.to_str().unwrap()));
    }
}

#[test]
fn a_pinned_key_is_remembered_and_another_is_told() {
    let certificate = Certificate::for_names(&["sync.example.com"]);
    let pin = crate::Pin::from_file(&certificate.file()).unwrap();
    let server = Server::tls(&certificate, vec![serve_first()]);
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("new.db");
    let mut remote = crate::Remote::open(&file).unwrap();
    remote.subscribe(&server.url, "ann", &["sales"]).unwrap();
    remote.set_pin(Some(pin)).unwrap();
    let mut remote = crate::Remote::open(&file).unwrap();
    remote.set_password("secret");
    remote.sync(&mut |_| ControlFlow::Continue(())).unwrap();
    server.done();
    let other = Certificate::here();
    let server = Server::tls(&other, vec![refuse()]);
    let mut remote = crate::Remote::open(&file).unwrap();
    remote.subscribe(&server.url, "ann", &[]).unwrap();
    let error = remote.sync(&mut |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(error.code(), Code::CertificateInvalid);
    let found = crate::Pin::from_file(&other.file()).unwrap().to_string();
    assert!(error.to_string().contains(&found), "{error}");
    assert!(error.hint().contains("--pin"), "{}", error.hint());
    server.done();
}
