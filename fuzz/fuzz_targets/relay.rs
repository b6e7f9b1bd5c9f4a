//! See `tidewater_fuzzing::relay`.

#![no_main]

use tidewater_fuzz as _;

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewater_fuzzing::relay(data));
