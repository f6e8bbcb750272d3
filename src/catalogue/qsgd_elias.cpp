// SPDX-License-Identifier: Apache-2.0
/// \file
/// QSGD's levels with the entropy codes of its paper. Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: Communication-Efficient
/// SGD via Gradient Quantization and Encoding", NeurIPS 2017 (arXiv 1610.02132): section 3.1 has the levels, section 3.2 and
/// appendix A the codes. Elias' recursive code is here his gamma code, which is not longer up to level 14; `code=huffman` is
/// a canonical Huffman code instead.
///
/// Body: the norm of each bucket, f32, then one stream of bits over all entries. In words of Elias' gamma code:
/// - `code=gamma` (the paper's dense regime): level + 1, then a sign bit unless the level is 0;
/// - `code=gaps` (its sparse regime): for each bucket 1 + how many levels are not 0; for each of these the distance to the last one,
///   a sign bit, the level.
/// `code=huffman`: the levels as huffman.hpp has them, then a sign bit for each that is not 0.
#include <algorithm>
#include <vector>

#include "catalogue/definitions.hpp"
#include "catalogue/huffman.hpp"

namespace atomo::catalogue {
namespace {

enum class LevelCode : std::uint8_t { gamma, gaps, huffman };

void put_gamma(BitWriter& out, std::uint32_t v) {
  const auto width = static_cast<unsigned>(std::bit_width(v));
  const std::uint32_t low = v - (1u << (width - 1));
  out.put(1u << (width - 1) | low << width, 2 * width - 1);
}

/// A number of at most 16 bits.
std::uint32_t get_gamma(BitReader& in) {
  const auto word = static_cast<std::uint32_t>(in.peek());
  const auto low_bits = static_cast<unsigned>(std::countr_zero(word));
  require(low_bits < 16, "a word of the gamma code is too long");
  in.skip(2 * low_bits + 1);
  return 1u << low_bits | (word >> (low_bits + 1) & ((1u << low_bits) - 1));
}

class QsgdElias final : public OwnCodec {
 public:
  QsgdElias(std::uint32_t levels, std::size_t bucket, bool l2, LevelCode code)
      : levels_(levels), bucket_(bucket), l2_(l2), code_(code) {}

  Traits traits() const override {
    Traits t;
    claim_unbiased(t);
    const auto d = static_cast<double>(bucket_), s = static_cast<double>(levels_);
    t.omega = std::min(d / (4 * s * s), std::sqrt(d) / s) * 1.001;
    return t;
  }

  std::size_t max_bytes(const Shape& shape) const override {
    const std::size_t n = shape.elements(), buckets = (n + bucket_ - 1) / bucket_;
    if (code_ == LevelCode::huffman)
      return 4 * buckets + symbols_bound(n, width()) + packed_bytes(n, 1);
    // A gap's word has at most two bits for each entry that it skips, and one.
    const std::size_t bits = code_ == LevelCode::gamma
                                 ? n * 2 * static_cast<unsigned>(std::bit_width(levels_ + 1))
                                 : n * (2 * width() + 2) + 31 * buckets;
    return 4 * buckets + (bits + 7) / 8;
  }

  std::size_t encode(std::span<const float> x, const OwnLayer& layer, Bytes body) const override {
    std::vector<std::uint8_t> codes(x.size());
    Writer out(body);
    Words words(layer.draws, 0);
    for (std::size_t first = 0; first < x.size(); first += bucket_) {
      const auto bucket = x.subspan(first, std::min(bucket_, x.size() - first));
      const float norm = l2_ ? rounded_up(std::sqrt(energy_of(bucket))) : largest_of(bucket);
      const double to_level = norm > 0 ? levels_ / double{norm} : 0;
      for (std::size_t i = 0; i < bucket.size(); ++i) {
        const double level = std::fabs(bucket[i]) * to_level;
        const auto below = static_cast<std::uint32_t>(level);
        const bool up = words.happens(level - below);
        codes[first + i] = static_cast<std::uint8_t>(std::min(levels_, below + (up ? 1 : 0)));
      }
      out.put(norm);
    }
    if (code_ == LevelCode::huffman) {
      put_symbols(out, codes, width());
      std::vector<std::uint8_t> signs;
      for (std::size_t i = 0; i < x.size(); ++i)
        if (codes[i] > 0) signs.push_back(x[i] < 0 ? 1 : 0);
      put_codes(out, signs, 1);
      return out.bytes();
    }
    BitWriter bits(out.rest());
    for (std::size_t first = 0; first < x.size(); first += bucket_) {
      const std::size_t end = std::min(first + bucket_, x.size());
      if (code_ == LevelCode::gamma)
        put_dense(bits, x, codes, first, end);
      else
        put_sparse(bits, x, codes, first, end);
    }
    out.skip(bits.finish());
    return out.bytes();
  }

