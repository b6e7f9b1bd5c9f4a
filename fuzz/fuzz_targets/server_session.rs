//! See `tidewater_fuzzing::server_session`.

#![no_main]

use tidewater_fuzz as _;

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewater_fuzzing::server_session(data));
