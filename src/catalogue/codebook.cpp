// SPDX-License-Identifier: Apache-2.0
/// \file
/// Entries as places in a table of levels that is sent along. The levels stand
/// - at quantiles: Zhang, Li, Kara, Alistarh, Liu, Zhang, "ZipML", ICML 2017 (arXiv 1611.05402), section on optimal
///   quantisation; as means of equally filled buckets with `form=nearest`, as in SketchML;
/// - where the squared error is least: Lloyd's with `form=nearest`; for rounding at random the coordinate descent of
///   Faghri, Tabrizian, Markov, Alistarh, Roy, Ramezani-Kebrya, "Adaptive Gradient Quantization for Data-Parallel SGD" (ALQ), NeurIPS
///   2020 (arXiv 2010.12460);
/// - at powers: Ramezani-Kebrya, Faghri, Roy, "NUQSGD", JMLR 2021 (arXiv 1908.06077);
/// - at cotangents, 0 and c cot(pi k / 4 K): SGQ as Parallel-SGD's codec has it, with `code=huffman`;
/// - at -a, 0, a: ternary networks' a = <b, x> / |b|^2 (TQN), alternating with b = the nearest of -1, 0, 1.
///
/// Body: where 4 bytes an entry are not more than the table and the packed codes, the entries as f32. Otherwise the levels, f32,
/// ascending; then the codes, packed, or as huffman.hpp has them.
#include <algorithm>

#include "catalogue/codebook_levels.hpp"
#include "catalogue/definitions.hpp"
#include "catalogue/huffman.hpp"

namespace atomo::catalogue {
namespace {

constexpr std::uint64_t kSampleWords = std::uint64_t{1} << 41;

class Codebook final : public OwnCodec {
 public:
  Codebook(Placement placement, unsigned bits, bool nearest, bool huffman)
      : placement_(placement), bits_(bits), nearest_(nearest), huffman_(huffman) {
    const bool odd = placement == Placement::log || placement == Placement::cot ||
                     placement == Placement::ternary;
    count_ = (std::size_t{1} << bits) - (odd ? 1 : 0);
  }

  Traits traits() const override {
    Traits t;
    t.fixed_size = !huffman_;
    t.bounded = !huffman_;
    if (!nearest_) claim_unbiased(t);
    return t;
  }

  std::size_t max_bytes(const Shape& shape) const override {
    const std::size_t n = shape.elements();
    return raw(n) ? 4 * n : coded_bytes(n);
  }

  std::size_t encode(std::span<const float> x, const OwnLayer& layer, Bytes body) const override {
    Writer out(body);
    if (raw(x.size())) {
      out.put_all(x);
      return out.bytes();
    }
    Words sample_words(layer.draws, kSampleWords);
    const std::vector<float> levels = levels_of(x, sample_words);
    std::vector<std::uint8_t> codes(x.size());
    if (nearest_) {
      const Nearest nearest(levels);
      std::ranges::transform(x, codes.begin(), nearest);
    } else {
      const RoundedAtRandom rounded(levels);
      Words words(layer.draws, 0);
      for (std::size_t i = 0; i < x.size(); ++i) codes[i] = rounded(x[i], words);
    }
    out.put_all(levels);
    if (huffman_)
      put_symbols(out, codes, bits_);
    else
      put_codes(out, codes, bits_);
    return out.bytes();
  }

  void decode(ConstBytes body, const OwnLayer&, std::span<float> y) const override {
    Reader in(body);
    if (raw(y.size())) {
      in.get_all(y);
      return in.end();
    }
    float levels[256];
    in.get_all(std::span(levels, count_));
    std::vector<std::uint8_t> codes(y.size());
    if (huffman_)
      get_symbols(in, codes, bits_);
    else
      get_codes(in, codes, bits_);
    in.end();
    require(*std::ranges::max_element(codes) < count_, "a code has no level");
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = levels[codes[i]];
  }

 private:
  std::size_t coded_bytes(std::size_t n) const noexcept {
    return 4 * count_ + (huffman_ ? symbols_bound(n, bits_) : packed_bytes(n, bits_));
  }
  bool raw(std::size_t n) const noexcept { return 4 * n <= coded_bytes(n); }

  std::vector<float> levels_of(std::span<const float> x, Words& words) const {
    const float most = largest_of(x);
    switch (placement_) {
      case Placement::log:
        return log_levels(most, bits_);
      case Placement::cot:
        return cot_levels(most, bits_);
      case Placement::ternary:
        return nearest_ ? ternary_levels(sorted_sample(x, words))
                        : std::vector<float>{-most, 0, most};
      case Placement::quantile:
      case Placement::lloyd:
        break;
    }
    std::vector<float> sorted = sorted_sample(x, words);
    const bool quantile = placement_ == Placement::quantile;
    if (nearest_) return quantile ? quantile_means(sorted, count_) : lloyd_levels(sorted, count_);
    // No entry stands outside of the levels.
    const auto [least, largest] = std::ranges::minmax(x);
    sorted.front() = least;
    sorted.back() = largest;
    return quantile ? quantile_levels(sorted, count_) : lloyd_levels_at_random(sorted, count_);
  }

  Placement placement_;
  unsigned bits_;
  bool nearest_, huffman_;
  std::size_t count_ = 0;
};

}  // namespace

CodecDefinition codebook_definition() {
  return {.name = "codebook",
          .keys =
              "levels=quantile|lloyd|log|cot|ternary, bits=2..8, form=unbiased|nearest, "
              "code=packed|huffman",
          .summary = "places in a table of levels that is sent along",
          .example = "codebook:levels=lloyd,bits=3",
          .make = [](SpecKeys& keys) -> std::shared_ptr<const OwnCodec> {
            const auto placement = static_cast<Placement>(
                keys.choice("levels", {"quantile", "lloyd", "log", "cot", "ternary"}, 0));
            const auto bits = placement == Placement::ternary
                                  ? 2u
                                  : static_cast<unsigned>(keys.integer("bits", 2, 8, 4));
            const bool nearest = keys.choice("form", {"unbiased", "nearest"}, 0) == 1;
            const bool huffman = keys.choice("code", {"packed", "huffman"}, 0) == 1;
            return std::make_shared<Codebook>(placement, bits, nearest, huffman);
          }};
}

}  // namespace atomo::catalogue
