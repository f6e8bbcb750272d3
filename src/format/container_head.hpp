// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The head of a container, byte by byte (FORMAT.md, "Container"): a header of 64 bytes, a row of 8
/// bytes a layer, the table of kinds, the names if any, zeros up to a multiple of 4. Bodies follow,
/// each padded to a multiple of 4.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "format/checksum.hpp"
#include "format/container_rules.hpp"

namespace atomo::format {

/// What does not change from message to message: the table of kinds and the names. Made at set-up.
class HeadLayout {
 public:
  HeadLayout() = default;
  /// `names` is empty, or one a layer. \throws Error for a name over 65,535 bytes.
  HeadLayout(std::span<const Kind> layers, std::span<const std::string> names);

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint16_t kind_of(std::size_t layer) const noexcept { return kind_of_[layer]; }
  [[nodiscard]] std::size_t layers() const noexcept { return kind_of_.size(); }
  [[nodiscard]] std::span<const std::uint16_t> kinds_of() const noexcept { return kind_of_; }
  [[nodiscard]] std::uint32_t kinds() const noexcept { return kinds_; }
  /// The flags of the header.
  [[nodiscard]] std::uint16_t flags() const noexcept { return flags_; }
  /// The tables behind the rows: kinds, names, padding.
  [[nodiscard]] ConstBytes tables() const noexcept { return tables_; }

  /// Writes the tables; rows come from `write_record`, then `seal` writes header and checksums over
  /// the whole message.
  void write_tables(std::byte* message) const noexcept;
  void seal(std::byte* message, const Key& key, float price, float grid_step, std::uint64_t total,
            Executor* executor = nullptr) const noexcept;

 private:
  std::vector<std::uint16_t> kind_of_;
  std::vector<std::byte> tables_;  // kinds, names, padding
  std::size_t bytes_ = 0;
  std::uint32_t kinds_ = 0;
  std::uint16_t flags_ = 0;
};

/// \throws Error for a name that is not UTF-8, which no message carries. `layer` is its number.
void check_layer_name(std::size_t layer, const std::string& name);

/// The head of a message of one unnamed layer, without a layout made before (and so without the
/// heap).
[[nodiscard]] std::size_t one_layer_head_bytes(const Kind& kind) noexcept;
/// The bytes behind the row in that head, padding included.
using OneLayerTables = std::array<std::byte, 7 + Shape::kMaxRank * 9 + 3>;
/// Fills `tables`; returns the bytes in use.
std::size_t one_layer_tables(const Kind& kind, OneLayerTables& tables) noexcept;
/// Writes the whole head and both checksums; the body, padded, is in place behind it. Blocks that are
/// not hashed yet are hashed on the executor, which may be null, here and below.
void write_one_layer_head(std::byte* message, const Kind& kind, const LayerRecord& row,
                          const Key& key, float price, float grid_step,
                          const HashedBlocks& hashed = {}, Executor* executor = nullptr) noexcept;

void write_record(std::byte* message, std::size_t layer, const LayerRecord& row) noexcept;
/// The bytes of the whole message, padding included.
void write_total(std::byte* message, std::uint64_t total) noexcept;
/// Both checksums of a message whose header, rows, tables and bodies are in place.
void write_checksums(Bytes message, std::size_t head_bytes, const HashedBlocks& hashed = {},
                     Executor* executor = nullptr) noexcept;

/// A parsed head: spans into the message, checked; the checksums hold.
class Head {
 public:
  /// `exact`: refuse bytes after the message.
  static Status parse(ConstBytes message, bool exact, Head& head,
                      Executor* executor = nullptr) noexcept;

  [[nodiscard]] const Header& header() const noexcept { return header_; }
  [[nodiscard]] std::size_t layers() const noexcept { return header_.layers; }
  [[nodiscard]] std::size_t head_bytes() const noexcept { return head_bytes_; }
  [[nodiscard]] ConstBytes message() const noexcept { return message_; }
  [[nodiscard]] ConstBytes kinds() const noexcept { return kinds_; }
  [[nodiscard]] ConstBytes names() const noexcept { return names_; }
  [[nodiscard]] LayerRecord row(std::size_t layer) const noexcept;
  /// Whether both have the same layers: kinds, in the same order. Names may differ.
  [[nodiscard]] bool has_layers_of(const Head& other) const noexcept;

 private:
  ConstBytes message_, kinds_, names_;
  Header header_;
  std::size_t head_bytes_ = 0;
};

/// One layer of a message.
struct LayerEntry {
  LayerRecord row;
  Kind kind;
  ConstBytes body;
  Key key;  ///< with this layer's tensor
  std::string_view name;
  std::size_t index = 0;
};

/// Walks the layers of a parsed head in order; it is the entry of the one it stands on.
class LayerCursor : public LayerEntry {
 public:
  explicit LayerCursor(const Head& head) noexcept
      : head_(&head), body_at_(head.head_bytes()), names_(head.names()) {
    milestones_[0] = 0;  // the others are written when they are passed, before they are read
  }
  /// False after the last layer, or (with `status` set) when the layer's kind is not one this build
  /// can read.
  bool next(Status& status) noexcept;

 private:
  Status seek_kind(std::uint32_t wanted) noexcept;
  const Head* head_;
  std::size_t body_at_, next_layer_ = 0;
  ConstBytes names_;
  /// Kinds that a row of a hostile message can make the cursor read again.
  static constexpr std::uint32_t kMilestone = 16;
  std::size_t kind_at_ = 0;  // where kind number `kind_next_` starts
  std::uint32_t kind_next_ = 0;
  std::array<std::uint32_t, 65536 / kMilestone> milestones_;  // where every 16th kind starts
};

}  // namespace atomo::format
