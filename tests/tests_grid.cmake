# SPDX-License-Identifier: Apache-2.0
atomo_test(test_arithmetic test_arithmetic.cpp VALUES_FILTER "*.SumsAreExact:*.WideSegmentsAreExact*")
atomo_test(test_coordinate test_coordinate.cpp)
atomo_test(test_coordinate_price test_coordinate_price.cpp VALUES)
atomo_test(test_svd test_svd.cpp VALUES)
atomo_test(test_pairs test_pairs.cpp VALUES)
atomo_test(test_sketch test_sketch.cpp VALUES)
if(NOT ATOMO_SANITIZE)
  add_test(NAME blas_kernels COMMAND ${ATOMO_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/blas_kernels.py
    $<TARGET_FILE:test_svd> $<TARGET_FILE:test_pairs> $<TARGET_FILE:test_sketch>)
  atomo_tier(long blas_kernels)
endif()
atomo_test(test_automatic test_automatic.cpp VALUES)
atomo_test(test_water_filling test_water_filling.cpp VALUES)
