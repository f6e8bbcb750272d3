// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What tests of `cap=` share: matrices, and how much a message was thinned.

#include "format/container_head.hpp"
#include "format/thinning.hpp"
#include "support/sketch_support.hpp"
#include "support/support.hpp"

namespace atomo::test {

using namespace model;

inline const Shape kCapShape{1024, 64};

/// K / (K - d) of a message of one layer, 1 when it is not thinned.
inline double gain_of(ConstBytes message) {
  format::Head head;
  EXPECT_EQ(format::Head::parse(message, true, head), Status::ok);
  format::LayerCursor layer(head);
  Status status = Status::ok;
  EXPECT_TRUE(layer.next(status));
  if ((layer.row.flags & format::LayerRecord::kThinned) == 0) return 1;
  std::uint32_t word = 0;
  std::memcpy(&word, layer.body.data(), sizeof word);
  format::Thinning thinning;
  EXPECT_TRUE(format::Thinning::read(word, thinning));
  return thinning.gain();
}

/// A few outer products, and noise that rows are kept for.
inline std::vector<float> low_rank(const MatrixShape& shape) {
  auto x = gaussian_matrix(shape, 1, 4, 3);
  const auto noise = gaussian_matrix(shape, 0.1, 3);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += noise[i];
  return x;
}

}  // namespace atomo::test
