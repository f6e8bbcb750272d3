# SPDX-License-Identifier: Apache-2.0
# The executor's own tests; the bugs that it must see are in tests_planted.cmake.
atomo_hostexec_cases(${here}/own_errors.cpp ${here}/test_semantics.cu ${here}/test_runtime.cu ${here}/test_cub.cu
  ${here}/test_rounds.cu RANDOM "Semantics.*" "Runtime.*" "Cub.*" "Blocks/RoundsOfBlocks.*"
  RACES "Semantics.*" "Runtime.*" "Cub.*" "Blocks/RoundsOfBlocks.*")
