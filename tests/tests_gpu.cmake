# SPDX-License-Identifier: Apache-2.0
# The suites that run on a GPU, built where the CUDA backend is: those of the host executor (hostexec/tests_codecs.cmake)
# on the device itself, and one over tensors too large for it. tests/gpu.sh runs them.
if(NOT ATOMO_WITH_CUDA)
  return()
endif()

function(atomo_gpu_suite name)
  add_executable(gpu_${name} ${ARGN})
  target_include_directories(gpu_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(gpu_${name} PRIVATE ${atomo_inside} CUDA::cudart_static GTest::gtest GTest::gtest_main)
  target_compile_options(gpu_${name} PRIVATE -ffp-contract=off -Wall -Wextra -Wshadow ${ATOMO_WERROR})
  target_compile_definitions(gpu_${name} PRIVATE ATOMO_TEST_CUDA ATOMO_TESTS_DIR="${PROJECT_SOURCE_DIR}/tests")
  atomo_gpu_test(gpu_${name})
endfunction()

atomo_gpu_suite(parity test_device_parity.cpp)
atomo_gpu_suite(codecs test_codecs.cpp)
atomo_gpu_suite(sums test_device_sums.cpp)
atomo_gpu_suite(mutations test_mutations.cpp)
atomo_gpu_suite(model test_device_model.cpp)
atomo_gpu_suite(cap test_device_cap.cpp)
atomo_gpu_suite(svd test_device_svd.cpp)
atomo_gpu_suite(large test_device_large.cpp)
