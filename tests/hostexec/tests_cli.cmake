# SPDX-License-Identifier: Apache-2.0
# The command line tool with --device cuda on the device that the host executor is. A shared library calls its own
# backend, of which it has none.
if(NOT TARGET atomo_cli_parts OR NOT atomo_inside STREQUAL "atomo::atomo")
  return()
endif()
atomo_hostexec_program(hostexec_cli atomo_hostexec ${sanitizer} ${PROJECT_SOURCE_DIR}/programs/atomo/device/device_cuda.cpp)
target_link_libraries(hostexec_cli PRIVATE atomo_cli_parts)
add_test(NAME hostexec.cli COMMAND ${ATOMO_PYTHON} ${PROJECT_SOURCE_DIR}/tests/cli/test_cli.py
  --atomo $<TARGET_FILE:hostexec_cli> test_on_device)
atomo_built_for(kernels hostexec_cli)
atomo_tier(kernels hostexec.cli)
