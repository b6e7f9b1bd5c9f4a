//! PROXY headers: however their bytes come, they tell the same, and never more than what is there.

use tidewater_carrier::proxy_header::{HeaderScan, MAX_HEADER_BYTES, is_header, read};

/// The first bytes of a connection.
///
/// # Panics
/// A promise is broken.
pub fn proxied(data: &[u8]) {
    let whole = read(data);
    let decided = match &whole {
        Ok(HeaderScan::Header { bytes, .. }) => {
            assert!(*bytes <= data.len() && *bytes <= MAX_HEADER_BYTES);
            assert_eq!(read(&data[..*bytes]), whole, "what follows says nothing");
            *bytes
        }
        Ok(HeaderScan::Unfinished) => {
            assert!(data.len() < MAX_HEADER_BYTES, "it never ends");
            data.len()
        }
        Ok(HeaderScan::Other) => {
            assert_eq!(is_header(data), Some(false));
            return;
        }
        Err(_) => {
            assert_eq!(is_header(data), Some(true));
            return;
        }
    };
    for end in 0..decided {
        assert_eq!(read(&data[..end]), Ok(HeaderScan::Unfinished), "at {end}");
    }
}
