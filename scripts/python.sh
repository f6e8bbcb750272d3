#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes build/venv with everything that the Python package needs to be built and tested, and the package itself.
# Idempotent: what is there already is not touched, and when nothing is missing no network is used.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash scripts/python.sh [--help] [--list] [--check] [--without-package]

Makes the virtual environment build/venv from the distribution's python3, installs what the Python package is built
and tested with (PyPI), PyTorch without its CUDA libraries where this machine has them, JAX and Ray for the CPU, what
benchmarks compare with, and then atomo itself from this tree. A second run builds only what changed.

  --list               print the names on PyPI, one a line, and stop
  --check              install nothing; exit 1 and name what is missing when anything is
  --without-package    everything but atomo itself
  --help               print this text

example: bash scripts/python.sh && build/venv/bin/python -m pytest tests/bindings
TEXT
}

readonly kBuild=(scikit-build-core nanobind)
readonly kTest=(pytest hypothesis mypy numpy matplotlib ml_dtypes safetensors xxhash cloudpickle)
readonly kFrameworks=(jax optax ray)
# What bench/peers.py measures codecs beside, with numpy and torch.
readonly kPeers=(blosc2 zstandard)
# What tests/cuda_compile reads machine code with, of the version that its table was made with.
readonly kDisassembler=(nvidia-cuda-nvdisasm==13.2.51)
# What torch imports, of what it names: the compilers of kernels and most of CUDA are left out.
readonly kTorchNeeds=(filelock typing_extensions sympy networkx jinja2 fsspec)

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/build/venv
log=$root/build/python.log
say() { printf 'python: %s\n' "$*"; }
# Ends with the end of what pip wrote.
give_up() { tail -n 40 "$log" >&2; fail "$*, the whole of it is in build/python.log"; }
fail() { printf 'python: %s\n' "$*" >&2; exit 1; }

check=0
package=1
for argument in "$@"; do
  case "$argument" in
    --help | -h) usage; exit 0 ;;
    --list) printf '%s\n' "${kBuild[@]}" "${kTest[@]}" torch "${kFrameworks[@]}" "${kPeers[@]}" "${kDisassembler[@]}" "${kTorchNeeds[@]}"; exit 0 ;;
    --check) check=1 ;;
    --without-package) package=0 ;;
    *) usage >&2; fail "unknown option '$argument'; --help, --list, --check and --without-package are accepted" ;;
  esac
done

in_venv() { "$venv/bin/python" "$@"; }
# What pip complains of, all that torch names and that is left out too, is in the log.
pip() { in_venv -m pip --disable-pip-version-check -q "$@" 2>>"$log"; }

# Prints the names among its arguments that are not installed, or not in the version that follows `==`.
missing_of() {
  in_venv - "$@" <<'PYTHON'
import importlib.metadata
import sys

for wanted in sys.argv[1:]:
    name, _, version = wanted.partition("==")
    try:
        if importlib.metadata.version(name) != (version or importlib.metadata.version(name)):
            print(wanted)
    except importlib.metadata.PackageNotFoundError:
        print(wanted)
PYTHON
}

install() {
  local missing
  mapfile -t missing < <(missing_of "$@")
  [ ${#missing[@]} -eq 0 ] && return
  say "installing ${missing[*]}"
  # Names on PyPI fail to answer now and then.
  pip install "${missing[@]}" || { sleep 3; pip install "${missing[@]}"; } || give_up "could not install ${missing[*]}"
}

# The wheel of PyPI is built with CUDA and asks for 5 GB of it. Where the toolkit is installed only what the toolkit
# does not hold is needed; where torch cannot be imported with that, everything.
install_torch() {
  if [ -n "$(missing_of torch)" ]; then
    say "installing torch without the libraries of its CUDA"
    pip install --no-deps torch || give_up "could not install torch"
  fi
  install "${kTorchNeeds[@]}"
  in_venv -c 'import torch' 2>/dev/null && return
  local extra
  mapfile -t extra < <(in_venv - <<'PYTHON'
import importlib.metadata
import re

print("nvidia-cufile")
for line in importlib.metadata.requires("torch"):
    if re.match(r"nvidia-(cusparselt|nvshmem|nccl)\b", line):
        print(line.partition(";")[0].strip())
PYTHON
  )
  [ ${#extra[@]} -gt 0 ] && { say "installing ${extra[*]}"; pip install --no-deps "${extra[@]}" || true; }
  in_venv -c 'import torch' 2>/dev/null && return
  say "installing all of torch: this machine has no CUDA toolkit that it could use"
  pip install torch || give_up "could not install torch"
  in_venv -c 'import torch' || fail "torch was installed and cannot be imported"
}

if [ $check -eq 1 ]; then
  [ -x "$venv/bin/python" ] || fail "missing: build/venv; 'bash scripts/python.sh' makes it"
  mapfile -t missing < <(missing_of "${kBuild[@]}" "${kTest[@]}" torch "${kTorchNeeds[@]}" "${kFrameworks[@]}" "${kPeers[@]}" "${kDisassembler[@]}" atomo)
  [ ${#missing[@]} -eq 0 ] || fail "missing: ${missing[*]}"
  say "everything is there"
  exit 0
fi

started=$SECONDS
mkdir -p "$root/build"
: >"$log"
if ! [ -x "$venv/bin/python" ] || ! in_venv -c 'import pip' 2>/dev/null; then
  say "making build/venv"
  # The distribution's: its headers are the ones that scripts/install.sh installs.
  /usr/bin/python3 -m venv --clear "$venv" ||
    fail "python3 -m venv failed; 'bash scripts/install.sh' installs python3-venv"
fi
install "${kBuild[@]}" "${kTest[@]}"
install_torch
install "${kFrameworks[@]}" "${kPeers[@]}" "${kDisassembler[@]}"
chmod +x "$venv"/lib/python3*/site-packages/nvidia/cu*/bin/nvdisasm  # as the wheel does not have it
if [ $package -eq 1 ]; then
  say "building atomo"
  if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
  # Without isolation: the build folder is used again, so that only what changed is compiled. Warnings are errors and
  # the compilers have the names that CMake gives them, as in the presets, with whose objects ccache then serves.
  export CC=${CC:-cc} CXX=${CXX:-c++}
  pip install -v --no-deps --no-build-isolation --force-reinstall \
    --config-settings=build-dir=build/python --config-settings=cmake.define.ATOMO_WARNINGS_AS_ERRORS=ON "$root" >>"$log" || give_up "the build failed"
fi
say "done in $((SECONDS - started)) s"
