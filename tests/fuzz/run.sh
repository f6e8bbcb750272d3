#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs one fuzz target for as long as it is told. docs/fuzzing.md says what the targets hold.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash tests/fuzz/run.sh TARGET [--minutes N] [--driver] [--help]

Builds one target and runs it for N minutes, 60 unless told. The corpus grows in build/fuzz-corpus/TARGET and is used
again. An input that breaks a contract is made small and kept in tests/fuzz/regressions/TARGET, to be committed with
what mends it. Exit status 0 when nothing broke.

targets:
  decode, encode, spec, policy, files, c_abi   with libFuzzer, under clang's sanitizers
  differential   the kernels on the host executor beside the CPU; by the tests' own driver, under g++'s sanitizers
  format         damaged messages, by the library and by the decoder that was written from FORMAT.md (tests/python)
  python         the Python package's decoding; by atheris, which is fetched from PyPI into build/venv
  work           a search for the messages that cost a decoder most; prints the worst of each spec

  --minutes N   at least 1
  --driver      the tests' own driver in place of libFuzzer, where there is no clang
  --help        print this text

example: bash tests/fuzz/run.sh decode --minutes 240
TEXT
}
refuse() { usage >&2; printf 'run.sh: %s\n' "$*" >&2; exit 2; }

target=
minutes=60
driver=0
while [ $# -gt 0 ]; do
  case "$1" in
    --minutes)
      [[ ${2:-} =~ ^[1-9][0-9]{0,5}$ ]] || refuse "--minutes is '${2:-}'; a whole number from 1 is wanted"
      minutes=$2
      shift ;;
    --driver) driver=1 ;;
    --help | -h) usage; exit 0 ;;
    decode | encode | spec | policy | files | c_abi | differential | format | python | work)
      [ -z "$target" ] || refuse "'$1' is a second target; one is wanted"
      target=$1 ;;
    *) refuse "unknown word '$1'; a target, --minutes, --driver and --help are accepted" ;;
  esac
  shift
done
[ -n "$target" ] || refuse "a target is wanted"

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD
seconds=$((60 * minutes))
regressions=$root/tests/fuzz/regressions/$target
broken=$root/build/fuzz-broken/$target
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
export ATOMO_HOSTEXEC_ORDER=${ATOMO_HOSTEXEC_ORDER:-ascending}
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)

# built PRESET PROGRAM: builds one program of a preset.
built() {
  cmake --preset "$1" "${launcher[@]}" >"build/$1.log" 2>&1 || { tail -n 30 "build/$1.log" >&2; exit 1; }
  cmake --build "build/$1" --target "$2" >>"build/$1.log" 2>&1 || { tail -n 30 "build/$1.log" >&2; exit 1; }
}

# keep FILE: a regression by its content's name.
keep() {
  mkdir -p "$regressions"
  local name=$regressions/input-$(sha256sum "$1" | cut -c 1-12)
  cp "$1" "$name"
  printf 'run.sh: a contract is broken by %s\n' "${name#"$root"/}" >&2
}

run_driver() {
  built asan "fuzz_$target"
  mkdir -p "$broken"
  rm -f "$broken"/crash-*
  # Each start has other draws.
  "build/asan/tests/fuzz/fuzz_$target" --seconds "$seconds" --seed "$(date +%s)" --keep "$broken" "$regressions" && return
  local input
  for input in "$broken"/crash-*; do [ ! -e "$input" ] || keep "$input"; done
  exit 1
}

run_libfuzzer() {
  built fuzz "fuzz_$target"
  local program=build/fuzz/tests/fuzz/fuzz_$target corpus=build/fuzz-corpus/$target
  mkdir -p "$corpus" "$broken" "$regressions"
  rm -f "$broken"/*
  "$program" --write-seeds "build/fuzz-seeds/$target"
  "$program" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=4096 -max_len=16384 -print_final_stats=1 \
    -artifact_prefix="$broken/" "$corpus" "build/fuzz-seeds/$target" "$regressions" && return
  local input
  for input in "$broken"/*; do
    [ -e "$input" ] || continue
    "$program" -minimize_crash=1 -max_total_time=60 -exact_artifact_path="$broken.small" "$input" >"$broken.log" 2>&1 || true
    if [ -s "$broken.small" ]; then keep "$broken.small"; else keep "$input"; fi
  done
  exit 1
}

case $target in
  work)
    built release test_decode_work_search
    program=build/release/tests/hostile/test_decode_work_search
    specs=$("$program" --gtest_list_tests | grep -c FindsNo)
    ATOMO_FUZZ_SECONDS=$(((seconds + specs - 1) / specs)) "$program" --gtest_brief=1 ;;
  format)
    built release format_messages
    mkdir -p "$broken"
    rm -f "$broken"/crash-*
    # Each start has other draws.
    python3 tests/python/fuzz_format.py --program build/release/tests/python/format_messages --seconds "$seconds" \
      --seed "$(date +%s)" --keep "$broken" "$regressions" && exit
    for input in "$broken"/*; do [ ! -e "$input" ] || keep "$input"; done
    exit 1 ;;
  python)
    bash scripts/python.sh >build/python.log 2>&1 || { tail -n 30 build/python.log >&2; exit 1; }
    build/venv/bin/python -m pip --disable-pip-version-check -q install atheris
    mkdir -p build/fuzz-corpus/python "$broken" "$regressions"
    rm -f "$broken"/*
    build/venv/bin/python tests/fuzz/python_decode.py -max_total_time="$seconds" -timeout=60 -artifact_prefix="$broken/" \
      build/fuzz-corpus/python tests/golden "$regressions" && exit
    for input in "$broken"/*; do [ ! -e "$input" ] || keep "$input"; done
    exit 1 ;;
  differential) run_driver ;;
  *) if [ $driver -eq 1 ]; then run_driver; else run_libfuzzer; fi ;;
esac
rmdir "$regressions" 2>/dev/null || true
