// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What tests of the catalogue share: codecs by their specs without containers, and draws that a test writes.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "atomo/atomo.hpp"

namespace atomo::test {

/// The keys of a spec as a test writes them.
class TestKeys final : public SpecKeys {
 public:
  explicit TestKeys(std::string_view keys) {
    while (!keys.empty()) {
      const std::string_view pair = keys.substr(0, keys.find(','));
      keys.remove_prefix(std::min(keys.size(), pair.size() + 1));
      const std::size_t equals = pair.find('=');
      values_.emplace(pair.substr(0, equals), pair.substr(equals + 1));
    }
  }
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high,
                       std::optional<std::int64_t> fallback) override {
    const auto it = values_.find(key);
    const std::int64_t value = it == values_.end() ? fallback.value() : std::stoll(it->second);
    EXPECT_TRUE(low <= value && value <= high) << key;
    return value;
  }
  double number(std::string_view key, double low, double high,
                std::optional<double> fallback) override {
    const auto it = values_.find(key);
    const double value = it == values_.end() ? fallback.value() : std::stod(it->second);
    EXPECT_TRUE(low <= value && value <= high) << key;
    return value;
  }
  std::size_t choice(std::string_view key, const std::vector<std::string>& choices,
                     std::optional<std::size_t> fallback) override {
    const auto it = values_.find(key);
    if (it == values_.end()) return fallback.value();
    const auto place = std::ranges::find(choices, it->second);
    EXPECT_NE(place, choices.end()) << key;
    return static_cast<std::size_t>(place - choices.begin());
  }

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

inline std::shared_ptr<const OwnCodec> own_codec(const std::string& spec) {
  const std::string name = spec.substr(0, spec.find(':'));
  TestKeys keys(spec.size() > name.size() ? std::string_view(spec).substr(name.size() + 1)
                                          : std::string_view());
  for (const CodecDefinition& d : catalogue_definitions())
    if (d.name == name) return d.make(keys);
  throw Error("the catalogue has no " + name);
}

/// Words that a function of their number gives.
class TestDraws final : public Draws {
 public:
  explicit TestDraws(std::function<std::uint32_t(std::uint64_t)> word) : word_(std::move(word)) {}
  /// Those of a key, as the library hands them out.
  static TestDraws of(const Key& key) {
    return TestDraws([key](std::uint64_t i) {
      std::uint32_t word = 0;
      own_draws(key, i, {&word, 1});
      return word;
    });
  }
  void fill(std::uint64_t first, std::span<std::uint32_t> words) const noexcept override {
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = word_(first + i);
  }

 private:
  std::function<std::uint32_t(std::uint64_t)> word_;
};

inline std::vector<std::byte> body_of(const OwnCodec& codec, const std::vector<float>& x,
                                      const Draws& draws) {
  const Shape shape{static_cast<std::int64_t>(x.size())};
  std::vector<std::byte> body(codec.max_bytes(shape));
  body.resize(codec.encode(x, {shape, {}, draws}, body));
  return body;
}

inline std::vector<float> values_of(const OwnCodec& codec, ConstBytes body, std::size_t n,
                                    const Draws& draws) {
  const Shape shape{static_cast<std::int64_t>(n)};
  std::vector<float> y(n);
  codec.decode(body, {shape, {}, draws}, y);
  return y;
}

inline std::vector<float> arrives(const OwnCodec& codec, const std::vector<float>& x,
                                  const Draws& draws) {
  return values_of(codec, body_of(codec, x, draws), x.size(), draws);
}

/// Each entry's mean over `steps` words alike, for codecs in which a word from `first` on rounds one entry.
inline std::vector<double> mean_over_words(const OwnCodec& codec, const std::vector<float>& x,
                                           std::uint32_t steps, std::uint64_t first = 0,
                                           std::uint64_t last = std::uint64_t{1} << 41) {
  std::vector<double> mean(x.size());
  for (std::uint32_t step = 0; step < steps; ++step) {
    const auto word = static_cast<std::uint32_t>((2 * step + 1) * (std::uint64_t{1} << 31) / steps);
    const TestDraws draws([=](std::uint64_t i) {
      std::uint32_t other = 0;
      own_draws({.seed = 5}, i, {&other, 1});
      return first <= i && i < last ? word : other;
    });
    const auto y = arrives(codec, x, draws);
    for (std::size_t i = 0; i < x.size(); ++i) mean[i] += y[i] / static_cast<double>(steps);
  }
  return mean;
}

inline double squared_error(const std::vector<float>& x, const std::vector<float>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += (double{y[i]} - x[i]) * (double{y[i]} - x[i]);
  return sum;
}

/// A sum of a few uniform numbers, some of them ten times as large: close to a gradient's.
inline std::vector<float> uneven(std::size_t n, std::uint64_t seed) {
  std::vector<std::uint32_t> words(4 * n);
  own_draws({.seed = seed}, 0, words);
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    float sum = 0;
    for (std::size_t k = 0; k < 4; ++k) sum += static_cast<float>(words[4 * i + k]) * 0x1p-32f;
    x[i] = (sum - 2) * (words[4 * i] % 16 == 0 ? 10.0f : 1.0f);
  }
  return x;
}

}  // namespace atomo::test
