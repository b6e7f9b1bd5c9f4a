//! See `tidewater_fuzzing::scripts`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewater_fuzzing::scripts(data));
