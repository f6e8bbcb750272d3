// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Rows or blocks of 256 entries as atoms with dithered content: the operations under
/// `atomo:atoms=rows` and `atoms=blocks`.
///
/// A layer is analysed once (amplitudes, bins for the price), the price is found over any number of
/// layers (price.hpp), then the layer is encoded at that price. Encoding selects atoms
/// (selection.hpp) and writes the kept ones by subtractive dither and a static prefix code of pairs
/// of entries. Every estimate is exactly unbiased at any price up to float rounding.
///
/// ```cpp
/// const auto layout = atomo::AtomLayout::blocks(n);
/// status = atomo::cpu::analyse(x, layout, rms, bins, workspace, found);
/// atomo::cpu::PriceLayer layer{found.bins, &costs, layout.count, found.max_rms};
/// float a = atomo::cpu::find_price({&layer, 1}, budget).a;
/// status = atomo::cpu::encode_atoms(x, layout, rms, a, key, payload, workspace, body);
/// status = atomo::cpu::decode_atoms(payload.first(body.bytes), layout, a, key, y, {});
/// ```
///
/// Nothing here allocates, throws or synchronises. Pointers need the alignment of their element
/// type only.

#include <cstddef>
#include <cstdint>
#include <span>

#include "atomo/price.hpp"
#include "atomo/types.hpp"

namespace [[gnu::visibility("default")]] atomo {

/// What an atom is.
enum class AtomFamily : std::uint8_t {
  blocks = 0,  ///< 256 entries in a row of memory
  rows = 1,    ///< one index of the first dimension
};

/// How a layer of `elements()` entries is cut into atoms, in order.
struct AtomLayout {
  static constexpr std::uint64_t kBlock = 256;  ///< entries of a block
  /// Rows that can be atoms; a layer with other rows takes blocks.
  static constexpr std::uint64_t kMinRow = 16;
  static constexpr std::uint64_t kMaxRow = std::uint64_t{1} << 22;  ///< see kMinRow

  AtomFamily family = AtomFamily::blocks;  ///< what an atom is
  std::uint64_t count = 0;                 ///< atoms
  std::uint64_t length = 0;                ///< entries of each but the last
  std::uint64_t last = 0;                  ///< entries of the last, 1..length

  /// Blocks of 256, the last shorter.
  [[nodiscard]] static constexpr AtomLayout blocks(std::uint64_t elements) noexcept {
    const std::uint64_t count = elements / kBlock + (elements % kBlock != 0 ? 1 : 0);
    return {AtomFamily::blocks, count, kBlock,
            count == 0 ? kBlock : elements - (count - 1) * kBlock};
  }
  /// `count` rows of `length` entries, kMinRow..kMaxRow; their product is at most
  /// Shape::kMaxElements.
  [[nodiscard]] static constexpr AtomLayout rows(std::uint64_t count,
                                                 std::uint64_t length) noexcept {
    return {AtomFamily::rows, count, length, length};
  }

  /// Entries of all atoms.
  [[nodiscard]] constexpr std::uint64_t elements() const noexcept {
    return count == 0 ? 0 : (count - 1) * length + last;
  }
  /// Entries of one atom.
  [[nodiscard]] constexpr std::uint64_t length_of(std::uint64_t atom) const noexcept {
    return atom + 1 == count ? last : length;
  }

  /// Cut in the same way.
  friend constexpr bool operator==(const AtomLayout&, const AtomLayout&) = default;
};

namespace cpu {

/// What `analyse` finds beside the amplitudes.
struct AtomAnalysis {
  std::span<const PriceBin> bins;  ///< the caller's memory, as much as was used
  double max_rms = 0;              ///< of the largest atom, exactly
  double energy = 0;               ///< sum of squares; within rounding, for diagnostics
  bool finite = true;  ///< false: there is an Inf or NaN; nothing else is then meaningful
};

/// Bins that suffice for `analyse` of this layout.
[[nodiscard]] std::size_t max_price_bins(const AtomLayout& layout) noexcept;
/// What `analyse` needs, of any alignment.
[[nodiscard]] std::size_t analyse_workspace_bytes(const AtomLayout& layout) noexcept;

/// Writes the rms of each atom in f64 to `rms[layout.count]` and the amplitudes' bins to `bins`.
/// `workspace_too_small` when the workspace or `bins` is too short.
Status analyse(const float* x, const AtomLayout& layout, double* rms, std::span<PriceBin> bins,
               Bytes workspace, AtomAnalysis& found) noexcept;

/// What the price search charges for the atoms of this layout.
[[nodiscard]] PriceCosts price_costs(const AtomLayout& layout) noexcept;

/// Upper bound of a body, whatever the data and the price.
[[nodiscard]] std::size_t max_body_bytes(const AtomLayout& layout) noexcept;
/// What `encode_atoms` needs, of any alignment.
[[nodiscard]] std::size_t encode_workspace_bytes(const AtomLayout& layout) noexcept;

/// What `encode_atoms` wrote.
struct AtomBody {
  std::size_t bytes = 0;   ///< a multiple of 4; 0 when no atom was kept
  std::uint64_t kept = 0;  ///< atoms
};

/// Writes the body of a layer. `rms` is `analyse`'s, `price` at least `price_floor` (`corrupt`
/// otherwise, or when it is no price); `out` has at least `max_body_bytes` bytes and is scratch
/// beyond those written.
Status encode_atoms(const float* x, const AtomLayout& layout, const double* rms, float price,
                    const Key& key, Bytes out, Bytes workspace, AtomBody& body) noexcept;

/// How decoded values meet the output.
struct DecodeMode {
  bool add = false;  ///< false: y[i] = v, zeros where no atom was kept; true: y[i] = y[i] + (alpha
                     ///< * v), two roundings
  float alpha = 1.0f;  ///< unused unless `add`
  float gain = 1.0f;   ///< of the steps: what makes up for atoms that a size cap left out
};

/// Reads a body, exactly as long as it is, into `y[layout.elements()]`. Any bytes at all give `ok`
/// or `corrupt`; then `y` is unspecified.
Status decode_atoms(ConstBytes body, const AtomLayout& layout, float price, const Key& key,
                    float* y, DecodeMode mode) noexcept;

/// Walks the index of a body without decoding its content: marks, classes and the lengths of
/// groups.
Status inspect_atoms(ConstBytes body, const AtomLayout& layout, std::uint64_t& kept) noexcept;

}  // namespace cpu
}  // namespace atomo
