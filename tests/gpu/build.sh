#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds what runs on a GPU, the tests and the benchmark, into build/gpu/bin.
# usage: build.sh NVCC ARCHITECTURE [option of cmake...], such as build.sh nvcc 90
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
nvcc=$1 architecture=$2
shift 2
generator=() launcher=()
command -v ninja >/dev/null && generator=(-G Ninja)
command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
cmake --fresh -S . -B build/gpu "${generator[@]}" "${launcher[@]}" -DCMAKE_BUILD_TYPE=Release -DATOMO_CUDA=ON \
  -DATOMO_CLI=OFF -DATOMO_EXAMPLES=OFF -DATOMO_TESTS=ON -DATOMO_BENCH=ON -DCMAKE_CUDA_COMPILER="$nvcc" \
  -DCMAKE_CUDA_ARCHITECTURES="$architecture-real" "$@"
cmake --build build/gpu -j "$(env -u OMP_NUM_THREADS nproc)" --target gpu_cases bench_gpu
mkdir -p build/gpu/bin
ln -sf ../tests/device/gpu_cases ../bench/bench_gpu build/gpu/bin
