#!/usr/bin/env bash
# Runs the tests of every crate of this workspace that uses `unsafe` under AddressSanitizer.
# Which these are is found by the lint that they have to allow.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo +nightly --version >/dev/null 2>&1; then
  echo "Missing: a nightly Rust, for the sanitizer. Install it with: rustup toolchain install nightly" >&2
  exit 1
fi

crates=$(grep -rlE '(allow|expect)\(unsafe_code' crates --include='*.rs' |
  cut -d/ -f2 | sort -u)
if [ -z "$crates" ]; then
  echo "No crate uses unsafe."
  exit 0
fi
packages=()
for crate in $crates; do
  packages+=(-p "tidewater-$crate")
done
echo "Under AddressSanitizer:" $crates

# The target is named so that build scripts and procedural macros are left alone.
host=$(rustc -vV | sed -n 's/^host: //p')
export RUSTFLAGS="-Zsanitizer=address"
# SQLite, in C, is instrumented as well. To this check two of its functions that have a constant
# of the same name each are a mistake; it looks at names between files, and finds no others.
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_odr_violation=0}"
exec cargo +nightly test --locked --target "$host" "${packages[@]}" "$@"
