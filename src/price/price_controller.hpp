// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The controller of a streamed model: what prices and sizes so far say about the next step's
/// price, for the host and the device. A step's price is that of the steps before, smoothed; bytes
/// that messages took too much or too little are kept as a debt, which the next steps pay off, so
/// that the mean over any run of steps is the budget's but for the debt at its ends. Steps may have
/// shares of the budget: what is learnt is of the whole, and a price is of its step's share. A gradient's
/// scale that jumps for good is a new beginning, whose first messages are nobody's fault and are
/// not paid for; one that comes back in the next step was a spike, and is.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "price/price_math.hpp"

namespace atomo::price {

/// Codes of prices: a change of the smoothed_price by more is followed at once; one by this much is a new
/// beginning.
inline constexpr int kFollowed = 128, kBeginning = 3 * 128;
/// Steps from a beginning on whose sizes are not made up for: they say how wrong a first guess was.
inline constexpr std::uint32_t kSettling = 3;
/// Budgets: the most that is owed, and how much of it the next step can be asked to pay. A kernel has no
/// address for them: where a reference is taken, it is that of the value (+).
inline constexpr double kLargestDebt = 8, kLargestPayment = 2;

/// Shares of the budget: of the step that ends, and of the one whose price is found then.
struct StepShares {
  double now = 1, next = 1;
};

/// The state of the controller of one pool: what the steps so far say about the next.
struct ControllerState {
  float smoothed_price =
      0;            ///< price that meets the whole budget, smoothed; 0 before the first step
  float price = 0;  ///< of the next step, which pays off the debt; likewise
  double owed = 0;  ///< what messages took above the budget, in budgets
  double held = 0;  ///< what the message of a beginning took above it; 0 after other steps
  std::uint32_t steady = 0;  ///< steps since a beginning, as many as count
};

[[nodiscard]] constexpr int price_code(float price) noexcept {
  return static_cast<int>(std::bit_cast<std::uint32_t>(price) >> 16);
}

/// How far a step's price is from the smoothed_price, in codes.
[[nodiscard]] constexpr int distance(const ControllerState& state, int price) noexcept {
  if (state.smoothed_price == 0) return kBeginning;
  const int smoothed_price = price_code(state.smoothed_price);
  return price < smoothed_price ? smoothed_price - price : price - smoothed_price;
}

/// Takes a step in: it was sent at `price` (0: each layer found its own) and took `actual` bits of
/// `target`; `plain` would have met the whole budget, of `whole` bits.
constexpr void count_step(ControllerState& state, float price, float plain, double actual,
                          double target, double whole) noexcept {
  const bool begins = distance(state, price_code(plain)) >= kBeginning;
  const bool comes_back = begins && state.held != 0;
  const double excess =
      price > 0 ? std::min((actual / target - 1) * (target / whole), +kLargestDebt) : 0;
  if (comes_back) {
    state.steady = kSettling;
  } else {
    state.steady = begins ? 0 : std::min(state.steady + 1, +kSettling);
  }
  if (state.steady == kSettling)
    state.owed = std::clamp(state.owed + (comes_back ? state.held : 0) + excess, -kLargestDebt,
                            +kLargestDebt);
  state.held = begins && !comes_back ? excess : 0;
}

/// The divisor of the next step's budget, `share` of the whole: 2 for each such budget owed, as
/// finely as prices are.
[[nodiscard]] constexpr double payment(const ControllerState& state, double share) noexcept {
  const double doublings = std::clamp(state.owed / share, -kLargestPayment, +kLargestPayment);
  const int code = price_code(1) + static_cast<int>(doublings * 128);
  return static_cast<double>(price_of_code(static_cast<std::uint32_t>(code)));
}

/// Takes the step's price in, halfway where it is near, for a third less of the variance that noisy
/// gradients add to messages' sizes; `corrected` meets the next step's target divided by the payment.
constexpr void predict_price(ControllerState& state, float plain, float corrected) noexcept {
  if (!(plain > 0)) return;
  const int now = price_code(plain);
  const int smoothed_price =
      distance(state, now) > kFollowed ? now : (price_code(state.smoothed_price) + now) / 2;
  const int next = std::clamp(smoothed_price + price_code(corrected) - now,
                              static_cast<int>(kFirstPriceCode), static_cast<int>(kLastPriceCode));
  state.smoothed_price = price_of_code(static_cast<std::uint32_t>(smoothed_price));
  state.price = price_of_code(static_cast<std::uint32_t>(next));
}

/// The prices of a streamed step by pool (atoms, grid): those given, or those predicted.
struct StepPrices {
  bool predicted = true;
  float given[2] = {};
};

/// The prices that a model has learnt, by pool.
struct LearntPrices {
  ControllerState pools[2];
  float used[2] = {};  ///< by the last step or message
};

}  // namespace atomo::price
