//! See `tidewater_fuzzing::rows`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewater_fuzzing::rows(data));
