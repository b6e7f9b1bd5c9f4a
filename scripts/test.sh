#!/usr/bin/env bash
# Does all that CI does, the same on a laptop. Installs what is missing only where it may:
# as root, with apt-get. Elsewhere it says what to install.
#
# All is built once; then lanes of test programs run beside each other: one that computes, one
# that waits, and the fault rig. At the end stands what each part took.
set -euo pipefail
cd "$(dirname "$0")/.."

step() {
  printf '\n== %s\n' "$*"
}

# part <name> <command>... runs the command and notes its time. A failure ends the script, or
# the lane: neither `part` nor a lane may stand in a condition, where bash ignores failures.
part() {
  local name=$1 began=$SECONDS
  shift
  step "$name"
  "$@"
  printf '%5d s  %s\n' $((SECONDS - began)) "$name" >>"$notes/times"
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
[ -d "$(rustc --print target-libdir --target wasm32-unknown-unknown)" ] ||
  rustup target add wasm32-unknown-unknown
have cc || need "a C compiler, which SQLite and ring are built with" gcc libc6-dev
have sqlite3 || need "the sqlite3 program, which the documents' examples use" sqlite3
have curl && have jq || need "curl and jq, which the documents' examples use" curl jq
have_postgres || need "a PostgreSQL server, of which the tests start their own" postgresql

have mariadbd || have /usr/sbin/mariadbd ||
  need "a MariaDB server, of which the tests start their own" mariadb-server

have nats-server || have /usr/sbin/nats-server ||
  need "a NATS server, of which the tests start their own" nats-server

have slapd || have /usr/sbin/slapd ||
  need "OpenLDAP's slapd, of which the tests start their own" slapd

have haproxy || have /usr/sbin/haproxy ||
  need "HAProxy, of which the tests start their own" haproxy
have pgbouncer || have /usr/sbin/pgbouncer ||
  need "PgBouncer, of which the tests start their own" pgbouncer
have /usr/sbin/nginx && [ -e /usr/lib/nginx/modules/ngx_stream_module.so ] ||
  need "nginx, which reads a configuration of deploy/" nginx-light libnginx-mod-stream
have systemd-analyze || need "systemd-analyze, which reads a unit of deploy/" systemd

have node || need "Node.js, in which an example of a handler is written" nodejs
have go || need "Go, in which an example of a handler is written" golang-go

# A test has it check what the server says of its web protocol. Debian 12 has no package of it.
validator=$(realpath -m "${CARGO_TARGET_DIR:-target}/openapi-spec-validator")
export PYTHONPATH="$validator${PYTHONPATH:+:$PYTHONPATH}"
if ! python3 -c 'import openapi_spec_validator' 2>/dev/null; then
  python3 -m pip --version >/dev/null 2>&1 ||
    need "Python with pip, which installs a validator" python3 python3-pip
  step "Installing openapi-spec-validator into ${validator##*/}"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore \
    --no-warn-conflicts --upgrade --target "$validator" 'openapi-spec-validator>=0.7,<1'
fi

notes=$(mktemp -d)
memory=
lanes=()
tidy_up() {
  local lane
  for lane in ${lanes[@]+"${lanes[@]}"}; do
    kill -- "-$lane" 2>/dev/null || true
  done
  rm -rf "$notes" ${memory:+"$memory"}
}
trap tidy_up EXIT

part "Format" cargo fmt --all --check
part "Documents" scripts/check-docs.sh
if have cargo-deny; then
  part "Dependencies" cargo deny --log-level error check bans licenses sources
fi
part "Lints" cargo clippy --workspace --all-targets --locked -- -D warnings
# A remote also has to build for browsers: it opens no socket, and SQLite comes from elsewhere.
part "WebAssembly" cargo check --locked --target wasm32-unknown-unknown \
  -p tidewater-protocol -p tidewater-connection -p tidewater-remote

# A program that only calls and listens needs no SQLite. What examples and tests need is left out
# of the tree.
without_files() {
  local tree
  tree=$(cargo tree --locked -p tidewater-client --no-default-features --edges no-dev --prefix none)
  if grep -E '^(rusqlite|libsqlite3-sys) ' <<<"$tree"; then
    echo "The client without files depends on SQLite" >&2
    return 1
  fi
  cargo clippy --locked -p tidewater-client --no-default-features --lib --example listener -- -D warnings
}
part "Client without files" without_files

build() {
  cargo test --workspace --locked --no-run
  cargo build --workspace --bins --locked
}
part "Build" build

# Tests would wait for the disk half of their time, so their files are in memory where there is
# room. It outlives a process that dies, as a disk does, and no test takes the power away.
room_kib() {
  df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }'
  awk '/^MemAvailable/ { print $2 }' /proc/meminfo 2>/dev/null
}
least_kib=$(room_kib | sort -n | head -n 1) || least_kib=0
if [ "${least_kib:-0}" -ge 10000000 ] && [ -w /dev/shm ]; then
  memory=$(mktemp -d /dev/shm/tidewater-XXXXXX)
  # PostgreSQL runs as another user than root.
  chmod 755 "$memory"
