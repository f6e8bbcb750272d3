// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <numeric>

#include "codec/body_decoder.hpp"
#include "cpu/topk.hpp"
#include "format/topk_body.hpp"
#include "support/method_support.hpp"

namespace atomo::test {

using namespace model;
namespace {

/// What top-k must decode to, by a stable sort.
std::vector<float> reference(const std::vector<float>& x, std::size_t k) {
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return std::abs(x[a]) > std::abs(x[b]); });
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < k; ++i) y[order[i]] = x[order[i]];
  return y;
}

struct RoundTrip {
  std::vector<std::byte> body;
  std::vector<float> y;
};

RoundTrip round_trip(const std::vector<float>& x, std::uint64_t k, Executor* executor = nullptr) {
  const TopkConfig config{k};
  RoundTrip result;
  result.body.resize(cpu::max_encoded_bytes(config, x.size()));
  std::vector<std::byte> workspace(std::max(cpu::workspace_bytes(config, x.size()),
                                            cpu::decode_workspace_bytes(config, x.size())));
  std::size_t bytes = 0;
  EXPECT_EQ(cpu::encode(config, x.data(), x.size(), workspace, executor, result.body, bytes),
            Status::ok);
  EXPECT_LE(bytes, result.body.size());
  result.body.resize(bytes);
  result.y.resize(x.size());
  EXPECT_EQ(cpu::decode(config, result.body, result.y.data(), x.size(), workspace, nullptr),
            Status::ok);
  return result;
}

TEST(Topk, KeepsTheLargestWithTiesByTheLowestIndex) {
  std::mt19937_64 generator(1);
  for (const std::size_t n : {1u, 2u, 31u, 63u, 64u, 65u, 1009u, 4097u, 20'011u}) {
    std::vector<float> ties(n), zeros(n), tiny(n);
    for (auto& v : ties) v = static_cast<float>(static_cast<int>(generator() % 7) - 3);
    for (auto& v : tiny) v = static_cast<float>(static_cast<int>(generator() % 9) - 4) * 0x1p-149f;
    const std::vector<float> equal(n, -2.5f);
    for (const auto& x :
         {normal_entries(n, n), ties, zeros, tiny, equal, normal_entries(n, n, 5e37f)}) {
      for (const std::size_t k : {std::size_t{1}, n / 100 + 1, n / 3 + 1, n - n / 5, n}) {
        ASSERT_EQ(round_trip(x, k).y, reference(x, k)) << n << " " << k;
      }
    }
  }
}

/// From so many entries on a sample says where to look. It says nothing of use where the largest
/// entries lie between the lines that it takes, or where fewer than k are not zero.
TEST(Topk, ASampleChangesNothing) {
  const std::size_t n = 150'011;
  std::mt19937_64 generator(2);
  std::vector<float> ties(n), rare(n), hidden = normal_entries(n, 6), shown = hidden;
  for (auto& v : ties) v = static_cast<float>(static_cast<int>(generator() % 7) - 3);
  for (std::size_t i = 0; i < n; i += 997) rare[i] = -1.0f - static_cast<float>(i % 5);
  for (std::size_t i = 0; i < n; ++i) {
    const bool is_sampled = i / 16 % 64 == 0;
    hidden[i] *= is_sampled ? 0.001f : 1.0f;
    shown[i] *= is_sampled ? 1000.0f : 1.0f;
  }
  BackwardExecutor executor;
  for (const auto& x : {normal_entries(n, 4), ties, rare, hidden, shown}) {
    for (const std::size_t k : {std::size_t{1}, n / 1000, n / 100, n / 20, n / 16}) {
      const RoundTrip alone = round_trip(x, k), together = round_trip(x, k, &executor);
      ASSERT_EQ(alone.y, reference(x, k)) << k;
      ASSERT_EQ(alone.body, together.body) << k;
    }
  }
}

TEST(Topk, SparsePositionsCostLessThanABitMap) {
  const std::size_t n = 100'000;
  const auto x = normal_entries(n, 4);
  EXPECT_LT(round_trip(x, 1000).body.size(), 4 * 1000 + n / 8 / 5);
  EXPECT_LE(round_trip(x, n / 2).body.size(), 4 * (n / 2) + n / 8 + 4);
}

TEST(Topk, ErrorIsWithinTheContraction) {
  for (const char* spec : {"topk:keep=0.01", "topk:keep=0.3", "topk:keep=0.0001"}) {
    const auto method = codec::parse_spec(spec);
    for (const std::size_t n : {3u, 149u, 5000u}) {
      const std::vector<float> flat(n, 1.0f);  // the worst case: equal entries
      const auto y = decode_body(kind_of(method, n), encode_body(method, flat).bytes).y;
      double error = 0;
      for (const float v : y) error += (v - 1.0) * (v - 1.0);
      EXPECT_LE(error, (1 - *method.traits().contraction) * static_cast<double>(n))
          << spec << " " << n;
    }
  }
}

TEST(Topk, ValuesMustBeFiniteAndAsManyAsStated) {
  const std::size_t n = 200;
  const auto x = normal_entries(n, 1);
  const auto body = round_trip(x, 10).body;
  const TopkConfig config{10};
  std::vector<std::byte> workspace(cpu::decode_workspace_bytes(config, n));
  std::vector<float> y(n);
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    auto changed = body;
    std::memcpy(changed.data() + changed.size() - 4, &bad, 4);
    EXPECT_EQ(cpu::decode(config, changed, y.data(), n, workspace, nullptr), Status::corrupt);
  }
  EXPECT_EQ(cpu::decode({11}, body, y.data(), n, workspace, nullptr), Status::corrupt);
  EXPECT_EQ(cpu::decode({9}, body, y.data(), n, workspace, nullptr), Status::corrupt);
}

TEST(Topk, ValuesStandAtWordsBehindZeros) {
  std::size_t padded = 0;
  for (const std::size_t n : {1u, 9u, 17u, 160u, 4097u, 20'011u}) {
    for (const std::size_t k : {std::size_t{1}, n / 9 + 1, n}) {
      const auto body = round_trip(normal_entries(n, n), k).body;
      coding::MarksReader marks;
      ASSERT_TRUE(marks.open(body, n));
      const std::size_t values_at = format::topk_values_at(marks.bytes());
      ASSERT_EQ(values_at % 4, 0u);
      ASSERT_EQ(body.size(), values_at + 4 * k);
      std::vector<std::byte> workspace(std::max(cpu::workspace_bytes(TopkConfig{k}, n),
                                                cpu::decode_workspace_bytes(TopkConfig{k}, n)));
      std::vector<float> y(n);
      for (std::size_t i = marks.bytes(); i < values_at; ++i, ++padded) {
        auto changed = body;
        changed[i] = std::byte{0x40};
        EXPECT_EQ(cpu::decode({k}, changed, y.data(), n, workspace, nullptr), Status::corrupt);
      }
    }
  }
  EXPECT_GT(padded, 0u);
}

TEST(Topk, CountsWhatItKept) {
  const auto method = codec::parse_spec("topk:keep=0.1");
  const auto kind = kind_of(method, 1000);
  std::uint64_t atoms = 0, kept = 0;
  ASSERT_EQ(codec::find_decoder(kind.method)
                ->count(encode_body(method, normal_entries(1000, 1)).bytes, kind, 0, atoms, kept),
            Status::ok);
  EXPECT_EQ(atoms, 1000u);
  EXPECT_EQ(kept, 100u);
}

}  // namespace
}  // namespace atomo::test
