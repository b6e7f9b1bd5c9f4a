//! See `tidewater_fuzzing::values`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewater_fuzzing::values(data));
