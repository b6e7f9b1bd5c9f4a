#!/usr/bin/env bash
# Fails when the documents have fallen behind the code:
#   a Markdown file names a path in backticks, or links to one, that does not exist;
#   a Markdown file names a test that does not exist (a name of five words or more);
#   a dependency has no reason in CONTRIBUTING.md;
#   a Rust file does not begin by saying what it owns.
set -euo pipefail
cd "$(dirname "$0")/.."

failures=0
complain() {
  echo "$*" >&2
  failures=$((failures + 1))
}

# Files that git knows or would add; those deleted but not yet committed are none.
files() {
  git ls-files --cached --others --exclude-standard -- "$@" | sort -u | while read -r file; do
    [ ! -f "$file" ] || echo "$file"
  done
}

# What stands outside of fenced code blocks.
prose() {
  awk '/^ *(```|~~~)/ { fenced = !fenced; next } !fenced' "$1"
}

# A path may hold shell wildcards, `crates/*/DESIGN.md`, and end in a slash.
exists() {
  compgen -G "${1%/}" >/dev/null
}

sources=$(files '*.rs')
while read -r document; do
  folder=$(dirname "$document")
  while read -r path; do
    exists "$path" || complain "$document names \`$path\`, which does not exist"
  done < <(prose "$document" |
    grep -oE '`(crates|docs|scripts|bindings|web|examples|fuzz|\.ci)/[^` <>]*`' | tr -d '`' | sort -u)
  # Within a crate, and by its name alone.
  while read -r path; do
    exists "crates/$path" || exists "crates/*/src/$path" || exists "$folder/$path" ||
      grep -qE "(^|/)${path//./\\.}\$" <<<"$sources" ||
      complain "$document names \`$path\`, which does not exist"
  done < <(prose "$document" | grep -oE '`[a-z0-9_/-]+\.rs`' | tr -d '`' |
    grep -vE '^(crates|scripts|fuzz|examples)/' | sort -u)
  while read -r path; do
    exists "$folder/$path" || complain "$document links to $path, which does not exist"
  done < <(prose "$document" | sed 's/`[^`]*`//g' |
    grep -oE '\]\([^)# ]+' | sed 's/^](//' | grep -vE '^[a-z]+:' | sort -u)
done < <(files '*.md')

functions=$(files '*.rs' | xargs grep -hoE '\bfn [a-z0-9_]+' | cut -c 4- | sort -u)
while read -r document; do
  while read -r name; do
    grep -qx "$name" <<<"$functions" ||
      complain "$document names the test $name, which does not exist"
  done < <(prose "$document" | grep -oE '`[a-z0-9]+(_[a-z0-9]+){4,}`' | tr -d '`' | sort -u)
done < <(files '*.md')

while read -r dependency; do
  grep -q "^| \`$dependency\` |" CONTRIBUTING.md ||
    complain "Cargo.toml has $dependency, but CONTRIBUTING.md gives no reason for it"
done < <(awk '/^\[/ { inside = ($0 == "[workspace.dependencies]") } inside' Cargo.toml |
  grep -oE '^[A-Za-z0-9_-]+ *=' | tr -d ' =' | grep -v '^tidewater-')

# The tests of a file, in a file beside it, belong to that file.
while read -r file; do
  head -n 1 "$file" | grep -q '^//!' || complain "$file does not begin with //! and what it owns"
done < <(files '*.rs' | grep -v '/tests\.rs$')

if [ "$failures" -gt 0 ]; then
  echo "$failures complaints about documents" >&2
  exit 1
fi
