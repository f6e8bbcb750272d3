// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Whether the mean over workers errs less than one worker, through the public face.

#include "statistics/statistics.hpp"
#include "support/support.hpp"

namespace atomo::test {

using WorkerKey = Key (*)(std::uint16_t worker, std::uint32_t step);

inline Key worker_key(std::uint16_t worker, std::uint32_t step) {
  return {.seed = 3, .step = step, .worker = worker};
}
inline Key shared_key(std::uint16_t, std::uint32_t step) { return {.seed = 3, .step = step}; }

/// W workers send the same tensor. Where the traits say that draws average out, the squared error
/// of the mean is 1/W of one's; where draws are shared on purpose it is all of it.
inline std::string check_workers(WorkerKey key) {
  constexpr std::uint16_t kWorkers = 8;
  constexpr std::uint32_t kSteps = 16;
  for (const std::string& spec : all_specs()) {
    const Codec codec = Codec::parse(spec);
    const Traits traits = codec.traits();
    if (!traits.unbiased || traits.omega == 0.0) continue;
    // Several chunks of systematic draws; singular vectors take their time.
    const Shape shape = spec.find("svd") == std::string::npos ? Shape{64, 256} : Shape{24, 40};
    const std::vector<float> x =
        heavy_tailed(shape.elements(), 5, static_cast<std::size_t>(shape[1]));
    double one = 0, all = 0;
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      std::vector<float> mean(x.size());
      for (std::uint16_t w = 0; w < kWorkers; ++w) {
        const auto y = decode(codec, encode(codec, x, shape, key(w, step)).bytes, shape).values;
        one += nmse(x, y) / kWorkers;
        for (std::size_t i = 0; i < x.size(); ++i) mean[i] += y[i] / kWorkers;
      }
      all += nmse(x, mean);
    }
    const double expected = traits.averages_over_workers ? 1.0 / kWorkers : 1;
    if (one == 0 || !(all / one > 0.75 * expected && all / one < 1.3 * expected))
      return complaint(spec, ": the mean of ", kWorkers, " workers has ", all / one,
                       " of one's squared error");
  }
  return {};
}

}  // namespace atomo::test
