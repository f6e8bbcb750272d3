#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what atomo needs to build, test and run its examples, from the distribution's own packages.
# Idempotent: what is there already is not touched, and when nothing is missing no network is used.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash scripts/install.sh [--help] [--list] [--check]

Installs every package atomo needs on Debian or Ubuntu, as root or through sudo.
Packages that are installed already are left alone; a second run needs no network.

  --list    print the package names, one a line, and stop
  --check   install nothing; exit 1 and name what is missing when anything is
  --help    print this text

example: bash scripts/install.sh
TEXT
}

# Without these nothing builds.
readonly kRequired=(
  g++ cmake ninja-build pkg-config
  libblosc-dev libopenblas-dev liblapacke-dev libhwy-dev libxxhash-dev
)
# Each of these turns on a part: command line tool, trainer, tests, benchmarks, documentation, plots, Python
# package, fuzzing for hours (clang and its run-time library); ccache spares compiling twice what several builds share.
readonly kOptional=(
  libcli11-dev libfmt-dev nlohmann-json3-dev libzip-dev zlib1g-dev
  libtorch-dev libopenmpi-dev openmpi-bin dataset-fashion-mnist libpng-dev libjpeg-dev
  libgtest-dev libbenchmark-dev valgrind
  python3 python3-numpy python3-matplotlib python3-blosc python3-xxhash
  doxygen python3-sphinx python3-myst-parser python3-breathe furo
  python3-venv python3-dev ccache
  clang libclang-rt-dev
)

say() { printf 'install: %s\n' "$*"; }
fail() { printf 'install: %s\n' "$*" >&2; exit 1; }

is_installed() { [[ "$(dpkg-query -W -f='${Status}' "$1" 2>/dev/null)" == *' ok installed' ]]; }
in_list() { [[ " ${*:2} " == *" $1 "* ]]; }

# Prints the names among its arguments that are not installed.
missing_of() {
  local name
  for name in "$@"; do is_installed "$name" || printf '%s\n' "$name"; done
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then env DEBIAN_FRONTEND=noninteractive "$@"; else sudo env DEBIAN_FRONTEND=noninteractive "$@"; fi
}

apt() { as_root apt-get -y -o DPkg::Lock::Timeout=120 -o APT::Color=0 "$@"; }

refresh_package_lists() {
  say "refreshing the package lists"
  apt update >"$log" 2>&1 && return
  say "that failed, trying once more"
  sleep 3
  apt update >"$log" 2>&1 && return
  tail -n 5 "$log" >&2
  say "the package lists could not be refreshed, going on with the ones that are here"
}

# Turns apt's output into one line for each package that was asked for.
show_progress() {
  local line name done_count=0
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$log"
    [[ $line == 'Setting up '* ]] || continue
    name=${line#Setting up }
    name=${name%% *}
    name=${name%%:*}
    in_list "$name" "${available[@]}" || continue
    done_count=$((done_count + 1))
    say "[$done_count/${#available[@]}] $name"
  done
}

install_packages() {
  apt install --no-install-recommends "$@" 2>&1 | show_progress
}

case "${1:-}" in
  --help | -h) usage; exit 0 ;;
  --list) printf '%s\n' "${kRequired[@]}" "${kOptional[@]}"; exit 0 ;;
  --check | '') ;;
  *) usage >&2; fail "unknown option '$1'; --help, --list and --check are accepted" ;;
esac

command -v dpkg >/dev/null && command -v apt-get >/dev/null ||
  fail "this is neither Debian nor Ubuntu (no dpkg and apt-get); 'bash scripts/install.sh --list' names the packages"

mapfile -t missing < <(missing_of "${kRequired[@]}" "${kOptional[@]}")
if [ ${#missing[@]} -eq 0 ]; then
  say "everything is there"
  exit 0
fi
if [ "${1:-}" = --check ]; then
  fail "missing: ${missing[*]}"
fi

if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
  fail "installing needs root or sudo, and there is neither; ask for: ${missing[*]}"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
started=$SECONDS
say "missing: ${missing[*]}"
refresh_package_lists

available=()
for name in "${missing[@]}"; do
  if [ -n "$(apt-cache show "$name" 2>/dev/null)" ]; then
    available+=("$name")
  elif in_list "$name" "${kRequired[@]}"; then
    fail "this distribution has no package '$name', and atomo does not build without it"
  else
    say "this distribution has no package '$name': the part that uses it is left out"
  fi
done

if [ ${#available[@]} -gt 0 ] && ! install_packages "${available[@]}"; then
  say "the installation failed, trying once more"
  refresh_package_lists
  install_packages "${available[@]}" || { tail -n 20 "$log" >&2; fail "the packages could not be installed"; }
fi
say "done in $((SECONDS - started)) s"
