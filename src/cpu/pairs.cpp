// SPDX-License-Identifier: Apache-2.0
/// Writing and reading kept pairs: the sections of any dithered body (atom_body.hpp), whose content
/// is, for each kept pair, the pieces of its first factor and then those of its second.

#include "cpu/pairs.hpp"

#include <algorithm>
#include <array>

#include "core/workspace.hpp"
#include "cpu/pieces.hpp"
#include "format/atom_body.hpp"
#include "math/selection.hpp"

namespace atomo::cpu {
namespace {

/// How one factor of a class is coded.
struct FactorCoding {
  PairCoding coding{};
  float step = 1;
};

/// Steps of every class at one price. The second factor carries the price and the range scale.
class PairCodings {
 public:
  /// Decoding multiplies the second factors' steps by `gain`.
  PairCodings(const MatrixShape& shape, float price, float gain = 1.0f) noexcept
      : range_(range_scale(price)), root_(std::sqrt(static_cast<double>(shape.shorter()))) {
    const float scaled_price = price * range_;
    for (std::size_t c = 0; c < kAtomClassCount; ++c) {
      const PairStep step = pair_step(shape, c);
      shorter_[c] = {pair_coding(step.shorter.step, step.shorter.escape_bits), step.shorter.size};
      longer_[c] = {pair_coding(step.longer.step, step.longer.escape_bits),
                    scaled_price * step.longer.size * gain};
    }
  }

  [[nodiscard]] const FactorCoding& shorter(std::uint8_t c) const noexcept { return shorter_[c]; }
  [[nodiscard]] const FactorCoding& longer(std::uint8_t c) const noexcept { return longer_[c]; }

  /// Of a unit vector u, which is sent as u sqrt m.
  [[nodiscard]] VectorScale scale_of_shorter(std::uint8_t c) const noexcept {
    const float step = shorter_[c].step;
    return {1, step, static_cast<float>(root_ / static_cast<double>(step))};
  }
  /// Of sigma v 2^-exponent, which is sent as sigma v / sqrt m, over P 2^-32 when uncertain.
  [[nodiscard]] VectorScale scale_of_longer(const AtomChoice& choice, int exponent) const noexcept {
    const float step = longer_[choice.atom_class].step;
    const double weight =
        choice.atom_class == 0 ? kTwo32 / static_cast<double>(choice.probability) : 1.0;
    const double unit = std::ldexp(static_cast<double>(range_), exponent);
    return {1, step, static_cast<float>(weight * unit / (root_ * static_cast<double>(step)))};
  }
  /// What decoded products are multiplied by.
  [[nodiscard]] double unscale() const noexcept { return 1.0 / static_cast<double>(range_); }

 private:
  std::array<FactorCoding, kAtomClassCount> shorter_, longer_;
  float range_;
  double root_;
};

/// One factor of one pair: its draws and where its pieces are.
struct Factor {
  Philox levels;
  std::uint64_t pair;
  std::uint64_t entries;

  /// Calls visit(piece, first entry, levels) for every piece until it returns false.
  template <typename Visit>
  bool for_each_piece(Visit visit) const noexcept {
    LevelWords words[kPieceTiles / kLevelTiles];
    std::uint64_t bases[kPieceTiles / kLevelTiles];
    for (std::uint64_t from = 0; from < entries; from += kPieceEntries) {
      const auto here =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(kPieceEntries, entries - from));
      const Piece piece{pair, (entries + kTile - 1) / kTile, from / kTile, here};
      const std::uint32_t groups = level_groups(here);
      for (std::uint32_t g = 0; g < groups; ++g) bases[g] = level_base(piece) + g;
      draw_levels(levels, bases, groups, words);
      if (!visit(piece, from, words)) return false;
    }
    return true;
  }
};

/// Calls visit(k) for every marked pair until it returns false.
template <typename Visit>
bool for_each_marked(std::span<const std::uint64_t> marks, Visit visit) noexcept {
  for (std::size_t w = 0; w < marks.size(); ++w) {
    for (std::uint64_t left = marks[w]; left != 0; left &= left - 1) {
      if (!visit(std::uint64_t{w} * 64 + static_cast<std::uint64_t>(std::countr_zero(left)))) {
        return false;
      }
    }
  }
  return true;
}

/// Whole chunks of marks.
std::size_t mask_words(const PairLayer& layer) noexcept {
  return round_up(marks_words(layer.count), kSelectionChunk / 64);
}

std::uint64_t select_pairs(std::span<const double> amplitudes, float price, const Key& key,
                           std::span<std::uint64_t> marks) noexcept {
  const Philox draws(key, Purpose::select_pair);
  std::uint64_t kept = 0;
  for (std::size_t first = 0; first < amplitudes.size(); first += kSelectionChunk) {
    const std::size_t size = std::min(kSelectionChunk, amplitudes.size() - first);
    const KeptMask mask =
        select_chunk(amplitudes.data() + first, size, price, draws(first / kSelectionChunk)[0]);
    for (std::size_t w = 0; w < mask.size(); ++w) {
      marks[first / 64 + w] = mask[w];
      kept += static_cast<std::uint64_t>(std::popcount(mask[w]));
    }
  }
  return kept;
}

/// Certain flags, then classes. Returns the bytes written.
std::size_t write_flags(std::span<const double> amplitudes, float price,
                        std::span<const std::uint64_t> marks, Bytes out) noexcept {
  BitWriter bits(out.data(), out.size());
  const auto class_of = [&](std::uint64_t k) {
    return choose_atom(amplitudes[k], price).atom_class;
  };
  for_each_marked(marks, [&](std::uint64_t k) {
    bits.put(class_of(k) != 0 ? 1 : 0, 1);
    return true;
  });
  for_each_marked(marks, [&](std::uint64_t k) {
    if (class_of(k) != 0) bits.put(class_of(k) - 1u, kClassBits);
    return true;
  });
  return bits.finish();
}

/// Content and the lengths of its groups.
class PairWriter {
 public:
  PairWriter(const SingularPairs& pairs, const MatrixShape& shape, float price, const Key& key,
             std::byte* lengths, Bytes content) noexcept
      : pairs_(pairs),
        shape_(shape),
        codings_(shape, price),
        key_(key),
        groups_(group_shape(shape)),
        lengths_(lengths),
        bits_(content.data(), content.size()) {}

