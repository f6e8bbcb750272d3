// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What the search for a price knows of a layer: each way in which it can be sent, and what that
/// costs at a price. A budget is met by the price at which the least costly ways of all layers fit.

#include <array>
#include <cstdint>
#include <span>

#include "atomo/types.hpp"
#include "price/price.hpp"
#include "price/price_rule.hpp"
#include "price/settings.hpp"

namespace atomo::price {

/// One way to send a layer of dithered atoms: singular pairs, rows or blocks, or a sketch's pairs
/// and rows. A family that it does not have has no atoms.
struct FormInput {
  PriceLayer pairs, atoms;

  [[nodiscard]] bool exists() const noexcept { return pairs.atoms > 0 || atoms.atoms > 0; }
};

/// A layer. Bins, costs and the histogram stand in memory that outlives the message.
struct PriceInput {
  static constexpr std::size_t kForms = 3;  ///< of dithered atoms

  std::array<FormInput, kForms> forms;  ///< by the form's number in the row
  ConstBytes grid;                      ///< histogram of magnitudes; empty: no coordinates
  float grid_step = 1;                  ///< of the coordinates, in units of the price
  std::span<const Setting> settings;    ///< of a registered codec, which has no forms and no grid

  /// A form, and the expected bits of its body.
  struct Best {
    std::uint8_t form = 0;
    Expected expected;
  };
  /// The form of least expected bits and error at a price, of equal ones the first; its bits fall as
  /// the price rises.
  [[nodiscard]] Best best(float price) const noexcept;
  [[nodiscard]] std::uint8_t best_form(float price) const noexcept { return best(price).form; }
  [[nodiscard]] Expected expected(float price) const noexcept { return best(price).expected; }
  /// Code of the least price at which every form can be sent, at least 1.
  [[nodiscard]] std::uint32_t min_code() const noexcept;
};

/// The price of a layer whose rule gives a price or a count to keep, and no budget.
[[nodiscard]] float own_price(const PriceRule& rule, const PriceInput& input) noexcept;

/// The result of a search.
struct FoundPrice {
  float price = 0;          ///< 0 when there is nothing to send
  bool underspent = false;  ///< held up by a layer's least price: the budget cannot be spent
  bool overspent = false;   ///< the budget does not pay for a message worth sending

  /// The same as notices.
  [[nodiscard]] constexpr Status notices() const noexcept {
    return (underspent ? Status::underspent : Status::ok) |
           (overspent ? Status::overspent : Status::ok);
  }
};

/// The smallest price at which the expected bits of all layers fit `budget_bits`, but none above the
/// largest at which a message is worth sending. Candidates are the positive f32 whose lower 16 bits
/// are zero (128 an octave); expected sizes fall as the price rises, so it bisects. The result does
/// not depend on the order of the layers, which are weighed at once on the executor. Does not
/// allocate.
[[nodiscard]] FoundPrice find_price(std::span<const PriceInput* const> layers, double budget_bits,
                                    Executor* executor = nullptr) noexcept;

}  // namespace atomo::price
