//! See `tidewater_fuzzing::ranges`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewater_fuzzing::ranges(data));
