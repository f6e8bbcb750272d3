# SPDX-License-Identifier: Apache-2.0
# Sketches of matrices, as an operation by itself.
atomo_hostexec_cases(${here}/test_sketch.cu ${here}/test_sketch_layers.cu ${here}/test_narrow_product.cu
  ${here}/test_f64_product.cu ${here}/test_wmma.cu ${here}/test_sketch_precision.cu ${here}/test_sketch_ranks.cu
  RELEASE "Sketches.NormsOfWhatIsLeft*" "Sketches.ManyLayersTakeAsManyLaunches*" "SketchPrecision.*"
  RANDOM "Sketches.*" "LargeRanks.*" "*/SketchShapes.*" "NarrowProducts.*" "F64Products.*" "Wmma.*" "Tf32Products.Keep*"
  RACES "F64Products.*" "Tf32Products.Keep*" "Wmma.Multiplies*"
    "*/SketchShapes.*8x9*" "*/SketchShapes.*65x129*" "*/SketchShapes.*40x2100*" "*/SketchShapes.*72x80*" "LargeRanks.Few*"
    "Sketches.LayersThatAreNotFinite*" "Sketches.Zeros*" "Sketches.LearntRanksKeep*")
