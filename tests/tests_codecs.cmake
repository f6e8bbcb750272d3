# SPDX-License-Identifier: Apache-2.0
atomo_test(test_methods test_methods.cpp)
atomo_test(test_level_math test_level_math.cpp)
