# SPDX-License-Identifier: Apache-2.0
atomo_test(test_statistics test_statistics.cpp)
atomo_test(test_mutants test_mutants.cpp)
atomo_test(test_monte_carlo test_monte_carlo.cpp)
atomo_test(test_draws test_draws.cpp)
atomo_test(test_sketch_statistics test_sketch_statistics.cpp)
