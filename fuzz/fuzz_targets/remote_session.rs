//! See `tidewater_fuzzing::remote_session`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewater_fuzzing::remote_session(data));
