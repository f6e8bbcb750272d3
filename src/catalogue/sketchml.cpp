// SPDX-License-Identifier: Apache-2.0
/// \file
/// SketchML: values become buckets of equal count, signs apart, and the buckets' numbers go through MinMaxSketches. Jiang, Fu,
/// Yang, Cui, "SketchML: Accelerating Distributed Machine Learning with Data Sketches", SIGMOD 2018: sections 3.2 (quantile-bucket
/// quantification), 3.3 (MinMaxSketch, in groups), 3.4 (keys as deltas).
///
/// Entries that are not 0 are keys. Of each sign the magnitudes of a sample give `buckets` / 2 means of equally filled
/// stretches, and an entry takes the nearest mean's number. Numbers are cut into `groups`, each with a sketch of `rows` rows: a cell
/// keeps the least number that is put into it, and a lookup takes the largest of its cells, which is never above the number
/// that was put in. So magnitudes only decay. A key's cells are
/// those of a hash with drawn seeds, the same at both ends.
///
/// Differences from the paper: quantiles are those of a sample of 8,192 entries, not of a quantile sketch; keys are gaps in Rice
/// words, which are shorter than its words of whole bytes.
///
/// `form=unbiased` has no sketches: an entry is rounded to one of its two neighbouring levels at random, levels being quantiles
/// from 0 to the largest of its sign, and places of levels are sent in a Huffman code.
///
/// Body: for each sign, plus first, the means or levels, f32. Published: then for each sign and group the keys (places.hpp) and, where there are
/// any, the sketch's cells row by row, packed. Unbiased: then for each sign the keys and the places (huffman.hpp).
#include <algorithm>
#include <array>
#include <vector>

#include "catalogue/codebook_levels.hpp"
#include "catalogue/definitions.hpp"
#include "catalogue/huffman.hpp"
#include "catalogue/places.hpp"

namespace atomo::catalogue {
namespace {

constexpr std::uint64_t kSampleWords = std::uint64_t{1} << 41;

struct Shares {
  std::size_t buckets, groups, rows;
  double columns;
};

/// Entries of one sign: where they are, and their magnitudes.
struct Side {
  std::vector<std::uint64_t> keys;
  std::vector<float> magnitudes;
};

class SketchMl final : public OwnCodec {
 public:
  SketchMl(const Shares& shares, bool unbiased)
      : shares_(shares),
        unbiased_(unbiased),
        levels_(shares.buckets / 2),
        in_group_((levels_ + shares.groups - 1) / shares.groups),
        level_bits_(static_cast<unsigned>(std::bit_width(levels_ - 1))),
        cell_bits_(static_cast<unsigned>(std::bit_width(in_group_ - 1))) {}

  Traits traits() const override {
    Traits t;
    if (unbiased_) claim_unbiased(t);
    return t;
  }

  std::size_t max_bytes(const Shape& shape) const override {
    const std::size_t n = shape.elements(), tables = 8 * levels_;
    if (unbiased_) return tables + 2 * (places_bound(n, n) + 1 + level_bits_) + n * level_bits_ / 8;
    // Words of gaps of few keys are longer: 4 bits and the low bits, at most those of an even share.
    const std::size_t lists = 2 * shares_.groups;
    const std::size_t keys = lists * 16 + n * (3 + std::bit_width(lists)) / 8;
    const std::size_t cells =
        lists * shares_.rows + shares_.rows * static_cast<std::size_t>(std::ceil(
                                                  shares_.columns * static_cast<double>(n)));
    return tables + keys + (cells * cell_bits_ + 7) / 8 + lists;
  }

  std::size_t encode(std::span<const float> x, const OwnLayer& layer, Bytes body) const override {
    std::array<Side, 2> sides;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (x[i] == 0) continue;
      Side& side = sides[x[i] < 0 ? 1 : 0];
      side.keys.push_back(i);
      side.magnitudes.push_back(std::fabs(x[i]));
    }
    Words sample_words(layer.draws, kSampleWords);
    Writer out(body);
    std::array<std::vector<float>, 2> levels;
    for (std::size_t s = 0; s < 2; ++s) {
      levels[s] = levels_of(sides[s].magnitudes, sample_words);
      out.put_all(levels[s]);
    }
    for (std::size_t s = 0; s < 2; ++s) {
      if (unbiased_)
        put_exactly(out, x.size(), sides[s], levels[s], layer.draws, s);
      else
        put_sketches(out, x.size(), sides[s], levels[s], layer.draws);
    }
    return out.bytes();
  }

  void decode(ConstBytes body, const OwnLayer& layer, std::span<float> y) const override {
    Reader in(body);
    std::array<std::vector<float>, 2> levels;
    for (auto& of_sign : levels) {
      of_sign.resize(levels_);
      in.get_all(of_sign);
    }
    for (std::size_t s = 0; s < 2; ++s) {
      const float sign = s == 0 ? 1.0f : -1.0f;
      for (std::size_t g = 0; g < (unbiased_ ? 1 : shares_.groups); ++g) {
        const auto keys = get_places(in, y.size(), y.size());
        std::vector<std::uint8_t> places(keys.size());
        if (unbiased_)
          get_symbols(in, places, level_bits_);
        else
          get_sketch(in, keys, g, layer.draws, places);
        for (std::size_t k = 0; k < keys.size(); ++k) {
          require(places[k] < levels_, "a place has no level");
          y[keys[k]] = sign * levels[s][places[k]];
        }
      }
    }
    in.end();
  }

