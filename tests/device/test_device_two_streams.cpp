// SPDX-License-Identifier: Apache-2.0
/// Two messages under way at once on two streams, of as many entries as ATOMO_TEST_ENTRIES says:
/// with some 10^7 they fill a GPU, whose blocks then run in any order, across all multiprocessors. Under
/// a sanitizer they are a few tiles (on a commit two), sent twice.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "format/container_head.hpp"
#include "support/on_cpu.hpp"

namespace atomo::test {
namespace {

constexpr std::size_t kColumns = 257;

std::size_t entries_wanted() {
  const char* const text = std::getenv("ATOMO_TEST_ENTRIES");
  if (text != nullptr) return std::strtoull(text, nullptr, 10);
  if (in_turns()) return 17'001;
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

std::vector<float> floats(const std::vector<std::byte>& entries) {
  std::vector<float> values(entries.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), entries.data(), entries.size());
  return values;
}

Key key_of(std::uint16_t worker) { return {.seed = 5, .worker = worker}; }

class BothStreams : public testing::TestWithParam<std::string> {
 protected:
  /// Encodes the same values under the keys of two workers on the device and decodes both messages; then
  /// calls check(worker, message, values) for each. Several times.
  template <typename Check>
  void repeat(const std::vector<float>& values, const Check& check) const {
    constexpr int kRepeats = kSanitized ? 2 : 3;
    const std::array<OneStream, 2> both{OneStream(codec, shape), OneStream(codec, shape)};
    for (const OneStream& one : both) one.x.put(std::as_bytes(std::span(values)));
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      for (std::uint16_t i = 0; i < 2; ++i) {
        const OneStream& one = both[i];
        ASSERT_EQ(codec.encode({one.x.data(), DType::f32, shape, kDevice}, key_of(i),
                               {one.payload.data(), one.payload.bytes().size(), one.bytes.data()},
                               one.context()),
                  Status::ok);
      }
      // The message's length is in its head: the second call needs nothing of the host.
      for (const OneStream& one : both)
        ASSERT_EQ(codec.decode(one.payload.bytes(), {one.y.data(), DType::f32, shape, kDevice},
                               one.context()),
                  Status::ok);
      for (std::uint16_t i = 0; i < 2; ++i) {
        SCOPED_TRACE("stream " + std::to_string(i) + ", repeat " + std::to_string(repeat));
        const OneStream& one = both[i];
        one.stream.wait();
        ASSERT_FALSE(failed(one.status.get())) << describe(one.status.get());
        ASSERT_NO_FATAL_FAILURE(
            check(i, one.payload.get(one.bytes.get()), one.y.get(4 * shape.elements())));
        one.y.fill(0xFF);
      }
    }
  }
  [[nodiscard]] Message cpus_message(const std::vector<float>& values, std::uint16_t worker) const {
    Message m = encode_on_cpu(codec, values, shape, key_of(worker));
    EXPECT_FALSE(failed(m.status)) << describe(m.status);
    return m;
  }
  [[nodiscard]] std::vector<std::byte> cpus_values(ConstBytes message) const {
    DecodedBytes d = decode_on_cpu(codec, message, std::vector<std::byte>(4 * shape.elements()),
                                   DType::f32, shape);
    EXPECT_FALSE(failed(d.status)) << describe(d.status);
    return std::move(d.values);
  }

  Codec codec = Codec::parse(GetParam());
  Shape shape{static_cast<std::int64_t>(entries_wanted() / kColumns), kColumns};
};

class TwoStreams : public BothStreams {};
INSTANTIATE_TEST_SUITE_P(Specs, TwoStreams, testing::ValuesIn(specs_with_the_cpus_bytes()),
                         spec_name);

TEST_P(TwoStreams, MessagesAndValuesAreTheCpus) {
  const std::vector<float> values = heavy_tailed(shape.elements(), 8, 900);
  std::array<std::vector<std::byte>, 2> expected, decoded;
  for (std::uint16_t i = 0; i < 2; ++i) {
    expected[i] = cpus_message(values, i).bytes;
    decoded[i] = cpus_values(expected[i]);
  }
  repeat(values, [&](std::uint16_t i, const auto& message, const auto& y) {
    ASSERT_TRUE(message == expected[i]);
    ASSERT_TRUE(y == decoded[i]);
  });
}

/// The specs whose sketches are the CPU's but for rounding.
class TwoStreamsOfSketches : public BothStreams {
 protected:
  /// Ten pairs of falling size over heavy-tailed rows, so that some of each are worth their bits.
  [[nodiscard]] std::vector<float> pairs_and_rows() const {
    std::vector<float> x = heavy_tailed(shape.elements(), 8, 900);
    const auto pairs = gaussian_matrix({static_cast<std::size_t>(shape[0]), kColumns}, 1, 4, 10);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += pairs[i];
    return x;
  }
  /// Where layers choose a form, a sketch is this one's.
  static void expect_sketch(ConstBytes message) {
    format::Head head;
    ASSERT_EQ(format::Head::parse(message, true, head), Status::ok);
    format::LayerCursor layer(head);
    Status status = Status::ok;
    ASSERT_TRUE(layer.next(status));
    if (layer.kind.method == format::MethodId::automatic) {
      EXPECT_EQ(layer.row.form(), format::kSketchForm);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Specs, TwoStreamsOfSketches, testing::ValuesIn(specs_with_sketches()),
                         spec_name);

/// The CPU decodes the device's messages to the device's values, bit for bit; both workers' messages are
/// together as long and as far from the tensor as the CPU's, but for 1 % and 2 %.
TEST_P(TwoStreamsOfSketches, MessagesDecodeAlike) {
  const std::vector<float> values = pairs_and_rows();
  std::array<std::vector<std::byte>, 2> first, decoded;
  repeat(values, [&](std::uint16_t i, const auto& message, const auto& y) {
    if (first[i].empty()) {
      first[i] = message;
      decoded[i] = cpus_values(message);
      ASSERT_NO_FATAL_FAILURE(expect_sketch(message));
    }
    ASSERT_TRUE(message == first[i]) << "another message of the same key";
    ASSERT_TRUE(y == decoded[i]);
  });
  double device_bytes = 0, cpu_bytes = 0, device_nmse = 0, cpu_nmse = 0;
  for (std::uint16_t i = 0; i < 2; ++i) {
    const auto on_cpu = cpus_message(values, i).bytes;
    cpu_bytes += static_cast<double>(on_cpu.size());
    device_bytes += static_cast<double>(first[i].size());
    cpu_nmse += nmse(values, floats(cpus_values(on_cpu))) / 2;
    device_nmse += nmse(values, floats(decoded[i])) / 2;
  }
  std::cout << "[ sketches ] " << shape.elements() << " entries, NMSE " << device_nmse << ", CPU "
            << cpu_nmse << "; bytes " << device_bytes / 2 << ", CPU " << cpu_bytes / 2 << '\n';
  EXPECT_NEAR(device_bytes, cpu_bytes, 0.01 * cpu_bytes);
  EXPECT_NEAR(device_nmse, cpu_nmse, 0.02 * cpu_nmse);
}

}  // namespace
}  // namespace atomo::test
