// SPDX-License-Identifier: Apache-2.0
/// \file
/// The entries from a threshold on, as places and values; raised entries as places and signs.
#include "catalogue/thresholds.hpp"

#include "catalogue/places.hpp"

namespace atomo::catalogue {

Kept kept_entries(std::span<const float> x, float threshold) {
  Kept kept;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::fabs(x[i]) < threshold || x[i] == 0) continue;
    kept.places.push_back(i);
    kept.values.push_back(x[i]);
  }
  return kept;
}

Kept kept_or_raised(std::span<const float> x, float threshold, Words& words) {
  Kept kept;
  const double over = threshold > 0 ? 1 / double{threshold} : 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool raised = words.happens(std::fabs(x[i]) * over);
    if (x[i] == 0) continue;
    if (std::fabs(x[i]) >= threshold) {
      kept.places.push_back(i);
      kept.values.push_back(x[i]);
    } else if (raised) {
      kept.raised.push_back(i);
      kept.raised_signs.push_back(x[i] < 0 ? 1 : 0);
    }
  }
  return kept;
}

std::size_t kept_bound(std::size_t n, std::size_t most) noexcept {
  return places_bound(n, most) + 4 * most;
}

std::size_t kept_or_raised_bound(std::size_t n) noexcept {
  return kept_bound(n, n) + 4 + places_bound(n, n) + packed_bytes(n, 1);
}

void put_kept(Writer& out, std::size_t n, const Kept& kept) {
  put_places(out, n, kept.places);
  out.put_all(kept.values);
}

void put_raised(Writer& out, std::size_t n, const Kept& kept, float threshold) {
  out.put(threshold);
  put_places(out, n, kept.raised);
  put_codes(out, kept.raised_signs, 1);
}

void get_kept(Reader& in, std::size_t most, std::span<float> y) {
  const auto places = get_places(in, y.size(), most);
  std::vector<float> values(places.size());
  in.get_all(values);
  for (std::size_t i = 0; i < places.size(); ++i) y[places[i]] = values[i];
}

void get_raised(Reader& in, std::span<float> y) {
  const auto threshold = in.get<float>();
  require(threshold >= 0, "the threshold is below 0");
  const auto places = get_places(in, y.size(), y.size());
  std::vector<std::uint8_t> signs(places.size());
  get_codes(in, signs, 1);
  for (std::size_t i = 0; i < places.size(); ++i)
    y[places[i]] = signs[i] == 1 ? -threshold : threshold;
}

}  // namespace atomo::catalogue
