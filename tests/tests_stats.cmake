# SPDX-License-Identifier: Apache-2.0
# Figures over many draws. They touch no memory that the other tests do not, so sanitizers have nothing to see here.
if(ATOMO_SANITIZE)
  return()
endif()
atomo_test(test_statistics test_statistics.cpp)
atomo_test(test_mutants test_mutants.cpp)
atomo_test(test_monte_carlo test_monte_carlo.cpp)
atomo_test(test_draws test_draws.cpp)
atomo_test(test_sketch_statistics test_sketch_statistics.cpp)
atomo_test(test_atom_statistics test_atom_statistics.cpp)
atomo_test(test_cap_statistics test_cap_statistics.cpp)
