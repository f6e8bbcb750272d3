// SPDX-License-Identifier: Apache-2.0
/// Sketches of several layers at once: none depends on another, and launches do not grow with them.
#include <iostream>

#include "sound_sketches.hpp"

namespace atomo::cuda {

using namespace model;
namespace {

std::vector<Matrix> many_matrices() {
  std::vector<Matrix> matrices;
  for (std::size_t i = 0; i < 24; ++i) {
    const MatrixShape shape{3 + 7 * (i % 9), 2 + 11 * (i % 7)};
    matrices.push_back(falling(shape, static_cast<std::uint32_t>(1 + i * 5 % shape.shorter()), i));
    matrices.back().iterations = 1 + i % 3;
  }
  return matrices;
}

TEST(Sketches, LayersDoNotDependOnEachOther) {
  const std::vector<Matrix> matrices = many_matrices();
  const std::vector<Sketch> together = decompose_all(matrices);
  for (std::uint16_t i = 0; i < matrices.size(); ++i) {
    expect_sound(matrices[i], together[i]);
    EXPECT_TRUE(same_bits(together[i], decompose_all({matrices[i]}, {.seed = 7, .tensor = i})[0]))
        << i;
  }
}

TEST(Sketches, LayersThatAreNotFiniteAreLeftOut) {
  const std::vector<Matrix> sound = many_matrices();
  const std::vector<Sketch> before = decompose_all(sound);
  std::vector<Matrix> matrices = sound;
  matrices[3].values.back() = INFINITY;
  matrices[10].values[1] = -INFINITY;
  matrices[17].values[0] = NAN;
  const std::vector<Sketch> after = decompose_all(matrices);
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    if (i % 7 != 3) {
      EXPECT_TRUE(same_bits(before[i], after[i])) << i;
      continue;
    }
    EXPECT_EQ(after[i].flags, std::uint32_t{format::LayerRecord::kNonFinite}) << i;
    for (const auto* values : {&after[i].shorter, &after[i].longer, &after[i].residual})
      for (const float v : *values) ASSERT_EQ(v, 0) << i;
    for (const double sigma : after[i].sigma) EXPECT_EQ(sigma, 0) << i;
  }
}

/// Each iteration takes more of what a spectrum without a gap has to give.
TEST(Sketches, IterationsComeCloserToTheMatrix) {
  Matrix matrix{{120, 160}, 10, normal(120 * 160, 11), DType::f32};
  double last = 1e30;
  for (const unsigned iterations : {1u, 2u, 5u}) {
    matrix.iterations = iterations;
    const Sketch sketch = decompose_all({matrix})[0];
    expect_sound(matrix, sketch);
    double left = 0;
    for (const float v : sketch.residual) left += static_cast<double>(v) * v;
    EXPECT_LT(left, 0.995 * last) << iterations;
    last = left;
  }
}

TEST(Sketches, ManyLayersTakeAsManyLaunchesAsOne) {
  for (const unsigned iterations : {1u, 3u}) {
    Matrix large = falling({1100, 1030}, 1);
    std::vector<Matrix> several = many_matrices();
    large.iterations = iterations;
    for (Matrix& matrix : several) matrix.iterations = std::min(matrix.iterations, iterations);
    const auto launches_of = [](const std::vector<Matrix>& matrices) {
      SketchLayers layers(matrices);
      static_cast<void>(layers.decompose({}));
      return layers.launches();
    };
    const std::size_t without_folds = launches_of(several);
    several.push_back(large);
    const std::size_t many = launches_of(several);
    EXPECT_EQ(launches_of({large}), many);
    EXPECT_EQ(many, 25 + 12 * (iterations - 1));
    EXPECT_LT(without_folds, many);
    std::cout << "[ launches ] " << iterations << " iterations: " << many << " to decompose, "
              << without_folds << " where no sum has several stretches\n";
  }
}

/// A job that has learnt to look for fewer pairs makes the sketch of those, in its larger memory.
TEST(Sketches, LearntRanksAreThoseOfSmallerSketches) {
  struct Case {
    MatrixShape shape;
    std::uint32_t most, rank;
  };
  for (const auto& [shape, most, rank] : {Case{{30, 50}, 20, 8},
                                          {{50, 30}, 12, 7},
                                          {{24, 1300}, 24, 16},
                                          {{1300, 24}, 24, 5},
                                          {{90, 2100}, 72, 40},
                                          {{140, 150}, 130, 66},
                                          {{140, 150}, 64, 1}}) {
    Matrix large = falling(shape, most), small = falling(shape, rank);
    large.iterations = small.iterations = 2;
    const std::vector<price::RankState> ranks{{static_cast<std::uint16_t>(rank), 0}};
    Sketch found = SketchLayers({large}).decompose({.seed = 7}, false, ranks)[0];
    for (std::uint32_t k = rank; k < most; ++k) EXPECT_EQ(found.sigma[k], 0) << k;
    found.sigma.resize(rank);
    found.shorter.resize(rank * small.m());
    found.longer.resize(rank * small.n());
    EXPECT_TRUE(same_bits(found, decompose_all({small})[0])) << shape.rows << ", " << rank;
  }
}

/// Without pairs there is no sketch where the layer has other forms, and one pair where it has not;
/// what looks for more than there is room for looks for what there is.
TEST(Sketches, LearntRanksKeepToTheirLimits) {
  std::vector<Matrix> matrices(3, falling({40, 60}, 9));
  matrices[0].optional = true;
  matrices[1].rank = 1;
  const std::vector<Sketch> whole = decompose_all(matrices);
  matrices[1].rank = 9;
  const std::vector<price::RankState> ranks{{0, 16}, {0, 0}, {24, 0}};
  std::vector<Sketch> found = SketchLayers(matrices).decompose({.seed = 7}, false, ranks);
  for (const double sigma : found[0].sigma) EXPECT_EQ(sigma, 0);
  for (const double rms : found[0].residual_rms) EXPECT_EQ(rms, 0);
  found[1].sigma.resize(1);
  found[1].shorter.resize(40);
  found[1].longer.resize(60);
  EXPECT_TRUE(same_bits(found[1], whole[1]));
  EXPECT_TRUE(same_bits(found[2], whole[2]));
}

TEST(Sketches, GraphsReplay) {
  const std::vector<Matrix> matrices = many_matrices();
  const std::vector<Sketch> sketches = decompose_all(matrices);
  const std::vector<Sketch> replayed = SketchLayers(matrices).decompose({.seed = 7}, true);
  for (std::size_t i = 0; i < matrices.size(); ++i)
    EXPECT_TRUE(same_bits(sketches[i], replayed[i])) << i;
}

TEST(Sketches, BlocksOfWarpsDoNotMatter) {
  const std::vector<Matrix> matrices{falling({40, 1300}, 5), falling({70, 30}, 9)};
  const std::vector<Sketch> sketches = decompose_all(matrices);
  const unsigned usual = warps_per_block;
  for (const unsigned warps : {1u, 8u}) {
    warps_per_block = warps;
    const std::vector<Sketch> again = decompose_all(matrices);
    for (std::size_t i = 0; i < matrices.size(); ++i)
      EXPECT_TRUE(same_bits(sketches[i], again[i])) << warps;
  }
  warps_per_block = usual;
}

}  // namespace
}  // namespace atomo::cuda
