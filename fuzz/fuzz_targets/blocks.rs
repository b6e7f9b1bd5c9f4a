//! See `tidewater_fuzzing::blocks`.

#![no_main]

use tidewater_fuzz as _;

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewater_fuzzing::blocks(data));
