# SPDX-License-Identifier: Apache-2.0
# The fuzz target that compares the kernels with the CPU.
if(TARGET atomo_fuzz_parts AND NOT ATOMO_FUZZ)
  atomo_hostexec_program(fuzz_differential atomo_hostexec ${sanitizer} ${tests}/fuzz/differential.cpp)
  target_compile_options(fuzz_differential PRIVATE ${ATOMO_TEST_OPTIONS})
  atomo_fuzz(differential fuzz_differential ATOMO_HOSTEXEC_ORDER=ascending)
endif()
