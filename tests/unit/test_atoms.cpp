// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "coding/duo_code.hpp"
#include "cpu/atoms.hpp"
#include "format/atom_body.hpp"
#include "support/atom_layers.hpp"

namespace atomo::cpu {
namespace {

using namespace atomo::model;

/// The format written down entry by entry: which atoms are kept, what each entry decodes to, the
/// bits of the content.
struct Reference {
  std::vector<float> y;
  std::uint64_t kept = 0, content_bits = 0;

  Reference(const Layer& layer, const Key& key) : y(layer.x.size(), 0.0f) {
    const bool rows = layer.layout.family == Family::rows;
    const Philox select(key, rows ? Purpose::select_row : Purpose::select_block);
    for (std::uint64_t first = 0; first < layer.layout.count; first += 256) {
      const std::uint64_t size = std::min<std::uint64_t>(256, layer.layout.count - first);
      std::uint32_t sum = select(first / 256)[0];
      for (std::uint64_t i = 0; i < 256; ++i) {
        const std::uint64_t k = i % 8 * 32 + i / 8, t = first + k;
        if (k >= size || layer.rms[t] == 0) continue;
        const AtomChoice choice = choose_atom(layer.rms[t], layer.price.a);
        const std::uint32_t next = sum + choice.probability;
        if (choice.atom_class != 0 || next < sum) add_atom(layer, key, t, choice);
        sum = next;
      }
    }
  }

