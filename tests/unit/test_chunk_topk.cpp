// SPDX-License-Identifier: Apache-2.0
/// Chunked top-k keeps what a stable sort of each chunk says, sends it near its entropy, and refuses
/// whatever contradicts the format.
#include <array>
#include <limits>
#include <numbers>
#include <numeric>
#include <tuple>
#include <utility>

#include "atomo/codec.hpp"
#include "atomo/container.hpp"
#include "coding/rice.hpp"
#include "cpu/chunk_topk.hpp"
#include "cpu/tile_sequence.hpp"
#include "format/chunk_values.hpp"
#include "support/method_support.hpp"
#include "support/sizes.hpp"

namespace atomo::test {

using namespace model;
namespace {

using format::ChunkBody;
using format::ChunkConfig;

/// The places that are kept of one chunk, ascending.
std::vector<std::size_t> kept_places(const float* x, std::size_t n, std::size_t k) {
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return std::abs(x[a]) > std::abs(x[b]); });
  order.resize(k);
  std::erase_if(order, [&](std::size_t i) { return x[i] == 0; });
  std::sort(order.begin(), order.end());
  return order;
}

/// What values=f32 must decode to.
std::vector<float> reference(const std::vector<float>& x, std::size_t chunk, std::size_t k) {
  std::vector<float> y(x.size());
  for (std::size_t at = 0; at < x.size(); at += chunk) {
    const std::size_t n = std::min(chunk, x.size() - at);
    for (const std::size_t i : kept_places(x.data() + at, n, (k * n + chunk - 1) / chunk))
      y[at + i] = x[at + i];
  }
  return y;
}

std::vector<float> round_trip(const std::string& spec, const std::vector<float>& x,
                              Executor* executor = nullptr, std::size_t* bytes = nullptr) {
  const auto codec = codec::parse_spec(spec);
  const Body body = encode_body(codec, x, {}, executor);
  EXPECT_EQ(body.status, Status::ok) << spec;
  if (bytes != nullptr) *bytes = body.bytes.size();
  const Values values = decode_body(kind_of(codec, x.size()), body.bytes);
  EXPECT_EQ(values.status, Status::ok) << spec;
  return values.y;
}

std::string spec_of(std::size_t chunk, std::size_t k, const char* values) {
  return "topk:chunk=" + std::to_string(chunk) + ",k=" + std::to_string(k) + ",values=" + values;
}

/// Tensors with ties, zeros, subnormals, extremes and rows of other sizes.
std::vector<std::vector<float>> tensors(std::size_t n) {
  std::mt19937_64 generator(n);
  std::vector<float> ties(n), tiny(n), rare(n), rows = normal_entries(n, n), one(n);
  for (auto& v : ties) v = static_cast<float>(static_cast<int>(generator() % 7) - 3);
  for (auto& v : tiny) v = static_cast<float>(static_cast<int>(generator() % 9) - 4) * 0x1p-149f;
  for (std::size_t i = 0; i < n; i += 97) rare[i] = -1.0f - static_cast<float>(i % 5);
  for (std::size_t i = 0; i < n; ++i) rows[i] *= std::exp2(static_cast<float>(i / 500 % 40) - 20);
  one[n - 1] = -3.0e38f;
  return {normal_entries(n, n),
          ties,
          std::vector<float>(n),
          tiny,
          std::vector<float>(n, -2.5f),
          normal_entries(n, n, 5e37f),
          rare,
          rows,
          one};
}

