//! See `tidewater_fuzzing::handlers`.

#![no_main]

use tidewater_fuzz as _;

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidewater_fuzzing::handlers(data));
