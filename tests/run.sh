#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds atomo and runs its tests: C++, shell and Python ones through ctest, the bindings' through pytest, then those that
# touch memory under the address and undefined-behaviour sanitizers. cmake/testing.cmake says what the tiers are.
set -uo pipefail

usage() {
  cat <<'TEXT'
usage: bash tests/run.sh [--all [--part N/M]] [--base COMMIT] [--help]

Installs what is missing, builds (build/release, the Python package in build/venv, build/asan) and runs the tests of the
tier `commit`. Where a kernel, its compilation or the host executor differs from the base, their long tests (`kernels`) run too.
The last line is `N passed, N failed`, with `, N skipped` when a test was skipped.
Exit status 0 when nothing failed.

  --all          every test at its full size, in 8 parts; those that were finished for these very sources are not run
                 again, so a run that was stopped goes on where it was
  --part N/M     with --all: every M-th test from the N-th on alone; the outcome is of all M parts where all are there
  --base COMMIT  what changes are counted from; the branch's start (the merge base with origin's main) where there is no
                 such option, and on the main branch itself the last commit that is a day older than the newest
  --help         print this text

example: bash tests/run.sh
         bash tests/run.sh --all --part 1/8
TEXT
}

refuse() { usage >&2; printf 'run.sh: %s\n' "$*" >&2; exit 2; }
all=0
part=
base=
while [ $# -gt 0 ]; do
  case "$1" in
    --all) all=1 ;;
    --part)
      [[ ${2:-} =~ ^([1-9][0-9]{0,2})/([1-9][0-9]{0,2})$ ]] && [ "${BASH_REMATCH[1]}" -le "${BASH_REMATCH[2]}" ] ||
        refuse "--part is '${2:-}'; N/M is wanted, N from 1 to M, such as 1/8"
      part=$2
      shift ;;
    --base)
      base=${2:-}
      [ -n "$base" ] || refuse "--base wants a commit"
      shift ;;
    --help | -h) usage; exit 0 ;;
    *) refuse "unknown option '$1'; --all, --part, --base and --help are accepted" ;;
  esac
  shift
done
[ -z "$part" ] || [ $all -eq 1 ] || refuse "--part goes with --all alone"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
[ -z "$base" ] || git rev-parse -q --verify "$base^{commit}" >/dev/null || refuse "--base is '$base'; a commit of this repository is wanted"
bindings=  # the process of the Python package's tests, while they run
trap 'exit 130' INT TERM
trap '[ -z "$bindings" ] || kill "$bindings" 2>/dev/null' EXIT
mkdir -p build

say() { printf '== %s\n' "$*"; }
broken=0

