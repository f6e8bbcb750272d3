// SPDX-License-Identifier: Apache-2.0
/// The tensors that a subject is verified with where the caller has none: each makes one mistake of
/// published codecs show.
#include <cmath>
#include <cstddef>
#include <limits>

#include "atomo/verify.hpp"
#include "verify/uniform.hpp"

namespace atomo::verify {
namespace {

using Make = float (*)(Uniform& draw, std::size_t i);

Input made(std::uint64_t seed, const char* name, const Shape& shape, Make make) {
  Uniform draw(seed, name);
  Input input{name, shape, std::vector<float>(shape.elements())};
  for (std::size_t i = 0; i < input.values.size(); ++i) input.values[i] = make(draw, i);
  return input;
}

/// Rows of very different size, some of them zero.
Input heavy_tails(std::uint64_t seed) {
  Input input{"heavy tails", Shape{24, 40}, std::vector<float>(960)};
  Uniform draw(seed, input.name);
  double scale = 0;
  for (std::size_t i = 0; i < 960; ++i) {
    if (i % 40 == 0) scale = draw() < 1.0 / 16 ? 0 : 0.01 * std::exp(1.5 * draw.normal());
    input.values[i] = static_cast<float>(scale * draw.normal());
  }
  return input;
}

/// Two directions and a little noise.
Input low_rank(std::uint64_t seed) {
  Input input{"low rank", Shape{40, 24}, std::vector<float>(960)};
  Uniform draw(seed, input.name);
  double u[2][40], v[2][24];
  for (auto& side : u)
    for (double& value : side) value = draw.normal();
  for (auto& side : v)
    for (double& value : side) value = draw.normal();
  for (std::size_t i = 0; i < 40; ++i)
    for (std::size_t j = 0; j < 24; ++j)
      input.values[24 * i + j] =
          static_cast<float>(u[0][i] * v[0][j] + 0.3 * u[1][i] * v[1][j] + 0.02 * draw.normal());
  return input;
}

void add_finite(std::uint64_t seed, std::vector<Input>& all) {
  all.push_back(heavy_tails(seed));
  all.push_back(low_rank(seed));
  all.push_back(made(seed, "spikes", Shape{997}, [](Uniform& draw, std::size_t i) {
    return static_cast<float>((i % 400 == 7 ? 10 : 0.01) * draw.normal());
  }));
  all.push_back(made(seed, "one spike", Shape{256},
                     [](Uniform&, std::size_t i) { return i == 100 ? 1.0f : 0.0f; }));
  all.push_back(made(seed, "two entries", Shape{64}, [](Uniform&, std::size_t i) {
    return i == 5 ? 1.0f : i == 40 ? -0.35f : 0.0f;
  }));
  all.push_back(made(seed, "six entries", Shape{3, 2}, [](Uniform& draw, std::size_t) {
    const double magnitude = 0.5 + 0.5 * draw();
    return static_cast<float>(draw() < 0.5 ? magnitude : -magnitude);
  }));
  all.push_back(made(seed, "constant", Shape{512}, [](Uniform&, std::size_t) { return 0.37f; }));
  all.push_back(made(seed, "levels", Shape{8, 33}, [](Uniform&, std::size_t i) {
    return static_cast<float>(static_cast<int>(i * 5 % 29) - 14) / 14.0f;
  }));
  all.push_back(made(seed, "near the largest", Shape{300}, [](Uniform& draw, std::size_t) {
    const double magnitude = 1 - 0.04 * draw();
    return static_cast<float>(draw() < 0.5 ? magnitude : -magnitude);
  }));
  all.push_back(made(seed, "magnitudes", Shape{600}, [](Uniform& draw, std::size_t i) {
    return static_cast<float>((i % 2 == 0 ? 1 : -1) * std::exp2(-20 * draw()));
  }));
  all.push_back(made(seed, "1e-30", Shape{7, 37}, [](Uniform& draw, std::size_t) {
    return static_cast<float>(1e-30 * draw.normal());
  }));
  all.push_back(made(seed, "1e30", Shape{257}, [](Uniform& draw, std::size_t) {
    return static_cast<float>(1e30 * draw.normal());
  }));
  all.push_back(made(seed, "subnormal", Shape{96}, [](Uniform& draw, std::size_t) {
    return static_cast<float>(1e-39 * draw.normal());
  }));
  all.push_back(made(seed, "odd shape", Shape{3, 5, 7, 2},
                     [](Uniform& draw, std::size_t) { return static_cast<float>(draw.normal()); }));
  all.push_back(made(seed, "one row", Shape{1, 313},
                     [](Uniform& draw, std::size_t) { return static_cast<float>(draw.normal()); }));
  all.push_back(made(seed, "scalar", Shape{}, [](Uniform&, std::size_t) { return -0.3f; }));
  // Of nearly one magnitude: what is left out of many entries shows in few draws.
  all.push_back(made(seed, "70,001 entries", Shape{70001}, [](Uniform& draw, std::size_t) {
    const double magnitude = 0.75 + 0.25 * draw();
    return static_cast<float>(draw() < 0.5 ? magnitude : -magnitude);
  }));
}

}  // namespace

std::vector<Input> generated_inputs(std::uint64_t seed) {
  std::vector<Input> all;
  add_finite(seed, all);
  const auto zeros = [](Uniform&, std::size_t) { return 0.0f; };
  all.push_back(made(seed, "zeros", Shape{3, 43}, zeros));
  all.push_back(made(seed, "empty", Shape{0, 4}, zeros));
  const auto normal = [](Uniform& draw, std::size_t) { return static_cast<float>(draw.normal()); };
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  all.push_back(made(seed, "a NaN", Shape{16, 20}, normal));
  all.back().values[47] = kNan;
  all.push_back(made(seed, "an Inf", Shape{16, 20}, normal));
  all.back().values[111] = -kInf;
  all.push_back(made(seed, "all NaN", Shape{50}, [](Uniform&, std::size_t) {
    return std::numeric_limits<float>::quiet_NaN();
  }));
  return all;
}

}  // namespace atomo::verify
