# SPDX-License-Identifier: Apache-2.0
atomo_test(test_philox test_philox.cpp)
atomo_test(test_half test_half.cpp)
atomo_test(test_pair_code test_pair_code.cpp)
atomo_test(test_dither test_dither.cpp)
atomo_test(test_marks test_marks.cpp)
atomo_test(test_price test_price.cpp)
atomo_test(test_price_controller test_price_controller.cpp)
atomo_test(test_atoms test_atoms.cpp)
atomo_test(test_selection test_selection.cpp)
add_test(NAME pair_code_tables
  COMMAND ${ATOMO_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/check_pair_code_tables.py)
