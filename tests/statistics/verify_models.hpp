// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Models of mistakes that published codecs have made, and of the codecs without them: what
/// atomo/verify.hpp has to tell apart. A model's message is what it decodes to, but where the mistake is in the
/// message.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "atomo/verify.hpp"

namespace atomo::test {

using Floats = std::span<const float>;

/// Uniform numbers of a key, one after the other.
class KeyDraws {
 public:
  explicit KeyDraws(const Key& key)
      : state_(mixed(key.seed ^ mixed((std::uint64_t{key.step} << 32) |
                                      (std::uint32_t{key.worker} << 16) | key.tensor))) {}
  double operator()() {
    state_ += 0x9E3779B97F4A7C15u;
    return static_cast<double>(mixed(state_) >> 11) * 0x1p-53;
  }

 private:
  static std::uint64_t mixed(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::uint64_t state_;
};

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}
template <typename T>
std::vector<T> values_of(ConstBytes bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

/// What a model decodes to.
using Arrives = std::function<std::vector<float>(Floats x, const Key& key)>;

inline verify::Subject subject_of(std::string name, Arrives arrives) {
  return {std::move(name),
          [arrives](Floats x, const Shape&, const Key& key) { return bytes_of(arrives(x, key)); },
          [](ConstBytes message, std::span<float> y, const Shape&) {
            std::copy_n(values_of<float>(message).begin(), y.size(), y.begin());
          },
          0};
}

inline double largest_of(Floats x) {
  double most = 0;
  for (const float v : x) most = std::max(most, std::fabs(static_cast<double>(v)));
  return most;
}
inline double norm_of(Floats x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}
/// A level at random between the two beside t; `up` is the chance of the upper one by its fraction.
template <typename Up>
double rounded(double t, double draw, Up up) {
  return std::floor(t) + (draw < up(t - std::floor(t)) ? 1 : 0);
}
inline double fairly(double fraction) { return fraction; }

// ---- codecs and their mistakes

/// QSGD by the largest magnitude, 7 levels; `up` and `more` are for mistakes.
inline Arrives qsgd(double (*up)(double) = fairly, double more = 0) {
  return [=](Floats x, const Key& key) {
    KeyDraws draw(key);
    const double norm = largest_of(x);
    std::vector<float> y(x.size());
    for (std::size_t i = 0; i < x.size() && norm > 0; ++i) {
      const double v = static_cast<double>(x[i]);
      const double level = rounded(std::fabs(v) / (norm + more) * 7, draw(), up);
      y[i] = static_cast<float>(std::copysign(norm * level / 7, v));
    }
    return y;
  };
}

/// A sign and three bits of a level from 0 to 8: the highest level carries into the sign.
inline std::vector<float> level_in_the_sign(Floats x, const Key& key) {
  KeyDraws draw(key);
  const double norm = largest_of(x);
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size() && norm > 0; ++i) {
    const double v = static_cast<double>(x[i]);
    const auto level = static_cast<unsigned>(rounded(std::fabs(v) / norm * 8, draw(), fairly));
    const unsigned word = (std::signbit(v) ? 8u : 0u) + level;
    y[i] = static_cast<float>(norm * (word & 7u) / 8 * ((word & 8u) != 0 ? -1 : 1));
  }
  return y;
}

/// TernGrad, of entries that were clipped at `clip` deviations.
inline Arrives ternary(double clip) {
  return [=](Floats x, const Key& key) {
    KeyDraws draw(key);
    const double limit =
        clip * norm_of(x) / std::sqrt(static_cast<double>(std::max<std::size_t>(x.size(), 1)));
    const double norm = std::min(largest_of(x), limit);
    std::vector<float> y(x.size());
    for (std::size_t i = 0; i < x.size() && norm > 0; ++i) {
      const double v = std::clamp(static_cast<double>(x[i]), -norm, norm);
      if (draw() < std::fabs(v) / norm) y[i] = static_cast<float>(std::copysign(norm, v));
    }
    return y;
  };
}

/// Coordinates of ATOMO, one and a half of them on average; `again`: whether a draw of so many is not sent.
inline Arrives coordinates(std::function<bool(std::size_t kept)> again) {
  return [again = std::move(again)](Floats x, const Key& key) {
    KeyDraws draw(key);
    double sum = 0;
    for (const float v : x) sum += std::fabs(static_cast<double>(v));
    std::vector<float> y(x.size());
    for (int attempt = 0; attempt < 1000 && sum > 0; ++attempt) {
      std::size_t kept = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double v = static_cast<double>(x[i]),
                     chance = std::min(1.0, 1.5 * std::fabs(v) / sum);
        const bool is_kept = draw() < chance;
        y[i] = is_kept ? static_cast<float>(v / chance) : 0;
        kept += is_kept ? 1 : 0;
      }
      if (!again(kept)) break;
    }
    return y;
  };
}

