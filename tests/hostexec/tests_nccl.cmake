# SPDX-License-Identifier: Apache-2.0
# The example over NCCL on the device that the host executor is, with collectives of the test's own.
if(NOT ATOMO_NCCL_INCLUDE)
  return()
endif()
atomo_hostexec_cases(${here}/test_nccl_example.cpp)
set_source_files_properties(${here}/test_nccl_example.cpp PROPERTIES INCLUDE_DIRECTORIES ${ATOMO_NCCL_INCLUDE})
