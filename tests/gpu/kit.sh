# SPDX-License-Identifier: Apache-2.0
# Packing and unpacking what a machine with a GPU and without a network lacks; for tests/gpu.sh, whose `root`, `build`,
# `say`, `fail` and `find_tool` it uses.

readonly kKit=.gpu-kit/kit.tar.gz kKitLimitMegabytes=58
# What the kit is made of: headers, and the libraries they need at run time. LAPACKE comes as a static library, on top
# of OpenBLAS, which holds LAPACK; cblas.h is the reference's.
readonly kPackages=(
  libblosc-dev libblosc1 liblz4-1 libsnappy1v5 libzstd1 zlib1g
  liblapacke-dev libblas-dev libopenblas0-pthread libgfortran5 libquadmath0
  libhwy-dev libhwy1 libxxhash-dev
  libgtest-dev libbenchmark-dev libbenchmark1debian
)

# What the Python package's extensions are compiled with: headers and sources, in a wheel of PyPI.
readonly kNanobind=nanobind==3.1.0

glibc_version() { ldd --version | head -n 1 | grep -oE '[0-9.]+$'; }

# pack ARCHITECTURE: downloads the libraries, builds the programs for that GPU, and packs both.
pack() {
  local tool folder package megabytes
  for tool in apt-get dpkg readelf; do
    command -v $tool >/dev/null || fail "packing needs $tool"
  done
  folder=$root/build/gpu-pack  # always the same, so that a compiler cache knows the headers again
  rm -rf "$folder"
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
  gather_nanobind "$folder" "$folder/kit" || fail "$kNanobind could not be downloaded from PyPI"
  pack_programs "$1" "$folder/kit" || fail "the programs were not built; what was is in $build"
  (cd "$folder/debs" && sha256sum ./*.deb) >"$folder/kit/PACKAGES"
  uname -m >"$folder/kit/MACHINE"
  newest_glibc_symbol "$folder/kit" >"$folder/kit/GLIBC"
  tar -C "$folder/kit" -czf $kKit . || fail "$kKit could not be written"
  megabytes=$(du -m $kKit | cut -f 1)
  [ "$megabytes" -le $kKitLimitMegabytes ] || fail "$kKit takes $megabytes MB, $kKitLimitMegabytes are wanted"
  say "$kKit: $megabytes MB, for $(uname -m), glibc $(cat "$folder/kit/GLIBC") or newer and GPUs of compute capability $1"
}

# gather_nanobind FOLDER KIT: what the extensions of the Python package are compiled with.
gather_nanobind() {
  local python=python3
  [ -x build/venv/bin/python ] && python=build/venv/bin/python
  "$python" -m pip -q --disable-pip-version-check download --no-deps -d "$1/wheels" "$kNanobind" || return 1
  "$python" -m zipfile -e "$1"/wheels/nanobind-*.whl "$1/wheels/all" || return 1
  mkdir -p "$2/nanobind" && mv "$1"/wheels/all/nanobind/{include,src,ext} "$2/nanobind"
}

# pack_programs ARCHITECTURE KIT: the programs, which find their libraries in the kit, and those of the toolkit where it
# usually is, and the library that the Python package is built with. Which sources they are of stands beside them.
pack_programs() {
  local lib program
  lib=$(cd "$2/lib" && echo *-linux-gnu)
  say "building the programs for sm_$1"
  libraries_of "$2"
  bash tests/gpu/build.sh "$(find_tool nvcc || echo nvcc)" "$1" "${kit_options[@]}" \
    -DCMAKE_BUILD_RPATH="\$ORIGIN/../lib/$lib;\$ORIGIN/../lib/$lib/openblas-pthread;/usr/local/cuda/lib64" || return 1
  mkdir -p "$2/bin"
  for program in gpu_cases bench_gpu; do
    strip -o "$2/bin/$program" $build/bin/$program || return 1
  done
  mkdir -p "$2/atomo"
  strip -g -o "$2/atomo/libatomo.a" $build/src/libatomo.a || return 1
  sources >"$2/bin/SOURCES"
}

# sources: a name for what the programs are built from.
sources() {
  (cd "$root" && find CMakeLists.txt cmake src include tests bench -type f -not -path '*/__pycache__/*' \( -name '*.c*' -o -name '*.h*' -o -name '*.txt' -o -name '*.def' \) \
    -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c 1-12)
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

# libraries_of KIT: sets kit_options to what CMake needs to find the kit's libraries. They find each other by the program's
# run path, so it has to be the old kind.
kit_options=()
libraries_of() {
  local lib
  lib=$(echo "$1"/lib/*-linux-gnu)
  kit_options=(
    -DCMAKE_INCLUDE_PATH="$1/include" -DCMAKE_LIBRARY_PATH="$lib;$lib/openblas-pthread"
    -DGTest_DIR="$lib/cmake/GTest" -Dbenchmark_DIR="$lib/cmake/benchmark" -Dhwy_DIR="$lib/cmake/hwy"
    -DCMAKE_EXE_LINKER_FLAGS="-Wl,--disable-new-dtags"
    -DCMAKE_BUILD_RPATH="$lib;$lib/openblas-pthread"
  )
}

# unpack_kit: unpacks the kit where it fits this machine, and sets kit_options.
unpack_kit() {
  local kit=$root/$build-kit wanted here
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
  libraries_of "$kit"
}

# packed_programs: says where programs of the kit are that run here and are of these very sources.
packed_programs() {
  local bin=$root/$build-kit/bin
  [ -x "$bin/gpu_cases" ] || { echo "the kit has no programs"; return 1; }
  [ "$(sources)" = "$(cat "$bin/SOURCES")" ] || { echo "the kit's programs are of other sources"; return 1; }
  "$bin/gpu_cases" --gtest_list_tests >/dev/null && "$bin/bench_gpu" --benchmark_list_tests=true >/dev/null
}
