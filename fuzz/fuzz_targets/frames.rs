//! See `tidewater_fuzzing::frames`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewater_fuzzing::frames(data));
