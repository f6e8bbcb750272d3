// SPDX-License-Identifier: Apache-2.0
/// Each look gets its share of the family's error and an interval for the mean (bounds.hpp); it fails
/// where the interval holds nothing that the claim allows. Looks of one kind at one tensor become one
/// check, that of the worst.
#include "verify/findings.hpp"

#include <cmath>
#include <map>
#include <tuple>
#include <utility>

namespace atomo::verify {
namespace {

/// What is within the range that was seen, and what a rare jump may add to it; never more than the whole
/// range allows.
Span seen_interval(const Look& look, double error) {
  const Statistic& s = look.numbers;
  const Span whole = mean_interval(s, look.possible, error / 3);
  Span seen = mean_interval(s, range_of(s, look.possible), error / 3);
  const double rate = unseen_rate(look.draws > 0 ? look.draws : s.count, error / 3);
  const double more = look.unseen * std::pow(rate, look.power);
  return {std::max(whole.low, seen.low - more), std::min(whole.high, seen.high + more)};
}

Judged judge_one(const Look& look, double error) {
  const Statistic& s = look.numbers;
  if (look.enumerated) {
    const double found = look.upper ? s.mean : std::fabs(s.mean);
    return {0, found <= look.allowed, "enumerated"};
  }
  // A variance that is claimed gives a bound of its own: both hold at half the error each.
  const bool two = look.variance.has_value() && look.exact;
  Span interval = look.exact ? mean_interval(s, look.possible, two ? error / 2 : error)
                             : seen_interval(look, error);
  if (two) {
    const double width = look.possible.width();
    const double reach = BernsteinFamily(2, error).reach(s.count * *look.variance, width);
    interval.low = std::max(interval.low, s.mean - reach / s.count);
    interval.high = std::min(interval.high, s.mean + reach / s.count);
  }
  Judged judged;
  judged.holds = interval.low <= look.allowed && (look.upper || interval.high >= -look.allowed);
  judged.band = std::max(s.mean - interval.low, look.upper ? 0.0 : interval.high - s.mean);
  judged.bound = look.exact ? "exact" : "seen range";
  return judged;
}

/// How bad a look is: what is beyond the allowance, in bands; enumerated ones beyond it are the worst.
double badness(const Look& look, const Judged& judged) {
  const double beyond =
      (look.upper ? look.numbers.mean : std::fabs(look.numbers.mean)) - look.allowed;
  constexpr double kCertain = 1e9;
  if (!judged.holds)
    return kCertain + (judged.band > 0 ? std::min(beyond / judged.band, kCertain) : kCertain);
  return judged.band > 0 ? beyond / judged.band : -1;
}

}  // namespace

std::size_t Findings::look(Look look) {
  looks_.push_back(std::move(look));
  return looks_.size() - 1;
}

void Findings::compared(Place place, bool holds, double found, double allowed, std::string note) {
  Check check;
  check.claim = std::move(place.claim);
  check.what = std::move(place.what);
  check.input = std::move(place.input);
  check.holds = holds;
  check.found = found;
  check.allowed = allowed;
  check.bound = "compared";
  check.note = std::move(note);
  compared_.push_back(std::move(check));
}

void Findings::judge(double family_error) {
  judged_.clear();
  const double error = family_error / static_cast<double>(std::max<std::size_t>(looks_.size(), 1));
  for (const Look& look : looks_) judged_.push_back(judge_one(look, error));
}

std::vector<Check> Findings::checks() const {
  std::vector<Check> all = compared_;
  std::map<std::tuple<std::string, std::string, std::string>, std::pair<std::size_t, double>> rows;
  for (std::size_t i = 0; i < looks_.size(); ++i) {
    const auto& [place, numbers, allowed] =
        std::tie(looks_[i].place, looks_[i].numbers, looks_[i].allowed);
    const double bad = badness(looks_[i], judged_[i]);
    const auto [row, is_new] =
        rows.try_emplace({place.input, place.claim, place.what}, all.size(), bad);
    if (is_new) all.emplace_back();
    Check& check = all[row->second.first];
    check.looks += is_new ? 0 : 1;
    check.holds = check.holds && judged_[i].holds;
    if (!is_new && bad <= row->second.second) continue;
    row->second.second = bad;
    check.claim = place.claim;
    check.what = place.what;
    check.input = place.input;
    check.found = numbers.mean;
    check.allowed = allowed;
    check.band = judged_[i].band;
    check.bound = judged_[i].bound;
  }
  return all;
}

}  // namespace atomo::verify
