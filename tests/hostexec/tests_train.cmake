# SPDX-License-Identifier: Apache-2.0
# The trainer on the device that the host executor is: its exchange and its coder, which need neither torch nor MPI, and
# whole runs of every algorithm.
set(trainer ${PROJECT_SOURCE_DIR}/programs/atomo-train)
set(on_device ${trainer}/exchange/device_coder.cpp ${trainer}/exchange/device_exchange.cpp)
atomo_hostexec_cases(${PROJECT_SOURCE_DIR}/tests/train/test_coder.cpp ${PROJECT_SOURCE_DIR}/tests/train/test_exchange.cpp
  ${trainer}/exchange/background.cpp ${trainer}/exchange/host_coder.cpp ${trainer}/exchange/host_exchange.cpp ${on_device}
  RANDOM "*Exchange*" "*Coder*" RACES "*Exchange*" "*Coder*")

# A shared library calls its own backend, of which it has none.
if(NOT TARGET atomo_train_parts OR NOT atomo_inside STREQUAL "atomo::atomo")
  return()
endif()
atomo_hostexec_program(hostexec_train atomo_hostexec ${sanitizer} ${trainer}/main.cpp ${on_device})
target_link_libraries(hostexec_train PRIVATE atomo_train_parts)
add_test(NAME hostexec.train COMMAND ${ATOMO_PYTHON} ${PROJECT_SOURCE_DIR}/tests/train/test_devices.py)
set_tests_properties(hostexec.train PROPERTIES ENVIRONMENT "ATOMO_TRAIN=$<TARGET_FILE:hostexec_train>" COST 90)
atomo_built_for(devices hostexec_train)
atomo_tier(devices hostexec.train)
