// SPDX-License-Identifier: Apache-2.0
/// A run draws all tensors, one after the other, looks at the first messages again, and then judges all
/// looks together.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "atomo/verify.hpp"
#include "verify/findings.hpp"
#include "verify/trial.hpp"

namespace atomo::verify {
namespace {

constexpr std::uint32_t kFewestDraws = 64;
constexpr std::size_t kKeyTensors = 4;  ///< in which draws of different keys are compared

void require(bool holds, const std::string& what) {
  if (!holds) throw Error("verify: " + what);
}

void check(const Subject& subject, const Claims& claims, const Options& options) {
  require(subject.encode && subject.decode, "a subject has an encode and a decode");
  require(options.draws >= kFewestDraws,
          std::to_string(options.draws) + " draws; at least 64 are needed");
  require(subject.outcomes <= options.draws, std::to_string(subject.outcomes) + " outcomes and " +
                                                 std::to_string(options.draws) +
                                                 " draws; each outcome needs one");
  require(options.family_error > 0 && options.family_error < 1,
          "the family error is between 0 and 1, 1e-9 for one");
  const auto is_at_least = [](double value, double least) {
    return std::isfinite(value) && value >= least;
  };
  require(is_at_least(claims.bias_bound, 0), "bias_bound is a finite number of at least 0");
  require(!claims.omega || is_at_least(*claims.omega, 0), "omega is a finite number of at least 0");
  require(!claims.contraction || (is_at_least(*claims.contraction, 0) && *claims.contraction <= 1),
          "contraction is a number from 0 to 1");
  require(!claims.largest || is_at_least(*claims.largest, 1),
          "largest is a finite number of at least 1");
  require(!claims.independent_workers || claims.unbiased,
          "independent workers are looked at where no bias is claimed");
  for (const Input& input : options.inputs)
    require(input.shape.elements() == input.values.size(),
            "'" + input.name + "' has " + std::to_string(input.values.size()) +
                " values and shape " + input.shape.to_string());
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::vector<std::string> lines_of(const Claims& claims) {
  std::vector<std::string> lines;
  if (claims.unbiased) lines.push_back("unbiased, up to " + number(claims.bias_bound));
  if (claims.omega) lines.push_back("E|decode - x|^2 <= " + number(*claims.omega) + " |x|^2");
  if (claims.contraction)
    lines.push_back("E|decode - x|^2 <= " + number(1 - *claims.contraction) + " |x|^2");
  if (claims.largest) lines.push_back("|decode| <= " + number(*claims.largest) + " max |x|");
  if (claims.independent_workers) lines.push_back("independent workers");
  if (claims.independent_entries) lines.push_back("independent entries");
  if (claims.fixed_size) lines.push_back("fixed size");
  if (claims.max_bytes) lines.push_back("bytes at most");
  if (claims.average_bytes) lines.push_back("bytes on average");
  if (claims.deterministic) lines.push_back("deterministic");
  if (claims.order_free) lines.push_back("order-free");
  if (claims.non_finite == NonFinite::told) lines.push_back("Inf and NaN are told");
  if (claims.non_finite == NonFinite::everywhere) lines.push_back("Inf and NaN decode to NaN");
  return lines;
}

/// Long enough that chance makes no two errors alike, short enough to keep a thousand of them.
bool suits_keys(const Input& input) {
  return input.values.size() >= 64 && input.values.size() <= 4096;
}

}  // namespace

Report run(const Subject& subject, const Claims& claims, const Options& options) {
  check(subject, claims, options);
  std::vector<Input> inputs = options.inputs;
  if (options.own_inputs) {
    const std::vector<Input> own = generated_inputs(options.seed);
    inputs.insert(inputs.end(), own.begin(), own.end());
  }
  require(!inputs.empty(), "there is no tensor to look at");
  Findings findings;
  std::vector<std::unique_ptr<Trial>> trials;
  std::size_t with_keys = 0;
  for (const Input& input : inputs) {
    const bool keys = with_keys < kKeyTensors && suits_keys(input);
    with_keys += keys ? 1 : 0;
    trials.push_back(std::make_unique<Trial>(subject, claims, options, input, keys, findings));
    trials.back()->run();
  }
  for (const auto& trial : trials) trial->look_again();
  findings.judge(options.family_error);
  Report report;
  report.subject = subject.name;
  report.claims = lines_of(claims);
  report.family_error = options.family_error;
  report.looks = findings.looks();
  report.checks = findings.checks();
  require(!report.checks.empty(),
          "nothing was checked: no tensor is finite and of a size that the claims are about");
  for (const auto& trial : trials) trial->report(report);
  return report;
}

}  // namespace atomo::verify
