//! What comes to a relay: the first bytes of devices, and what servers register with.

use tidewater_carrier::listen::ServerRegistration;
use tidewater_relay::{ClientHelloReader, MAX_HELLO_BYTES};

/// A device, in pieces of any size; or, behind a line break, a server.
///
/// # Panics
/// A promise is broken.
pub fn relay(data: &[u8]) {
    match data.split_first() {
        Some((b'\n', text)) => server(text),
        Some((size, bytes)) => device(bytes, usize::from(*size).max(1)),
        None => {}
    }
}

fn device(bytes: &[u8], size: usize) {
    let mut whole = ClientHelloReader::default();
    let found = whole.push(bytes);
    let mut hello = ClientHelloReader::default();
    let mut read = 0;
    for piece in bytes.chunks(size) {
        read += piece.len();
        match hello.push(piece) {
            Ok(None) => assert!(read <= MAX_HELLO_BYTES, "it never ends"),
            Ok(Some(wanted)) => {
                assert_eq!(Ok(Some(wanted)), found, "it depends on the pieces");
                assert_eq!(hello.bytes(), &bytes[..read], "the server gets all of it");
                return;
            }
            Err(_) => {
                assert!(found.is_err(), "it depends on the pieces");
                return;
            }
        }
    }
    assert_eq!(found, Ok(None), "it depends on the pieces");
}

fn server(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    let Ok(registration) = ServerRegistration::read(text) else {
        return;
    };
    let again = registration.text();
    let again = again.strip_suffix('\n').expect("a line ends");
    assert_eq!(ServerRegistration::read(again), Ok(registration));
}
