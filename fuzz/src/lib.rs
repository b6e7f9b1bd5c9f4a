//! What all fuzz targets are linked with: a limit for single allocations.
//!
//! libFuzzer's own limit, `-malloc_limit_mb`, does nothing without a sanitizer. This one
//! holds in every build, for everything that Rust allocates.

use std::alloc::{GlobalAlloc, Layout, System};

/// Inputs have at most 64 KiB: who wants more than this for one of them believed a length
/// that the input made up.
const MAX_BYTES: usize = 32 << 20;

#[global_allocator]
static ALLOCATOR: Limited = Limited;

struct Limited;

// SAFETY: everything is the system's, but for what ends the process.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: whoever calls this promises what the system asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        check(bytes);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// An allocator must not panic: it ends the process, and libFuzzer keeps the input.
fn check(bytes: usize) {
    if bytes > MAX_BYTES {
        eprintln!("A single allocation of {bytes} bytes; at most {MAX_BYTES} are allowed.");
        std::process::abort();
    }
}