 private:
  std::vector<float> levels_of(std::span<const float> magnitudes, Words& words) const {
    if (magnitudes.empty()) return std::vector<float>(levels_);
    std::vector<float> sorted = sorted_sample(magnitudes, words);
    if (!unbiased_) return quantile_means(sorted, levels_);
    sorted.insert(sorted.begin(), 0.0f);
    sorted.back() = largest_of(magnitudes);
    return quantile_levels(sorted, levels_);
  }

  std::size_t columns_of(std::size_t keys) const noexcept {
    return static_cast<std::size_t>(std::ceil(shares_.columns * static_cast<double>(keys)));
  }

  /// Calls f(key's place in the list, cell) for each row.
  template <typename F>
  void for_each_cell(std::span<const std::uint64_t> keys, const Draws& draws, F&& f) const {
    const std::uint64_t columns = columns_of(keys.size());
    std::uint32_t seeds[8];
    draws.fill(0, std::span(seeds, 2 * shares_.rows));
    for (std::uint64_t r = 0; r < shares_.rows; ++r) {
      const std::uint64_t seed = seeds[2 * r] | std::uint64_t{seeds[2 * r + 1]} << 32;
      for (std::size_t k = 0; k < keys.size(); ++k)
        f(k, r * columns + cell_of(seed, keys[k], columns));
    }
  }

  void put_sketches(Writer& out, std::size_t n, const Side& side, std::span<const float> levels,
                    const Draws& draws) const {
    const Nearest nearest(levels);
    std::vector<std::vector<std::uint64_t>> keys(shares_.groups);
    std::vector<std::vector<std::uint8_t>> numbers(shares_.groups);
    for (std::size_t k = 0; k < side.keys.size(); ++k) {
      const std::size_t place = nearest(side.magnitudes[k]), group = place / in_group_;
      keys[group].push_back(side.keys[k]);
      numbers[group].push_back(static_cast<std::uint8_t>(place % in_group_));
    }
    for (std::size_t g = 0; g < shares_.groups; ++g) {
      put_places(out, n, keys[g]);
      std::vector<std::uint8_t> cells(columns_of(keys[g].size()) * shares_.rows,
                                      static_cast<std::uint8_t>(in_group_ - 1));
      for_each_cell(keys[g], draws, [&](std::size_t k, std::size_t cell) {
        cells[cell] = std::min(cells[cell], numbers[g][k]);
      });
      put_codes(out, cells, cell_bits_);
    }
  }

  void get_sketch(Reader& in, std::span<const std::uint64_t> keys, std::size_t group,
                  const Draws& draws, std::span<std::uint8_t> places) const {
    std::vector<std::uint8_t> cells(columns_of(keys.size()) * shares_.rows);
    get_codes(in, cells, cell_bits_);
    for_each_cell(keys, draws, [&](std::size_t k, std::size_t cell) {
      const std::size_t place = group * in_group_ + cells[cell];
      require(place < levels_, "a cell has no level");
      places[k] = std::max(places[k], static_cast<std::uint8_t>(place));
    });
  }

  void put_exactly(Writer& out, std::size_t n, const Side& side, std::span<const float> levels,
                   const Draws& draws, std::uint64_t sign) const {
    const RoundedAtRandom rounded(levels);
    Words words(draws, sign << 40);
    std::vector<std::uint8_t> places(side.keys.size());
    for (std::size_t k = 0; k < places.size(); ++k) places[k] = rounded(side.magnitudes[k], words);
    put_places(out, n, side.keys);
    put_symbols(out, places, level_bits_);
  }

  Shares shares_;
  bool unbiased_;
  std::size_t levels_, in_group_;
  unsigned level_bits_, cell_bits_;
};

}  // namespace

CodecDefinition sketchml_definition() {
  return {.name = "sketchml",
          .keys = "buckets=8..256, groups=1..16, rows=1..4, columns=F, form=published|unbiased",
          .summary =
              "quantile buckets, signs apart, their numbers in MinMaxSketches (SketchML), biased",
          .example = "sketchml:buckets=128",
          .make = [](SpecKeys& keys) -> std::shared_ptr<const OwnCodec> {
            Shares shares{};
            shares.buckets = static_cast<std::size_t>(keys.integer("buckets", 8, 256, 256));
            require(shares.buckets % 2 == 0, "buckets= has to be even");
            if (keys.choice("form", {"published", "unbiased"}, 0) == 1) {
              shares.groups = shares.rows = 1;
              return std::make_shared<SketchMl>(shares, true);
            }
            shares.groups = static_cast<std::size_t>(keys.integer("groups", 1, 16, 8));
            shares.rows = static_cast<std::size_t>(keys.integer("rows", 1, 4, 2));
            shares.columns = keys.number("columns", 0.05, 1, 0.2);
            require(shares.buckets / 2 > shares.groups, "groups= has to be below half of buckets=");
            return std::make_shared<SketchMl>(shares, false);
          }};
}

}  // namespace atomo::catalogue
