#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests and measures the CUDA backend on a machine with an NVIDIA GPU, which needs no network: what it lacks comes in a
# kit that another machine packed.
set -uo pipefail

usage() {
  cat <<'TEXT'
usage: bash tests/gpu.sh [--parts LIST] [--filter REGEX] [--sanitizer-filter GTEST_FILTER] [--out FILE.json]
                         [--commit ID] [--keep] [--help]
       bash tests/gpu.sh --pack

With --pack, on a Debian or Ubuntu machine with a network: downloads the libraries that atomo, its tests and its
benchmarks need into .gpu-kit/ (no root; nothing is installed). Copy the repository with that folder to the GPU machine.

Without, on the GPU machine (nvcc, g++, CMake 3.25 and Python 3 have to be there): builds the CUDA backend for the GPU
that is found (build/gpu), runs the GPU tests, the same under compute-sanitizer's four tools, then the benchmarks, and
writes one JSON file with everything. Without a kit the libraries are those of the system. The toolkit has to have
cuBLAS and cuSOLVER with their headers.

  --parts LIST             of build,tests,sanitizer,bench: what is done, all of them by default
  --filter REGEX           only test programs and benchmarks whose name matches
  --sanitizer-filter F     googletest's filter under the sanitizers, which are some 50 times slower; by default all
                           cases but those with Long or Large in their names
  --out FILE.json          $OUT/gpu.json by default where OUT names a folder, else bench/results/gpu-DATE.json
  --commit ID              what to write down as the commit where the copy has no git
  --keep                   add to what the last run found, e.g. when the parts are run one by one
  --help                   print this text

Exit status 0 when every step passed, 1 when one failed (the file says which), 2 when there is no GPU: then everything
is built and nothing run.

example: bash tests/gpu.sh --parts build,tests
TEXT
}

# What the kit is made of: headers, and the libraries they need at run time. LAPACKE comes as a static library, on top
# of OpenBLAS, which holds LAPACK; cblas.h is the reference's.
readonly kPackages=(
  libblosc-dev libblosc1 liblz4-1 libsnappy1v5 libzstd1 zlib1g
  liblapacke-dev libblas-dev libopenblas0-pthread libgfortran5 libquadmath0
  libhwy-dev libhwy1 libxxhash-dev
  libgtest-dev libbenchmark-dev libbenchmark1debian
)
readonly kKitLimitMegabytes=50

say() { printf '== %s\n' "$*"; }
fail() { printf 'gpu.sh: %s\n' "$*" >&2; exit 1; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
readonly kKit=.gpu-kit/kit.tar.gz build=build/gpu results=build/gpu-results

parts=build,tests,sanitizer,bench
filter=.
sanitizer_filter='*-*Long*:*Large*'
out=
commit=
keep=0
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage; exit 0 ;;
    --pack) parts=pack; shift; continue ;;
    --keep) keep=1; shift; continue ;;
    --parts | --filter | --sanitizer-filter | --out | --commit) [ $# -ge 2 ] || fail "$1 needs a value" ;;
    *) usage >&2; fail "unknown option '$1'" ;;
  esac
  case "$1" in
    --parts) parts=$2 ;;
    --filter) filter=$2 ;;
    --sanitizer-filter) sanitizer_filter=$2 ;;
    --out) out=$2 ;;
    --commit) commit=$2 ;;
  esac
  shift 2
done
for part in ${parts//,/ }; do
  case "$part" in
    build | tests | sanitizer | bench | pack) ;;
    *) fail "unknown part '$part'; build, tests, sanitizer and bench are accepted" ;;
  esac
done

wants() { [[ ",$parts," == *",$1,"* ]]; }

# --- the kit

glibc_version() { ldd --version | head -n 1 | grep -oE '[0-9.]+$'; }