/// A tenth of the entries, a k of them, each once.
inline std::vector<std::size_t> drawn_once(std::size_t n, std::size_t k, const Key& key) {
  KeyDraws draw(key);
  std::vector<std::size_t> all(n);
  std::iota(all.begin(), all.end(), std::size_t{0});
  for (std::size_t i = 0; i < k; ++i)
    std::swap(all[i], all[i + static_cast<std::size_t>(draw() * static_cast<double>(n - i))]);
  all.resize(k);
  return all;
}
inline std::size_t a_tenth(std::size_t n) { return n == 0 ? 0 : (n + 9) / 10; }

/// Random-k; `scaled` by n / k, or not.
inline Arrives random_k(bool scaled) {
  return [=](Floats x, const Key& key) {
    std::vector<float> y(x.size());
    const std::size_t k = a_tenth(x.size());
    const double scale =
        static_cast<double>(x.size()) / static_cast<double>(std::max<std::size_t>(k, 1));
    for (const std::size_t i : drawn_once(x.size(), k, key))
      y[i] = static_cast<float>((scaled ? scale : 1) * static_cast<double>(x[i]));
    return y;
  };
}

/// Random-k of k draws that may fall on an entry twice.
inline std::vector<float> random_k_with_replacement(Floats x, const Key& key) {
  KeyDraws draw(key);
  std::vector<float> y(x.size());
  const std::size_t k = a_tenth(x.size());
  for (std::size_t j = 0; j < k; ++j) {
    const auto i = static_cast<std::size_t>(draw() * static_cast<double>(x.size()));
    y[i] = static_cast<float>(static_cast<double>(x[i]) * static_cast<double>(x.size()) /
                              static_cast<double>(k));
  }
  return y;
}

/// Random-k with its indices in the message, of `Index`.
template <typename Index>
verify::Subject random_k_with_indices(std::string name) {
  return {std::move(name),
          [](Floats x, const Shape&, const Key& key) {
            const auto places = drawn_once(x.size(), a_tenth(x.size()), key);
            std::vector<Index> indices;
            std::vector<float> values;
            for (const std::size_t i : places) {
              indices.push_back(static_cast<Index>(i));
              values.push_back(
                  static_cast<float>(static_cast<double>(x[i]) * static_cast<double>(x.size()) /
                                     static_cast<double>(places.size())));
            }
            std::vector<std::byte> message = bytes_of(values);
            const std::vector<std::byte> last = bytes_of(indices);
            message.insert(message.end(), last.begin(), last.end());
            return message;
          },
          [](ConstBytes message, std::span<float> y, const Shape&) {
            const std::size_t k = message.size() / (sizeof(float) + sizeof(Index));
            const auto values = values_of<float>(message.first(k * sizeof(float)));
            const auto indices = values_of<Index>(message.subspan(k * sizeof(float)));
            std::fill(y.begin(), y.end(), 0.0f);
            for (std::size_t j = 0; j < k; ++j) y[indices[j]] = values[j];
          },
          0};
}

