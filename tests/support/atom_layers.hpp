// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What the tests of dithered atoms share: guarded buffers, layers with their price, data.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "coding/duo_code_tables.hpp"
#include "cpu/atoms.hpp"
#include "format/atom_body.hpp"
#include "math/dither.hpp"
#include "math/selection.hpp"
#include "price/atom_costs.hpp"
#include "support/price_support.hpp"

namespace atomo::cpu {

using namespace model;

/// A buffer with sentinels round it, at an address that is `shift` bytes off any alignment.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes, std::size_t shift = 0) : bytes_(bytes), begin_(64 + shift) {
    memory_.assign(bytes + 192, std::byte{0xC3});
  }
  [[nodiscard]] Bytes span() { return {memory_.data() + begin_, bytes_}; }
  template <typename T>
  [[nodiscard]] T* data() {
    return reinterpret_cast<T*>(memory_.data() + begin_);
  }
  [[nodiscard]] bool intact() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + bytes_) && memory_[i] != std::byte{0xC3}) return false;
    }
    return true;
  }

 private:
  std::size_t bytes_, begin_;
  std::vector<std::byte> memory_;
};

/// A layer, its amplitudes and its price, with every buffer exactly as large as asked for.
struct Layer {
  std::vector<float> x;
  AtomLayout layout;
  std::vector<double> rms;
  std::vector<PriceBin> bins;
  AtomAnalysis found;
  PriceCosts costs;
  Price price;

  Layer(std::vector<float> values, const AtomLayout& atoms, double bits)
      : x(std::move(values)),
        layout(atoms),
        rms(atoms.count),
        bins(max_price_bins(atoms)),
        costs(price_costs(atoms)) {
    Guarded workspace(analyse_workspace_bytes(layout), 1);
    EXPECT_EQ(analyse(x.data(), layout, rms.data(), bins, workspace.span(), nullptr, found),
              Status::ok);
    EXPECT_TRUE(workspace.intact());
    const PriceLayer view{found.bins, &costs, layout.count, found.max_rms};
    price =
        find_price({&view, 1}, static_cast<std::uint64_t>(bits * static_cast<double>(x.size())));
  }

  [[nodiscard]] std::vector<std::byte> encode(const Key& key, AtomBody& body,
                                              std::size_t shift = 0) const {
    Guarded out(max_body_bytes(layout), shift),
        workspace(encode_workspace_bytes(layout.count), shift);
    EXPECT_EQ(encode_atoms(x.data(), layout, rms.data(), price.a, key, nullptr, out.span(),
                           workspace.span(), body),
              Status::ok);
    EXPECT_TRUE(out.intact());
    EXPECT_TRUE(workspace.intact());
    return {out.span().begin(), out.span().begin() + static_cast<std::ptrdiff_t>(body.bytes)};
  }
  [[nodiscard]] std::vector<std::byte> encode(const Key& key) const {
    AtomBody body;
    return encode(key, body);
  }
  [[nodiscard]] std::vector<float> decode(ConstBytes body, const Key& key) const {
    Guarded y(x.size() * sizeof(float), 4);
    EXPECT_EQ(decode_atoms(body, layout, price.a, key, y.data<float>(), {}, nullptr), Status::ok);
    EXPECT_TRUE(y.intact());
    return {y.data<float>(), y.data<float>() + x.size()};
  }
};

enum class Data { gaussian, heavy, spiky };

inline std::vector<float> make(const AtomLayout& layout, Data kind, std::uint64_t seed,
                               float scale = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(layout.elements());
  for (std::uint64_t t = 0; t < layout.count; ++t) {
    const float amplitude = random() % 16 == 0 ? 0.0f : scale * std::exp(1.5f * normal(random));
    for (std::uint64_t i = 0; i < layout.length_of(t); ++i) {
      float v = amplitude * normal(random);
      if (kind == Data::heavy) v /= std::max(0.1f, std::fabs(normal(random)));
      if (kind == Data::spiky && random() % 50 != 0) v = 0;
      x[t * layout.length + i] = v;
    }
  }
  return x;
}

}  // namespace atomo::cpu
