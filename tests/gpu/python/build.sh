#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Python package for the python3 of a machine with a GPU, without CMake and without a network: its two
# extensions from the sources here and a library that is there already. Stubs, atomo.train and the tool are left out.
# usage: build.sh PYTHON LIBRARY KIT FOLDER
#   PYTHON   that will import it
#   LIBRARY  libatomo.a
#   KIT      folder with the libraries that LIBRARY needs (lib/*-linux-gnu) and the sources of nanobind (nanobind/)
#   FOLDER   for the package, FOLDER/atomo; what was there is replaced
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
python=$1 library=$2 kit=$(realpath "$3") folder=$4
fail() { printf 'python/build.sh: %s\n' "$*" >&2; exit 1; }

mapfile -t facts < <("$python" - <<'PYTHON'
import glob
import importlib.util
import sysconfig

print(sysconfig.get_paths()["include"])
print(sysconfig.get_config_var("EXT_SUFFIX"))
jaxlib = importlib.util.find_spec("jaxlib")
print(jaxlib.submodule_search_locations[0] + "/include" if jaxlib else "")
# CUDA's libraries as PyTorch and JAX load them, where they come as wheels: a process has one of each.
nvidia = importlib.util.find_spec("nvidia")
found = [[path for name in ("cublas", "cusolver") for path in glob.glob(f"{folder}/lib{name}.so.*")[:1]]
         for place in (nvidia.submodule_search_locations if nvidia else ()) for folder in glob.glob(f"{place}/cu*/lib")]
print(" ".join(next((pair for pair in found if len(pair) == 2), [])))
PYTHON
)
[ ${#facts[@]} -eq 4 ] || fail "$python does not run"
include=${facts[0]} suffix=${facts[1]} xla=${facts[2]} wheels=${facts[3]}
[ -f "$include/Python.h" ] || fail "there is no Python.h in $include: $python came without its headers"
[ -f "$library" ] || fail "there is no $library"
[ -f "$kit/nanobind/src/nb_combined.cpp" ] || fail "the kit has no nanobind"
cuda=
for place in "${CUDA_HOME:-/usr/local/cuda}" /usr/local/cuda; do
  if [ -f "$place/include/cuda_runtime_api.h" ]; then cuda=$place; break; fi
done
[ -n "$cuda" ] || fail "there is no CUDA toolkit in /usr/local/cuda"
lib=$(echo "$kit"/lib/*-linux-gnu)
runtime=$(find "$cuda"/lib64/ "$cuda"/targets/*/lib -name libcudart_static.a 2>/dev/null | head -n 1 || true)
[ -n "$runtime" ] || fail "there is no libcudart_static.a in $cuda"

rm -rf "$folder"
mkdir -p "$folder/objects"
cp -r bindings/python/atomo "$folder/atomo"
calls=(arguments arrays codec compressor device messages module own_codecs patches verify)
jax_calls=(jax_coder jax_ffi jax_ffi_cuda)
[ -f "$xla/xla/ffi/api/ffi.h" ] || { echo "$python has no jaxlib: atomo.jax is left out"; jax_calls=(); }

# As bindings/python/CMakeLists.txt has them, but for -O2 in place of -O3: it is the library that computes.
flags=(-std=c++20 -O2 -DNDEBUG -DATOMO_PYTHON_CUDA -fPIC -fvisibility=hidden -fvisibility-inlines-hidden -ffp-contract=off
  -fno-stack-protector -ffunction-sections -fdata-sections -Iinclude -isystem "$include" -isystem "$kit/nanobind/include"
  -isystem "$kit/nanobind/ext/robin_map/include" -isystem "$cuda/include")
[ ${#jax_calls[@]} -eq 0 ] || flags+=(-isystem "$xla")
compiler=${CXX:-c++}
launcher=()
command -v ccache >/dev/null && launcher=(ccache)
{
  for name in "${jax_calls[@]}" "${calls[@]}"; do printf '%s\0' "bindings/python/$name.cpp"; done
  printf '%s\0' "$kit/nanobind/src/nb_combined.cpp"
} | xargs -0 -P "$(env -u OMP_NUM_THREADS nproc)" -I SOURCE bash -c 'source=$1 folder=$2; shift 2
    name=$(basename "$source" .cpp); "$@" -c "$source" -o "$folder/objects/$name.o" || exit 255' \
  _ SOURCE "$folder" "${launcher[@]}" "$compiler" "${flags[@]}" || fail "a source does not compile"

read -ra solvers <<<"${wheels:-$(echo "$cuda"/lib64/libcublas.so "$cuda"/lib64/libcusolver.so)}"
run_paths="$lib:$lib/openblas-pthread"
for solver in "${solvers[@]}"; do run_paths+=":$(dirname "$solver")"; done
# link NAME objects...: an extension. The run path is of the old kind, by which the kit's libraries find each other.
link() {
  local name=$1 objects=()
  shift
  for object in "$@"; do objects+=("$folder/objects/$object.o"); done
  "$compiler" -shared -o "$folder/atomo/$name$suffix" "${objects[@]}" "$library" \
    -Wl,--version-script=bindings/python/symbols.map -Wl,--gc-sections -Wl,-s \
    -Wl,--disable-new-dtags -Wl,-rpath,"$run_paths" "${solvers[@]}" "$lib/libblosc.so" "$lib/liblapacke.a" \
    "$lib/openblas-pthread/libopenblas.so" "$lib"/libhwy.so "$runtime" -ldl -lrt -lpthread
}
link _atomo "${calls[@]}" nb_combined || fail "_atomo does not link"
if [ ${#jax_calls[@]} -gt 0 ]; then
  link _atomo_jax "${jax_calls[@]}" own_codecs nb_combined || fail "_atomo_jax does not link"
fi
rm -r "$folder/objects"
PYTHONPATH=$folder "$python" -c "import atomo; print('atomo', atomo.__version__, 'of', atomo.__file__)"
