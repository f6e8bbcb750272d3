# SPDX-License-Identifier: Apache-2.0
# The trainer's exchange on the device that the host executor is; neither torch nor MPI is needed.
set(trainer ${PROJECT_SOURCE_DIR}/programs/atomo-train)
atomo_hostexec_cases(${PROJECT_SOURCE_DIR}/tests/train/test_exchange.cpp ${trainer}/exchange/background.cpp
  ${trainer}/exchange/host_exchange.cpp ${trainer}/exchange/device_exchange.cpp RANDOM "*Exchange*" RACES "*Exchange*")