  void decode(ConstBytes body, const OwnLayer&, std::span<float> y) const override {
    Reader in(body);
    std::vector<float> norms((y.size() + bucket_ - 1) / bucket_);
    in.get_all(norms);
    for (const float norm : norms) require(norm >= 0, "a norm is below 0");
    if (code_ == LevelCode::huffman) {
      get_words(in, norms, y);
      return in.end();
    }
    BitReader bits(in.rest());
    for (std::size_t first = 0; first < y.size(); first += bucket_) {
      const std::size_t end = std::min(first + bucket_, y.size());
      const double step = norms[first / bucket_] / static_cast<double>(levels_);
      if (code_ == LevelCode::gamma) {
        for (std::size_t i = first; i < end; ++i) {
          const std::uint32_t level = get_gamma(bits) - 1;
          if (level > 0) y[i] = value(level, bits.get(1), step);
        }
        continue;
      }
      const std::uint32_t count = get_gamma(bits) - 1;
      std::size_t next = first;
      for (std::uint32_t k = 0; k < count; ++k) {
        next += get_gamma(bits);
        require(next <= end, "a level is beyond its bucket");
        const std::uint32_t sign = bits.get(1);
        y[next - 1] = value(get_gamma(bits), sign, step);
      }
    }
    bits.end();
  }

 private:
  unsigned width() const noexcept { return static_cast<unsigned>(std::bit_width(levels_)); }

  float value(std::uint32_t level, std::uint32_t sign, double step) const {
    require(level <= levels_, "a level is above the highest");
    return finite(sign == 1 ? -(level * step) : level * step);
  }

  static void put_dense(BitWriter& bits, std::span<const float> x,
                        std::span<const std::uint8_t> codes, std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; ++i) {
      put_gamma(bits, codes[i] + 1u);
      if (codes[i] > 0) bits.put(x[i] < 0 ? 1 : 0, 1);
    }
  }

  static void put_sparse(BitWriter& bits, std::span<const float> x,
                         std::span<const std::uint8_t> codes, std::size_t first, std::size_t end) {
    const auto of_bucket = codes.subspan(first, end - first);
    put_gamma(bits, 1u + static_cast<std::uint32_t>(std::ranges::count_if(
                             of_bucket, [](std::uint8_t code) { return code > 0; })));
    std::size_t next = first;
    for (std::size_t i = first; i < end; ++i) {
      if (codes[i] == 0) continue;
      put_gamma(bits, static_cast<std::uint32_t>(i + 1 - next));
      bits.put(x[i] < 0 ? 1 : 0, 1);
      put_gamma(bits, codes[i]);
      next = i + 1;
    }
  }

  void get_words(Reader& in, std::span<const float> norms, std::span<float> y) const {
    std::vector<std::uint8_t> codes(y.size());
    get_symbols(in, codes, width());
    std::vector<std::uint8_t> signs(static_cast<std::size_t>(
        std::ranges::count_if(codes, [](std::uint8_t code) { return code > 0; })));
    get_codes(in, signs, 1);
    for (std::size_t i = 0, k = 0; i < y.size(); ++i)
      if (codes[i] > 0)
        y[i] = value(codes[i], signs[k++], norms[i / bucket_] / static_cast<double>(levels_));
  }

  std::uint32_t levels_;
  std::size_t bucket_;
  bool l2_;
  LevelCode code_;
};

}  // namespace

CodecDefinition qsgd_elias_definition() {
  return {.name = "qsgd-elias",
          .keys = "levels=1..255, bucket=64..32768, norm=l2|max, code=gamma|gaps|huffman",
          .summary = "stochastic levels of a bucket's norm in words of Elias or Huffman",
          .example = "qsgd-elias:levels=4",
          .make = [](SpecKeys& keys) -> std::shared_ptr<const OwnCodec> {
            const auto levels = static_cast<std::uint32_t>(keys.integer("levels", 1, 255, 4));
            const auto bucket = static_cast<std::size_t>(keys.integer("bucket", 64, 32768, 512));
            const bool l2 = keys.choice("norm", {"l2", "max"}, 0) == 0;
            const auto code =
                static_cast<LevelCode>(keys.choice("code", {"gamma", "gaps", "huffman"}, 0));
            return std::make_shared<QsgdElias>(levels, bucket, l2, code);
          }};
}

}  // namespace atomo::catalogue
