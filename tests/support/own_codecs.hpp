// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Codecs of tests that are not the library's.

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

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
