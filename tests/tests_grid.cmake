# SPDX-License-Identifier: Apache-2.0
atomo_test(test_arithmetic test_arithmetic.cpp)
atomo_test(test_coordinate test_coordinate.cpp)
atomo_test(test_coordinate_price test_coordinate_price.cpp)
atomo_test(test_svd test_svd.cpp)
atomo_test(test_pairs test_pairs.cpp)
atomo_test(test_sketch test_sketch.cpp)
atomo_test(test_automatic test_automatic.cpp)
atomo_test(test_water_filling test_water_filling.cpp)
