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
/// status = atomo::cpu::analyse(x, layout, rms, bins, workspace, nullptr, found);
/// atomo::PriceLayer layer{found.bins, &costs, layout.count, found.max_rms};
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

#include "atomo/types.hpp"
#include "coding/marks.hpp"
#include "cpu/decode_mode.hpp"
#include "format/atom_layout.hpp"
#include "math/selection.hpp"
#include "price/price.hpp"

namespace atomo::cpu {

/// The findings of `analyse` beside the amplitudes.
struct AtomAnalysis {
  std::span<const PriceBin> bins;  ///< the caller's memory, as much as was used
  double max_rms = 0;              ///< of the largest atom, exactly
  bool finite = true;  ///< false: there is an Inf or NaN; nothing else is then meaningful
};

/// What `analyse` needs, of any alignment.
[[nodiscard]] std::size_t analyse_workspace_bytes(const AtomLayout& layout) noexcept;

/// The bins of amplitudes that are known, the rms of each atom.
Status bin_amplitudes(const AtomLayout& layout, const double* rms, std::span<PriceBin> bins,
                      Bytes workspace, AtomAnalysis& found) noexcept;

/// Writes the rms of each atom in f64 to `rms[layout.count]` and the amplitudes' bins to `bins`.
/// `workspace_too_small` when the workspace or `bins` is too short.
Status analyse(const float* x, const AtomLayout& layout, double* rms, std::span<PriceBin> bins,
               Bytes workspace, Executor* executor, AtomAnalysis& found) noexcept;

/// What encoding so many atoms needs, rows, blocks or pairs (cpu/pairs.hpp); of any alignment.
[[nodiscard]] std::size_t encode_workspace_bytes(std::uint64_t atoms) noexcept;

/// What `encode_atoms` wrote.
struct AtomBody {
  std::size_t bytes = 0;   ///< a multiple of 4; 0 when no atom was kept
  std::uint64_t kept = 0;  ///< atoms
};

/// The atoms of a layer at a price, and which of them are kept.
struct DrawnAtoms {
  std::span<const double> rms;
  float price = 0;
  std::span<std::uint64_t> masks;  ///< whole chunks of marks
  std::uint64_t kept = 0;
  Selection selection = Selection::drawn;

  /// A bit an atom: kept.
  [[nodiscard]] std::span<const std::uint64_t> marks() const noexcept {
    return masks.first(coding::marks_words(rms.size()));
  }
};

/// Draws which atoms of a layer are kept; the marks stand in the workspace, of
/// `encode_workspace_bytes`. `rms` and `price` are those of `encode_atoms`.
Status draw_atoms(const AtomLayout& layout, const double* rms, float price, const Key& key,
                  Bytes workspace, DrawnAtoms& atoms,
                  Selection selection = Selection::drawn) noexcept;

/// Where the atoms that are written stand: each at its own place, or the kept ones alone, one behind
/// the other.
enum class AtomPlaces : std::uint8_t { own, kept };

/// Writes the body of the atoms that were drawn, stretches of them at once on the executor, which may
/// be null: the bytes do not depend on it.
Status write_atoms(const float* x, AtomPlaces places, const AtomLayout& layout,
                   const DrawnAtoms& atoms, const Key& key, Executor* executor, Bytes out,
                   AtomBody& body) noexcept;

/// Both. `rms` is `analyse`'s, `price` at least the price of `min_price_code` (`corrupt`
/// otherwise, or when it is no price); `out` has at least `max_body_bytes` bytes and is scratch
/// beyond those written.
Status encode_atoms(const float* x, const AtomLayout& layout, const double* rms, float price,
                    const Key& key, Executor* executor, Bytes out, Bytes workspace, AtomBody& body,
                    Selection selection = Selection::drawn) noexcept;

/// Reads a body, exactly as long as it is, into `y[layout.elements()]`. Any bytes at all give `ok`
/// or `corrupt`; then `y` is unspecified. Stretches are read at once on the executor, which may be
/// null.
Status decode_atoms(ConstBytes body, const AtomLayout& layout, float price, const Key& key,
                    float* y, DecodeMode mode, Executor* executor) noexcept;

/// A body of one of several messages, and what becomes of it.
struct AtomMessage {
  ConstBytes body;
  float price = 0;
  float gain = 1;        ///< as DecodeMode's
  bool centred = false;  ///< likewise
  Key key;
  Status status = Status::ok;  ///< `add_atoms` leaves a failed one out
};

/// Adds alpha times the bodies, kBodiesAtOnce of them at most, to `y` in their order, a stretch of the
/// tensor at a time: y is read and written once for all. A body's status becomes what `decode_atoms`
/// would return.
void add_atoms(std::span<AtomMessage> messages, const AtomLayout& layout, float alpha,
               float* y) noexcept;

/// Atoms of a stretch.
[[nodiscard]] std::uint64_t atoms_together(const AtomLayout& layout) noexcept;

/// A reference to what takes the values of a message's atoms `first` to before `end`.
class StretchAdder {
 public:
  template <typename Add>
  explicit StretchAdder(const Add& add) noexcept
      : state_(&add),
        call_([](const void* state, std::size_t message, std::uint64_t first,
                 std::uint64_t end) noexcept {
          (*static_cast<const Add*>(state))(message, first, end);
        }) {}
  void operator()(std::size_t message, std::uint64_t first, std::uint64_t end) const noexcept {
    call_(state_, message, first, end);
  }

 private:
  const void* state_;
  void (*call_)(const void*, std::size_t, std::uint64_t, std::uint64_t) noexcept;
};

/// The same, where values are not all that is added: of every stretch, and of it of every message,
/// `values`, which has room for a stretch, has the values while `add` is called.
void read_atoms(std::span<AtomMessage> messages, const AtomLayout& layout, float* values,
                const StretchAdder& add) noexcept;

/// Walks the index of a body without decoding its content: marks, classes and the lengths of
/// groups.
Status inspect_atoms(ConstBytes body, const AtomLayout& layout, std::uint64_t& kept) noexcept;

}  // namespace atomo::cpu
