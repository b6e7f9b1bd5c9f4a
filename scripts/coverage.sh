#!/usr/bin/env bash
# Tells which share of lines the tests of the main crates run, file by file where it
# is less than most, and for each crate. Reports; judges nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v cargo-llvm-cov >/dev/null 2>&1; then
  echo "Missing: cargo-llvm-cov. Install it with: cargo install cargo-llvm-cov; rustup component add llvm-tools" >&2
  exit 1
fi

crates="protocol connection carrier remote client centre centre-postgres centre-sqlite server-config server"
packages=()
for crate in $crates; do
  packages+=(-p "tidewater-$crate")
done

# Tests that fail are shown, and the rest is counted all the same.
cargo llvm-cov --no-report --locked --ignore-run-fail "${packages[@]}" "$@"

# Columns of the report: file; regions, missed, share; functions, missed, share; lines,
# missed, share.
cargo llvm-cov report --ignore-filename-regex '(/tests/|/tests\.rs|/scripted\.rs)' |
  awk '
    match($1, /(protocol|connection|carrier|remote|client|centre|centre-postgres|centre-sqlite|server-config|server)\/src\//) {
      crate = substr($1, RSTART, RLENGTH - 5)
      lines[crate] += $8; missed[crate] += $9
      all += $8; all_missed += $9
      if ($8 > 0 && $9 / $8 > 0.2) {
        printf "%6.1f %%  %5d of %5d lines not run  %s\n", 100 * (1 - $9 / $8), $9, $8, $1
      }
    }
    END {
      print ""
      for (crate in lines) {
        printf "%-14s %6.1f %% of %6d lines\n", crate, 100 * (1 - missed[crate] / lines[crate]), lines[crate]
      }
      if (all > 0) printf "%-14s %6.1f %% of %6d lines\n", "together", 100 * (1 - all_missed / all), all
    }'
