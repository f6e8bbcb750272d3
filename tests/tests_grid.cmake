# SPDX-License-Identifier: Apache-2.0
atomo_test(test_coordinate test_coordinate.cpp)
