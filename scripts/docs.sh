#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the documentation's site from docs/, the public headers and the Python package, and checks its links.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash scripts/docs.sh [--out FOLDER] [--help]

Writes build/docs/html/index.html: the pages of docs/ and the reference of C++, C and Python. Warnings are errors, and
every link inside the site has to lead to a file, and to an anchor in it. Nothing is fetched, nothing has to be built
before. Needs doxygen, Sphinx, MyST, Breathe and Furo, which 'bash scripts/install.sh' installs on Debian and Ubuntu.

  --out FOLDER   write xml/, doctrees/ and html/ there instead of build/docs
  --help         print this text

example: bash scripts/docs.sh
TEXT
}

say() { printf 'docs: %s\n' "$*"; }
fail() { printf 'docs: %s\n' "$*" >&2; exit 1; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=$root/build/docs
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage; exit 0 ;;
    --out)
      [ -n "${2:-}" ] || fail "--out wants a folder"
      out=$(realpath -m "$2")
      shift ;;
    *) usage >&2; fail "unknown option '$1'; --out and --help are accepted" ;;
  esac
  shift
done

# The distribution's Python, for which its packages are.
python=/usr/bin/python3
[ -x "$python" ] || python=python3
export PYTHONDONTWRITEBYTECODE=1
command -v doxygen >/dev/null || fail "doxygen is missing; 'bash scripts/install.sh' installs it"
"$python" -c 'import breathe, furo, myst_parser, sphinx' ||
  fail "a package of Python's is missing; 'bash scripts/install.sh' installs it"

cd "$root"
rm -rf "$out/xml" "$out/html"
mkdir -p "$out"
# Settings in place of those that the test of the comments has. Doxygen would list the typedef of a C struct beside it.
{
  cat tests/install/Doxyfile
  printf '%s\n' "OUTPUT_DIRECTORY = \"$out\"" 'GENERATE_XML = YES' 'TYPEDEF_HIDES_STRUCT = YES' \
    'MACRO_EXPANSION = YES' 'EXPAND_ONLY_PREDEF = YES' 'PREDEFINED = ATOMO_API='
} >"$out/Doxyfile"
doxygen "$out/Doxyfile"
# Everything is read anew: Sphinx would not repeat the warnings of pages that did not change.
"$python" -m sphinx -b html -q -E -W --keep-going -d "$out/doctrees" -D "breathe_projects.atomo=$out/xml" docs "$out/html"
"$python" tests/docs/links.py "$out/html"
say "$out/html/index.html"
