#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures every codec on one thread, writes bench/results/*.json and prints the table of it.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash bench/run.sh [--filter REGEX] [--repetitions N] [--min-time SECONDS] [--out FILE.json] [--check] [--help]

Builds bench_codecs (release) and measures encode, decode and decode_add of every codec at 1 M and 25 M
elements: GB/s of the tensor, and the ratio to a memcpy of it in the same process. The table goes to the
terminal and to FILE.txt, the figures of every repetition to FILE.json.

  --filter REGEX       only benchmarks whose name (SIZE/SPEC/OPERATION) matches
  --repetitions N      5 by default; the table shows medians and the spread
  --min-time SECONDS   of each repetition, 0.2 by default
  --out FILE.json      bench/results/codecs-DATE.json by default
  --check              exit 1 when a codec is slower than its floor
  --help               print this text

example: bash bench/run.sh --filter '1M_hot/(sign|qsgd)' --repetitions 3
TEXT
}

fail() { printf 'bench/run.sh: %s\n' "$*" >&2; exit 2; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
filter=.
repetitions=5
min_time=0.2
out=$root/bench/results/codecs-$(date +%Y-%m-%d).json
check=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage; exit 0 ;;
    --check) check=(--check); shift; continue ;;
    --filter | --repetitions | --min-time | --out) [ $# -ge 2 ] || fail "$1 needs a value" ;;
    *) usage >&2; fail "unknown option '$1'" ;;
  esac
  case "$1" in
    --filter) filter=$2 ;;
    --repetitions) repetitions=$2 ;;
    --min-time) min_time=$2 ;;
    --out) out=$(realpath -m "$2") ;;
  esac
  shift 2
done

cd "$root"
bash scripts/install.sh
cmake --preset release >/dev/null
cmake --build build/release --target bench_codecs

# One processor, one thread below the library too.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 BLOSC_NTHREADS=1
pin=()
command -v taskset >/dev/null && pin=(taskset -c "$(($(nproc) - 1))")
raw=$(mktemp)
trap 'rm -f "$raw"' EXIT
"${pin[@]}" build/release/bench/bench_codecs --benchmark_filter="$filter" \
  --benchmark_repetitions="$repetitions" --benchmark_min_time="$min_time" \
  --benchmark_out="$raw" --benchmark_out_format=json --benchmark_display_aggregates_only=true
mkdir -p "$(dirname "$out")"
status=0
python3 bench/table.py "${check[@]}" --tidy "$out" "$raw" >"${out%.json}.txt" || status=$?
echo
cat "${out%.json}.txt"
echo "written: $out"
exit $status