# run_part NAME command...: runs it and says how long it took, at once, so that a run that is stopped has said it too.
run_part() {
  local name=$1 started=$SECONDS status=0
  shift
  say "$name"
  "$@" || status=$?
  printf '   %s: %d s\n' "$name" $((SECONDS - started))
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

# build PRESET [command...]: configures and builds, behind a command such as nice; the whole output is in build/PRESET.log,
# warnings and errors are shown. Tests are compiled together.
build() {
  local log=build/$1.log before=("${@:2}")
  if cmake --preset "$1" -DATOMO_TESTS_TOGETHER=ON "${launcher[@]}" >"$log" 2>&1; then
    grep '^-- atomo:' "$log"
  else
    tail -n 30 "$log"
    return 1
  fi
  "${before[@]}" cmake --build "build/$1" -j "$jobs" --target "${targets[@]}" -- -k 0 >>"$log" 2>&1 && return
  grep -E -A 12 'FAILED:|error:' "$log" | head -n 80
  say "the build of '$1' failed, the whole of it is in $log"
  return 1
}

# find_base: prints the commit that changes are counted from, nothing where there is none.
find_base() {
  git rev-parse --git-dir >/dev/null 2>&1 || return 0
  local from
  from=$(git merge-base HEAD origin/main 2>/dev/null)
  if [ -z "$from" ] || [ "$from" = "$(git rev-parse HEAD)" ]; then
    from=$(git rev-list -1 --before="$(($(git log -1 --format=%ct) - 86400))" HEAD)
  fi
  echo "$from"
}
[ -n "$base" ] || base=$(find_base)

# changed PATTERN: says whether a file whose path matches differs from the base.
changed() {
  [ -n "$base" ] || return 0  # nothing says that it does not
  { git diff --name-only "$base" --; git ls-files --others --exclude-standard; } | grep -E "$1" >/dev/null
}
# A kernel, its compilation or the host executor, and what the trainer's coders and exchanges run on them.
readonly kKernels='^(src/cuda/|src/format/methods.def|cmake/codecs.cmake|tests/device/|tests/hostexec/|tests/cuda_compile/|tests/gpu|tools/gpu_model/|bench/gpu/|bench/models.hpp|cmake/cuda.cmake|programs/[a-z-]+/(device|exchange)/|tests/train/test_(coder|exchange))'
# What the trainer's processes do on a device.
readonly kDevices='^(programs/[a-z-]+/roles/|tests/train/test_devices)'
# What is compiled of CUB's and Thrust's algorithms, 20 s a file.
readonly kYardsticks='^(bench/gpu/(peers[.]cu|device[.]hpp|yardsticks[.]hpp)|bench/models[.]hpp|tests/device/oracles[.]|tests/cuda_compile/CMake)'
# check PRESET N: runs the tests of a build tree, N at a time, and leaves results/PRESET.xml and the cases of its programs.
check() {
  local preset=$1 at_a_time=$2 choice=(-L "$tiers" -E "$twins")
  rm -rf "build/$preset/cases"
  [ $all -eq 1 ] && choice=(-I "${part%/*},,${part#*/}" -E "$twins")
  ctest --test-dir "build/$preset" -j "$at_a_time" --output-on-failure --output-junit "$root/$results/$preset.xml" \
    "${choice[@]}" | show_only_what_matters
  mkdir -p "build/$preset/cases"
  mv "build/$preset/cases" "$results/$preset-cases"
}

# check_bindings: becomes the Python package's tests, which leave results/python.xml; of a part, every M-th file.
check_bindings() {
  local files=(tests/bindings/test_*.py) choice=(-m "not long")
  if [ $all -eq 1 ]; then
    choice=()
    mapfile -t files < <(printf '%s\n' "${files[@]}" | awk -v n="${part%/*}" -v m="${part#*/}" 'NR % m == n % m')
  fi
  if [ ${#files[@]} -eq 0 ]; then
    echo '<testsuites/>' >"$results/python.xml"
    exit
  fi
  exec build/venv/bin/python -m pytest -q "${choice[@]}" --junit-xml "$results/python.xml" "${files[@]}"
}

# ctest prints a line or more for each test; keep failures, and a count every hundred tests.
show_only_what_matters() {
  awk '/^ *[0-9]+\/[0-9]+ Test/ { if (/Passed/) { if (++n % 100 == 0) print "  " n " passed"; next } }
       /Start +[0-9]+:/ || /^Test project/ { next } { print } { fflush() }'
}

export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}  # or ccache keeps nothing that includes precompiled headers
export ATOMO_TESTS_ALL=$all
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}

targets=(all)
tiers='^commit$'
twins='^$'  # names of tests that would say nothing new
if [ $all -eq 1 ]; then
  targets=(all long_tests)
  twins='^cuda_compile[.].*[.]kernels$'  # a part of those that end in .all
else
  if changed "$kKernels"; then
    say "kernels or the host executor changed: their long tests run too"
    targets=(all kernel_tests)
    tiers='^(commit|devices|kernels)$'
    changed "$kYardsticks" && targets+=(yardsticks)
  elif changed "$kDevices"; then
    say "the trainer's roles changed: they run on the host executor's device too"
    targets=(all device_tests)
    tiers='^(commit|devices)$'
  fi
  if [ -n "$base" ] && mapfile -t same < <(python3 tests/cuda_compile/unaffected.py "$base") && [ ${#same[@]} -gt 0 ]; then
    say "of the kernels' files ${#same[@]} compile as they did, and are not compiled"
    twins="^cuda_compile[.]($(IFS='|'; echo "${same[*]}"))[.]"
  fi
fi

# prepare: installs and builds; the Python environment is fetched while the compilers run.
prepare() {
  run_part "install" bash scripts/install.sh || { echo "0 passed, 1 failed"; exit 1; }
  bash scripts/python.sh --without-package >build/python-environment.log 2>&1 &
  local environment=$!
  run_part "build (release)" build release || broken=$((broken + 1))
  run_part "environment (python)" wait $environment || { cat build/python-environment.log; broken=$((broken + 1)); }
  run_part "build (python)" bash scripts/python.sh || broken=$((broken + 1))
}

# finish_bindings: waits for the Python package's tests and shows what they said.
finish_bindings() {
  wait "$bindings"
  local status=$?
  bindings=
  cat "$results/python.log"
  return $status
}

# run_tests RESULTS NAME: every tree's tests, with its results in a folder of their own. Trainings of the first wait more than
# half of their time, so there are two at a time for each core. Those of the Python package leave processors idle: the
# sanitized tree is built and tested in what they leave.
run_tests() {
  results=$1
  rm -rf "$results"
  mkdir -p "$results"
  run_part "tests (release)$2" check release $((2 * jobs))
  check_bindings >"$results/python.log" 2>&1 &
  bindings=$!
  run_part "build (asan) beside tests (python)$2" build asan nice -n 19 || broken=$((broken + 1))
  run_part "tests (asan) beside tests (python)$2" check asan "$jobs"
  run_part "tests (python), the rest$2" finish_bindings
}

# trees RESULTS...: what tally.py counts.
trees() {
  local folder tree
  for folder in "$@"; do
    for tree in release python asan; do echo "$tree=$folder/$tree.xml,$folder/$tree-cases"; done
  done
}

prepare
counted=()
if [ $all -eq 0 ]; then
  run_tests build/results ""
  counted=(build/results)
else
  # Sources that have these names and contents: what is finished for them need not run again.
  sources=$( (git ls-files -s; git diff HEAD) 2>/dev/null | sha256sum | cut -c 1-12)
  of=${part#*/}
  of=${of:-8}
  wanted=("$part")
  [ -n "$part" ] || mapfile -t wanted < <(seq -f "%g/$of" "$of")
  for part in "${wanted[@]}"; do
    folder=build/all/$sources/${part//\//-of-}
    if [ -e "$folder/finished" ]; then
      say "part $part is finished for these sources"
    else
      run_tests "$folder" " $part"
      touch "$folder/finished"
    fi
    counted+=("$folder")
  done
  others=("build/all/$sources/"*"-of-$of/finished")
  if [ ${#others[@]} -eq "$of" ]; then
    counted=("${others[@]%/finished}")
  else
    say "${#others[@]} of $of parts are finished for these sources"
  fi
fi

say "outcome, after $SECONDS s"
mapfile -t rows < <(trees "${counted[@]}")
python3 tests/tally.py --build-failures $broken "${rows[@]}"
