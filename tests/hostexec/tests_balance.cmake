# SPDX-License-Identifier: Apache-2.0
# How evenly work is spread over blocks: kernels compiled once more, to count what each block runs.
if(NOT ATOMO_SANITIZE)
  add_library(atomo_hostexec_counted OBJECT ${kernels})
  atomo_hostexec_flags(atomo_hostexec_counted none)
  target_compile_options(atomo_hostexec_counted PRIVATE -fsanitize-coverage=trace-pc)
  atomo_precompile(atomo_hostexec_counted ${kernel_headers})
  atomo_hostexec_program(hostexec_balance atomo_hostexec_counted none ${here}/test_balance.cpp ${here}/work.cpp)
  target_link_libraries(hostexec_balance PRIVATE ${atomo_inside} GTest::gtest GTest::gtest_main)
  atomo_built_for(kernels atomo_hostexec_counted hostexec_balance)
  # Layers that choose their form run the kernels of sketches too.
  set(sketches_alone "*.OfAResNet50/4")
  atomo_cases(kernels hostexec.balance hostexec_balance FILTER "*-${sketches_alone}" SHARDS 3
    ENVIRONMENT ATOMO_HOSTEXEC_ORDER=ascending)
  atomo_cases(long hostexec.more_balance hostexec_balance FILTER "${sketches_alone}"
    ENVIRONMENT ATOMO_HOSTEXEC_ORDER=ascending)
endif()
