// SPDX-License-Identifier: Apache-2.0
/// \file
/// DGC's selection: the threshold of the largest entries is estimated from a sample, and made exact from those that it
/// selects where they are far too many. Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression", ICLR 2018 (arXiv 1712.01887),
/// its paragraph on sampled and hierarchical top-k. Its memory is `dgc+` in front.
///
/// "Far too many" is here more than twice as many as asked for. `form=unbiased` estimates from the sample the threshold T at which
/// the sum of min(1, |x| / T) is as asked for, and sends entries below T as plus or minus T with the chance |x| / T (Wangni
/// et al., NeurIPS 2018).
///
/// Body: as of `threshold`.
#include <algorithm>

#include "catalogue/definitions.hpp"
#include "catalogue/thresholds.hpp"

namespace atomo::catalogue {
namespace {

constexpr std::uint64_t kSampleWords = std::uint64_t{1} << 41;
constexpr std::size_t kLeastSample = 256;

class SampledThreshold final : public OwnCodec {
 public:
  SampledThreshold(double keep, double sample, bool unbiased)
      : keep_(keep), sample_(sample), unbiased_(unbiased) {}

  Traits traits() const override {
    Traits t;
    if (unbiased_) claim_unbiased(t);
    return t;
  }

  std::size_t max_bytes(const Shape& shape) const override {
    const std::size_t n = shape.elements();
    return unbiased_ ? kept_or_raised_bound(n) : kept_bound(n, most(n));
  }

  std::size_t encode(std::span<const float> x, const OwnLayer& layer, Bytes body) const override {
    Words sample_words(layer.draws, kSampleWords), words(layer.draws, 0);
    std::vector<float> sample = sample_of(x, sample_words);
    Writer out(body);
    if (unbiased_) {
      const float threshold = threshold_of_sum(sample, largest_of(x));
      const Kept kept = kept_or_raised(x, threshold, words);
      put_kept(out, x.size(), kept);
      put_raised(out, x.size(), kept, threshold);
      return out.bytes();
    }
    const std::size_t rank = asked(sample.size()) - 1;
    std::nth_element(sample.begin(), at(sample, rank), sample.end(), std::greater<>());
    Kept kept = kept_entries(x, sample[rank]);
    if (kept.values.size() > most(x.size())) make_exact(kept, asked(x.size()));
    put_kept(out, x.size(), kept);
    return out.bytes();
  }

  void decode(ConstBytes body, const OwnLayer&, std::span<float> y) const override {
    Reader in(body);
    get_kept(in, unbiased_ ? y.size() : most(y.size()), y);
    if (unbiased_) get_raised(in, y);
    in.end();
  }

 private:
  static std::vector<float>::iterator at(std::vector<float>& v, std::size_t i) {
    return v.begin() + static_cast<std::ptrdiff_t>(i);
  }
  std::size_t asked(std::size_t n) const noexcept {
    const auto k = static_cast<std::size_t>(std::ceil(keep_ * static_cast<double>(n)));
    return std::clamp<std::size_t>(k, 1, n);
  }
  std::size_t most(std::size_t n) const noexcept { return std::min(n, 2 * asked(n)); }

  /// Magnitudes, one of each stretch of entries.
  std::vector<float> sample_of(std::span<const float> x, Words& words) const {
    const std::size_t n = x.size();
    const auto share = static_cast<std::size_t>(sample_ * static_cast<double>(n));
    std::vector<float> sample(std::min(n, std::max(kLeastSample, share)));
    for (std::size_t i = 0; i < sample.size(); ++i) {
      const auto first = static_cast<std::size_t>(static_cast<double>(i) * static_cast<double>(n) /
                                                  static_cast<double>(sample.size()));
      const auto end = static_cast<std::size_t>(
          static_cast<double>(i + 1) * static_cast<double>(n) / static_cast<double>(sample.size()));
      const std::uint64_t stretch = std::max<std::size_t>(end, first + 1) - first;
      sample[i] = std::fabs(x[std::min(n - 1, first + (words.next() * stretch >> 32))]);
    }
    return sample;
  }

  /// The T at which min(1, v / T) is keep on average; `largest` where all of the sample are zeros.
  float threshold_of_sum(std::vector<float>& sample, float largest) const {
    std::ranges::sort(sample, std::greater<>());
    double rest = 0;
    for (const float v : sample) rest += v;
    if (rest == 0) return largest;
    const double wanted = keep_ * static_cast<double>(sample.size());
    for (std::size_t certain = 0; certain < sample.size(); ++certain) {
      const double left = wanted - static_cast<double>(certain);
      if (left <= 0) return sample[certain];
      if (const double t = rest / left; t >= sample[certain]) return finite(t);
      rest = std::max(0.0, rest - sample[certain]);
    }
    return sample.back();
  }

  /// Leaves the `count` largest, of equal ones the first.
  static void make_exact(Kept& kept, std::size_t count) {
    std::vector<float> magnitudes(kept.values.size());
    std::ranges::transform(kept.values, magnitudes.begin(), [](float v) { return std::fabs(v); });
    std::nth_element(magnitudes.begin(), at(magnitudes, count - 1), magnitudes.end(),
                     std::greater<>());
    const float threshold = magnitudes[count - 1];
    std::size_t equal = count;
    for (const float v : kept.values) equal -= std::fabs(v) > threshold ? 1u : 0u;
    std::size_t left = 0;
    for (std::size_t i = 0; i < kept.values.size(); ++i) {
      const float magnitude = std::fabs(kept.values[i]);
      if (magnitude < threshold || (magnitude == threshold && equal == 0)) continue;
      if (magnitude == threshold) --equal;
      kept.places[left] = kept.places[i];
      kept.values[left++] = kept.values[i];
    }
    kept.places.resize(left);
    kept.values.resize(left);
  }

  double keep_, sample_;
  bool unbiased_;
};

}  // namespace

CodecDefinition dgc_threshold_definition() {
  return {.name = "dgc-threshold",
          .keys = "keep=F, sample=F, form=published|unbiased",
          .summary = "the entries from a threshold on that a sample tells (DGC), biased",
          .example = "dgc-threshold:keep=0.01",
          .make = [](SpecKeys& keys) -> std::shared_ptr<const OwnCodec> {
            const double keep = keys.number("keep", 1e-6, 1);
            const double sample = keys.number("sample", 1e-4, 1, 0.01);
            const bool unbiased = keys.choice("form", {"published", "unbiased"}, 0) == 1;
            return std::make_shared<SampledThreshold>(keep, sample, unbiased);
          }};
}

}  // namespace atomo::catalogue
