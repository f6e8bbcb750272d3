// SPDX-License-Identifier: Apache-2.0
#pragma once
/// nvcuda::wmma for the host executor: products of 16 x 8 with 8 x 16 matrices of TF32, summed in
/// f32. It keeps the promises of CUDA and no more: all lanes of a warp come together and name the
/// same matrix, at an address and with a stride that the device takes; operands were rounded to
/// TF32. Which lane holds which entries is the device's affair: here it is what PTX says of
/// m16n8k8. Sums are in ascending order with a rounding a term; a device adds in an order of its
/// own, which nothing may depend on, and tests may ask for one way that is worse. Nothing here orders
/// memory.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
namespace precision {
struct tf32;
}
enum layout_t { mem_row_major, mem_col_major };

/// To ten bits of mantissa: to the nearest, of two the one farther from zero.
inline float __float_to_tf32(float value) {
  const unsigned bits = __float_as_uint(value);
  if ((bits & 0x7F800000u) == 0x7F800000u)
    return value != value ? __uint_as_float(0x7FFFE000u) : value;
  return __uint_as_float((bits + 0x1000u) & ~0x1FFFu);
}
/// Of the operands that `mma_sync` multiplies. Tests plant fewer.
inline unsigned mantissa_bits = 10;
/// Whether the terms of a sum are cut to the 24 bits below the highest of the largest of them, added,
/// and the sum is cut again: as V100s do it, by Fasi et al., Numerical Behavior of NVIDIA Tensor Cores
/// (PeerJ Computer Science 2021), and later GPUs with more bits.
inline bool truncates = false;

template <typename Use, int m, int n, int k, typename T, typename Layout = void>
class fragment;
template <typename Layout>
class fragment<matrix_a, 16, 16, 8, precision::tf32, Layout> {
 public:
  enum { num_elements = 4 };
  float x[num_elements];
};
template <typename Layout>
class fragment<matrix_b, 16, 16, 8, precision::tf32, Layout> {
 public:
  enum { num_elements = 4 };
  float x[num_elements];
};
template <>
class fragment<accumulator, 16, 16, 8, float> {
 public:
  enum { num_elements = 8 };
  float x[num_elements];
};

namespace detail {

using hostexec::Location;
using Sums = fragment<accumulator, 16, 16, 8, float>;

struct Entry {
  unsigned row, column;
};
/// Of the 16 x 8 matrix: what a lane's element i is.
inline Entry of_first(unsigned lane, unsigned i) {
  return {lane / 4 + 8 * (i % 2), lane % 4 + 4 * (i / 2)};
}
/// Of the 8 x 16 matrix.
inline Entry of_second(unsigned lane, unsigned i) {
  return {lane % 4 + 4 * (i % 2), lane / 4 + 8 * (i / 2)};
}
inline Entry of_sums(unsigned lane, unsigned i) {
  return {lane / 4 + 8 * (i / 2 % 2), 2 * (lane % 4) + i % 2 + 8 * (i / 4)};
}

/// What each lane came with.
struct OfWarp {
  std::uint64_t value[32];
};
inline OfWarp exchange(std::uint64_t mine, Location where) {
  hostexec::Meeting& m = hostexec::meet(0xFFFFFFFFu, mine, false, where);
  if (m.arrived != 0xFFFFFFFFu)
    hostexec::fail("a matrix of a warp of which lanes have returned", where);
  OfWarp all;
  for (int i = 0; i < 32; ++i) all.value[i] = m.value[i];
  hostexec::leave(m);
  return all;
}
/// All lanes name the same matrix, as the device wants it.
inline void check_place(const float* at, unsigned stride, Location where) {
  const std::uint64_t place = reinterpret_cast<std::uintptr_t>(at) + (std::uint64_t{stride} << 48);
  for (const std::uint64_t other : exchange(place, where).value)
    if (other != place) hostexec::fail("lanes of a warp name different matrices", where);
  if (reinterpret_cast<std::uintptr_t>(at) % 32 != 0)
    hostexec::fail("a matrix whose address is no multiple of 32 bytes", where);
  if (stride % 4 != 0) hostexec::fail("a matrix whose stride is no multiple of 16 bytes", where);
}
inline void check_tf32(float value, Location where) {
  if (value == value && (__float_as_uint(value) & 0x1FFFu) != 0)
    hostexec::fail("mma_sync of a value that was not rounded to TF32", where);
}

/// The four elements of every lane.
struct Elements {
  OfWarp pairs[2];
  Elements(const float (&mine)[4], Location where)
      : pairs{exchange(two(mine[0], mine[1]), where), exchange(two(mine[2], mine[3]), where)} {}
  [[nodiscard]] float operator()(unsigned lane, unsigned i) const {
    const auto bits = static_cast<unsigned>(pairs[i / 2].value[lane] >> (i % 2 * 32));
    const unsigned half = 0x400000u >> mantissa_bits;
    return __uint_as_float(mantissa_bits < 10 ? (bits + half) & ~(2 * half - 1) : bits);
  }

