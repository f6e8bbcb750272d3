// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Codecs of tests that are not the library's.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atomo/own_codec.hpp"

namespace atomo::test {

/// Levels of the largest magnitude, a byte an entry, drawn.
class Levels : public OwnCodec {
 public:
  explicit Levels(std::int64_t levels) : levels_(static_cast<float>(levels)) {}

  Traits traits() const override {
    Traits t;
    t.unbiased = t.averages_over_workers = t.fixed_size = true;
    t.bias_bound = 1e-5;
    return t;
  }
  std::size_t max_bytes(const Shape& shape) const override { return 4 + shape.elements(); }
  std::size_t encode(std::span<const float> x, const OwnLayer& layer, Bytes body) const override {
    float largest = 0;
    for (const float v : x) largest = std::max(largest, v < 0 ? -v : v);
    std::memcpy(body.data(), &largest, 4);
    for (std::size_t i = 0; i < x.size(); ++i) {
      std::uint32_t word = 0;
      layer.draws.fill(i, {&word, 1});
      const float z = largest > 0 ? x[i] / largest * levels_ + 128 : 128;
      const auto level = static_cast<int>(z + static_cast<float>(word >> 8) * 0x1p-24f);
      body[4 + i] = static_cast<std::byte>(level);
    }
    return 4 + x.size();
  }
  void decode(ConstBytes body, const OwnLayer&, std::span<float> y) const override {
    if (body.size() != 4 + y.size()) throw Error("a body of another length");
    float largest = 0;
    std::memcpy(&largest, body.data(), 4);
    for (std::size_t i = 0; i < y.size(); ++i)
      y[i] = static_cast<float>(static_cast<int>(body[4 + i]) - 128) * (largest / levels_);
  }

 private:
  float levels_;
};

inline CodecDefinition levels_definition(std::string name = "levels") {
  return {.name = std::move(name),
          .keys = "levels=1..127",
          .summary = "a test's",
          .example = "",
          .make = [](SpecKeys& keys) -> std::shared_ptr<const OwnCodec> {
            return std::make_shared<Levels>(keys.integer("levels", 1, 127, 8));
          }};
}

/// Entries in so many bits each, between the layer's largest magnitudes, drawn: 0, 2, 4 or 8 bits, a setting
/// each. `fixed`: with that setting always; else with a budget.
class Graded final : public OwnCodec {
 public:
  static constexpr unsigned kBits[] = {0, 2, 4, 8};

  Graded(double budget, std::optional<std::size_t> fixed) : budget_(budget), fixed_(fixed) {}

  std::size_t max_bytes(const Shape& shape) const override { return 5 + shape.elements(); }
  double budget_bits() const override { return fixed_ ? 0 : budget_; }
  std::vector<RatePoint> price(std::span<const float> x, const Shape&) const override {
    std::vector<RatePoint> points;
    const float most = largest(x);
    for (const unsigned bits : kBits) {
      const float step = step_of(most, bits);
      double error = 0;
      for (const float v : x) {
        const float place = bits == 0 || most == 0 ? 0 : (v + most) / step;
        const float up = place - std::floor(place);
        error += bits == 0 ? double{v} * v : double{up} * (1 - up) * step * step;
      }
      points.push_back({static_cast<double>(bytes_of(x.size(), bits)), error});
    }
    return points;
  }
  std::size_t encode(std::span<const float> x, const OwnLayer& layer, Bytes body) const override {
    const std::size_t setting = fixed_.value_or(layer.setting);
    const unsigned bits = kBits[setting];
    const float most = largest(x), step = step_of(most, bits);
    const std::size_t bytes = bytes_of(x.size(), bits);
    std::fill_n(body.begin(), bytes, std::byte{0});
    body[0] = static_cast<std::byte>(setting);
    std::memcpy(body.data() + 1, &most, 4);
    for (std::size_t i = 0; i < x.size() && bits > 0 && most > 0; ++i) {
      std::uint32_t word = 0;
      layer.draws.fill(i, {&word, 1});
      const float place = (x[i] + most) / step + static_cast<float>(word >> 8) * 0x1p-24f;
      const auto level = std::min(static_cast<unsigned>(place), (1u << bits) - 1);
      body[5 + i * bits / 8] |= static_cast<std::byte>(level << i * bits % 8);
    }
    return bytes;
  }
  void decode(ConstBytes body, const OwnLayer&, std::span<float> y) const override {
    if (body.size() < 5 || static_cast<std::size_t>(body[0]) >= std::size(kBits))
      throw Error("no setting");
    const unsigned bits = kBits[static_cast<std::size_t>(body[0])];
    if (body.size() != bytes_of(y.size(), bits)) throw Error("a body of another length");
    float most = 0;
    std::memcpy(&most, body.data() + 1, 4);
    const float step = step_of(most, bits);
    for (std::size_t i = 0; i < y.size() && bits > 0 && most > 0; ++i) {
      const auto byte = static_cast<unsigned>(body[5 + i * bits / 8]);
      y[i] = static_cast<float>(byte >> i * bits % 8 & ((1u << bits) - 1)) * step - most;
    }
  }

 private:
  static float largest(std::span<const float> x) {
    float most = 0;
    for (const float v : x) most = std::max(most, std::fabs(v));
    return most;
  }
  static float step_of(float most, unsigned bits) {
    return bits == 0 ? 0 : 2 * most / static_cast<float>((1u << bits) - 1);
  }
  static std::size_t bytes_of(std::size_t n, unsigned bits) { return 5 + (n * bits + 7) / 8; }

  double budget_;
  std::optional<std::size_t> fixed_;
};

/// `graded:bits=B` and `graded:bits=B,setting=0..3`.
inline CodecDefinition graded_definition() {
  return {.name = "graded",
          .keys = "bits=B, setting=0..3",
          .summary = "a test's",
          .example = "graded:bits=2",
          .make = [](SpecKeys& keys) -> std::shared_ptr<const OwnCodec> {
            const double bits = keys.number("bits", 0, 100, 2);
            const auto setting = keys.integer("setting", -1, 3, -1);
            return std::make_shared<Graded>(
                bits, setting < 0 ? std::nullopt : std::optional<std::size_t>(setting));
          }};
}

/// Registered as long as it lives.
class Registered {
 public:
  explicit Registered(CodecDefinition definition) : name_(definition.name) {
    register_codec(std::move(definition));
  }
  ~Registered() { unregister_codec(name_); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

 private:
  std::string name_;
};

}  // namespace atomo::test
