// SPDX-License-Identifier: Apache-2.0
/// Draws of one tensor: step d of the seed is draw d. Everything that is averaged over draws is one
/// number a draw, or one of draws that no other number uses.
#include "verify/trial.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>

namespace atomo::verify {
namespace {

constexpr std::uint32_t kBlock = 64;     ///< draws whose mean error is squared
constexpr std::uint32_t kRepeats = 4;    ///< draws that are made twice
constexpr std::uint32_t kFewDraws = 64;  ///< of a tensor whose mean nobody claims
constexpr std::size_t kLags = 11;        ///< 1, 2, ..., 1024 steps apart
constexpr double kAlmostNone = 1e-9;     ///< squared error of roundings
/// Claimed squared errors at which a draw's is cut.
constexpr double kClips[] = {1.02, 1.1, 1.3, 2, 4};
constexpr std::uint64_t kShort = 64;  ///< entries of tensors that are drawn four times as often

constexpr double kInfinite = std::numeric_limits<double>::infinity();

double product(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

std::string told(const std::exception& error) { return error.what(); }

}  // namespace

Channel::Channel(const Subject& subject, const Input& input, Findings& findings)
    : subject_(subject), input_(input), findings_(findings) {}

std::vector<std::byte> Channel::encode(const Key& key) const {
  return subject_.encode(input_.values, input_.shape, key);
}

std::vector<float> Channel::decode(ConstBytes message) const {
  // What is not written stays a NaN, and is seen.
  std::vector<float> y(input_.values.size(), std::numeric_limits<float>::quiet_NaN());
  subject_.decode(message, y, input_.shape);
  return y;
}

bool Channel::send(const Key& key) {
  const std::string step = "step " + std::to_string(key.step);
  try {
    message_ = encode(key);
    decoded_ = decode(message_);
  } catch (const std::exception& error) {
    findings_.compared({"takes every tensor", "encode and decode", input_.name}, false, 0, 0,
                       step + ": " + told(error));
    return false;
  }
  const auto wrong = static_cast<double>(std::count_if(
      decoded_.begin(), decoded_.end(), [](float value) { return !std::isfinite(value); }));
  if (wrong > 0) {
    findings_.compared({"finite", "entries that are not finite", input_.name}, false, wrong, 0,
                       step);
    return false;
  }
  return true;
}

void Channel::error_into(std::vector<double>& error) const {
  for (std::size_t i = 0; i < decoded_.size(); ++i)
    error[i] = static_cast<double>(decoded_[i]) - static_cast<double>(input_.values[i]);
}

Trial::Trial(const Subject& subject, const Claims& claims, const Options& options,
             const Input& input, bool keys, Findings& findings)
    : subject_(subject),
      claims_(claims),
      options_(options),
      input_(input),
      findings_(findings),
      channel_(subject, input, findings),
      bias_(input, claims),
      keys_(keys),
      error_(input.values.size()),
      sum_(input.values.size()) {
  finite_ = std::all_of(input.values.begin(), input.values.end(),
                        [](float x) { return std::isfinite(x); });
  const std::uint64_t n = std::max<std::uint64_t>(input.values.size(), 1);
  draws_ = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(options.entries / n, kFewDraws,
                                n <= kShort ? std::uint64_t{4} * options.draws : options.draws));
  const bool means =
      claims.unbiased || claims.omega || claims.contraction || claims.average_bytes != nullptr;
  if (!means) draws_ = kFewDraws;
  if (bias_.energy() == 0) draws_ = std::min(draws_, 4 * kFewDraws);
  if (enumerated()) draws_ = static_cast<std::uint32_t>(subject.outcomes);
  if (keys_ && claims.unbiased) {
    ring_.assign(std::size_t{1} << (kLags - 1), std::vector<double>(input.values.size()));
    lags_.resize(kLags);
  }
  if (claims.independent_entries) neighbours_.resize(8);
}

Key Trial::key(std::uint32_t step, std::uint16_t worker, std::uint16_t tensor) const {
  return {.seed = options_.seed, .step = step, .tensor = tensor, .worker = worker};
}

Place Trial::place(const char* claim, const char* what) const { return {claim, what, input_.name}; }

void Trial::run() {
  if (is_outside()) return;
  if (!finite_) return look_at_non_finite();
  if (options_.progress) options_.progress(input_.name);
  draw_all();
  if (failed_) return;
  findings_.compared(place("takes every tensor", "encode and decode"), true, 0, 0);
  findings_.compared(place("finite", "entries that are not finite"), true, 0, 0);
  look_at_sizes();
  look_at_zero();
  if (input_.values.empty()) return;
  look_at_squares();
  if (!claims_.unbiased) return;
  bias_.look(findings_, enumerated());
  if (bias_.energy() == 0 || enumerated()) return;
  look_at_products();
  if (keys_ && !failed_) look_at_layers();
  if (keys_ && claims_.independent_workers && !failed_) look_at_workers();
}

/// The claims are not about this tensor.
bool Trial::is_outside() const {
  if (claims_.takes && !claims_.takes(input_.shape)) return true;
  const double most = bias_.largest();
  return most > claims_.highest || (most > 0 && most < claims_.smallest);
}

void Trial::draw_all() {
  for (std::uint32_t step = 0; step < draws_ && !failed_; ++step) {
    failed_ = !channel_.send(key(step));
    if (!failed_) take(step);
  }
  if (!failed_) look_at_repeats();
}

void Trial::take(std::uint32_t step) {
  if (step < kRepeats) first_messages_.push_back(channel_.message());
  bytes_.add(static_cast<double>(channel_.message().size()));
  draws_of_bytes_.push_back(static_cast<double>(channel_.message().size()));
  if (input_.values.empty()) return;
  bias_.add(channel_.decoded());
  channel_.error_into(error_);
  const double energy = bias_.energy();
  if (energy == 0) return squares_.add(product(error_, error_));
  const double square = product(error_, error_) / energy;
  squares_.add(square);
  draws_of_squares_.push_back(square);
  if (claims_.unbiased) add_products(step);
}

/// The mean error of a block, squared, less what independent errors give it: an estimate of the squared
/// bias, whatever its direction.
void Trial::add_products(std::uint32_t step) {
  const double energy = bias_.energy();
  block_squares_ += product(error_, error_) / energy;
  for (std::size_t i = 0; i < error_.size(); ++i) sum_[i] += error_[i];
  if (step % kBlock == kBlock - 1) {
    blocks_.add((product(sum_, sum_) / energy - block_squares_) / (kBlock * kBlock));
    std::fill(sum_.begin(), sum_.end(), 0.0);
    block_squares_ = 0;
  }
  if (!lags_.empty()) add_lags(step);
  for (std::size_t k = 0; k < neighbours_.size(); ++k) {
    const std::size_t apart = std::size_t{1} << k;
    double sum = 0;
    for (std::size_t i = apart; i < error_.size(); ++i) sum += error_[i] * error_[i - apart];
    if (apart < error_.size()) neighbours_[k].add(sum / energy);
  }
}

/// Each draw is in one pair of every distance.
void Trial::add_lags(std::uint32_t step) {
  for (std::size_t k = 0; k < lags_.size(); ++k) {
    const std::uint32_t apart = std::uint32_t{1} << k;
    if (step % (2 * apart) < apart) continue;
    const double together = product(error_, ring_[(step - apart) % ring_.size()]) / bias_.energy();
    lags_[k].add(together);
    if (k == 0) products_.add(together * together);
  }
  ring_[step % ring_.size()] = error_;
}

void Trial::look_at_zero_mean(Place where, const Statistic& numbers, double most) {
  if (numbers.count < 8 || !(most > 0)) return;
  findings_.look({std::move(where),
                  numbers,
                  {-1.5 * most, 1.5 * most},
                  bias_.squared_slack(),
                  false,
                  false,
                  false,
                  std::nullopt,
                  bias_.jump() * bias_.jump() / bias_.energy(),
                  2,
                  static_cast<double>(draws_)});
}

void Trial::look_at_products() {
  const double most = squares_.highest;
  look_at_zero_mean(place("unbiased", "squared bias in any direction"), blocks_, most);
  for (const Statistic& lag : lags_)
    look_at_zero_mean(place("unbiased", "errors of different steps"), lag, most);
  for (const Statistic& neighbour : neighbours_)
    look_at_zero_mean(place("independent entries", "errors of neighbours"), neighbour, most);
}

void Trial::look_at_repeats() {
  if (!claims_.deterministic) return;
  for (std::uint32_t step = 0; step < first_messages_.size(); ++step) {
    bool same = false;
    std::string note = "step " + std::to_string(step);
    try {
      same = channel_.encode(key(step)) == first_messages_[step];
      const std::vector<float> once = channel_.decode(first_messages_[step]),
                               twice = channel_.decode(first_messages_[step]);
      if (once != twice) {
        same = false;
        note += ", decoded twice";
      }
    } catch (const std::exception& error) {
      note += ": " + told(error);
    }
    if (!same)
      return findings_.compared(place("deterministic", "same key, same bytes"), false, 1, 0, note);
  }
  findings_.compared(place("deterministic", "same key, same bytes"), true, 0, 0);
}

void Trial::look_again() {
  if (!claims_.order_free || failed_ || first_messages_.empty()) return;
  bool same = false;
  std::string note;
  try {
    same = channel_.encode(key(0)) == first_messages_[0];
  } catch (const std::exception& error) {
    note = told(error);
  }
  findings_.compared(place("order-free", "same bytes after other messages"), same, same ? 0 : 1, 0,
                     note);
}

void Trial::look_at_non_finite() {
  if (claims_.non_finite == NonFinite::any) return;
  const Place where = place("Inf and NaN", "what they decode to");
  std::vector<float> y;
  try {
    y = channel_.decode(channel_.encode(key(0)));
  } catch (const std::exception& error) {
    return findings_.compared(where, true, 0, 0, "refused: " + told(error));
  }
  const auto count = [&](auto&& is) { return std::count_if(y.begin(), y.end(), is); };
  const auto nans = count([](float v) { return std::isnan(v); });
  const auto not_finite = count([](float v) { return !std::isfinite(v); });
  const auto entries = static_cast<std::ptrdiff_t>(y.size());
  if (claims_.non_finite == NonFinite::told)
    return findings_.compared(where, not_finite > 0, static_cast<double>(not_finite), 1,
                              not_finite > 0 ? "" : "all entries are finite");
  findings_.compared(where, nans == entries, static_cast<double>(nans),
                     static_cast<double>(entries), nans == entries ? "" : "not every entry is NaN");
}

void Trial::look_at_sizes() {
  if (claims_.fixed_size) {
    // The same shape once more, of zeros.
    Input zeros = input_;
    std::fill(zeros.values.begin(), zeros.values.end(), 0.0f);
    Channel other(subject_, zeros, findings_);
    double lowest = bytes_.lowest, highest = bytes_.highest;
    if (other.send(key(0))) {
      const auto bytes = static_cast<double>(other.message().size());
      lowest = std::min(lowest, bytes);
      highest = std::max(highest, bytes);
    }
    findings_.compared(place("fixed size", "bytes of the longest and the shortest"),
                       lowest == highest, highest, lowest);
  }
  if (claims_.largest) {
    const double most = *claims_.largest * bias_.largest() * (1 + claims_.bias_bound);
    findings_.compared(place("largest", "magnitude of the largest decoded entry"),
                       bias_.decoded() <= most, bias_.decoded(), most);
  }
  if (claims_.max_bytes) {
    const auto most = static_cast<double>(claims_.max_bytes(input_.shape));
    findings_.compared(place("bytes at most", "bytes of the longest"), bytes_.highest <= most,
                       bytes_.highest, most);
  }
  const double budget = claims_.average_bytes ? claims_.average_bytes(input_) : kInfinite;
  if (std::isfinite(budget))
    look_at_mean(place("bytes on average", "mean of messages"), draws_of_bytes_, budget);
}

/// A claim on the squared error leaves zeros none.
void Trial::look_at_zero() {
  if (input_.values.empty() || bias_.energy() != 0 || (!claims_.omega && !claims_.contraction))
    return;
  findings_.compared(place(claims_.omega ? "omega" : "contraction", "error of zeros"),
                     squares_.highest == 0, squares_.highest, 0);
}

/// Numbers of at least 0 are cut, which only lowers their mean: what is left has a known range.
void Trial::look_at_mean(const Place& where, const std::vector<double>& numbers, double allowed) {
  for (const double clip : kClips) {
    Statistic cut;
    for (const double value : numbers)
      cut.add(enumerated() ? value : std::min(value, clip * allowed));
    findings_.look({where,
                    cut,
                    {0, clip * allowed},
                    allowed * (1 + kAlmostNone),
                    true,
                    true,
                    enumerated(),
                    std::nullopt});
  }
}

void Trial::look_at_squares() {
  if (bias_.energy() == 0) return;
  const auto look = [&](const char* claim, double allowed) {
    if (allowed > 0) return look_at_mean(place(claim, "squared error"), draws_of_squares_, allowed);
    findings_.compared(place(claim, "squared error"), squares_.highest <= kAlmostNone,
                       squares_.highest, allowed);
  };
  if (claims_.omega) look("omega", *claims_.omega);
  if (claims_.contraction) look("contraction", 1 - *claims_.contraction);
}

void Trial::look_at_layers() {
  Statistic numbers;
  std::vector<double> other(error_.size());
  for (std::uint32_t step = 0; step < draws_ / 8; ++step) {
    for (std::uint16_t tensor = 0; tensor < 2; ++tensor) {
      if (!channel_.send(key(draws_ + step, 0, static_cast<std::uint16_t>(1 + tensor)))) {
        failed_ = true;
        return;
      }
      channel_.error_into(tensor == 0 ? other : error_);
    }
    numbers.add(product(error_, other) / bias_.energy());
  }
  look_at_zero_mean(place("unbiased", "errors of different layers"), numbers, squares_.highest);
}

/// The products of all pairs of workers: their mean is 0 for independent errors, and one's squared error
/// for errors that are the same.
void Trial::look_at_workers() {
  constexpr std::uint16_t kWorkers = 8;
  Statistic means[4], products[4];
  double most = 0;
  for (std::uint32_t step = 0; step < draws_ / kWorkers; ++step) {
    std::fill(sum_.begin(), sum_.end(), 0.0);
    double squares = 0;
    std::size_t doubled = 0;
    for (std::uint16_t w = 1; w <= kWorkers; ++w) {
      if (!channel_.send(key(2 * draws_ + step, static_cast<std::uint16_t>(w - 1)))) {
        failed_ = true;
        return;
      }
      channel_.error_into(error_);
      for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += error_[i];
      const double square = product(error_, error_) / bias_.energy();
      squares += square;
      most = std::max(most, square);
      if ((w & (w - 1)) != 0) continue;
      const double total = product(sum_, sum_) / bias_.energy();
      if (squares > 0) means[doubled].add(total / squares);
      if (w > 1) products[doubled].add((total - squares) / (w * (w - 1)));
      ++doubled;
    }
  }
  for (std::size_t k = 1; k < 4; ++k) {
    if (means[k].count > 0) growth_.push_back({input_.name, std::uint32_t{1} << k, means[k].mean});
    look_at_zero_mean(place("independent workers", "error of the workers' mean"), products[k],
                      most);
  }
}

void Trial::report(Report& report) const {
  if (!finite_ || failed_ || is_outside()) return;
  InputReport row;
  row.name = input_.name;
  row.shape = input_.shape;
  row.draws = draws_;
  row.bytes = bytes_.mean;
  if (bias_.energy() > 0) row.nmse = squares_.mean;
  if (products_.mean > 0) row.degrees = squares_.mean * squares_.mean / products_.mean;
  bias_.report(findings_, row, report.classes);
  report.inputs.push_back(std::move(row));
  report.growth.insert(report.growth.end(), growth_.begin(), growth_.end());
}

}  // namespace atomo::verify