 private:
  static std::uint64_t two(float low, float high) {
    return std::uint64_t{__float_as_uint(high)} << 32 | __float_as_uint(low);
  }
};

/// The sum of products, which are exact, and of what they are added to, where `truncates`.
inline float truncated_sum(const double (&terms)[9]) {
  int top = std::numeric_limits<int>::min();
  for (const double term : terms) {
    int exponent = 0;
    if (term != 0) top = std::max(top, (std::frexp(term, &exponent), exponent));
  }
  if (top == std::numeric_limits<int>::min()) return 0;
  const auto cut = [](double value, int exponent) {  // to the 24 bits below 2^exponent
    return std::ldexp(std::trunc(std::ldexp(value, 24 - exponent)), exponent - 24);
  };
  double sum = 0;
  for (const double term : terms) sum += cut(term, top);
  int exponent = 0;
  std::frexp(sum, &exponent);
  return static_cast<float>(cut(sum, exponent));
}

}  // namespace detail

inline void fill_fragment(detail::Sums& fragment, float value) {
  for (float& x : fragment.x) x = value;
}

template <typename Use, typename Layout>
void load_matrix_sync(fragment<Use, 16, 16, 8, precision::tf32, Layout>& to, const float* from,
                      unsigned stride, hostexec::Location where = hostexec::Location::current()) {
  detail::check_place(from, stride, where);
  for (unsigned i = 0; i < 4; ++i) {
    const detail::Entry at = std::is_same_v<Use, matrix_a> ? detail::of_first(hostexec::lane(), i)
                                                           : detail::of_second(hostexec::lane(), i);
    to.x[i] = std::is_same_v<Layout, row_major> ? from[std::size_t{at.row} * stride + at.column]
                                                : from[std::size_t{at.column} * stride + at.row];
  }
}

inline void store_matrix_sync(float* to, const detail::Sums& from, unsigned stride, layout_t layout,
                              hostexec::Location where = hostexec::Location::current()) {
  detail::check_place(to, stride, where);
  for (unsigned i = 0; i < 8; ++i) {
    const detail::Entry at = detail::of_sums(hostexec::lane(), i);
    to[layout == mem_row_major ? std::size_t{at.row} * stride + at.column
                               : std::size_t{at.column} * stride + at.row] = from.x[i];
  }
}

template <typename FirstLayout, typename SecondLayout>
void mma_sync(detail::Sums& to,
              const fragment<matrix_a, 16, 16, 8, precision::tf32, FirstLayout>& a,
              const fragment<matrix_b, 16, 16, 8, precision::tf32, SecondLayout>& b,
              const detail::Sums& add, hostexec::Location where = hostexec::Location::current()) {
  for (unsigned i = 0; i < 4; ++i) {
    detail::check_tf32(a.x[i], where);
    detail::check_tf32(b.x[i], where);
  }
  const detail::Elements first(a.x, where), second(b.x, where);
  for (unsigned i = 0; i < 8; ++i) {
    const detail::Entry at = detail::of_sums(hostexec::lane(), i);
    const auto of_first = [&](unsigned k) {
      return first(at.row % 8 * 4 + k % 4, at.row / 8 + k / 4 * 2);
    };
    const auto of_second = [&](unsigned k) {
      return second(at.column % 8 * 4 + k % 4, k / 4 + at.column / 8 * 2);
    };
    float sum = add.x[i];
    double terms[9] = {sum};
    for (unsigned k = 0; k < 8; ++k) {
      sum += of_first(k) * of_second(k);
      terms[k + 1] = static_cast<double>(of_first(k)) * static_cast<double>(of_second(k));
    }
    if (truncates) sum = detail::truncated_sum(terms);
    to.x[i] = sum;
  }
}

}  // namespace nvcuda::wmma
