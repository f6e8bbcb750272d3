# SPDX-License-Identifier: Apache-2.0
# Layers under a cap, on the device that the host executor is.
atomo_hostexec_cases(${PROJECT_SOURCE_DIR}/tests/device/test_device_cap.cpp ${here}/test_cap_launches.cpp
  RANDOM "*DeviceCapModels.*" RACES "*/DeviceCapModels.WithLayersThatSendNothing*")
