//! See `tidewater_fuzzing::signed`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewater_fuzzing::signed(data));