fi

# Every package is named each time, because its features would otherwise be built anew.
tests() {
  TMPDIR=${memory:-${TMPDIR:-/tmp}} cargo test --workspace --locked "$@"
}

# Tests in these programs wait for processes, sockets and databases.
waiting="cli conformance end_to_end postgres server"
waiting_lane() {
  local cores name
  cores=$(getconf _NPROCESSORS_ONLN)
  for name in $waiting; do
    part "Tests: $name" tests --test "$name" -- --test-threads $((cores * 3))
  done
}

# All the others: no program that somebody adds is forgotten.
computing_lane() {
  local file name
  part "Tests: beside the code" tests --lib --bins
  part "Tests: in the documentation" tests --doc
  for file in crates/*/tests/*.rs crates/*/tests/*/main.rs; do
    name=${file%/main.rs}
    name=$(basename "$name" .rs)
    case " $waiting " in
    *" $name "*) ;;
    *) part "Tests: $name" tests --test "$name" ;;
    esac
  done
}

# A minute of it, which is mostly waiting too.
rig_lane() {
  part "Fault rig" "${CARGO_TARGET_DIR:-target}/debug/tidewater-rig" --seconds 60
}

# One lane is shown while it runs, the others, whole, after it. Each ends at its first failure.
# With job control, each is a group of processes that can be ended as a whole.
set -m
waiting_lane >"$notes/waiting" 2>&1 &
lanes+=($!)
rig_lane >"$notes/rig" 2>&1 &
lanes+=($!)
computing_lane &
lanes+=($!)
set +m
failed=
wait "${lanes[2]}" || failed+=" computing"
wait "${lanes[1]}" || failed+=" rig"
wait "${lanes[0]}" || failed+=" waiting"
lanes=()
cat "$notes/waiting" "$notes/rig"
if [ -n "$failed" ]; then
  # Why, at the end: a log that somebody looks at may be cut.
  grep -h -A 4 'panicked at' "$notes/waiting" "$notes/rig" >&2 || true
  echo "Tests have failed in a lane:$failed" >&2
  exit 1
fi

# The table of parts. Beside each stands what it took when scripts/test-times.txt was last written, if
# it takes a third more: whoever reviews the change asks why.
times=${CARGO_TARGET_DIR:-target}/test-times.txt
{
  cat "$notes/times"
  printf '%5d s  altogether\n' "$SECONDS"
} >"$times"
step "Times, of which the tests' overlap ($times)"
awk '
  { name = substr($0, 10) }
  FNR == NR { before[name] = $1; next }
  { print $0 (name in before && $1 > 10 && $1 > before[name] * 4 / 3 ? "  (was " before[name] " s)" : "") }
' scripts/test-times.txt "$times"
step "All good"
