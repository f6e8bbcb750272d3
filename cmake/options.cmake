# SPDX-License-Identifier: Apache-2.0
# What a build can be asked for, and what is left out because a library is missing: one status line each.

set(ATOMO_CUDA AUTO CACHE STRING "CUDA backend: AUTO, ON or OFF")
set_property(CACHE ATOMO_CUDA PROPERTY STRINGS AUTO ON OFF)
set(ATOMO_SANITIZE "" CACHE STRING "Sanitizers for everything built here, e.g. address,undefined or thread")
option(ATOMO_FUZZ "Build the fuzz targets with libFuzzer, which is clang's; ATOMO_SANITIZE begins with fuzzer-no-link" OFF)
option(ATOMO_WARNINGS_AS_ERRORS "Take warnings for errors, as the presets do" OFF)
option(ATOMO_TESTS_TOGETHER "Compile tests in a few programs of many sources and common headers once, as tests/run.sh does: quicker in all, slower after an edit" OFF)
option(ATOMO_INSTALL "Generate install rules" ${PROJECT_IS_TOP_LEVEL})
option(ATOMO_C "Build the C interface" ${PROJECT_IS_TOP_LEVEL})
option(ATOMO_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(ATOMO_BENCH "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(ATOMO_CLI "Build the command line tool" ${PROJECT_IS_TOP_LEVEL})
option(ATOMO_EXAMPLES "Build the examples and the trainer" ${PROJECT_IS_TOP_LEVEL})
option(ATOMO_PYTHON_MODULE "Build the Python package's extensions, as `pip install .` does" OFF)

set(ATOMO_WERROR)
if(ATOMO_WARNINGS_AS_ERRORS)
  set(ATOMO_WERROR -Werror)
endif()
option(ATOMO_PYTHON_TRAINER "Build atomo.train into the Python package, where MPI is" ON)

include(${CMAKE_CURRENT_LIST_DIR}/cuda.cmake)

if(ATOMO_SANITIZE)
  set(sanitize -fsanitize=${ATOMO_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # with their checks between, g++ sees paths that do not exist
    list(APPEND sanitize -Wno-array-bounds -Wno-maybe-uninitialized -Wno-restrict -Wno-stringop-overflow
      -Wno-stringop-overread)
  endif()
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${sanitize}>")
  add_link_options(-fsanitize=${ATOMO_SANITIZE})
endif()

include(${CMAKE_CURRENT_LIST_DIR}/dependencies.cmake)
if(atomo_missing_dependencies)
  list(JOIN atomo_missing_dependencies ", " names)
  message(FATAL_ERROR "atomo needs ${names}; 'bash scripts/install.sh' installs them on Debian and Ubuntu")
endif()

# Turns `option` off, with one line, unless every one of the packages is there.
# A macro: the packages' own variables and targets are wanted here.
macro(atomo_require_packages option part)
  if(${option})
    foreach(package ${ARGN})
      find_package(${package} QUIET)
      if(${option} AND NOT ${package}_FOUND)
        message(STATUS "atomo: ${package} was not found, leaving out ${part}")
        set(${option} OFF)
      endif()
    endforeach()
  endif()
endmacro()

atomo_require_packages(ATOMO_TESTS "the tests" GTest)
atomo_require_packages(ATOMO_BENCH "the benchmarks" benchmark)
# The command line tool and the trainer look for their libraries in their own folders: torch's package sets compiler
# flags for everything after it.

# Tests and plots are run by the distribution's Python, the one the packages are installed for.
find_program(ATOMO_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)
find_program(ATOMO_PYTHON python3)
mark_as_advanced(ATOMO_PYTHON)
