// SPDX-License-Identifier: Apache-2.0
/// Tensors of more than 2^31 entries there and back on a device. Needs about 45 GB of its memory.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/support.hpp"

namespace atomo {
namespace {

/// Entries around every power of two that an index could be cut at, all others 0: the message must
/// bring them back, and nothing else.
class Large : public testing::TestWithParam<const char*> {
 protected:
  static constexpr std::size_t kEntries = (std::size_t{1} << 31) + 12345;

  static std::vector<std::size_t> places() {
    std::vector<std::size_t> at;
    for (const std::size_t edge :
         {std::size_t{0}, std::size_t{1} << 28, std::size_t{1} << 29, std::size_t{1} << 30,
          (std::size_t{1} << 31) - 1, std::size_t{1} << 31, kEntries - 1})
      at.push_back(edge);
    return at;
  }
};
INSTANTIATE_TEST_SUITE_P(Specs, Large,
                         testing::Values("identity", "qsgd:bits=8", "sign", "terngrad",
                                         "topk:keep=7", "atomo:price=0.001,atoms=blocks",
                                         "atomo:atoms=coordinate,delta=0.25"));

TEST_P(Large, ThereAndBack) {
  const Codec codec = Codec::parse(GetParam());
  const Shape shape{static_cast<std::int64_t>(kEntries)};
  std::size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  const std::size_t need = 8 * kEntries + codec.max_encoded_bytes(shape) +
                           test::workspace_bytes(codec, shape) + (std::size_t{1} << 30);
  if (need > free)
    GTEST_SKIP() << "needs " << need << " bytes of device memory, " << free << " are free";
  const test::Memory x(4 * kEntries), y(4 * kEntries), payload(codec.max_encoded_bytes(shape)),
      workspace(test::workspace_bytes(codec, shape));
  x.fill(0);
  y.fill(0xFF);
  for (const std::size_t at : places()) {
    const float value = 1;
    ASSERT_EQ(cudaMemcpy(x.data() + 4 * at, &value, 4, cudaMemcpyHostToDevice), cudaSuccess);
  }
  const test::StreamOwner stream;
  const test::Word<std::uint64_t> bytes;
  const test::Word<Status> status;
  Context context;
  context.stream = stream.get();
  context.workspace = workspace.bytes();
  context.status = status.data();
  ASSERT_EQ(codec.encode({x.data(), DType::f32, shape, Device::cuda}, {.seed = 3},
                         {payload.data(), payload.bytes().size(), bytes.data()}, context),
            Status::ok);
  stream.wait();
  ASSERT_FALSE(failed(status.get())) << describe(status.get());
  ASSERT_EQ(codec.decode({payload.data(), static_cast<std::size_t>(bytes.get())},
                         {y.data(), DType::f32, shape, Device::cuda}, context),
            Status::ok);
  stream.wait();
  ASSERT_FALSE(failed(status.get())) << describe(status.get());
  const bool biased = !codec.traits().unbiased && std::string(GetParam()) == "sign";
  const auto all = places();
  for (const std::size_t at : all) {
    float value = 0;
    ASSERT_EQ(cudaMemcpy(&value, y.data() + 4 * at, 4, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_NEAR(value, 1, 0.3) << at;
    if (biased || at == 0) continue;
    float before = -1;
    ASSERT_EQ(cudaMemcpy(&before, y.data() + 4 * (at - 1), 4, cudaMemcpyDeviceToHost), cudaSuccess);
    if (std::find(all.begin(), all.end(), at - 1) == all.end()) {
      EXPECT_NEAR(before, 0, 0.3) << at - 1;
    }
  }
}

}  // namespace
}  // namespace atomo
