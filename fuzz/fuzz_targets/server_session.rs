//! See `tidewater_fuzzing::server_session`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewater_fuzzing::server_session(data));