TEST(ChunkTopk, KeepsTheLargestOfEachChunkWithTiesByTheLowestIndex) {
  for (const std::size_t n : {1u, 2u, 63u, 64u, 65u, 1009u, 4096u, 4097u, 70'011u}) {
    for (const auto& x : tensors(n)) {
      for (const std::size_t chunk : {64u, 512u, 4096u}) {
        for (const std::size_t k : {std::size_t{1}, std::size_t{4}, chunk / 10, chunk - 1, chunk}) {
          if (test::in_turns() && n > 10'000 && k != chunk / 10) continue;
          ASSERT_EQ(round_trip(spec_of(chunk, k, "f32"), x), reference(x, chunk, k))
              << n << " " << chunk << " " << k;
        }
      }
    }
  }
}

/// What is kept is the same whatever the values are sent as, and they are near.
TEST(ChunkTopk, ParametersOfGapsFollowFromFloatsToo) {
  for (std::uint32_t marks = 1; marks <= ChunkConfig::kMaxChunk; ++marks) {
    for (std::uint32_t left = 0; left <= ChunkConfig::kMaxChunk; ++left) {
      if (format::gap_parameter_of_floats(left, marks) != format::gap_parameter(left, marks))
        FAIL() << left << " entries left, " << marks << " marks";
    }
  }
}

TEST(ChunkTopk, ValuesOfFewBitsAreNear) {
  for (const std::size_t n : {1u, 1009u, 70'011u}) {
    for (const auto& x : tensors(n)) {
      const auto kept = reference(x, 512, 20);
      double energy = 0;
      for (const float v : kept) energy += double{v} * v;
      double before = std::numeric_limits<double>::infinity();
      for (const char* values : {"sign", "2", "4", "8", "f16"}) {
        const auto y = round_trip(spec_of(512, 20, values), x);
        double error = 0;
        for (std::size_t i = 0; i < n; ++i) {
          ASSERT_TRUE(std::isfinite(y[i]));
          if (kept[i] == 0) {
            ASSERT_EQ(y[i], 0.0f) << i;
          } else if (y[i] != 0) {
            ASSERT_EQ(std::signbit(y[i]), std::signbit(kept[i])) << i;
          }
          error += (double{y[i]} - kept[i]) * (double{y[i]} - kept[i]);
        }
        EXPECT_LE(error, energy + 1e-80) << n << " " << values;
        EXPECT_LE(error, before * 1.1 + 1e-4 * energy + 1e-80) << n << " " << values;
        before = error;
      }
      EXPECT_LE(before, 1e-6 * energy + 1e-80) << n;
    }
  }
}

TEST(ChunkTopk, BinsAreThoseOfTheFormat) {
  const auto codec = codec::parse_spec("topk:chunk=64,k=4,values=2");
  std::vector<float> x(64);
  x[3] = 1, x[9] = -5, x[10] = 1, x[60] = 5;
  const auto body = encode_body(codec, x).bytes;
  // One group: its length, padding, three level words, padding, a word of signs, gaps.
  const std::vector<float> y = decode_body(kind_of(codec, 64), body).y;
  EXPECT_EQ(y, x);
  EXPECT_EQ(core::load_le<std::uint16_t>(body.data() + 4), 0x3F80);  // 1
  EXPECT_EQ(core::load_le<std::uint16_t>(body.data() + 6), 0x40A0);  // 5
  EXPECT_EQ(core::load_le<std::uint16_t>(body.data() + 8), 2);       // of them
  EXPECT_EQ(core::load_le<std::uint32_t>(body.data() + 12), 0b0010u);
  // Gaps 3, 5, 0, 49 of 64, 60, 54, 53 left; then slots 1 and 3 of 4.
  const unsigned parameters[] = {3, 3, 4, 4, 0, 0};
  const std::uint32_t gaps[] = {3, 5, 0, 49, 1, 1};
  std::vector<std::byte> expected(64);
  core::BitWriter out(expected.data(), expected.size());
  for (std::size_t i = 0; i < 6; ++i) {
    const auto word = coding::rice_word(gaps[i], parameters[i], format::kRawGapBits);
    out.put(word.bits, word.count);
  }
  expected.resize(out.finish());
  EXPECT_EQ(std::vector(body.begin() + 16, body.end()), expected);
}

/// Entries of a distribution: normal, Laplace, Student's t of 3 degrees, and rows of other sizes with
/// columns that are often large, as gradients of embeddings have them.
std::vector<float> sample(const std::string& name, std::size_t n) {
  std::mt19937_64 generator(11);
  std::normal_distribution<double> normal;
  std::exponential_distribution<double> exponential;
  std::student_t_distribution<double> student(3);
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    const double row = std::exp2(static_cast<double>(i / 1024 * 2654435761u % 64) / 16);
    const double column = i % 1024 % 41 == 0 ? 3 : 1;
    x[i] = static_cast<float>(name == "normal" ? normal(generator)
                              : name == "laplace"
                                  ? exponential(generator) * (generator() % 2 != 0 ? 1 : -1)
                              : name == "student" ? student(generator)
                                                  : row * column * normal(generator));
  }
  return x;
}

double log2_choose(double n, double k) {
  return (std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1)) / std::log(2.0);
}

/// Bits a value that which `k` of a chunk are kept, their signs and their bins take at least, the bins of
/// each value of y counted.
double entropy_bound(const std::vector<float>& y, double chunk, double k) {
  std::vector<float> kept;
  for (const float v : y) {
    if (v != 0) kept.push_back(std::abs(v));
  }
  // A group of 16 chunks or 256 has bins of its own: its levels ascend.
  const std::size_t group = k == 4 ? 1024 : static_cast<std::size_t>(16 * k);
  double bins = 0;
  for (std::size_t at = 0; at < kept.size(); at += group) {
    std::vector<float> own(
        kept.begin() + static_cast<std::ptrdiff_t>(at),
        kept.begin() + static_cast<std::ptrdiff_t>(std::min(kept.size(), at + group)));
    std::sort(own.begin(), own.end());
    for (auto from = own.begin(); from != own.end();) {
      const auto to = std::upper_bound(from, own.end(), *from);
      const auto count = static_cast<double>(to - from);
      bins += count * std::log2(static_cast<double>(own.size()) / count);
      from = to;
    }
  }
  return log2_choose(chunk, k) / k + 1 + bins / static_cast<double>(kept.size());
}

/// Beside it what deployed coders take for the same content, 12 bits a place and 2 (SparseLoCo) or 16
/// and 1 (DisTrO) a value, and top-k of as many entries with a lossless stage.
TEST(ChunkTopk, IsWithinFourPercentOfTheEntropy) {
  const std::size_t n = std::size_t{1} << 22;
  std::printf("%-10s %-34s %9s %9s %9s %9s %9s\n", "entries", "spec", "bits/par.", "a value",
              "entropy", "deployed", "blosc");
  for (const char* name : {"normal", "laplace", "student", "rows"}) {
    const auto x = sample(name, n);
    const std::pair<int, const char*> specs[] = {{64, "topk:chunk=4096,k=64,values=2"},
                                                 {64, "topk:chunk=4096,k=64,values=sign"},
                                                 {32, "topk:chunk=4096,k=32,values=sign"},
                                                 {4, "topk:chunk=4096,k=4,values=sign"}};
    for (const auto& [k, spec] : specs) {
      std::size_t bytes = 0;
      const auto y = round_trip(spec, x, nullptr, &bytes);
      const double kept = static_cast<double>(n) / 4096 * k;
      const double bits = 8 * static_cast<double>(bytes) / kept, bound = entropy_bound(y, 4096, k);
      const auto other =
          codec::parse_spec("topk:keep=" + std::to_string(int(kept)) + "+blosc:codec=zstd");
      std::printf("%-10s %-34s %9.5f %9.3f %9.3f %9.1f %9.3f\n", name, spec,
                  bits * kept / double(n), bits, bound, k == 4 ? 17.0 : 14.0,
                  8 * double(encode_body(other, x).bytes.size()) / kept);
      // Places that follow a pattern take less than any would.
      if (std::string(name) != "rows") {
        EXPECT_GE(bits, bound) << name << " " << spec;
      }
      EXPECT_LE(bits, 1.04 * bound) << name << " " << spec;
    }
  }
}

/// Encodes and decodes a tensor of a shape. `body_bytes`: of the message without its head.
std::vector<float> round_trip_of(const std::string& spec, const std::vector<float>& x,
                                 const Shape& shape, std::uint64_t* body_bytes = nullptr) {
  const auto codec = Codec::parse(spec);
  std::vector<std::byte> message(codec.max_encoded_bytes(shape)),
      workspace(codec.encode_workspace_bytes(shape) + codec.decode_workspace_bytes(shape));
  std::uint64_t bytes = 0;
  std::vector<float> y(x.size());
  EXPECT_EQ(codec.encode({x.data(), DType::f32, shape}, {},
                         {message.data(), message.size(), &bytes}, {.workspace = workspace}),
            Status::ok);
  EXPECT_EQ(codec.decode({message.data(), bytes}, {y.data(), DType::f32, shape},
                         {.workspace = workspace}),
            Status::ok);
  if (body_bytes != nullptr) {
    ContainerInfo info;
    EXPECT_EQ(inspect({message.data(), bytes}, info), Status::ok);
    *body_bytes = bytes - info.head_bytes;
  }
  return y;
}

/// Of a matrix of 4,194,304 entries, its head left out: within four percent of places that follow no
/// pattern, a sign and, of two bits, a bit that tells the bin. What deployed coders take is 12 bits a place and
/// 2 (SparseLoCo) or 16 and 1 (DisTrO) a value.
TEST(ChunkTopk, PresetsTakeLessThanDeployedCoders) {
  const Shape shape{4096, 1024};
  const double n = static_cast<double>(shape.elements());
  std::printf("%-10s %-10s %9s %9s %9s\n", "entries", "preset", "bits/par.", "a value", "deployed");
  for (const char* name : {"normal", "laplace", "student", "rows"}) {
    const auto x = sample(name, shape.elements());
    for (const auto& [preset, k, deployed, of_value] :
         {std::tuple{"sparseloco", 64, 14.0, 2.0}, std::tuple{"psyche", 4, 17.0, 1.0}}) {
      std::uint64_t bytes = 0;
      round_trip_of(preset, x, shape, &bytes);
      const double values = n / 4096 * k, bits = 8 * static_cast<double>(bytes) / values;
      std::printf("%-10s %-10s %9.5f %9.3f %9.1f\n", name, preset, bits * values / n, bits,
                  deployed);
      EXPECT_LE(bits, 1.04 * (log2_choose(4096, k) / k + of_value)) << name << " " << preset;
    }
  }
}

/// Where all entries are kept, tiles come back as they were, transformed ones but for rounding.
TEST(ChunkTopk, TilesComeBack) {
  for (const Shape& shape : {Shape{96, 200}, Shape{7, 64}, Shape{130}, Shape{29, 3, 50}}) {
    auto x = normal_entries(shape.elements(), 3);
    for (auto& v : x) v += v == 0 ? 1.0f : 0.0f;
    EXPECT_EQ(round_trip_of("topk:chunk=64,k=64,values=f32,tile=64", x, shape), x);
    const auto y = round_trip_of("topk:chunk=64,k=64,values=f32,dct=64", x, shape);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(y[i], x[i], 1e-5) << i;
  }
}

/// A smooth tile has one large number, the first.
TEST(ChunkTopk, TheTransformGathersASmoothTile) {
  const std::vector<float> x(64 * 64, 0.25f);
  const auto y = round_trip_of("topk:chunk=4096,k=1,values=f32,dct=64", x, Shape{64, 64});
  for (const float v : y) ASSERT_NEAR(v, 0.25f, 1e-6);
}

/// The numbers of an orthonormal DCT-II, for sides that fold often, once and never.
TEST(ChunkTopk, TheTransformIsTheDct) {
  for (const auto& [h, w] : {std::pair{64u, 64u}, {48u, 40u}, {62u, 33u}, {7u, 50u}, {1u, 63u}}) {
    const auto tiles = math::Tiles::of(2, h, std::uint64_t{h} * w, 64);
    ASSERT_EQ(tiles.height, h);
    ASSERT_EQ(tiles.width, w);
    const auto x = normal_entries(std::size_t{h} * w, h);
    std::vector<float> found(x.size());
    ASSERT_TRUE(cpu::TileReader(tiles, true, x.data()).read(0, found.data()));
    const auto basis = [](double n, double k, double j) {
      return std::sqrt((k == 0 ? 1 : 2) / n) *
             std::cos(std::numbers::pi * (2 * j + 1) * k / (2 * n));
    };
    for (std::size_t k = 0; k < h; k += 3) {
      for (std::size_t l = 0; l < w; ++l) {
        double sum = 0;
        for (std::size_t i = 0; i < x.size(); ++i)
          sum += x[i] * basis(h, double(k), double(i / w)) * basis(w, double(l), double(i % w));
        ASSERT_NEAR(found[k * w + l], sum, 4e-6) << h << " " << w << " " << k << " " << l;
      }
    }
  }
}

/// A tile's inverse transform as the format has it: all terms of all sums.
std::vector<float> inverse_of(const math::Tiles& tiles, const std::vector<float>& frequencies) {
  static const math::dct::Table table = math::dct::make_table();
  const auto turn_back = [](std::uint32_t n, auto at) {
    std::vector<float> in(n), out(n);
    for (std::uint32_t k = 0; k < n; ++k) in[k] = at(math::dct::frequency_of(n, k));
    for (std::uint32_t place = 0; place < n; ++place) {
      const auto own = math::dct::segment_of(n, place);
      for (std::uint32_t i = own.begin; i < own.end; ++i)
        out[place] = std::fma(in[i], math::dct::factor(table, n, i, place), out[place]);
    }
    for (std::uint32_t half = math::dct::folded_length(n); half < n; half *= 2) {
      for (std::uint32_t i = 0; i < half; ++i) {
        float &a = out[half - 1 - i], &b = out[half + i];
        std::tie(a, b) = std::pair{a + b, a - b};
      }
    }
    return out;
  };
  const std::uint32_t h = tiles.height, w = tiles.width;
  std::vector<float> half(frequencies.size()), y(frequencies.size());
  for (std::uint32_t c = 0; c < w; ++c) {
    const auto column =
        turn_back(h, [&](std::uint32_t k) { return frequencies[k * w + c] * math::dct::kScaleIn; });
    for (std::uint32_t r = 0; r < h; ++r) half[r * w + c] = column[r];
  }
  for (std::uint32_t r = 0; r < h; ++r) {
    const auto row = turn_back(w, [&](std::uint32_t k) { return half[r * w + k]; });
    for (std::uint32_t c = 0; c < w; ++c) y[r * w + c] = math::dct::scaled_out(row[c]);
  }
  return y;
}

/// Terms of entries that are not kept are left out: every bit is as with them, signs of zeros too.
TEST(ChunkTopk, TheInverseHasTheBitsOfAllTerms) {
  std::mt19937_64 generator(5);
  for (const auto& [h, w] : {std::pair{64u, 64u}, {50u, 50u}, {1u, 64u}, {29u, 3u}, {48u, 37u}}) {
    const auto tiles = math::Tiles::of(2, h, std::uint64_t{h} * w, 64);
    for (const float scale : {1.0f, 0x1p-51f, 0x1p-100f, 0x1p-130f, 0x1p-148f, 0x1p120f}) {
      for (const std::size_t count : {0u, 1u, 4u, 40u, h * w}) {
        std::vector<float> frequencies(std::size_t{h} * w);
        for (std::size_t i = 0; i < count; ++i)
          frequencies[generator() % frequencies.size()] =
              scale * static_cast<float>(static_cast<int>(generator() % 9) - 4);
        std::vector<cpu::KeptEntry> kept;
        for (std::uint32_t i = 0; i < frequencies.size(); ++i) {
          if (frequencies[i] != 0) kept.push_back({i, frequencies[i]});
        }
        const auto v = inverse_of(tiles, frequencies);
        std::vector<float> y(v.size()), sum(v.size(), -0.0f), expected(v.size());
        cpu::TileWriter(tiles, true, false, 1, y.data()).write(0, kept);
        ASSERT_EQ(std::memcmp(y.data(), v.data(), 4 * v.size()), 0)
            << h << " " << w << " " << scale << " " << count;
        for (std::size_t i = 0; i < v.size(); ++i) expected[i] = sum[i] + (-0.5f * v[i]);
        cpu::TileWriter(tiles, true, true, -0.5f, sum.data()).write(0, kept);
        ASSERT_EQ(std::memcmp(sum.data(), expected.data(), 4 * v.size()), 0)
            << h << " " << w << " " << scale << " " << count;
      }
    }
  }
}

/// Tiles on the borders of tasks, several messages, and an entry that is not finite in any tile.
TEST(ChunkTopk, TilesDoNotDependOnTheExecutor) {
  BackwardExecutor backward;
  ThreadPool pool(3);
  const Shape shape{650,
                    1000};  // tiles of 50 x 50: no border of a chunk but the first is one of theirs
  auto x = normal_entries(shape.elements(), 8);
  for (const char* spec : {"psyche", "demo", "sparseloco", "topk:chunk=64,k=3,values=4,dct=64",
                           "topk:chunk=64,k=3,values=f32,dct=64,select=drawn",
                           "topk:chunk=128,k=5,values=2,tile=64"}) {
    const auto codec = Codec::parse(spec);
    // No workspace has room for the sequence.
    EXPECT_LT(codec.encode_workspace_bytes(shape), x.size()) << spec;
    EXPECT_LT(codec.decode_workspace_bytes(shape), x.size()) << spec;
    std::vector<std::byte> message(codec.max_encoded_bytes(shape)),
        workspace(codec.encode_workspace_bytes(shape));
    std::vector<std::byte> first;
    std::vector<float> all;
    for (Executor* executor : {static_cast<Executor*>(nullptr), static_cast<Executor*>(&backward),
                               static_cast<Executor*>(&pool)}) {
      const Context context{.workspace = workspace, .executor = executor};
      std::uint64_t bytes = 0;
      const auto encode = [&] {
        return codec.encode({x.data(), DType::f32, shape}, {.seed = 7},
                            {message.data(), message.size(), &bytes}, context);
      };
      ASSERT_EQ(encode(), Status::ok);
      const std::vector<std::byte> sent(message.data(), message.data() + bytes);
      if (executor == nullptr) first = sent;
      ASSERT_EQ(sent, first) << spec;
      std::vector<float> y = x, z = x;
      const std::array<ConstBytes, 3> messages = {sent, sent, sent};
      ASSERT_EQ(codec.decode_add_all(messages, 0.3f, {y.data(), DType::f32, shape}, context),
                Status::ok);
      for (int i = 0; i < 3; ++i)
        ASSERT_EQ(codec.decode_add(sent, 0.3f, {z.data(), DType::f32, shape}, context), Status::ok);
      if (executor == nullptr) all = y;
      ASSERT_EQ(y, all) << spec;
      ASSERT_EQ(z, all) << spec;
      for (const std::size_t place : {std::size_t{0}, x.size() / 2, x.size() - 1}) {
        const float before = std::exchange(x[place], -std::numeric_limits<float>::infinity());
        EXPECT_EQ(encode(), Status::non_finite) << spec << " " << place;
        x[place] = before;
      }
    }
  }
}

/// The largest entries stay finite both ways.
TEST(ChunkTopk, TheTransformDoesNotOverflow) {
  const std::vector<float> x(64 * 64, 3.4e38f);
  for (const float v : round_trip_of("topk:chunk=4096,k=4096,values=f32,dct=64", x, Shape{64, 64}))
    ASSERT_TRUE(std::isfinite(v));
}

TEST(ChunkTopk, RefusesWhatContradictsTheFormat) {
  const auto codec = codec::parse_spec("topk:chunk=64,k=4,values=2");
  std::vector<float> x(64);
  x[3] = 1, x[9] = -5, x[10] = 1, x[60] = 5;
  const auto body = encode_body(codec, x).bytes;
  const Kind kind = kind_of(codec, 64);
  ASSERT_EQ(decode_body(kind, body).status, Status::ok);
  const auto with = [&](std::size_t at, int value) {
    auto changed = body;
    changed[at] = static_cast<std::byte>(value);
    return decode_body(kind, changed).status;
  };
  EXPECT_EQ(with(0, 99), Status::truncated);  // the length of the gaps
  EXPECT_EQ(with(0, 1), Status::corrupt);
  EXPECT_EQ(with(2, 1), Status::corrupt);      // padding behind it
  EXPECT_EQ(with(5, 0x7E), Status::ok);        // a level, large
  EXPECT_EQ(with(5, 0xFF), Status::corrupt);   // with a sign
  EXPECT_EQ(with(8, 5), Status::corrupt);      // more of the upper bin than slots
  EXPECT_EQ(with(10, 1), Status::corrupt);     // padding behind the levels
  EXPECT_EQ(with(12, 0x12), Status::corrupt);  // a code without a slot
  auto longer = body;
  longer.push_back(std::byte{0});
  EXPECT_EQ(decode_body(kind, longer).status, Status::corrupt);
}

TEST(ChunkTopk, ThreadsChangeNothing) {
  BackwardExecutor executor;
  const auto x = normal_entries(300'011, 5);
  for (const char* spec : {"topk:chunk=4096,k=64,values=2", "topk:chunk=64,k=1,values=sign"}) {
    const auto codec = codec::parse_spec(spec);
    EXPECT_EQ(encode_body(codec, x).bytes, encode_body(codec, x, {}, &executor).bytes);
  }
}

TEST(ChunkTopk, NonFiniteEntriesAreFound) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    auto x = normal_entries(9000, 5);
    x[8191] = bad;
    EXPECT_EQ(encode_body(codec::parse_spec("topk:chunk=64,k=1"), x).status, Status::non_finite);
  }
}

}  // namespace
}  // namespace atomo::test
