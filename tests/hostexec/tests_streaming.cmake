# SPDX-License-Identifier: Apache-2.0
# Streamed steps, on the device that the host executor is.
atomo_hostexec_cases(${PROJECT_SOURCE_DIR}/tests/device/test_device_parts.cpp
  ${PROJECT_SOURCE_DIR}/tests/device/test_device_streaming.cpp ${here}/test_streaming_launches.cpp
  RANDOM "*/DeviceStreaming.GraphsReplay*" "DeviceStreamedLayers.Join*" "*/DeviceParts.*"
  RACES "*/DeviceStreaming.MessagesAndControllerAreTheCpus/capped" "*/DeviceStreaming.GraphsReplay/mixed")
