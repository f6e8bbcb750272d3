#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh machine to a trained network: installs what is missing, builds, trains LeNet over MPI processes once with
# each of a few codecs, and ends with a table and a plot of accuracy against megabytes sent.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash examples/quickstart.sh [options]

Installs what is missing, builds (build/release) and trains over MPI processes on this machine, once uncompressed
and once with each codec. Ends with a table and the path of a plot.

  --workers N     worker processes, 4 by default
  --steps N       training steps of each run
  --codec SPEC    a codec to compare, may be given several times
  --model NAME    logistic, lenet or resnet20
  --hostfile FILE the machines to run on, as mpirun reads them
  --help          print this text

example: bash examples/quickstart.sh --workers 2 --codec atomo:bits=0.25 --codec qsgd:bits=4
TEXT
}

fail() { printf 'quickstart.sh: %s\n' "$*" >&2; exit 2; }

# Options are checked before anything is installed or built; their values are the trainer's to judge.
options=("$@")
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage; exit 0 ;;
    --workers | --steps | --codec | --model) [ $# -ge 2 ] || fail "$1 needs a value" ;;
    --hostfile)
      [ $# -ge 2 ] || fail "$1 needs a value"
      [ -r "$2" ] || fail "cannot read the host file '$2'"
      ;;
    *) usage >&2; fail "unknown option '$1'" ;;
  esac
  shift 2
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
log=$root/build/quickstart.log
mkdir -p "$root/build"

say() { printf '== %s\n' "$*"; }
started=$SECONDS

say "packages"
bash "$root/scripts/install.sh"

# Torch takes about 2 GB a compiler: no more jobs than the memory carries.
memory_gb=$(awk '/MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
jobs=$(nproc)
by_memory=$((memory_gb / 2 > 0 ? memory_gb / 2 : 1))
[ "$jobs" -le "$by_memory" ] || jobs=$by_memory

say "build (release), a few minutes the first time; its output is in $log"
build() {
  cd "$root"
  cmake --preset release
  cmake --build build/release -j "$jobs" --target atomo_cli atomo-train
}
if ! (build) >"$log" 2>&1; then
  tail -n 30 "$log" >&2
  fail "the build failed, the whole of it is in $log"
fi
say "built after $((SECONDS - started)) s, training"

python=/usr/bin/python3
[ -x "$python" ] || python=python3
"$python" "$root/programs/atomo-train/tools/compare.py" --trainer "$root/build/release/programs/atomo-train/atomo-train" "${options[@]}"
say "done after $((SECONDS - started)) s"
