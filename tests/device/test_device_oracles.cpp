// SPDX-License-Identifier: Apache-2.0
/// Codecs on a GPU beside Thrust, which shares no code with them: the k largest entries beside a sort,
/// the norms that messages hold beside a reduction. On tensors that fill the GPU.
#include <gtest/gtest.h>

#include <string>

#include "oracles.hpp"
#include "support/on_cpu.hpp"

namespace atomo::test {
namespace {

constexpr std::int64_t kRows = 1 << 13, kColumns = 1 << 13;  // 67 M entries

/// A tensor, and what a codec makes of it.
struct Decoded {
  Memory x, y;
  std::uint64_t n;

  explicit Decoded(const std::string& spec) : x(bytes()), y(bytes()), n(bytes() / 4) {
    const Codec codec = Codec::parse(spec);
    const Shape shape{kRows, kColumns};
    const auto values = heavy_tailed(shape.elements(), 3, 900);
    x.put(std::as_bytes(std::span(values)));
    const Memory payload(codec.max_encoded_bytes(shape)), workspace(workspace_bytes(codec, shape));
    const Word<std::uint64_t> length;
    const Word<Status> status;
    const StreamOwner stream;
    Context context;
    context.stream = stream.get();
    context.workspace = workspace.bytes();
    context.status = status.data();
    EXPECT_EQ(codec.encode({x.data(), DType::f32, shape, kDevice}, {.seed = 4},
                           {payload.data(), payload.bytes().size(), length.data()}, context),
              Status::ok);
    EXPECT_EQ(codec.decode(payload.bytes(), {y.data(), DType::f32, shape, kDevice}, context),
              Status::ok);
    stream.wait();
    EXPECT_EQ(status.get(), Status::ok);
  }
  [[nodiscard]] const float* from() const { return reinterpret_cast<const float*>(x.data()); }
  [[nodiscard]] const float* to() const { return reinterpret_cast<const float*>(y.data()); }

 private:
  static std::size_t bytes() { return 4 * static_cast<std::size_t>(kRows * kColumns); }
};

TEST(ThrustOracles, TopKKeepsWhatASortPutsFirst) {
  constexpr std::uint64_t kKept = 671'089;
  const Decoded decoded("topk:keep=" + std::to_string(kKept));
  const KeptEntries found = look_at_kept(decoded.from(), decoded.to(), decoded.n, kKept);
  EXPECT_GT(found.threshold, 0);
  EXPECT_EQ(found.kept, kKept);
  EXPECT_EQ(found.changed, 0u);
  EXPECT_EQ(found.small, 0u);
  EXPECT_EQ(found.missing, 0u);
}

TEST(ThrustOracles, NormsAreThoseOfAReduction) {
  {
    const Decoded decoded("terngrad");
    EXPECT_EQ(largest_magnitude(decoded.to(), decoded.n),
              largest_magnitude(decoded.from(), decoded.n));
  }
  const Decoded decoded("sign:scale=mean");
  const double mean = mean_magnitude(decoded.from(), decoded.n);
  EXPECT_NEAR(largest_magnitude(decoded.to(), decoded.n), mean, 1e-6 * mean);
  EXPECT_NEAR(mean_magnitude(decoded.to(), decoded.n), mean, 1e-6 * mean);
}

}  // namespace
}  // namespace atomo::test