/// A Hadamard transform, normalised; a power of two of entries.
inline void hadamard(std::vector<double>& x) {
  for (std::size_t half = 1; half < x.size(); half *= 2) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      if ((i & half) != 0) continue;
      const double a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
  }
  const double scale = 1 / std::sqrt(static_cast<double>(x.size()));
  for (double& v : x) v *= scale;
}

/// DRIVE: signs of one randomised Hadamard transform, scaled by |x|^2 / <x, q>; `guarded`: zeros stay zeros.
inline Arrives drive(bool guarded) {
  return [=](Floats x, const Key& key) {
    KeyDraws draw(key);
    std::vector<double> z(std::bit_ceil(std::max<std::size_t>(x.size(), 1)));
    std::vector<double> flips(z.size());
    for (double& flip : flips) flip = draw() < 0.5 ? -1 : 1;
    for (std::size_t i = 0; i < x.size(); ++i) z[i] = flips[i] * static_cast<double>(x[i]);
    double squares = 0, sum = 0;
    for (const double v : z) squares += v * v;
    hadamard(z);
    for (const double v : z) sum += std::fabs(v);
    const double scale = guarded && sum == 0 ? 0 : squares / sum;
    for (double& v : z) v = std::copysign(scale, v);
    hadamard(z);
    std::vector<float> y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = static_cast<float>(flips[i] * z[i]);
    return y;
  };
}

/// Each entry as a product of two factors on grids of a quarter of the largest; `shared`: both are rounded by one draw.
inline Arrives factors(bool shared) {
  return [=](Floats x, const Key& key) {
    KeyDraws draw(key);
    const double step = std::sqrt(largest_of(x)) / 4;
    std::vector<float> y(x.size());
    for (std::size_t i = 0; i < x.size() && step > 0; ++i) {
      const double v = static_cast<double>(x[i]), t = std::sqrt(std::fabs(v)) / step;
      const double first = draw(), second = shared ? first : draw();
      y[i] = static_cast<float>(
          std::copysign(rounded(t, first, fairly) * rounded(t, second, fairly) * step * step, v));
    }
    return y;
  };
}

/// Bytes between the least and the largest entry, whose unit is never 0.
inline std::vector<float> min_max(Floats x, const Key& key) {
  KeyDraws draw(key);
  std::vector<float> y(x.size());
  if (x.empty()) return y;
  const auto [least, most] = std::minmax_element(x.begin(), x.end());
  const double low = static_cast<double>(*least);
  const double unit = (static_cast<double>(*most) - low) / 255 + 1e-10;
  for (std::size_t i = 0; i < x.size(); ++i)
    y[i] = static_cast<float>(
        low + unit * rounded((static_cast<double>(x[i]) - low) / unit, draw(), fairly));
  return y;
}

/// A grid of a quarter of the rms; levels of two and more, which take longer to write, go as they are.
inline std::vector<float> long_ones_raw(Floats x, const Key& key) {
  KeyDraws draw(key);
  std::vector<float> y(x.size());
  const double step =
      norm_of(x) / std::sqrt(static_cast<double>(std::max<std::size_t>(x.size(), 1)));
  for (std::size_t i = 0; i < x.size() && step > 0; ++i) {
    const double v = static_cast<double>(x[i]);
    const double level = rounded(std::fabs(v) / step, draw(), fairly);
    y[i] = level >= 2 ? x[i] : static_cast<float>(std::copysign(level * step, v));
  }
  return y;
}

inline std::vector<float> nearest_bf16(Floats x, const Key&) {
  std::vector<float> y;
  for (const float v : x)
    y.push_back(std::bit_cast<float>((std::bit_cast<std::uint32_t>(v) + 0x8000u) & 0xFFFF0000u));
  return y;
}

/// One draw for all entries.
inline std::vector<float> one_draw(Floats x, const Key& key) {
  KeyDraws draw(key);
  const double u = draw(), step = largest_of(x);
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size() && step > 0; ++i) {
    const double v = static_cast<double>(x[i]);
    y[i] = static_cast<float>(std::copysign(step * rounded(std::fabs(v) / step, u, fairly), v));
  }
  return y;
}

}  // namespace atomo::test
