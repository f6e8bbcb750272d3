// SPDX-License-Identifier: Apache-2.0
/// Drawn entries of chunks: every outcome of a small chunk, the expectation of each rounding to levels,
/// what scales and slots have to keep to, and the same checks failing on planted mistakes.
#include <cmath>
#include <limits>

#include "atomo/codec.hpp"
#include "cpu/chunk_draw.hpp"
#include "format/drawn_values.hpp"
#include "support/method_support.hpp"

namespace atomo::test {

using namespace model;
namespace {

using format::ChunkValues;
using format::DrawnChunk;
using format::DrawnCoder;

/// A chunk of 64 whole numbers whose scale for 4 slots is 64: two certain entries, and shares of 1/64.
std::vector<float> small_chunk() {
  std::vector<float> x(64);
  x[5] = 320, x[40] = -192;
  int left = 128;
  for (std::size_t i = 0; i < 64; ++i) {
    if (x[i] != 0 || left == 0) continue;
    const int own = std::min(left, static_cast<int>(1 + i * 7 % 5));
    x[i] = static_cast<float>(i % 3 == 0 ? -own : own);
    left -= own;
  }
  x[63] += static_cast<float>(left);
  return x;
}

using Draw = std::function<void(const float*, std::size_t, std::uint32_t, float, std::uint32_t,
                                cpu::Candidates&)>;

/// Sums of what is decoded over all 64 starts at which outcomes differ, less 64 times the entries.
std::vector<float> sum_of_errors(const Draw& draw) {
  const auto x = small_chunk();
  std::vector<float> sum(64);
  cpu::Candidates kept;
  for (std::uint32_t start = 0; start < 64; ++start) {
    draw(x.data(), 64, 4, 64, start << 26 | 0x2000000u, kept);
    for (std::uint32_t i = 0; i < kept.count; ++i)
      sum[kept.places[i]] +=
          std::copysign(std::bit_cast<float>(kept.magnitudes[i]), x[kept.places[i]]);
  }
  for (std::size_t i = 0; i < 64; ++i) sum[i] -= 64 * x[i];
  return sum;
}

TEST(ChunkDraw, EveryOutcomeOfASmallChunk) {
  const auto x = small_chunk();
  std::uint32_t guess = 0;
  EXPECT_EQ(cpu::measure_chunk(x.data(), 64, 4, guess).scale, 0x4280u);  // 64
  EXPECT_EQ(sum_of_errors(cpu::draw_entries), std::vector<float>(64));
  // Each outcome has all slots.
  cpu::Candidates kept;
  for (std::uint32_t start = 0; start < 64; ++start) {
    cpu::draw_entries(x.data(), 64, 4, 64, start << 26, kept);
    EXPECT_EQ(kept.count, 4u);
  }
}

TEST(ChunkDraw, PlantedMistakesOfADrawAreCaught) {
  const Draw own_value = [](const float* x, std::size_t n, std::uint32_t k, float scale,
                            std::uint32_t random, cpu::Candidates& out) {
    cpu::draw_entries(x, n, k, scale, random, out);
    for (std::uint32_t i = 0; i < out.count; ++i)
      out.magnitudes[i] = cpu::magnitude_of(x[out.places[i]]);
  };
  const Draw other_scale = [](const float* x, std::size_t n, std::uint32_t k, float scale,
                              std::uint32_t random, cpu::Candidates& out) {
    cpu::draw_entries(x, n, k, 2 * scale, random, out);
    for (std::uint32_t i = 0; i < out.count; ++i)
      if (out.magnitudes[i] == cpu::magnitude_of(2 * scale))
        out.magnitudes[i] = cpu::magnitude_of(scale);
  };
  const Draw one_start = [](const float* x, std::size_t n, std::uint32_t k, float scale,
                            std::uint32_t,
                            cpu::Candidates& out) { cpu::draw_entries(x, n, k, scale, 7, out); };
  const Draw fewer_slots = [](const float* x, std::size_t n, std::uint32_t k, float scale,
                              std::uint32_t random, cpu::Candidates& out) {
    cpu::draw_entries(x, n, k - 1, scale, random, out);
  };
  for (const Draw& draw : {own_value, other_scale, one_start, fewer_slots})
    EXPECT_NE(sum_of_errors(draw), std::vector<float>(64));
}

/// The least scale, by trying all of them.
std::uint32_t scale_by_trying(const std::vector<float>& x, std::uint32_t slots) {
  const auto fits = [&](std::uint32_t word) {
    const auto scale = math::share_scale(word);
    std::uint64_t sum = 0;
    for (const float v : x) sum += math::share_of(std::abs(v), scale);
    return sum <= std::uint64_t{slots} * math::kWholeShare;
  };
  std::uint32_t low = 0, high = math::kMaxScaleWord;
  while (low + 1 < high) (fits((low + high) / 2) ? high : low) = (low + high) / 2;
  return high;
}

std::vector<std::vector<float>> chunks(std::size_t n) {
  std::vector<std::vector<float>> all = {normal_entries(n, 1), normal_entries(n, 2, 1e-40f),
                                         normal_entries(n, 3, 1e30f), std::vector<float>(n, -2.5f),
                                         std::vector<float>(n)};
  auto heavy = normal_entries(n, 4);
  for (float& v : heavy) v = v * v * v * v * v;
  auto rare = std::vector<float>(n);
  for (std::size_t i = 0; i < n; i += 9) rare[i] = heavy[i];
  all.push_back(heavy);
  all.push_back(rare);
  return all;
}

TEST(ChunkDraw, TheScaleIsTheLeastThatHasSlotsEnough) {
  for (const std::size_t n : {1u, 63u, 64u, 1000u, 4096u}) {
    for (const auto& x : chunks(n)) {
      for (const std::uint32_t slots : {1u, 7u, 64u, 1000u}) {
        for (std::uint32_t guess : {0u, 1u, 0x3F80u, 0x7F7Eu}) {
          ASSERT_EQ(cpu::measure_chunk(x.data(), n, slots, guess).scale, scale_by_trying(x, slots))
              << n << " " << slots << " " << guess;
        }
      }
    }
  }
}

/// The expectation of a rounding to levels: how many of 2^32 random words take the upper one.
double expected(const DrawnCoder& coder, ChunkValues values, float magnitude) {
  const std::uint32_t entry = std::bit_cast<std::uint32_t>(magnitude);
  const auto value = [&](std::uint32_t level) {
    return double{format::chunk_value(values == ChunkValues::two ? ChunkValues::four : values,
                                      level, [&](unsigned w) { return coder.word(w); })};
  };
  const std::uint32_t down = coder.quantise(entry, ~0u), up = coder.quantise(entry, 0);
  std::uint64_t low = 0, high = std::uint64_t{1} << 32;  // the first word that goes down
  while (low < high) {
    const std::uint64_t middle = (low + high) / 2;
    if (coder.quantise(entry, static_cast<std::uint32_t>(middle)) != down)
      low = middle + 1;
    else
      high = middle;
  }
  const double p = static_cast<double>(low) * 0x1p-32;
  return (1 - p) * value(down) + p * value(up);
}

TEST(ChunkDraw, RoundingToLevelsIsRightOnAverage) {
  for (const std::uint32_t scale : {1u, 0x20u, 0x2000u, 0x3F80u, 0x7000u}) {
    const float low = core::from_bf16(static_cast<std::uint16_t>(scale));
    for (const float times : {1.0f, 1.7f, 40.0f, 3000.0f}) {
      const DrawnChunk group{scale, cpu::magnitude_of(low), cpu::magnitude_of(low * times)};
      for (const ChunkValues values : {ChunkValues::sign, ChunkValues::two, ChunkValues::four,
                                       ChunkValues::eight, ChunkValues::f16}) {
        const DrawnCoder coder(values, group);
        const float least = coder.scale(group);
        EXPECT_GE(least, low);
        for (int i = 0; i <= 50; ++i) {
          const float x =
              values == ChunkValues::sign
                  ? least
                  : std::max(least, low * (1 + (times - 1) * static_cast<float>(i) / 50));
          ASSERT_NEAR(expected(coder, values, x), double{x}, 0x1p-30 * low * times)
              << static_cast<int>(values) << " " << scale << " " << times << " " << i;
        }
      }
    }
  }
}

/// What is decoded has no more entries than slots, none of another sign, and errs by omega at most.
TEST(ChunkDraw, MessagesKeepToSlotsSignsAndOmega) {
  for (const char* values : {"sign", "2", "4", "8", "f16", "f32"}) {
    for (const std::size_t chunk : {64u, 512u}) {
      const auto codec = codec::parse_spec("topk:chunk=" + std::to_string(chunk) +
                                           ",k=20,values=" + values + ",select=drawn");
      EXPECT_TRUE(codec.traits().unbiased);
      for (const std::size_t n : {1u, 63u, 1009u, 30'011u}) {
        for (const auto& x : chunks(n)) {
          double energy = 0, error = 0;
          constexpr int kMessages = 8;
          for (std::uint32_t step = 0; step < kMessages; ++step) {
            const Key key{.seed = 5, .step = step};
            const Body body = encode_body(codec, x, key);
            ASSERT_EQ(body.status, Status::ok);
            const Values decoded = decode_body(kind_of(codec, n), body.bytes, key);
            ASSERT_EQ(decoded.status, Status::ok);
            for (std::size_t at = 0; at < n; at += chunk) {
              std::size_t kept = 0;
              for (std::size_t i = at; i < std::min(n, at + chunk); ++i) {
                kept += decoded.y[i] != 0 ? 1 : 0;
                ASSERT_GE(decoded.y[i] * (x[i] < 0 ? -1.0f : 1.0f), 0.0f);
                const double e = double{decoded.y[i]} - x[i];
                error += e * e / kMessages;
                energy += double{x[i]} * x[i] / kMessages;
              }
              ASSERT_LE(kept, 20u);
            }
          }
          ASSERT_LE(error, *codec.traits().omega * energy * 1.2 + 1e-78) << values << " " << n;
        }
      }
    }
  }
}

/// Sums of errors over 3,000 messages, in units of their own deviation; behind a transform too.
TEST(ChunkDraw, TransformedTilesAreRightOnAverage) {
  const Shape shape{24, 32};
  const auto x = normal_entries(shape.elements(), 8);
  for (const char* spec : {"topk:chunk=256,k=40,values=f32,dct=32,select=drawn",
                           "topk:chunk=256,k=40,values=4,dct=32,select=drawn"}) {
    const auto codec = Codec::parse(spec);
    std::vector<std::byte> message(codec.max_encoded_bytes(shape)),
        workspace(codec.encode_workspace_bytes(shape) + codec.decode_workspace_bytes(shape));
    std::vector<float> y(x.size());
    std::vector<double> sum(x.size()), squares(x.size());
    for (std::uint32_t step = 0; step < 3000; ++step) {
      std::uint64_t bytes = 0;
      ASSERT_EQ(codec.encode({x.data(), DType::f32, shape}, {.seed = 77, .step = step},
                             {message.data(), message.size(), &bytes}, {.workspace = workspace}),
                Status::ok);
      ASSERT_EQ(codec.decode({message.data(), bytes}, {y.data(), DType::f32, shape},
                             {.workspace = workspace}),
                Status::ok);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double error = double{y[i]} - x[i];
        sum[i] += error;
        squares[i] += error * error;
      }
    }
    // 7 deviations: below 1e-9 for 1,536 sums of normal errors.
    for (std::size_t i = 0; i < x.size(); ++i)
      ASSERT_LE(std::abs(sum[i]), 7 * std::sqrt(squares[i])) << spec << " " << i;
  }
}

/// A group of more than twice the entries that are kept between the two passes: tiles are drawn as their entries are
/// one after the other. The largest chunk comes first, then last.
TEST(ChunkDraw, TilesOfALargeGroupAreDrawnAsTheirEntries) {
  constexpr std::size_t kTiles = 36, kSide = 64, kTile = kSide * kSide, kWidth = kTiles * kSide;
  const Shape shape{kSide, kWidth};
  for (const std::size_t largest : {std::size_t{0}, kTiles - 1}) {
    auto x = normal_entries(shape.elements(), 9);
    std::vector<float> sequence(x.size());
    const auto place = [&](std::size_t i) {
      return i % kWidth / kSide * kTile + i / kWidth * kSide + i % kSide;
    };
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (place(i) / kTile == largest) x[i] *= 5;
      sequence[place(i)] = x[i];
    }
    const auto decoded = [&](const char* spec, const std::vector<float>& entries) {
      const auto codec = Codec::parse(spec);
      std::vector<std::byte> message(codec.max_encoded_bytes(shape)),
          workspace(codec.encode_workspace_bytes(shape) + codec.decode_workspace_bytes(shape));
      std::vector<float> y(entries.size());
      std::uint64_t bytes = 0;
      EXPECT_EQ(codec.encode({entries.data(), DType::f32, shape}, {.seed = 3},
                             {message.data(), message.size(), &bytes}, {.workspace = workspace}),
                Status::ok);
      EXPECT_EQ(codec.decode({message.data(), bytes}, {y.data(), DType::f32, shape},
                             {.workspace = workspace}),
                Status::ok);
      return y;
    };
    const auto tiles = decoded("topk:chunk=4096,k=2,values=4,tile=64,select=drawn", x);
    const auto entries = decoded("topk:chunk=4096,k=2,values=4,select=drawn", sequence);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(tiles[i], entries[place(i)]) << i;
  }
}

TEST(ChunkDraw, NonFiniteEntriesAreFound) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    auto x = normal_entries(9000, 5);
    x[8191] = bad;
    EXPECT_EQ(encode_body(codec::parse_spec("topk:chunk=64,k=1,select=drawn"), x).status,
              Status::non_finite);
  }
}

}  // namespace
}  // namespace atomo::test
