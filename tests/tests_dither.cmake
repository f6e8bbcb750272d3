# SPDX-License-Identifier: Apache-2.0
atomo_test(test_philox test_philox.cpp VALUES)
atomo_test(test_half test_half.cpp VALUES)
atomo_test(test_pair_code test_pair_code.cpp VALUES)
atomo_test(test_dither test_dither.cpp VALUES)
atomo_test(test_marks test_marks.cpp)
atomo_test(test_price test_price.cpp VALUES)
atomo_test(test_price_controller test_price_controller.cpp VALUES)
atomo_test(test_atoms test_atoms.cpp)
atomo_test(test_selection test_selection.cpp VALUES)
add_test(NAME pair_code_tables
  COMMAND ${ATOMO_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/check_pair_code_tables.py)
atomo_tier(commit pair_code_tables)
