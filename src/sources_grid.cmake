# SPDX-License-Identifier: Apache-2.0
target_sources(atomo PRIVATE
  ${CMAKE_CURRENT_SOURCE_DIR}/coordinate_price.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/cpu/coordinate.cpp)
