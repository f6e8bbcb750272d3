# SPDX-License-Identifier: Apache-2.0
# Coordinates on a grid, and singular pairs.
target_sources(atomo PRIVATE
  ${CMAKE_CURRENT_SOURCE_DIR}/coordinate_price.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/cpu/coordinate.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/cpu/factors.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/cpu/outer_products.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/cpu/pairs.cpp
  ${CMAKE_CURRENT_SOURCE_DIR}/cpu/svd.cpp)