  void add(std::uint64_t k, const AtomChoice& choice) noexcept {
    const std::size_t m = shape_.shorter(), n = shape_.longer();
    write({Philox(key_, Purpose::dither_u), k, m}, pairs_.shorter.data() + k * m,
          Philox(key_, Purpose::pre_round_u), codings_.scale_of_shorter(choice.atom_class),
          codings_.shorter(choice.atom_class).coding);
    write({Philox(key_, Purpose::dither_v), k, n}, pairs_.longer.data() + k * n,
          Philox(key_, Purpose::pre_round_v), codings_.scale_of_longer(choice, pairs_.exponent),
          codings_.longer(choice.atom_class).coding);
    if (groups_.pieces == 1 && ++in_group_ == groups_.atoms) end_group();
  }

  /// Returns the bytes of content.
  std::size_t finish() noexcept {
    if (in_group_ != 0) end_group();
    return bits_.finish();
  }

 private:
  void write(const Factor& factor, const float* x, const Philox& pre_round,
             const VectorScale& scale, const PairCoding& coding) noexcept {
    factor.for_each_piece([&](const Piece& piece, std::uint64_t from, const LevelWords* levels) {
      encode_piece(x + from, piece, scale, coding, pre_round, levels, bits_);
      if (groups_.pieces > 1) end_group();
      return true;
    });
  }

  void end_group() noexcept {
    store_le(lengths_, static_cast<std::uint16_t>(bits_.position() - begin_));
    lengths_ += 2;
    begin_ = bits_.position();
    in_group_ = 0;
  }

  const SingularPairs& pairs_;
  MatrixShape shape_;
  PairCodings codings_;
  Key key_;
  GroupShape groups_;
  std::uint64_t in_group_ = 0, begin_ = 0;
  std::byte* lengths_;
  BitWriter bits_;
};

/// Reads flags, classes and content of kept pairs in order.
class PairReader {
 public:
  PairReader(ConstBytes body, const BodyIndex& index, const MatrixShape& shape, float price,
             float gain, const Key& key) noexcept
      : shape_(shape),
        codings_(shape, price, gain),
        levels_u_(key, Purpose::dither_u),
        levels_v_(key, Purpose::dither_v),
        groups_(group_shape(shape)),
        flags_(body.data() + index.flags, index.lengths - index.flags),
        content_(body.data() + index.content, body.size() - index.content),
        lengths_(body.data() + index.lengths),
        class_bit_(index.kept) {}

  /// Decodes pair k; false when a group does not end where its length says.
  [[nodiscard]] bool read(std::uint64_t k, float* shorter, float* longer) noexcept {
    const std::uint8_t c = next_class();
    if (!read_factor({levels_u_, k, shape_.shorter()}, codings_.shorter(c), shorter)) return false;
    if (!read_factor({levels_v_, k, shape_.longer()}, codings_.longer(c), longer)) return false;
    return groups_.pieces > 1 || ++in_group_ < groups_.atoms || end_group();
  }
  [[nodiscard]] bool finish() noexcept { return in_group_ == 0 || end_group(); }
  [[nodiscard]] double unscale() const noexcept { return codings_.unscale(); }

