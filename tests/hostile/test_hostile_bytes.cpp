// SPDX-License-Identifier: Apache-2.0
/// Decoders take any bytes at all: every truncation, every bit flip and many random mutations of a
/// message of every codec, with the checksums left broken and repaired, give a Status or a tensor.
/// Run under ASan and UBSan too, and on devices, which must judge as the CPU does.
#include <gtest/gtest.h>

#include <cstdlib>

#include "format/container_head.hpp"
#include "support/own_codecs.hpp"
#include "support/support.hpp"

namespace atomo {

using namespace model;
namespace {

constexpr bool kOnCpu = test::kDevice == Device::cpu;
/// A call on a device costs a dozen launches: fewer messages there, a part of the flips.
constexpr int kMutations = kOnCpu ? 20000 : 400;
constexpr std::size_t kFlipStride = kOnCpu ? 1 : 37;
constexpr std::size_t kCutStride = kOnCpu ? 1 : 11;

/// `tests/run.sh --all` asks for ten times as many, a commit for a quarter on a device and under a sanitizer.
int mutations() {
  const char* all = std::getenv("ATOMO_TESTS_ALL");
  if (all != nullptr && std::string(all) == "1") return 10 * kMutations;
  return test::in_turns() || (test::in_brief() && !kOnCpu) ? kMutations / 4 : kMutations;
}

/// Makes a mutated message pass its checksums, when its head can still be walked.
void repair(std::vector<std::byte>& m) {
  if (m.size() < format::kHeaderBytes) return;
  const std::uint64_t total = m.size();
  std::memcpy(m.data() + 8, &total, 8);
  // Where the head ends is a property of the unchanged message's kind; one unnamed layer here.
  std::size_t at = format::kHeaderBytes + format::kRecordBytes + 6;
  if (at >= m.size()) return;
  const auto rank = static_cast<std::size_t>(m[at++]);
  for (std::size_t i = 0; i < rank && at < m.size(); ++i) {
    while (at < m.size() && (m[at] & std::byte{128}) != std::byte{0}) ++at;
    ++at;
  }
  const std::size_t head = format::padded(at);
  if (head <= m.size()) format::write_checksums(m, head);
}

class Mutations : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    message =
        test::encode(codec, test::heavy_tailed(shape.elements(), 3, 40), shape, {.seed = 9}).bytes;
    ASSERT_FALSE(message.empty());
    workspace.resize(std::max(test::workspace_bytes(codec, shape), decode_workspace_bytes(shape)));
    values.resize(shape.elements());
  }

  /// Decodes a copy on the heap of exactly this size, so that a sanitizer sees any read past its
  /// end.
  Status decode_exactly(const std::vector<std::byte>& bytes) {
    const Status on_cpu = decode_on_cpu(bytes);
    if constexpr (!kOnCpu) {
      const auto there =
          test::decode_bytes(codec, bytes, std::as_bytes(std::span(before)), DType::f32, shape);
      EXPECT_EQ(there.status, on_cpu);
      if (!failed(on_cpu)) {
        EXPECT_EQ(std::memcmp(there.values.data(), decoded.data(), there.values.size()), 0);
      }
    }
    return on_cpu;
  }

  Status decode_on_cpu(const std::vector<std::byte>& bytes) {
    const std::vector<std::byte> copy(bytes);
    const Context context{.workspace = workspace};
    const TensorView view{values.data(), DType::f32, shape};
    const Status alone = codec.decode(copy, view, context);
    decoded = values;
    const Status any = decode(copy, {&view, 1}, context);
    const Status added = codec.decode_add(copy, 0.5f, view, context);
    EXPECT_EQ(failed(alone), failed(added));
    EXPECT_FALSE(!failed(alone) && failed(any));
    ContainerInfo info;
    (void)inspect(copy, info, true);
    return alone;
  }

  Codec codec = Codec::parse(GetParam());
  Shape shape{12, 40};
  std::vector<std::byte> message, workspace;
  std::vector<float> values, decoded;
  std::vector<float> before = std::vector<float>(shape.elements(), 7.0f);
};

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = std::to_string(info.index) + "_";
  for (const char c : info.param)
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}
/// Those of the library, and where there is no device one that is not.
std::vector<std::string> specs() {
  if constexpr (kOnCpu) {
    static const test::Registered levels(test::levels_definition());
    std::vector<std::string> all = test::all_specs();
    all.emplace_back("levels:levels=5+blosc:codec=zstd");
    return all;
  }
  return test::all_specs();
}
INSTANTIATE_TEST_SUITE_P(Specs, Mutations, testing::ValuesIn(specs()), test_name);

TEST_P(Mutations, EveryTruncation) {
  for (std::size_t n = 0; n < message.size(); n += kCutStride) {
    std::vector<std::byte> cut(message.begin(), message.begin() + static_cast<long>(n));
    EXPECT_TRUE(failed(decode_exactly(cut))) << n;
    repair(cut);
    EXPECT_TRUE(failed(decode_exactly(cut))) << n << " repaired";
  }
}

TEST_P(Mutations, EveryBitFlip) {
  const std::size_t stride = kFlipStride * test::sweep_step(3);
  for (std::size_t bit = 0; bit < 8 * message.size(); bit += stride) {
    auto flipped = message;
    flipped[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_TRUE(failed(decode_exactly(flipped))) << bit;
    repair(flipped);
    (void)decode_exactly(flipped);
  }
}

TEST_P(Mutations, Random) {
  std::mt19937_64 generator(1);
  int accepted = 0;
  const int count = mutations();
  for (int i = 0; i < count; ++i) {
    auto m = message;
    for (std::size_t k = 1 + generator() % 6; k > 0; --k) {
      const std::size_t at = generator() % m.size();
      switch (generator() % 6) {
        case 0:
          m[at] = static_cast<std::byte>(generator());
          break;
        case 1:
          m[at] ^= static_cast<std::byte>(1u << (generator() % 8));
          break;
        case 2:
          m.resize(at + 1);
          break;
        case 3:
          m.insert(m.begin() + static_cast<long>(at), static_cast<std::byte>(generator()));
          break;
        case 4:
          m[at] = std::byte{0xFF};
          break;
        case 5: {
          const std::size_t from = generator() % m.size(),
                            length = std::min(m.size() - std::max(at, from), std::size_t{8});
          std::memmove(m.data() + at, m.data() + from, length);
          break;
        }
      }
    }
    if (generator() % 4 != 0) repair(m);
    accepted += failed(decode_exactly(m)) ? 0 : 1;
  }
  RecordProperty("accepted", accepted);
  EXPECT_LT(accepted, count);
}

}  // namespace
}  // namespace atomo