pack() {
  local tool folder package megabytes
  for tool in apt-get dpkg readelf; do
    command -v $tool >/dev/null || fail "packing needs $tool"
  done
  folder=$(mktemp -d) || exit 1
  # shellcheck disable=SC2064  # the folder's name now, not then
  trap "rm -rf '$folder'" EXIT
  mkdir -p "$folder/debs" .gpu-kit
  say "downloading ${#kPackages[@]} packages"
  (cd "$folder/debs" && apt-get -q download "${kPackages[@]}") >"$folder/log" 2>&1 ||
    { tail -n 5 "$folder/log" >&2; fail "the packages could not be downloaded ('apt-get update' refreshes the lists)"; }
  for package in "$folder"/debs/*.deb; do
    dpkg -x "$package" "$folder/root" || fail "$package does not unpack"
  done
  gather_kit "$folder/root" "$folder/kit" || fail "the packages do not hold what the kit needs"
  (cd "$folder/debs" && sha256sum ./*.deb) >"$folder/kit/PACKAGES"
  uname -m >"$folder/kit/MACHINE"
  newest_glibc_symbol "$folder/kit" >"$folder/kit/GLIBC"
  tar -C "$folder/kit" -czf $kKit . || fail "$kKit could not be written"
  megabytes=$(du -m $kKit | cut -f 1)
  [ "$megabytes" -le $kKitLimitMegabytes ] || fail "$kKit takes $megabytes MB, $kKitLimitMegabytes are wanted"
  say "$kKit: $megabytes MB, for $(uname -m) and glibc $(cat "$folder/kit/GLIBC") or newer"
}

# newest_glibc_symbol FOLDER: the version of glibc that the shared libraries there want.
newest_glibc_symbol() {
  find "$1" -name '*.so*' -type f -exec readelf -V {} + | grep -oE '\bGLIBC_[0-9.]+' | sort -uV | tail -n 1 |
    cut -d _ -f 2
}

# gather_kit ROOT KIT: moves what a build and a run read from unpacked packages into KIT.
gather_kit() {
  local lib
  lib=$(cd "$1/usr/lib" && echo ./*-linux-gnu)
  mkdir -p "$2"
  [ -d "$1/lib" ] && cp -a "$1/lib/." "$1/usr/lib/"  # where zlib stood before the folders were merged
  mv "$1/usr/include" "$1/usr/lib" "$2" || return 1
  # Neither static twins of shared libraries nor what wants the reference LAPACK.
  (cd "$2/lib/$lib" && rm -rf libblosc.a libxxhash.a liblapacke.so* libgmock* blas pkgconfig cmake/openblas \
    openblas-pthread/libblas.so* openblas-pthread/liblapack.so*) || return 1
  ln -sf libopenblas.so.0 "$2/lib/$lib/openblas-pthread/libopenblas.so"
  # The distribution puts the reference's header behind a choice of libraries.
  mv "$2/include/$lib/cblas-netlib.h" "$2/include/cblas.h" && mv "$2/include/$lib/cblas_mangling.h" "$2/include/"
}

# unpack_kit: sets kit_options to what CMake needs to find it.
kit_options=()
unpack_kit() {
  local kit=$root/$build-kit lib wanted here
  rm -rf "$kit"
  mkdir -p "$kit"
  tar -C "$kit" -xzf $kKit || return 1
  here=$(glibc_version)
  wanted=$(cat "$kit/GLIBC")
  if [ "$(uname -m)" != "$(cat "$kit/MACHINE")" ] ||
    [ "$(printf '%s\n' "$wanted" "$here" | sort -V | head -n 1)" != "$wanted" ]; then
    echo "the kit is for $(cat "$kit/MACHINE") and glibc $wanted or newer, this is $(uname -m) with glibc $here"
    return 1
  fi
  lib=$(echo "$kit"/lib/*-linux-gnu)
  # Libraries of the kit find each other by the program's run path, so it has to be the old kind.
  kit_options=(
    -DCMAKE_INCLUDE_PATH="$kit/include" -DCMAKE_LIBRARY_PATH="$lib;$lib/openblas-pthread"
    -DGTest_DIR="$lib/cmake/GTest" -Dbenchmark_DIR="$lib/cmake/benchmark" -Dhwy_DIR="$lib/cmake/hwy"
    -DCMAKE_EXE_LINKER_FLAGS="-Wl,--disable-new-dtags,-rpath,$lib:$lib/openblas-pthread"
  )
}

# --- steps

# step NAME command...: runs it with its output in a log, and notes name, outcome, seconds and log for the report.
step() {
  local name=$1 started=$SECONDS status=0
  shift
  say "$name"
  "$@" >"$results/$name.log" 2>&1 || status=$?
  printf '%s\t%d\t%d\n' "$name" "$status" $((SECONDS - started)) >>"$results/steps.tsv"
  if [ $status -ne 0 ]; then
    tail -n 25 "$results/$name.log"
    say "$name failed (exit status $status); all of it is in $results/$name.log"
  fi
  return $status
}

# The first GPU's compute capability without its point, e.g. 90; nothing where there is no GPU.
gpu_architecture() {
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -oE -m 1 '^[0-9]+\.[0-9]+$' | tr -d .
}

find_tool() {
  command -v "$1" && return
  local folder
  for folder in "${CUDA_HOME:-/usr/local/cuda}" /usr/local/cuda; do
    [ -x "$folder/bin/$1" ] && echo "$folder/bin/$1" && return
    [ -x "$folder/compute-sanitizer/$1" ] && echo "$folder/compute-sanitizer/$1" && return
  done
  return 1
}

configure() {
  local generator=() nvcc
  if [ -f $kKit ]; then unpack_kit || return 1; fi
  command -v ninja >/dev/null && generator=(-G Ninja)
  nvcc=$(find_tool nvcc) || { echo "nvcc is neither on the PATH nor in /usr/local/cuda/bin"; return 1; }
  rm -rf $build
  cmake -S . -B $build "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DATOMO_CUDA=ON -DCMAKE_CUDA_COMPILER="$nvcc" \
    -DCMAKE_CUDA_ARCHITECTURES="${architecture:-90}-real" -DATOMO_CLI=OFF -DATOMO_EXAMPLES=OFF \
    -DATOMO_TESTS=ON -DATOMO_BENCH=ON "${kit_options[@]}"
}

# grep reads to the end: a pipe that it leaves would end make with an error.
has_target() { cmake --build $build --target help 2>/dev/null | grep -wE "$1" >/dev/null; }

build_target() { cmake --build $build -j "$(nproc)" --target "$1"; }

test_programs() { find $build/gpu_tests -maxdepth 1 -type f -perm -u+x 2>/dev/null | sort | grep -E "$filter"; }

# Whether the sanitizers have anything to look at: not in the program of large tensors.
has_cases() { "$1" --gtest_list_tests --gtest_filter="$sanitizer_filter" 2>/dev/null | grep '^ ' >/dev/null; }

run_suite() { timeout 600 "$1" --gtest_output="json:$results/tests.$(basename "$1").json"; }

sanitize() {
  local tool=$1 program=$2 sanitizer
  sanitizer=$(find_tool compute-sanitizer) || { echo "compute-sanitizer was not found"; return 1; }
  local options=(--tool "$tool" --error-exitcode 9 --print-limit 20)
  [ "$tool" = memcheck ] && options+=(--leak-check full)
  timeout 600 "$sanitizer" "${options[@]}" "$program" --gtest_filter="$sanitizer_filter"
}

run_bench() {
  timeout 600 $build/bench/bench_gpu --benchmark_filter="$filter" --benchmark_out_format=json \
    --benchmark_out="$results/bench.json"
}

# --- the run

if wants pack; then
  pack
  exit 0
fi

architecture=$(gpu_architecture)
[ $keep -eq 1 ] || rm -rf $results
mkdir -p $results
touch $results/steps.tsv
export CUDA_MODULE_LOADING=EAGER OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

if wants build; then
  step build.configure configure || broken=1
  for target in gpu_tests bench_gpu; do
    if [ "${broken:-0}" -eq 0 ] && has_target $target; then
      step build.$target build_target $target || true
    fi
  done
fi
if [ -z "$architecture" ]; then
  if cut -f 2 $results/steps.tsv | grep -qv '^0$'; then
    fail "a step of the build failed, and there is no NVIDIA GPU on this machine"
  fi
  echo "gpu.sh: there is no NVIDIA GPU on this machine: nothing was run" >&2
  exit 2
fi

mapfile -t programs < <(test_programs)
if wants tests || wants sanitizer; then
  [ ${#programs[@]} -gt 0 ] || step tests.found ls $build/gpu_tests/
fi
if wants tests; then
  for program in "${programs[@]}"; do step "tests.$(basename "$program")" run_suite "$program"; done
fi
if wants sanitizer; then
  for program in "${programs[@]}"; do
    has_cases "$program" || continue
    for tool in memcheck racecheck synccheck initcheck; do
      step "sanitizer.$tool.$(basename "$program")" sanitize $tool "$program"
    done
  done
fi
if wants bench && [ -x $build/bench/bench_gpu ]; then
  step bench run_bench
fi

if [ -z "$out" ]; then
  out=bench/results/gpu-$(date +%Y-%m-%d).json
  [ -d "${OUT:-}" ] && out=$OUT/gpu.json
fi
[ -n "$commit" ] || commit=$(git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)
python3 tests/gpu_report.py --results $results --commit "$commit" --out "$out"
