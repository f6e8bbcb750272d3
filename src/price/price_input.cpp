// SPDX-License-Identifier: Apache-2.0
/// The costs of a layer's forms at a price, and the search for the price that meets a budget.
#include "price/price_input.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include "core/run_tasks.hpp"
#include "format/kind.hpp"
#include "price/coordinate_price.hpp"
#include "price/form_choice.hpp"
#include "price/grid_form.hpp"
#include "price/price_math.hpp"

namespace atomo::price {
namespace {

bool has_both(const FormInput& form) noexcept {
  return form.pairs.atoms > 0 && form.atoms.atoms > 0;
}
const PriceLayer& only_family(const FormInput& form) noexcept {
  return form.pairs.atoms > 0 ? form.pairs : form.atoms;
}

Expected expected_of_form(const FormInput& form, float price) noexcept {
  if (!has_both(form)) return expected(only_family(form), price);
  return expected_of_both(expected(form.pairs, price), expected(form.atoms, price));
}

Weighed weigh_form(const FormInput& form, float price) noexcept {
  if (!has_both(form)) return weigh(only_family(form), price);
  const Weighed pairs = weigh(form.pairs, price), atoms = weigh(form.atoms, price);
  return {expected_of_both(pairs.expected, atoms.expected),
          loss_of_both(pairs.loss_256, atoms.loss_256)};
}

Weighed weigh_grid(ConstBytes grid, float step) noexcept {
  const GridExpected at = expected_on_grid(grid, step);
  return {at.expected, at.expected.bits_256 + grid_error_cost_256(at.error16)};
}

std::uint32_t min_code_of_form(const FormInput& form) noexcept {
  return min_price_code(std::max(form.pairs.max_rms, form.atoms.max_rms));
}

Expected expected_of_all(std::span<const PriceInput* const> layers, std::uint32_t code,
                         Executor* executor) noexcept {
  std::atomic<std::uint64_t> bits{0}, worth{0};  // sums of integers: in any order
  core::run_tasks(executor, layers.size(), [&](std::size_t i) {
    const Expected own = layers[i]->expected(price_of_code(code));
    bits.fetch_add(own.bits_256, std::memory_order_relaxed);
    worth.fetch_add(own.worth, std::memory_order_relaxed);
  });
  return {bits, worth};
}

}  // namespace

PriceInput::Best PriceInput::best(float price) const noexcept {
  if (!settings.empty()) return {0, expected_of_settings(settings, price)};
  const auto count = std::count_if(forms.begin(), forms.end(),
                                   [](const FormInput& form) { return form.exists(); });
  const float step = price * grid_step;
  if (count == 0)
    return {kGridForm, grid.empty() ? Expected{} : expected_on_grid(grid, step).expected};
  if (count == 1 && grid.empty()) {
    std::uint8_t only = kBlocksForm;
    while (!forms[only].exists()) ++only;
    return {only, expected_of_form(forms[only], price)};
  }
  Best best;
  LeastForm least{kBlocksForm};
  const auto offer = [&](std::uint8_t form, const Weighed& weighed) {
    if (least.offer(form, weighed.loss_256) || form == kBlocksForm) best = {form, weighed.expected};
  };
  for (std::uint8_t form = 0; form < kForms; ++form) {
    if (!forms[form].exists()) continue;
    Weighed own = weigh_form(forms[form], price);
    own.loss_256 = loss_of_form(own.expected, own.loss_256);
    offer(form, own);
  }
  if (!grid.empty() && std::isfinite(step)) offer(kGridForm, weigh_grid(grid, step));
  return best;
}

std::uint32_t PriceInput::min_code() const noexcept {
  std::uint32_t code = kFirstPriceCode;
  for (const FormInput& form : forms) {
    if (form.exists()) code = std::max(code, min_code_of_form(form));
  }
  if (grid.empty()) return code;
  const float step = min_grid_step(largest_magnitude(grid));
  const std::uint32_t of_grid =
      grid_step == 1 ? std::bit_cast<std::uint32_t>(step) >> 16 : min_grid_price_code(step);
  return std::max(code, of_grid);
}

float own_price(const PriceRule& rule, const PriceInput& input) noexcept {
  if (rule.pool == Pool::grid && !(largest_magnitude(input.grid) > 0)) return 0;
  const float least = price_of_code(input.min_code());
  const float wanted =
      rule.from == PriceRule::From::keep ? step_that_keeps(input.grid, rule.keep) : rule.price;
  return std::max(wanted, least);
}

FoundPrice find_price(std::span<const PriceInput* const> layers, double budget_bits,
                      Executor* executor) noexcept {
  const std::uint64_t budget = budget_cost_256(budget_bits);
  if (expected_of_all(layers, kFirstPriceCode, executor).bits_256 == 0) return {};
  std::uint32_t lowest = kFirstPriceCode;
  for (const PriceInput* layer : layers) lowest = std::max(lowest, layer->min_code());
  const FoundCode found = search_codes(
      lowest, budget, [&](std::uint32_t code) { return expected_of_all(layers, code, executor); });
  const bool underspent = found.code == lowest &&
                          leaves_budget(expected_of_all(layers, lowest, executor).bits_256, budget);
  return {price_of_code(found.code), underspent, found.overspent};
}

}  // namespace atomo::price
