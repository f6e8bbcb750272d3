# SPDX-License-Identifier: Apache-2.0
# Streamed steps, on the device that the host executor is.
atomo_hostexec_test(streaming ${PROJECT_SOURCE_DIR}/tests/test_device_streaming.cpp
  ${here}/test_streaming_launches.cpp RANDOM_FILTER "*GraphsReplay*:*Join*"
  TSAN_FILTER "*MessagesAndControllerAreTheCpus/capped:*GraphsReplay/mixed")