 private:
  void add_atom(const Layer& layer, const Key& key, std::uint64_t t, const AtomChoice& choice) {
    ++kept;
    const std::uint64_t length = layer.layout.length_of(t), tiles = (length + 31) / 32;
    const std::uint64_t whole_tiles = (layer.layout.length + 31) / 32;
    const bool rows = layer.layout.family == Family::rows;
    const Philox pre(key, rows ? Purpose::pre_round_row : Purpose::pre_round_block);
    const Philox dither(key, rows ? Purpose::dither_row : Purpose::dither_block);
    const AtomClass& row = kAtomClasses[choice.atom_class];
    const float range = layer.price.a < 0x1p-60f  ? 0x1p80f
                        : layer.price.a > 0x1p60f ? 0x1p-80f
                                                  : 1.0f;
    const float step = (layer.price.a * range) * row.delta;
    const auto inverse = static_cast<float>(
        choice.atom_class != 0
            ? 1.0 / static_cast<double>(step)
            : 4294967296.0 / (static_cast<double>(choice.probability) * static_cast<double>(step)));
    const DuoCoding coding = duo_coding(row.step, escape_bits(length, row.reach));
    for (std::uint64_t u = 0; u < tiles; ++u) {
      const std::uint64_t entries = std::min<std::uint64_t>(32, length - 32 * u),
                          half = (entries + 1) / 2;
      for (std::uint64_t l = 0; l < half; ++l) {
        const std::uint32_t word = dither(4 * (t * ((whole_tiles + 7) / 8) + u / 8) + l % 4)[l / 4];
        const std::uint32_t level = (word >> (4 * (u % 8))) & 15;
        const std::uint32_t h = pre(16 * (t * ((whole_tiles + 3) / 4) + u / 4) + l)[u % 4];
        const std::uint64_t at = t * layer.layout.length + 32 * u + l;
        const bool has_second = l + half < entries;
        const float second = has_second ? layer.x[at + half] : 0.0f;
        const std::int32_t q0 =
            quantise<float>(layer.x[at] * range, inverse, EntryDraw{level, h & 0xFFFF});
        const std::int32_t q1 =
            quantise<float>(second * range, inverse, EntryDraw{level ^ 8, h >> 16});
        y[at] = dequantise<float>(q0, level, step) * (1 / range);
        if (has_second) y[at + half] = dequantise<float>(q1, level ^ 8, step) * (1 / range);
        std::byte buffer[32];
        BitWriter bits(buffer, sizeof buffer);
        put_duo(bits, coding, duo_entry(coding, level, q0, q1), q0, q1);
        content_bits += bits.position();
      }
    }
  }
};

void expect_reference(const Layer& layer, const Key& key, const char* what) {
  AtomBody body;
  const std::vector<std::byte> bytes = layer.encode(key, body, 3);
  const Reference reference(layer, key);
  ASSERT_EQ(body.kept, reference.kept) << what;
  ASSERT_LE(bytes.size(), max_body_bytes(layer.layout));
  const std::vector<float> y = layer.decode(bytes, key);
  for (std::size_t i = 0; i < y.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(y[i]), std::bit_cast<std::uint32_t>(reference.y[i]))
        << what << " at " << i;
  }
  if (reference.kept == 0) {
    EXPECT_TRUE(bytes.empty());
    return;
  }
  MarksReader marks;
  BodyIndex index;
  ASSERT_TRUE(index.open(bytes, layer.layout, marks));
  EXPECT_EQ(index.content_bits, reference.content_bits) << what;
  std::uint64_t kept = 0;
  EXPECT_EQ(inspect_atoms(bytes, layer.layout, kept), Status::ok);
  EXPECT_EQ(kept, reference.kept);
}

TEST(Atoms, BlocksOfEverySizeMatchTheReference) {
  for (const std::uint64_t n : {0u, 1u, 2u, 15u, 16u, 17u, 31u, 32u, 33u, 64u, 255u, 256u, 257u,
                                289u, 511u, 1021u, 65536u, 65537u, 70001u}) {
    for (const double bits : {0.125, 0.5, 1.0, 2.0, 4.0, 8.0}) {
      const AtomLayout layout = AtomLayout::blocks(n);
      const Layer layer(make(layout, n % 2 == 0 ? Data::gaussian : Data::heavy, n + 1), layout,
                        bits);
      expect_reference(layer, {.seed = n, .step = 3, .tensor = 7, .worker = 2, .channel = 1},
                       "blocks");
    }
  }
}

TEST(Atoms, RowsOfEveryLengthMatchTheReference) {
  for (const std::uint64_t length :
       {16u,  17u,  31u,  32u,   33u,   47u,   100u,  255u,  256u,  257u, 341u,
        512u, 513u, 577u, 1000u, 1024u, 1025u, 2048u, 3001u, 4097u, 5000u}) {
    for (const double bits : {0.125, 1.0, 3.0, 8.0}) {
      const AtomLayout layout = AtomLayout::rows(length < 100 ? 700 : 30, length);
      const Layer layer(make(layout, bits < 2 ? Data::gaussian : Data::spiky, length), layout,
                        bits);
      expect_reference(layer, {.seed = 1, .step = 9, .worker = 65535}, "rows");
    }
  }
}

TEST(Atoms, ScalesFarFromOneMatchTheReference) {
  const AtomLayout layout = AtomLayout::blocks(3000);
  for (const float scale :
       {1e-44f, 1e-41f, 1e-38f, 1e-23f, 1e-18f, 1e-17f, 1e17f, 1e19f, 1e20f, 1e33f}) {
    for (const double bits : {0.25, 2.0, 6.0}) {
      const Layer layer(make(layout, Data::gaussian, 5, scale), layout, bits);
      expect_reference(layer, {.seed = 4}, "scale");
    }
  }
}

TEST(Atoms, ExtremeValuesStayFinite) {
  std::vector<float> x(600);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = (i % 2 == 0 ? 1.0f : -1.0f) * (i % 3 == 0 ? 3e38f : 1.5e38f);
  const AtomLayout layout = AtomLayout::blocks(x.size());
  const Layer layer(x, layout, 8.0);
  const std::vector<float> y = layer.decode(layer.encode({.seed = 2}), {.seed = 2});
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i] / 1e38f, x[i] / 1e38f, 0.1f);
}

TEST(Atoms, OneEntryAmongZerosComesBack) {
  for (const std::uint64_t n : {1u, 300u, 100000u}) {
    std::vector<float> x(n, 0.0f);
    x[n / 2] = -3.25f;
    const AtomLayout layout = AtomLayout::blocks(n);
    const Layer layer(x, layout, 40.0);
    const std::vector<float> y = layer.decode(layer.encode({}), {});
    EXPECT_NEAR(y[n / 2], -3.25f, 1e-3f);
  }
}

TEST(Atoms, ZerosTakeNoBytes) {
  const AtomLayout layout = AtomLayout::rows(10, 40);
  const Layer layer(std::vector<float>(400, 0.0f), layout, 1.0);
  EXPECT_TRUE(layer.encode({}).empty());
  std::vector<float> y(400, 5.0f);
  EXPECT_EQ(decode_atoms({}, layout, 0.0f, {}, y.data(), {}, nullptr), Status::ok);
  EXPECT_EQ(y, std::vector<float>(400, 0.0f));
}

