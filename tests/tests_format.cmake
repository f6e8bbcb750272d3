# SPDX-License-Identifier: Apache-2.0
# The wire format: goldens, and the program that writes containers for the independent decoder in tests/python/.
add_library(atomo_format_cases OBJECT format_cases.cpp rejected_messages.cpp)
target_include_directories(atomo_format_cases PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(atomo_format_cases PRIVATE ${atomo_inside} GTest::gtest)
target_compile_options(atomo_format_cases PRIVATE -ffp-contract=off -Wall -Wextra -Wshadow ${ATOMO_WERROR})
target_compile_definitions(atomo_format_cases PRIVATE ATOMO_TESTS_DIR="${PROJECT_SOURCE_DIR}/tests")

add_executable(write_format_cases write_format_cases.cpp)
target_include_directories(write_format_cases PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_compile_options(write_format_cases PRIVATE -Wall -Wextra -Wshadow ${ATOMO_WERROR})
target_link_libraries(write_format_cases PRIVATE atomo_format_cases ${atomo_inside})

atomo_test(test_golden test_golden.cpp)
target_link_libraries(test_golden PRIVATE atomo_format_cases)
