#!/usr/bin/env bash
# Fuzzes one target: scripts/fuzz.sh TARGET SECONDS [ARGUMENTS OF LIBFUZZER...]
# Begins with the committed corpus and keeps what it finds in fuzz/found/TARGET.
# SECONDS may be 0 where an argument says when to end: scripts/fuzz.sh rows 0 -runs=50000000
#
# No sanitizer, because what decodes bytes has no `unsafe`, and goes through several times as
# many inputs without: SANITIZER=address looks for mistakes of memory in dependencies.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${1:-}
seconds=${2:-60}
shift $(($# < 2 ? $# : 2))

if [ ! -f "fuzz/fuzz_targets/$target.rs" ]; then
  echo "Which target? One of: $(cd fuzz/fuzz_targets && echo *.rs | sed 's/\.rs//g')" >&2
  echo "For example: make fuzz TARGET=frames SECONDS=60" >&2
  exit 2
fi
if ! command -v cargo-fuzz >/dev/null 2>&1; then
  echo "Missing: cargo-fuzz. Install it with: cargo install cargo-fuzz" >&2
  exit 1
fi
# Sanitizers and coverage need options of the compiler that only a nightly one has.
if ! cargo +nightly --version >/dev/null 2>&1; then
  echo "Missing: a nightly Rust. Install it with: rustup toolchain install nightly" >&2
  exit 1
fi

mkdir -p "fuzz/found/$target"
# An input that takes ten seconds is a finding, and so is a single allocation of more than
# 32 MiB, for inputs of at most 64 KiB: see fuzz/src/lib.rs. Code that the target does not
# reach is not linked: libFuzzer looks at the counters of all that is, after every input.
cargo +nightly fuzz run --strip-dead-code --sanitizer "${SANITIZER:-none}" "$target" \
  "fuzz/found/$target" "fuzz/corpus/$target" -- \
  -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=1024 -timeout=10 \
  -print_final_stats=1 "$@"
