//! See `tidewater_fuzzing::messages`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewater_fuzzing::messages(data));