 private:
  [[nodiscard]] std::uint8_t next_class() noexcept {
    if (flags_.bits(flag_bit_++, 1) == 0) return 0;
    const std::uint64_t c = flags_.bits(class_bit_, kClassBits) + 1;
    class_bit_ += kClassBits;
    return static_cast<std::uint8_t>(c);
  }
  [[nodiscard]] bool read_factor(const Factor& factor, const FactorCoding& coding,
                                 float* out) noexcept {
    return factor.for_each_piece(
        [&](const Piece& piece, std::uint64_t from, const LevelWords* levels) {
          decode_piece(content_, bit_, piece.entries, {1, coding.step, 1}, coding.coding, levels,
                       {}, out + from);
          return groups_.pieces == 1 || end_group();
        });
  }
  [[nodiscard]] bool end_group() noexcept {
    end_ += load_le<std::uint16_t>(lengths_);
    lengths_ += 2;
    in_group_ = 0;
    return bit_ == end_;
  }

  MatrixShape shape_;
  PairCodings codings_;
  Philox levels_u_, levels_v_;
  GroupShape groups_;
  BitReader flags_, content_;
  const std::byte* lengths_;
  std::uint64_t flag_bit_ = 0, class_bit_, bit_ = 0, end_ = 0, in_group_ = 0;
};

/// Calls visit(k) for the pairs a body keeps, in order, until it returns false.
template <typename Visit>
bool for_each_kept(MarksReader& marks, std::uint64_t count, Visit visit) noexcept {
  SegmentMarks segment;
  std::uint64_t found = 0;
  for (std::uint64_t first = 0; first < count; first += kMarksSegment) {
    if (!marks.next(segment)) return false;
    const bool good = for_each_marked(segment, [&](std::uint64_t k) {
      ++found;
      return visit(first + k);
    });
    if (!good) return false;
  }
  return found == marks.kept();
}

}  // namespace

std::size_t encode_pairs_workspace_bytes(const PairLayer& layer) noexcept {
  Carver carver;
  carver.take<std::uint64_t>(mask_words(layer));
  return carver.bytes();
}

Status encode_pairs(const SingularPairs& pairs, const PairLayer& layer,
                    std::span<const double> amplitudes, float price, const Key& key, Bytes body,
                    Bytes workspace, std::size_t& bytes) noexcept {
  const MatrixShape& shape = layer.view;
  bytes = 0;
  const double largest = *std::max_element(amplitudes.begin(), amplitudes.end());
  if (largest == 0) return Status::ok;
  if (!(price > 0) || !std::isfinite(price) ||
      !(largest / static_cast<double>(price) < kTopRatio)) {
    return Status::unsupported;
  }
  Carver carver(workspace);
  const auto marks = carver.take<std::uint64_t>(mask_words(layer));
  if (!carver.fits()) return Status::workspace_too_small;
  const std::uint64_t kept = select_pairs(amplitudes, price, key, marks);
  if (kept == 0) return Status::ok;

  const auto used = marks.first(marks_words(amplitudes.size()));
  const MarksPlan plan = plan_marks(used, amplitudes.size());
  write_marks(plan, used, amplitudes.size(), body.data());
  const std::size_t flags_end =
      plan.bytes + write_flags(amplitudes, price, used, body.subspan(plan.bytes));
  const std::size_t lengths = round_up(flags_end, 2);
  if (lengths != flags_end) body[lengths - 1] = std::byte{0};
  const std::size_t content = lengths + 2 * group_shape(shape).groups(kept);
  PairWriter writer(pairs, shape, price, key, body.data() + lengths, body.subspan(content));
  for_each_marked(used, [&](std::uint64_t k) {
    writer.add(k, choose_atom(amplitudes[k], price));
    return true;
  });
  const std::size_t end = content + writer.finish();
  bytes = round_up(end, 4);
  std::fill(body.data() + end, body.data() + bytes, std::byte{0});
  return Status::ok;
}

Status decode_pair_factors(ConstBytes body, const PairLayer& layer, float price, float gain,
                           const Key& key, PairFactors& factors) noexcept {
  const std::size_t m = layer.view.shorter(), n = layer.view.longer();
  if (!(price > 0) || !std::isfinite(price)) return Status::corrupt;
  MarksReader marks;
  BodyIndex index;
  if (!index.open(body, pairs_frame(layer), marks)) return Status::corrupt;
  PairReader reader(body, index, layer.view, price, gain, key);
  factors.kept = 0;
  factors.scale = reader.unscale();
  const bool good = for_each_kept(marks, layer.count, [&](std::uint64_t k) {
    const std::size_t at = factors.kept++;
    return reader.read(k, factors.shorter.data() + at * m, factors.longer.data() + at * n);
  });
  return good && reader.finish() ? Status::ok : Status::corrupt;
}

Status inspect_pairs(ConstBytes body, const PairLayer& layer, std::uint64_t& kept) noexcept {
  kept = 0;
  MarksReader marks;
  BodyIndex index;
  if (!index.open(body, pairs_frame(layer), marks)) return Status::corrupt;
  if (!for_each_kept(marks, layer.count, [](std::uint64_t) { return true; })) {
    return Status::corrupt;
  }
  kept = index.kept;
  return Status::ok;
}

}  // namespace atomo::cpu
