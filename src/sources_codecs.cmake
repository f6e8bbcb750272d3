# SPDX-License-Identifier: Apache-2.0
target_sources(atomo PRIVATE
  ${CMAKE_CURRENT_SOURCE_DIR}/cpu/level_tile.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/cpu/marked.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/cpu/qsgd.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/cpu/random_k.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/cpu/reduce.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/cpu/sign.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/cpu/ternary.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/cpu/topk.cpp)
