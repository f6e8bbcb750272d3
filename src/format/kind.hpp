// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Which parameters and shapes a method may have on the wire (FORMAT.md), for host and device.
/// Whatever else stands in a table of kinds is corrupt.

#include <bit>
#include <cstdint>

#include "atomo/types.hpp"
#include "core/host_device.hpp"
#include "format/chunk_body.hpp"
#include "format/family.hpp"
#include "format/method_configs.hpp"

namespace atomo::format {

/// On the wire, one byte a kind (methods.def). Numbers are never reused.
enum class MethodId : std::uint8_t {
#define ATOMO_METHOD(number, id, price, row, parameters) id = number,
#include "format/methods.def"
};

/// What decodes a body: the method, its parameters (a word each method defines), and what was
/// encoded.
struct Kind {
  MethodId method = MethodId::identity;
  DType dtype = DType::f32;
  std::uint32_t params = 0;
  Shape shape;
  friend bool operator==(const Kind&, const Kind&) = default;
};

/// Whether a caller's view has one of the three.
[[nodiscard]] constexpr bool is_dtype(DType dtype) noexcept {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

/// A `Kind` but for its further dimensions, in a form that the device can hold too.
struct KindFields {
  MethodId method = MethodId::identity;
  DType dtype = DType::f32;
  std::uint32_t params = 0;
  int rank = 0;
  std::int64_t dim0 = 0;  ///< 0 for a scalar
  std::uint64_t elements = 1;
  friend bool operator==(const KindFields&, const KindFields&) = default;
};

[[nodiscard]] inline KindFields fields_of(const Kind& kind) noexcept {
  const Shape& shape = kind.shape;
  const std::int64_t dim0 = shape.rank() > 0 ? shape[0] : 0;
  return {kind.method, kind.dtype, kind.params, shape.rank(), dim0, shape.elements()};
}

/// Of the params of the method atoms.
[[nodiscard]] constexpr Family family_of(std::uint32_t params) noexcept {
  return static_cast<Family>(params & 0xFFu);
}
/// The params of a family other than a sketch.
[[nodiscard]] constexpr std::uint32_t params_of(Family family) noexcept {
  return static_cast<std::uint32_t>(family);
}
[[nodiscard]] constexpr std::uint32_t rank_of(std::uint32_t params) noexcept { return params >> 8; }
[[nodiscard]] constexpr std::uint32_t sketch_params(std::uint64_t rank) noexcept {
  return params_of(Family::sketch) | (static_cast<std::uint32_t>(rank) << 8);
}
inline constexpr std::uint64_t kLargestRank = 256;
/// Entries of a row.
inline constexpr std::uint64_t kMinRowEntries = 16, kMaxRowEntries = std::uint64_t{1} << 22;
/// Sides of a matrix that has singular pairs: dim0 x rest.
inline constexpr std::uint64_t kMinRows = 2, kMinColumns = 16, kMaxSide = std::uint64_t{1} << 22,
                               kMaxShorter = std::uint64_t{1} << 14;
/// Clips of ternary, as f32.
inline constexpr double kMinClip = 0.01, kMaxClip = 1e6;
/// From here on params do not hold the k of top-k and random-k.
inline constexpr std::uint64_t kManyEntries = std::uint64_t{1} << 32;

[[nodiscard]] constexpr bool has_rows(const KindFields& kind) noexcept {
  if (kind.rank < 2 || kind.elements == 0) return false;
  const std::uint64_t length = kind.elements / static_cast<std::uint64_t>(kind.dim0);
  return length >= kMinRowEntries && length <= kMaxRowEntries;
}

[[nodiscard]] constexpr bool is_matrix(const KindFields& kind) noexcept {
  if (kind.rank < 2 || kind.elements == 0) return false;
  const auto rows = static_cast<std::uint64_t>(kind.dim0), columns = kind.elements / rows;
  const std::uint64_t shorter = rows < columns ? rows : columns;
  const std::uint64_t longer = rows < columns ? columns : rows;
  return rows >= kMinRows && columns >= kMinColumns && shorter <= kMaxShorter && longer <= kMaxSide;
}

/// A matrix whose rows can be atoms and that has as many pairs.
[[nodiscard]] constexpr bool has_sketch(const KindFields& kind, std::uint64_t rank) noexcept {
  if (!is_matrix(kind) || !has_rows(kind) || rank < 1 || rank > kLargestRank) return false;
  const auto rows = static_cast<std::uint64_t>(kind.dim0);
  return rank <= rows && rank <= kind.elements / rows;
}

/// The parameters of the method atoms are valid: its family, and the pairs of a sketch.
[[nodiscard]] constexpr bool valid_atoms(const KindFields& kind) noexcept {
  const Family family = family_of(kind.params);
  if (family == Family::sketch) return has_sketch(kind, rank_of(kind.params));
  if (kind.params != params_of(family)) return false;
  return family == Family::blocks || (family == Family::rows && has_rows(kind)) ||
         (family == Family::pairs && is_matrix(kind));
}
/// The parameters of ternary are valid: its clip.
[[nodiscard]] constexpr bool valid_clip(const KindFields& kind) noexcept {
  const auto clip = std::bit_cast<float>(kind.params);
  return kind.params == 0 ||
         (clip >= static_cast<float>(kMinClip) && clip <= static_cast<float>(kMaxClip));
}
/// The parameters of sign are valid: a scale, and with means the logarithm of a bucket.
[[nodiscard]] constexpr bool valid_sign(const KindFields& kind) noexcept {
  constexpr auto least = static_cast<std::uint32_t>(SignConfig::kMinBucketLog),
                 most = static_cast<std::uint32_t>(SignConfig::kMaxBucketLog);
  const std::uint32_t scale = kind.params & 3u, log = kind.params >> 2;
  if (scale != static_cast<std::uint32_t>(SignScale::means)) return kind.params <= 1;
  return log == 0 || (log >= least && log <= most);
}
/// The parameters of minmax are valid: its bits and the logarithm of a bucket.
[[nodiscard]] constexpr bool valid_minmax(std::uint32_t params) noexcept {
  return params >> 1 >= static_cast<std::uint32_t>(MinmaxConfig::kMinBucketLog) &&
         params >> 1 <= static_cast<std::uint32_t>(MinmaxConfig::kMaxBucketLog);
}
/// The parameters of random blocks are valid: the number of blocks to keep.
[[nodiscard]] constexpr bool valid_blocks(const KindFields& kind) noexcept {
  const std::uint64_t blocks = RandomKConfig{.keep = 1, .blocks = true}.units(kind.elements);
  if (blocks == 0) return kind.params == 0;
  return blocks < kManyEntries && kind.params >= 1 && kind.params <= blocks;
}
/// The parameters of top-k and random-k are valid: the number of entries to keep.
[[nodiscard]] constexpr bool valid_keep(const KindFields& kind) noexcept {
  if (kind.elements == 0) return kind.params == 0;
  return kind.elements >= kManyEntries || (kind.params >= 1 && kind.params <= kind.elements);
}

[[nodiscard]] constexpr bool valid_kind(const KindFields& kind) noexcept {
  switch (kind.method) {
#define ATOMO_METHOD(number, id, price, row, parameters) \
  case MethodId::id:                                     \
    return parameters;
#include "format/methods.def"
  }
  return false;
}

/// The number of the header that the bodies of a method follow from.
enum class HeaderPrice : std::uint8_t { none, price, grid_step };
/// What a layer's row may say of a body: nothing more, that it is thinned, or also which of several
/// forms it has.
enum class RecordSays : std::uint8_t { plain, thins, forms };

struct MethodRules {
  HeaderPrice price = HeaderPrice::none;
  RecordSays row = RecordSays::plain;
};
[[nodiscard]] constexpr MethodRules rules_of(MethodId id) noexcept {
  switch (id) {
#define ATOMO_METHOD(number, id, price, row, parameters) \
  case MethodId::id:                                     \
    return {HeaderPrice::price, RecordSays::row};
#include "format/methods.def"
  }
  return {};
}

/// What a body of the method `automatic` is, by the form in its row.
inline constexpr std::uint8_t kBlocksForm = 0, kRowsForm = 1, kSketchForm = 2, kGridForm = 3;
/// The family of a form; coordinates, the last one, have none.
[[nodiscard]] constexpr Family family_of_form(std::uint8_t form) noexcept {
  return form == kSketchForm ? Family::sketch : form == kRowsForm ? Family::rows : Family::blocks;
}
/// The grid step of its coordinates in units of the price.
inline constexpr float kGridStepOfPrice = 3;
/// Whether its kind, a valid one, can have such a body.
[[nodiscard]] constexpr bool has_form(const KindFields& kind, std::uint8_t form) noexcept {
  if (form == kRowsForm) return has_rows(kind);
  return form != kSketchForm || kind.params != 0;
}

[[nodiscard]] inline bool valid_kind(const Kind& kind) noexcept {
  return valid_kind(fields_of(kind));
}

}  // namespace atomo::format
