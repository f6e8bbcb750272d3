// SPDX-License-Identifier: Apache-2.0
/// \file
/// The entries whose magnitude is at least a threshold, as they are. Strom, "Scalable distributed DNN training using commodity
/// GPU cloud computing", Interspeech 2015, has the fixed threshold (and sends signs alone); Dutta et al., "Rethinking gradient
/// sparsification as total error minimization", NeurIPS 2021 (arXiv 2108.00951), the hard threshold with values.
///
/// `form=unbiased` sends each smaller entry as plus or minus the threshold with the chance |x| / threshold: Wangni, Wang, Liu,
/// Zhang, "Gradient Sparsification for Communication-Efficient Distributed Optimization", NeurIPS 2018 (arXiv 1710.09854).
///
/// Body: places and values (thresholds.hpp); with `form=unbiased` the threshold, and places and signs of raised entries.
#include "catalogue/definitions.hpp"
#include "catalogue/thresholds.hpp"

namespace atomo::catalogue {
namespace {

class Threshold final : public OwnCodec {
 public:
  Threshold(double above, bool of_rms, bool unbiased)
      : above_(above), of_rms_(of_rms), unbiased_(unbiased) {}

  Traits traits() const override {
    Traits t;
    if (unbiased_) claim_unbiased(t);
    return t;
  }

  std::size_t max_bytes(const Shape& shape) const override {
    const std::size_t n = shape.elements();
    return unbiased_ ? kept_or_raised_bound(n) : kept_bound(n, n);
  }

  std::size_t encode(std::span<const float> x, const OwnLayer& layer, Bytes body) const override {
    const double unit = of_rms_ ? std::sqrt(energy_of(x) / static_cast<double>(x.size())) : 1;
    const float threshold = finite(above_ * unit);
    Words words(layer.draws, 0);
    const Kept kept = unbiased_ ? kept_or_raised(x, threshold, words) : kept_entries(x, threshold);
    Writer out(body);
    put_kept(out, x.size(), kept);
    if (unbiased_) put_raised(out, x.size(), kept, threshold);
    return out.bytes();
  }

  void decode(ConstBytes body, const OwnLayer&, std::span<float> y) const override {
    Reader in(body);
    get_kept(in, y.size(), y);
    if (unbiased_) get_raised(in, y);
    in.end();
  }

 private:
  double above_;
  bool of_rms_, unbiased_;
};

}  // namespace

CodecDefinition threshold_definition() {
  return {
      .name = "threshold",
      .keys = "above=T, unit=absolute|rms, form=published|unbiased",
      .summary = "the entries from a threshold on, biased, or the others raised to it at random",
      .example = "threshold:above=3,unit=rms",
      .make = [](SpecKeys& keys) -> std::shared_ptr<const OwnCodec> {
        const double above = keys.number("above", 1e-30, 1e30);
        const bool of_rms = keys.choice("unit", {"absolute", "rms"}, 0) == 1;
        const bool unbiased = keys.choice("form", {"published", "unbiased"}, 0) == 1;
        return std::make_shared<Threshold>(above, of_rms, unbiased);
      }};
}

}  // namespace atomo::catalogue
