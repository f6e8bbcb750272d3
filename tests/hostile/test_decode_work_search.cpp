// SPDX-License-Identifier: Apache-2.0
/// A search for the messages that cost a decoder most: from a message of each spec it goes on by
/// mutations whose checksums hold, keeps those whose counted work comes nearer to the bound that
/// SECURITY.md states, and none may pass it. `ATOMO_FUZZ_SECONDS` gives each spec so much time
/// (tests/fuzz/run.sh).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "fuzz/mutations.hpp"
#include "hostile/decode_work.hpp"
#include "support/support.hpp"

namespace atomo {
namespace {

using fuzz::Buffer;

constexpr std::size_t kMostElements = 1 << 15, kMostBytes = 1 << 18, kKept = 6;
constexpr int kTrials = 250;

double seconds_of_a_spec() {
  const char* seconds = std::getenv("ATOMO_FUZZ_SECONDS");
  return seconds == nullptr ? 0 : std::atof(seconds);
}

/// Whether the message has one layer, of a size to be decoded here.
bool kind_of(const Buffer& message, format::Kind& kind) {
  format::Head head;
  if (failed(format::Head::parse(message, true, head)) || head.layers() != 1) return false;
  format::LayerCursor layer(head);
  Status status = Status::ok;
  if (!layer.next(status)) return false;
  kind = layer.kind;
  return kind.shape.elements() <= kMostElements;
}

struct Found {
  Buffer message;
  double share = 0;  ///< of the bound
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;  ///< in and out
  Status status = Status::ok;
};

/// How near to its bound a message comes; 0 for one that is not decoded here.
Found measured(const Buffer& message) {
  format::Kind kind;
  if (!kind_of(message, kind)) return {};
  const test::Work work = test::decode_counted(message, kind.shape);
  const std::uint64_t most = test::most_blocks(kind, message.size());
  EXPECT_LE(work.blocks, most) << codec::find_decoder(kind.method)->describe(kind) << ", "
                               << kind.shape.to_string() << ", " << message.size()
                               << " bytes: " << describe(work.status);
  return {message, static_cast<double>(work.blocks) / static_cast<double>(most), work.blocks,
          message.size() + 4 * kind.shape.elements(), work.status};
}

class Search {
 public:
  explicit Search(const Buffer& first) { keep(measured(first)); }

  void step() {
    Buffer message = kept_[draw_() % kept_.size()].message;
    const fuzz::AnyMutation any = [&](Buffer& part, std::size_t most) {
      fuzz::mutate_bytes(part, most, draw_, kept_[draw_() % kept_.size()].message, nullptr);
    };
    for (std::size_t times = 1 + draw_() % 3; times > 0; --times)
      fuzz::mutate_container(message, kMostBytes, any, draw_);
    keep(measured(message));
  }
  [[nodiscard]] const Found& worst() const { return kept_.front(); }

 private:
  void keep(Found found) {
    if (found.share == 0) return;
    kept_.push_back(std::move(found));
    std::stable_sort(kept_.begin(), kept_.end(),
                     [](const Found& a, const Found& b) { return a.share > b.share; });
    if (kept_.size() > kKept) kept_.pop_back();
  }
  fuzz::Draw draw_{1};
  std::vector<Found> kept_;
};

std::vector<std::string> specs() {
  std::vector<std::string> all;
  for (const CodecHelp& help : list_codecs())
    all.insert(all.end(), help.specs.begin(), help.specs.end());
  all.emplace_back("atomo:bits=2,atoms=svd+blosc:codec=zstd");
  all.emplace_back("atomo:atoms=svd,keep=3,values=f32+blosc:codec=zstd");
  return all;
}

class DecodeWorkSearch : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Specs, DecodeWorkSearch, testing::ValuesIn(specs()), [](const auto& spec) {
  std::string name = std::to_string(spec.index) + "_";
  for (const char c : spec.param)
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

TEST_P(DecodeWorkSearch, FindsNoMessageBeyondTheBound) {
  using Clock = std::chrono::steady_clock;
  const double seconds = seconds_of_a_spec();
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  const Shape shape{80, 96};
  const auto x = test::heavy_tailed(shape.elements(), 3, 96);
  Search search(test::encode(Codec::parse(GetParam()), x, shape).bytes);
  const double before = search.worst().share;
  for (int i = 0; seconds > 0 ? Clock::now() < end : i < kTrials; ++i) search.step();
  const Found& worst = search.worst();
  ASSERT_GT(worst.share, 0);
  EXPECT_GE(worst.share, before);
  const double of_a_byte = static_cast<double>(worst.blocks) / static_cast<double>(worst.bytes);
  RecordProperty("blocks_of_a_byte", std::to_string(of_a_byte));
  if (seconds > 0) {
    std::printf(
        "%-52s %6.2f blocks a byte in and out, %5.1f %% of the bound (%5.1f %% at first), %s\n",
        GetParam().c_str(), of_a_byte, 100 * worst.share, 100 * before,
        std::string(describe(worst.status)).c_str());
  }
}

}  // namespace
}  // namespace atomo
