# SPDX-License-Identifier: Apache-2.0
# Dithered atoms: price, selection, marks, the pair code and its loops.
target_sources(atomo PRIVATE
  atom_body.cpp
  cpu/atoms.cpp
  cpu/atoms_decode.cpp
  cpu/atoms_encode.cpp
  cpu/dither_kernels.cpp
  cpu/price.cpp
  cpu/selection.cpp
  marks.cpp
  pair_code.cpp)
