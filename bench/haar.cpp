// SPDX-License-Identifier: Apache-2.0
// What it takes to write kept blocks as reference/haar.py has them, beside an encode of atoms=blocks. As JSON.
//
//   bench_haar [--target=NAME] FILE BITS...
//
// FILE holds f32 alone, one tensor. For each budget: nanoseconds an entry of encode on one thread. For each length: those of
// an encode of atoms as long that keeps none of them; those of an entry of a kept block for its product with one rotation,
// every sum in one fixed order; and for all of it: the k largest, their signs, and the number of their places among
// C(length, k). Not counted: what draws the rotation, signs of a block's own, amplitudes. The least of many short runs by
// the processor's time, so that other programs count little.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "haar.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <atomo/atomo.hpp>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "codec_case.hpp"
#include "target.hpp"

#ifndef ATOMO_BENCH_HAAR_ONCE
#define ATOMO_BENCH_HAAR_ONCE
namespace atomo::bench {

constexpr std::size_t kTogether = 6;  ///< blocks that are rotated together
constexpr std::size_t kMostLargest = 8;
using Binomials = std::array<std::array<std::uint64_t, kMostLargest + 1>, 257>;

/// What is sent of a block: the places' number and the signs, in the order of the places.
struct Places {
  std::uint64_t number = 0;
  std::uint32_t signs = 0;
};

}  // namespace atomo::bench
#endif

HWY_BEFORE_NAMESPACE();
namespace atomo::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
constexpr std::size_t kLanes = hn::MaxLanes(D());
constexpr std::size_t kVectors =
    kLanes >= 16 ? 4 : 2;  // accumulators of a block that registers hold

/// y of six blocks: y[j] is the sum of x[i] * columns[i][j] in the order of i, each step one fma.
template <std::size_t length>
void rotate(const float* x, const float* columns, float* y) {
  const D d;
  for (std::size_t j = 0; j < length; j += kVectors * kLanes) {
    hn::Vec<D> sum[kTogether][kVectors];
    for (auto& block : sum)
      for (auto& v : block) v = hn::Zero(d);
    for (std::size_t i = 0; i < length; ++i) {
      hn::Vec<D> column[kVectors];
      for (std::size_t v = 0; v < kVectors; ++v)
        column[v] = hn::LoadU(d, columns + i * length + j + v * kLanes);
      for (std::size_t b = 0; b < kTogether; ++b) {
        const auto entry = hn::Set(d, x[b * length + i]);
        for (std::size_t v = 0; v < kVectors; ++v)
          sum[b][v] = hn::MulAdd(entry, column[v], sum[b][v]);
      }
    }
    for (std::size_t b = 0; b < kTogether; ++b)
      for (std::size_t v = 0; v < kVectors; ++v)
        hn::StoreU(sum[b][v], d, y + b * length + j + v * kLanes);
  }
}

std::uint64_t bits_of(hn::Mask<D> mask) {
  std::uint64_t bits = 0;
  hn::StoreMaskBits(D(), mask, reinterpret_cast<std::uint8_t*>(&bits));
  return bits;
}

/// The k largest magnitudes, one by one.
template <std::size_t length>
Places find_largest(const float* y, std::size_t k, const Binomials& binomials) {
  const D d;
  constexpr std::size_t kParts = length / kLanes;
  hn::Vec<D> left[kParts];
  for (std::size_t v = 0; v < kParts; ++v) left[v] = hn::Abs(hn::LoadU(d, y + v * kLanes));
  std::array<std::uint64_t, (length + 63) / 64> kept{}, negative{};
  for (std::size_t v = 0; v < kParts; ++v)
    negative[v * kLanes / 64] |= bits_of(hn::Lt(hn::LoadU(d, y + v * kLanes), hn::Zero(d)))
                                 << (v * kLanes % 64);
  for (std::size_t i = 0; i < k; ++i) {
    auto most = left[0];
    for (std::size_t v = 1; v < kParts; ++v) most = hn::Max(most, left[v]);
    const auto largest = hn::MaxOfLanes(d, most);
    for (std::size_t v = 0; v < kParts; ++v) {
      const auto found = hn::Eq(left[v], largest);
      left[v] = hn::IfThenZeroElse(found, left[v]);
      kept[v * kLanes / 64] |= bits_of(found) << (v * kLanes % 64);
    }
  }
  Places places;
  std::size_t n = 0;
  for (std::size_t w = 0; w < kept.size(); ++w) {
    for (std::uint64_t bits = kept[w]; bits != 0 && n < k; bits &= bits - 1) {
      const auto at = static_cast<std::size_t>(std::countr_zero(bits));
      places.signs |= static_cast<std::uint32_t>(negative[w] >> at & 1) << n;
      places.number += binomials[64 * w + at][++n];
    }
  }
  return places;
}

template <std::size_t length>
std::uint64_t write_blocks(const float* x, const float* columns, float* y, std::size_t k,
                           const Binomials& binomials) {
  rotate<length>(x, columns, y);
  std::uint64_t sum = 0;
  for (std::size_t b = 0; k > 0 && b < kTogether; ++b) {
    const Places places = find_largest<length>(y + b * length, k, binomials);
    sum += places.number ^ places.signs;
  }
  return sum;
}

