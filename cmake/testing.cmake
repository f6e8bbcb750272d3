# SPDX-License-Identifier: Apache-2.0
# Every test is in one tier, its label: `commit` runs on every change, `long` under `tests/run.sh --all` alone, `kernels`
# there and where a kernel or the host executor changed, `devices` with those and where the trainer's roles changed. tiers.py
# checks that each has one. The programs that no commit runs are built by the targets long_tests, kernel_tests and
# device_tests, each with those of the next. What is compiled and never run here is yardsticks, which long_tests builds too.
add_custom_target(device_tests)
add_custom_target(kernel_tests)
add_custom_target(yardsticks)
add_custom_target(long_tests)
add_dependencies(kernel_tests device_tests)
add_dependencies(long_tests kernel_tests yardsticks)

# atomo_precompile(target header...): with ATOMO_TESTS_TOGETHER the headers, which nearly every file of the target includes,
# are compiled once, and it includes them first. For objects that tests alone are made of: those of packages are ccache's to share.
function(atomo_precompile target)
  if(ATOMO_TESTS_TOGETHER)
    target_precompile_headers(${target} PRIVATE ${ARGN})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${target} PRIVATE -fpch-preprocess)  # without it ccache does not keep what includes them
    endif()
  endif()
endfunction()
# Those of the standard library that the library's files take.
set(ATOMO_STANDARD_HEADERS <algorithm> <array> <bit> <cmath> <cstddef> <cstdint> <cstring> <functional> <limits> <memory>
  <mutex> <optional> <span> <string> <string_view> <utility> <vector>)

# atomo_tier(TIER test...): the tier of tests, and a limit of time where they have none of their own.
function(atomo_tier tier)
  foreach(test IN LISTS ARGN)
    set_property(TEST ${test} PROPERTY LABELS ${tier})
    get_test_property(${test} TIMEOUT timeout)
    if(NOT timeout)
      set_property(TEST ${test} PROPERTY TIMEOUT 1200)
    endif()
  endforeach()
endfunction()

# atomo_built_for(TIER target...): programs that no commit runs are built by the tier's target alone.
function(atomo_built_for tier)
  if(tier STREQUAL "commit")
    return()
  endif()
  set(wanted_by_devices device_tests)
  set(wanted_by_kernels kernel_tests)
  set(wanted_by_long long_tests)
  set_target_properties(${ARGN} PROPERTIES EXCLUDE_FROM_ALL ON)
  add_dependencies(${wanted_by_${tier}} ${ARGN})
endfunction()

# atomo_cases(TIER NAME PROGRAM [FILTER filter] [SHARDS n] [ENVIRONMENT name=value...]): the test NAME runs the cases of
# a GoogleTest program, in SHARDS processes that take every n-th case each (NAME.1 to NAME.n), the longest tests first.
# tally.py counts the cases.
function(atomo_cases tier name program)
  cmake_parse_arguments(PARSE_ARGV 3 arg "" "FILTER;SHARDS" "ENVIRONMENT")
  if(NOT arg_FILTER)
    set(arg_FILTER "*")
  endif()
  if(NOT arg_SHARDS)
    set(arg_SHARDS 1)
  endif()
  math(EXPR last "${arg_SHARDS} - 1")
  math(EXPR cost "10 * ${arg_SHARDS}")
  foreach(shard RANGE ${last})
    set(test ${name})
    if(arg_SHARDS GREATER 1)
      math(EXPR number "${shard} + 1")
      set(test ${name}.${number})
    endif()
    add_test(NAME ${test} COMMAND ${program} --gtest_brief=1 "--gtest_filter=${arg_FILTER}"
      --gtest_output=xml:${PROJECT_BINARY_DIR}/cases/${test}.xml)
    set_tests_properties(${test} PROPERTIES TIMEOUT 1800 COST ${cost}
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${arg_SHARDS};GTEST_SHARD_INDEX=${shard};${arg_ENVIRONMENT}")
    atomo_tier(${tier} ${test})
  endforeach()
endfunction()
