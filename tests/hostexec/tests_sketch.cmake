# SPDX-License-Identifier: Apache-2.0
# Sketches of matrices, as an operation by itself.
atomo_hostexec_test(sketch test_sketch.cu
  TSAN_FILTER "*8x9*:*65x129*:*40x2100*:*72x80*:Sketches.LayersThatAreNotFinite*:Sketches.Zeros*")