std::uint64_t write_of_length(std::size_t length, const float* x, const float* columns, float* y,
                              std::size_t k, const Binomials& binomials) {
  return length == 64    ? write_blocks<64>(x, columns, y, k, binomials)
         : length == 128 ? write_blocks<128>(x, columns, y, k, binomials)
                         : write_blocks<256>(x, columns, y, k, binomials);
}

}  // namespace atomo::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::bench {
namespace {

HWY_EXPORT(write_of_length);

/// The least seconds of a call, by the time of the processor.
template <typename Call>
double least_seconds(int calls, Call call) {
  const Clock clock(1);
  double least = std::numeric_limits<double>::max();
  for (int i = 0; i < calls; ++i) {
    const double began = clock.now();
    call();
    least = std::min(least, clock.now() - began);
  }
  return least;
}

std::vector<float> read_entries(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw std::runtime_error("cannot read '" + path + "'");
  std::vector<float> x(static_cast<std::size_t>(file.tellg()) / sizeof(float));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(x.data()),
            static_cast<std::streamsize>(x.size() * sizeof(float)));
  return x;
}

/// An entry of blocks, or of rows where the shape has two dimensions.
double encode_ns(const std::vector<float>& x, const Shape& shape, const std::string& bits) {
  const Codec codec = Codec::parse(
      (shape.rank() == 2 ? "atomo:atoms=rows,bits=" : "atomo:atoms=blocks,bits=") + bits);
  std::vector<std::byte> message(codec.max_encoded_bytes(shape)),
      workspace(codec.encode_workspace_bytes(shape));
  const int calls = static_cast<int>(std::clamp<std::size_t>(100'000'000 / x.size(), 15, 200));
  const double seconds = least_seconds(calls, [&] {
    std::uint64_t bytes = 0;
    const Status status =
        codec.encode({x.data(), DType::f32, shape}, {.seed = 1},
                     {message.data(), message.size(), &bytes}, {.workspace = workspace});
    if (failed(status)) throw std::runtime_error("encode failed");
  });
  return 1e9 * seconds / static_cast<double>(shape.elements());
}

void print_blocks(const std::vector<float>& x, std::size_t length, std::size_t k) {
  static const Binomials binomials = [] {
    Binomials made{};
    for (std::size_t n = 0; n < made.size(); ++n) {
      made[n][0] = 1;
      for (std::size_t i = 1; i <= kMostLargest && n > 0; ++i)
        made[n][i] = made[n - 1][i - 1] + made[n - 1][i];
    }
    return made;
  }();
  // Times do not depend on what the rotation is: columns of some of the entries.
  const std::vector<float> columns(x.begin(),
                                   x.begin() + static_cast<std::ptrdiff_t>(length * length));
  std::vector<float> y(kTogether * length);
  const std::size_t each = kTogether * length, calls = 24576 / each;
  std::uint64_t sum = 0;
  std::array<double, 2> ns{};
  for (const std::size_t largest : {std::size_t{0}, k}) {
    std::size_t at = 0;
    const double seconds = least_seconds(1000, [&] {
      for (std::size_t i = 0; i < calls; ++i, at += each) {
        if (at + each > x.size()) at = 0;
        sum += HWY_DYNAMIC_DISPATCH(write_of_length)(length, x.data() + at, columns.data(),
                                                     y.data(), largest, binomials);
      }
    });
    ns[largest > 0] = 1e9 * seconds / static_cast<double>(calls * each);
  }
  asm volatile("" : : "r"(sum));
  const Shape rows{static_cast<std::int64_t>(x.size() / length), static_cast<std::int64_t>(length)};
  std::printf(
      "{\"length\": %zu, \"k\": %zu, \"none_ns\": %.3f, \"product_ns\": %.3f, \"all_ns\": %.3f}",
      length, k, encode_ns(x, rows, "0.002"), ns[0], ns[1]);
}

}  // namespace
}  // namespace atomo::bench

int main(int argc, char** argv) {
  using namespace atomo::bench;
  try {
    std::vector<std::string> words(argv + 1, argv + argc);
    std::string target = "best";
    if (!words.empty() && words[0].starts_with("--target=")) {
      target = words[0].substr(words[0].find('=') + 1);
      words.erase(words.begin());
    }
    if (words.size() < 2) throw std::runtime_error("FILE and BITS are wanted");
    force_target(target);
    const std::vector<float> x = read_entries(words[0]);
    if (x.size() < 256 * 256) throw std::runtime_error("FILE has fewer than 65,536 entries");
    std::printf("{\"encode_ns\": {");
    for (std::size_t i = 1; i < words.size(); ++i)
      std::printf("%s\"%s\": %.3f", i > 1 ? ", " : "", words[i].c_str(),
                  encode_ns(x, {static_cast<std::int64_t>(x.size())}, words[i]));
    std::printf("},\n\"blocks\": [");
    print_blocks(x, 64, 5);
    std::printf(",\n");
    print_blocks(x, 128, 5);
    std::printf(",\n");
    print_blocks(x, 256, 6);
    std::printf("]}\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_haar: %s\n", error.what());
    return 1;
  }
  return 0;
}
#endif  // HWY_ONCE