/// Every instruction set this machine has, and none.
TEST(Atoms, InstructionSetsGiveTheSameBytes) {
  const Key key{.seed = 77, .step = 5};
  for (const AtomLayout& layout :
       {AtomLayout::blocks(20011), AtomLayout::rows(300, 23), AtomLayout::rows(9, 2501)}) {
    for (const double bits : {0.25, 1.0, 5.0}) {
      hwy::SetSupportedTargetsForTest(0);
      const std::vector<float> x = make(layout, Data::heavy, 9);
      const Layer best(x, layout, bits);
      const std::vector<std::byte> bytes = best.encode(key);
      const std::vector<float> y = best.decode(bytes, key);
      for (const std::int64_t target : {HWY_SCALAR, HWY_AVX2, HWY_AVX3}) {
        if (target != HWY_SCALAR && (hwy::SupportedTargets() & target) == 0) continue;
        hwy::SetSupportedTargetsForTest(target);
        const Layer other(x, layout, bits);
        EXPECT_EQ(other.rms, best.rms) << target;
        EXPECT_EQ(other.encode(key), bytes) << target;
        EXPECT_EQ(other.decode(bytes, key), y) << target;
        hwy::SetSupportedTargetsForTest(0);
      }
    }
  }
}

TEST(Atoms, AlignmentDoesNotMatter) {
  const AtomLayout layout = AtomLayout::rows(50, 331);
  const Layer layer(make(layout, Data::gaussian, 3), layout, 1.0);
  AtomBody body;
  const auto bytes = layer.encode({}, body, 0);
  for (std::size_t shift = 1; shift < 16; ++shift) EXPECT_EQ(layer.encode({}, body, shift), bytes);
}

TEST(Atoms, AddingRoundsTwice) {
  const AtomLayout layout = AtomLayout::blocks(5003);
  const Layer layer(make(layout, Data::gaussian, 4), layout, 1.0);
  const auto bytes = layer.encode({});
  const std::vector<float> v = layer.decode(bytes, {});
  std::vector<float> y(v.size()), start(v.size());
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = start[i] = std::sin(static_cast<float>(i)) * 3;
  const float alpha = 0.3f;
  ASSERT_EQ(decode_atoms(bytes, layout, layer.price.a, {}, y.data(), {true, alpha}, nullptr),
            Status::ok);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const float product = alpha * v[i];
    ASSERT_EQ(y[i], start[i] + product);
  }
}

TEST(Atoms, KeysAndFamiliesDrawApart) {
  const AtomLayout blocks = AtomLayout::blocks(2560), rows = AtomLayout::rows(10, 256);
  const Layer a(make(blocks, Data::gaussian, 8), blocks, 2.0),
      b(make(blocks, Data::gaussian, 8), rows, 2.0);
  ASSERT_EQ(a.price.a, b.price.a);
  const Key key{.seed = 1};
  EXPECT_NE(a.encode(key), b.encode(key));
  for (const Key& other : {Key{.seed = 2}, Key{.seed = 1, .step = 1}, Key{.seed = 1, .tensor = 1},
                           Key{.seed = 1, .worker = 1}, Key{.seed = 1, .channel = 1}}) {
    EXPECT_NE(a.encode(key), a.encode(other));
  }
}

TEST(Atoms, CallsRefuseWhatTheyCannotUse) {
  const AtomLayout layout = AtomLayout::blocks(1000);
  const Layer layer(make(layout, Data::gaussian, 1), layout, 1.0);
  std::vector<std::byte> out(max_body_bytes(layout)),
      workspace(encode_workspace_bytes(layout.count));
  AtomBody body;
  const auto call = [&](float price, std::size_t capacity, std::size_t room) {
    return encode_atoms(layer.x.data(), layout, layer.rms.data(), price, {}, nullptr,
                        Bytes(out).first(capacity), Bytes(workspace).first(room), body);
  };
  EXPECT_EQ(call(layer.price.a, out.size(), workspace.size()), Status::ok);
  EXPECT_EQ(call(layer.price.a, out.size() - 1, workspace.size()), Status::buffer_too_small);
  EXPECT_EQ(call(layer.price.a, out.size(), 0), Status::workspace_too_small);
  for (const float price : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(),
                            static_cast<float>(layer.found.max_rms / kTopRatio)}) {
    EXPECT_EQ(call(price, out.size(), workspace.size()), Status::corrupt) << price;
  }
  AtomAnalysis found;
  std::vector<double> rms(5);
  std::vector<PriceBin> bins(5);
  EXPECT_EQ(
      analyse(layer.x.data(), AtomLayout::rows(5, 15), rms.data(), bins, workspace, nullptr, found),
      Status::unsupported);
}

