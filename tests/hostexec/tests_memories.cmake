# SPDX-License-Identifier: Apache-2.0
# Memories of senders, on the device that the host executor is.
atomo_hostexec_cases(${PROJECT_SOURCE_DIR}/tests/device/test_device_memories.cpp ${here}/test_memory_launches.cpp
  RANDOM "DeviceMemories*Of*.*" "DeviceMemoriesTakenBack.*" "*/DeviceMemories.*/ef_memory_bf16_topk_keep_0p1"
    "*/DeviceMemories.*/dgc_topk_keep_0p1"
  RACES "DeviceMemoriesOfSteps.*" "DeviceMemoriesTakenBack.*")
