# SPDX-License-Identifier: Apache-2.0
# The suites that run on a GPU, built where the CUDA backend is: those of the host executor on the device itself, and those
# over tensors too large for it. They are one program, which tests/gpu.sh runs and carries to other machines.
if(NOT ATOMO_WITH_CUDA)
  return()
endif()
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/test_device_*.cpp)
add_executable(gpu_cases EXCLUDE_FROM_ALL ${sources} test_codecs.cpp test_mutations.cpp)
target_include_directories(gpu_cases PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(gpu_cases PRIVATE ${atomo_inside} CUDA::cudart_static GTest::gtest GTest::gtest_main)
target_compile_options(gpu_cases PRIVATE -ffp-contract=off -Wall -Wextra -Wshadow ${ATOMO_WERROR})
target_compile_definitions(gpu_cases PRIVATE ATOMO_TEST_CUDA ATOMO_TESTS_DIR="${PROJECT_SOURCE_DIR}/tests")
