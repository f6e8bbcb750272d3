#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds atomo and runs every test it has: C++, shell and Python ones through ctest, the bindings' through pytest, then
# those that touch memory under the address and undefined-behaviour sanitizers.
set -uo pipefail

usage() {
  cat <<'TEXT'
usage: bash tests/run.sh [--all] [--help]

Installs what is missing, builds (build/release, the Python package in build/venv, build/asan) and runs every test.
The last line is `N passed, N failed`, with `, N skipped` when a test was skipped.
Exit status 0 when nothing failed.

  --all    the long tests too: long fuzzing, big tensors, all that kernels are tried on
  --help   print this text

example: bash tests/run.sh
TEXT
}

all=0
for argument in "$@"; do
  case "$argument" in
    --all) all=1 ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; printf "run.sh: unknown option '%s'; --all and --help are accepted\n" "$argument" >&2; exit 2 ;;
  esac
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
mkdir -p build

say() { printf '== %s\n' "$*"; }
broken=0
durations=()

# run_part NAME command...: runs it with its time noted; a failure is counted and named.
run_part() {
  local name=$1 started=$SECONDS status=0
  shift
  say "$name"
  "$@" || status=$?
  durations+=("$(printf '%5d s  %s' $((SECONDS - started)) "$name")")
  return $status
}

# Torch takes about 2 GB a compiler: no more jobs than the memory carries.
build_jobs() {
  local cores memory_gb
  cores=$(nproc)
  memory_gb=$(awk '/MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
  local by_memory=$((memory_gb / 2 > 0 ? memory_gb / 2 : 1))
  echo $((cores < by_memory ? cores : by_memory))
}
jobs=$(build_jobs)

launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)

# build PRESET: configures and builds; the whole output is in build/PRESET.log, warnings and errors are shown.
build() {
  local log=build/$1.log
  if cmake --preset "$1" "${launcher[@]}" >"$log" 2>&1; then
    grep '^-- atomo:' "$log"
  else
    tail -n 30 "$log"
    return 1
  fi
  cmake --build "build/$1" -j "$jobs" -- -k 0 >>"$log" 2>&1 && return
  grep -E -A 12 'FAILED:|error:' "$log" | head -n 80
  say "the build of '$1' failed, the whole of it is in $log"
  return 1
}

# check PRESET [ctest options]: runs the tests of a build tree and leaves build/PRESET.xml. Some mostly wait, so there is one
# more at a time than there are cores.
check() {
  local preset=$1 leave_out=(-LE long)
  shift
  [ $all -eq 1 ] && leave_out=()
  ctest --test-dir "build/$preset" -j "$((jobs + 1))" --timeout 600 --output-on-failure \
    --output-junit "$root/build/$preset.xml" "${leave_out[@]}" "$@" | show_only_what_matters
}

# check_bindings: runs the Python package's tests and leaves build/python.xml.
check_bindings() {
  local leave_out=(-m "not long")
  [ $all -eq 1 ] && leave_out=()
  build/venv/bin/python -m pytest -q "${leave_out[@]}" --junit-xml build/python.xml tests/bindings
}

# ctest prints a line or more for each test; keep failures, and a count every hundred tests.
show_only_what_matters() {
  awk '/^ *[0-9]+\/[0-9]+ Test/ { if (/Passed/) { if (++n % 100 == 0) print "  " n " passed"; next } }
       /Start +[0-9]+:/ || /^Test project/ { next } { print } { fflush() }'
}

export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
export ATOMO_TESTS_ALL=$all
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
rm -f build/release.xml build/python.xml build/asan.xml

run_part "install" bash scripts/install.sh || { echo "0 passed, 1 failed"; exit 1; }
run_part "build (release)" build release || broken=$((broken + 1))
run_part "tests (release)" check release
run_part "build (python)" bash scripts/python.sh || broken=$((broken + 1))
run_part "tests (python)" check_bindings
run_part "build (asan)" build asan || broken=$((broken + 1))
run_part "tests (asan)" check asan

say "durations"
printf '%s\n' "${durations[@]}"
printf '%5d s  in all\n' "$SECONDS"
say "outcome"
python3 tests/tally.py --build-failures $broken release=build/release.xml python=build/python.xml asan=build/asan.xml
