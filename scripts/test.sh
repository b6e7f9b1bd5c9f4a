#!/usr/bin/env bash
# Does all that CI does, the same on a laptop. Installs what is missing only where it may:
# as root, with apt-get. Elsewhere it says what to install.
set -euo pipefail
cd "$(dirname "$0")/.."

step() {
  printf '\n== %s\n' "$*"
}

have() {
  command -v "$1" >/dev/null 2>&1
}

# The same places that crates/testing looks in.
have_postgres() {
  local folder
  for folder in "${TIDEWATER_PG_BIN:-}" /usr/lib/postgresql/*/bin /usr/pgsql-*/bin; do
    [ -x "$folder/initdb" ] && [ -x "$folder/postgres" ] && return
  done
  have initdb
}

# need <what for> <Debian packages>...
need() {
  local purpose=$1
  shift
  if [ "$(id -u)" = 0 ] && have apt-get; then
    step "Installing $* ($purpose)"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    apt-get install -q -y --no-install-recommends "$@"
  else
    echo "Missing: $purpose. On Debian and Ubuntu: sudo apt-get install $*" >&2
    exit 1
  fi
}

if ! have cargo && [ -f "$HOME/.cargo/env" ]; then
  . "$HOME/.cargo/env"
fi
if ! have cargo; then
  echo "Missing: Rust. Install it from https://rustup.rs" >&2
  exit 1
fi
if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
  rustup component add rustfmt clippy
fi
have cc || need "a C compiler, which SQLite and ring are built with" gcc libc6-dev
have sqlite3 || need "the sqlite3 program, which the documents' examples use" sqlite3
have_postgres || need "a PostgreSQL server, of which the tests start their own" postgresql

step "Format"
cargo fmt --all --check

step "Documents"
scripts/check-docs.sh

if have cargo-deny; then
  step "Dependencies"
  cargo deny --log-level error check bans licenses sources
fi

step "Lints"
cargo clippy --workspace --all-targets --locked -- -D warnings

step "Tests"
cargo test --workspace --locked

step "Fault rig"
cargo build --workspace --bins --locked
"${CARGO_TARGET_DIR:-target}/debug/tidewater-rig" --seconds 60

step "All good"
