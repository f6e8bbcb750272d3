# SPDX-License-Identifier: Apache-2.0
# The benchmark of the CUDA backend, so that a rehearsal (tests/gpu.sh --rehearse) runs what a GPU will run.
if(NOT TARGET benchmark::benchmark OR ATOMO_SANITIZE)
  return()
endif()
atomo_hostexec_program(hostexec_bench atomo_hostexec ${sanitizer} ${PROJECT_SOURCE_DIR}/bench/gpu/bench_gpu.cpp)
target_link_libraries(hostexec_bench PRIVATE ${atomo_inside} benchmark::benchmark)
target_compile_definitions(hostexec_bench PRIVATE BENCH_BUILD_TYPE="$<CONFIG>")
atomo_built_for(kernels hostexec_bench)
