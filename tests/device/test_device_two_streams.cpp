// SPDX-License-Identifier: Apache-2.0
/// Two messages under way at once on two streams, of as many entries as ATOMO_TEST_ENTRIES says:
/// with some 10^7 they fill a GPU, whose blocks then run in any order, across all multiprocessors. Under
/// a sanitizer they are a few tiles, sent twice.
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/on_cpu.hpp"

namespace atomo::test {
namespace {

std::size_t entries_wanted() {
  const char* const text = std::getenv("ATOMO_TEST_ENTRIES");
  if (text != nullptr) return std::strtoull(text, nullptr, 10);
  return kSanitized ? 35'001 : 70'001;
}

/// What one of the two takes on the device.
struct OneStream {
  StreamOwner stream;
  Memory x, y, payload, workspace;
  Word<std::uint64_t> bytes;
  Word<Status> status;

  OneStream(const Codec& codec, const Shape& shape)
      : x(4 * shape.elements()),
        y(4 * shape.elements()),
        payload(codec.max_encoded_bytes(shape)),
        workspace(workspace_bytes(codec, shape)) {}
  [[nodiscard]] Context context() const {
    Context context;
    context.stream = stream.get();
    context.workspace = workspace.bytes();
    context.status = status.data();
    return context;
  }
};

class TwoStreams : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Specs, TwoStreams, testing::ValuesIn(specs_with_the_cpus_bytes()),
                         spec_name);

TEST_P(TwoStreams, MessagesAndValuesAreTheCpus) {
  constexpr int kRepeats = kSanitized ? 2 : 3;
  const Codec codec = Codec::parse(GetParam());
  const auto columns = static_cast<std::int64_t>(257);
  const Shape shape{static_cast<std::int64_t>(entries_wanted()) / columns, columns};
  const std::vector<float> values = heavy_tailed(shape.elements(), 8, 900);
  std::array<OneStream, 2> both{OneStream(codec, shape), OneStream(codec, shape)};
  std::array<Message, 2> expected;
  std::array<DecodedBytes, 2> decoded;
  for (std::uint16_t i = 0; i < 2; ++i) {
    both[i].x.put(std::as_bytes(std::span(values)));
    expected[i] = encode_on_cpu(codec, values, shape, {.seed = 5, .worker = i});
    ASSERT_FALSE(failed(expected[i].status)) << describe(expected[i].status);
    decoded[i] = decode_on_cpu(codec, expected[i].bytes,
                               std::vector<std::byte>(4 * shape.elements()), DType::f32, shape);
  }
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    for (std::uint16_t i = 0; i < 2; ++i) {
      const OneStream& one = both[i];
      ASSERT_EQ(codec.encode({one.x.data(), DType::f32, shape, kDevice}, {.seed = 5, .worker = i},
                             {one.payload.data(), one.payload.bytes().size(), one.bytes.data()},
                             one.context()),
                Status::ok);
    }
    // The message's length is in its head: the second call needs nothing of the host.
    for (const OneStream& one : both)
      ASSERT_EQ(codec.decode(one.payload.bytes(), {one.y.data(), DType::f32, shape, kDevice},
                             one.context()),
                Status::ok);
    for (std::size_t i = 0; i < 2; ++i) {
      both[i].stream.wait();
      ASSERT_FALSE(failed(both[i].status.get())) << describe(both[i].status.get());
      ASSERT_TRUE(both[i].payload.get(both[i].bytes.get()) == expected[i].bytes)
          << "stream " << i << ", repeat " << repeat;
      ASSERT_TRUE(both[i].y.get(4 * shape.elements()) == decoded[i].values)
          << "stream " << i << ", repeat " << repeat;
      both[i].y.fill(0xFF);
    }
  }
}

}  // namespace
}  // namespace atomo::test