TEST(Atoms, NonFiniteInputIsTold) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x(700, 1.0f);
    x[650] = bad;
    const Layer layer(x, AtomLayout::blocks(700), 1.0);
    EXPECT_FALSE(layer.found.finite);
  }
}

TEST(Atoms, DamagedBodiesAreRefusedOrDecode) {
  std::mt19937_64 random(12);
  for (const AtomLayout& layout :
       {AtomLayout::blocks(5000), AtomLayout::rows(60, 16), AtomLayout::rows(4, 2100)}) {
    for (const double bits : {0.3, 3.0}) {
      const Layer layer(make(layout, Data::spiky, 2), layout, bits);
      const auto bytes = layer.encode({});
      Guarded y(layer.x.size() * sizeof(float));
      const auto decode = [&](const std::vector<std::byte>& body) {
        return decode_atoms(body, layout, layer.price.a, {}, y.data<float>(), {}, nullptr);
      };
      for (std::size_t size = 1; size < bytes.size(); ++size) {
        const std::vector<std::byte> cut(bytes.begin(),
                                         bytes.begin() + static_cast<std::ptrdiff_t>(size));
        ASSERT_EQ(decode(cut), Status::corrupt) << size;
      }
      for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
        auto damaged = bytes;
        damaged[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
        const Status status = decode(damaged);
        ASSERT_TRUE(status == Status::ok || status == Status::corrupt);
      }
      for (int i = 0; i < 3000; ++i) {
        auto damaged = bytes;
        for (std::size_t hits = 1 + random() % 4; hits > 0; --hits) {
          damaged[random() % damaged.size()] = static_cast<std::byte>(random());
        }
        const Status status = decode(damaged);
        ASSERT_TRUE(status == Status::ok || status == Status::corrupt);
      }
      ASSERT_TRUE(y.intact());
    }
  }
}

TEST(Atoms, PaddingMustBeZero) {
  const AtomLayout layout = AtomLayout::blocks(300);
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Layer layer(make(layout, Data::gaussian, seed), layout, 3.0);
    auto bytes = layer.encode({.seed = seed});
    MarksReader marks;
    BodyIndex index;
    if (bytes.empty() || !index.open(bytes, layout, marks)) continue;
    const std::uint64_t end = index.content * 8 + index.content_bits;
    if (end == bytes.size() * 8) continue;
    bytes.back() |= std::byte{0x80};
    std::vector<float> y(300);
    EXPECT_EQ(decode_atoms(bytes, layout, layer.price.a, {.seed = seed}, y.data(), {}, nullptr),
              Status::corrupt);
  }
}

/// No two draws of a message share a (purpose, index): the families' purposes differ, and within
/// one purpose the indices of atoms, tiles and pairs do.
TEST(Atoms, DrawsAreDisjoint) {
  for (const std::uint64_t length : {16u, 33u, 100u, 256u, 300u, 1025u, 5000u}) {
    const std::uint64_t tiles = (length + 31) / 32;
    std::vector<std::uint64_t> levels;
    for (std::uint64_t t = 0; t < 20; ++t) {
      for (std::uint64_t from = 0; from < length; from += kPieceEntries) {
        const auto entries =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(kPieceEntries, length - from));
        const std::uint64_t base = dither_base({t, tiles, from / kTile, entries});
        for (std::uint64_t g = 0; g < dither_groups(entries); ++g) levels.push_back(base + g);
      }
    }
    std::sort(levels.begin(), levels.end());
    EXPECT_EQ(std::adjacent_find(levels.begin(), levels.end()), levels.end()) << length;
  }
  const FamilyPurposes rows = purposes_of(Family::rows), blocks = purposes_of(Family::blocks);
  std::vector<Purpose> all{rows.select,   rows.pre_round,   rows.dither,
                           blocks.select, blocks.pre_round, blocks.dither};
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
}

}  // namespace
}  // namespace atomo::cpu
