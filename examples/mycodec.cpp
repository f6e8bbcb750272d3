// SPDX-License-Identifier: Apache-2.0
/// A codec of one's own in one file: every entry becomes one of `levels` steps of the largest
/// magnitude, drawn so that it is right on average, in a byte.
///
/// g++ -std=c++20 -O2 -fPIC -shared -I include examples/mycodec.cpp -o mycodec.so
/// atomo --plugin ./mycodec.so encode --codec mycodec:levels=8 gradients.npz gradients.atomo
#include <algorithm>
#include <atomo/own_codec.hpp>
#include <cmath>
#include <cstring>

namespace {

class MyCodec final : public atomo::OwnCodec {
 public:
  explicit MyCodec(int levels) : levels_(static_cast<float>(levels)) {}

  atomo::Traits traits() const override {
    atomo::Traits t;
    t.unbiased = t.averages_over_workers = t.fixed_size = true;
    t.bias_bound = 1e-5;  // of f32 arithmetic and of draws with 24 bits
    return t;
  }

  // The largest magnitude, then a byte an entry.
  std::size_t max_bytes(const atomo::Shape& shape) const override { return 4 + shape.elements(); }

  std::size_t encode(std::span<const float> x, const atomo::OwnLayer& layer,
                     atomo::Bytes body) const override {
    float largest = 0;
    for (const float v : x) largest = std::max(largest, std::fabs(v));
    std::memcpy(body.data(), &largest, 4);
    std::uint32_t words[256];
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (i % 256 == 0) layer.draws.fill(i, words);
      const float up = static_cast<float>(words[i % 256] >> 8) * 0x1p-24f;  // in [0, 1)
      const float level = largest > 0 ? std::floor(x[i] / largest * levels_ + up) : 0;
      body[4 + i] = static_cast<std::byte>(static_cast<int>(level) + 128);
    }
    return 4 + x.size();
  }

  void decode(atomo::ConstBytes body, const atomo::OwnLayer&, std::span<float> y) const override {
    if (body.size() != 4 + y.size()) throw atomo::Error("the body has another length");
    float largest = 0;
    std::memcpy(&largest, body.data(), 4);
    for (std::size_t i = 0; i < y.size(); ++i)
      y[i] = static_cast<float>(static_cast<int>(body[4 + i]) - 128) * (largest / levels_);
  }

 private:
  float levels_;
};

}  // namespace

ATOMO_CODECS(registry) {
  registry.add({.name = "mycodec",
                .keys = "levels=1..127",
                .summary = "levels of the largest magnitude, a byte an entry",
                .example = "mycodec:levels=8",
                .make = [](atomo::SpecKeys& keys) {
                  return std::make_shared<MyCodec>(
                      static_cast<int>(keys.integer("levels", 1, 127, 8)));
                }});
}
