# SPDX-License-Identifier: Apache-2.0
atomo_test(test_philox test_philox.cpp)
atomo_test(test_half test_half.cpp)
atomo_test(test_pair_code test_pair_code.cpp)
atomo_test(test_dither test_dither.cpp)
atomo_test(test_selection test_selection.cpp)
