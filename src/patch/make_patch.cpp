// SPDX-License-Identifier: Apache-2.0
/// Patches are made here: tensors of two states are matched, their blocks compared by tasks
/// (patch/changes.hpp), and the head and the bodies written.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "core/bits.hpp"
#include "core/run_tasks.hpp"
#include "patch/patch_head.hpp"

namespace atomo {
namespace patch {
namespace {

/// Blocks of a tensor on their way into a patch.
struct Block {
  std::size_t tensor = 0, at = 0, size = 0;  ///< bytes of the tensor
  std::vector<std::byte> bytes;
  std::uint64_t changed = 0;
};

struct Entry {
  const PatchTensor *before, *after;  ///< `before` is null where there is nothing to compare
  Record record{};
  std::size_t first_block = 0, blocks = 0;
};

class Maker {
 public:
  Maker(std::span<const PatchTensor> before, std::span<const PatchTensor> after,
        std::string_view note, Executor* executor)
      : note_(note), executor_(executor) {
    if (note.size() > 0xFFFFFFFFu) throw Error("the note of a patch is longer than 2^32 - 1 bytes");
    const ByName old = by_name(before);
    static_cast<void>(by_name(after));
    for (const PatchTensor& tensor : after) add(tensor, find(old, tensor.name));
  }

  std::vector<std::byte> make() {
    find_changes();
    for (Entry& entry : entries_) settle(entry);
    return write();
  }

 private:
  void add(const PatchTensor& tensor, const PatchTensor* old) {
    const bool comparable =
        old != nullptr && old->type == tensor.type && old->shape == tensor.shape &&
        old->element_bytes == tensor.element_bytes && old->data.size() == tensor.data.size();
    Entry entry{comparable ? old : nullptr, &tensor};
    const WordType type = word_type(tensor.element_bytes, tensor.floating);
    entry.first_block = blocks_.size();
    entry.blocks = comparable ? count_blocks(tensor.data.size(), type) : 0;
    for (std::size_t b = 0; b < entry.blocks; ++b) {
      const std::size_t at = b * block_bytes(type);
      blocks_.push_back(
          {entries_.size(), at, std::min(block_bytes(type), tensor.data.size() - at), {}, 0});
    }
    entries_.push_back(entry);
  }

  void find_changes() {
    std::atomic<bool> lacks_memory{false};
    core::run_tasks(executor_, blocks_.size(), [&](std::size_t b) {
      Block& block = blocks_[b];
      const Entry& entry = entries_[block.tensor];
      const PatchTensor& tensor = *entry.after;
      try {
        block.changed =
            write_changes(entry.before->data.subspan(block.at, block.size),
                          tensor.data.subspan(block.at, block.size),
                          word_type(tensor.element_bytes, tensor.floating), block.bytes);
      } catch (const std::bad_alloc&) {
        lacks_memory = true;
      }
    });
    if (lacks_memory) throw std::bad_alloc();
  }

  [[nodiscard]] std::span<const Block> blocks_of(const Entry& entry) const noexcept {
    return std::span(blocks_).subspan(entry.first_block, entry.blocks);
  }

  void settle(Entry& entry) const {
    const PatchTensor& tensor = *entry.after;
    Record& record = entry.record;
    record.name_bytes = static_cast<std::uint16_t>(tensor.name.size());
    record.type_bytes = static_cast<std::uint8_t>(tensor.type.size());
    record.dimensions = static_cast<std::uint8_t>(tensor.shape.size());
    record.element_bytes = tensor.element_bytes;
    record.floating = tensor.floating ? 1 : 0;
    record.bytes = tensor.data.size();
    record.after = checksum(tensor.data, executor_);
    std::uint64_t bytes = 4 * entry.blocks;
    for (const Block& block : blocks_of(entry)) {
      bytes += block.bytes.size();
      record.changed += block.changed;
    }
    if (tensor.element_bytes == 8) record.changed = changed_elements(entry);
    if (entry.before != nullptr && record.changed == 0) {
      record.form = static_cast<std::uint8_t>(Form::same);
    } else if (entry.before != nullptr && bytes < record.bytes) {
      record.form = static_cast<std::uint8_t>(Form::changes);
      record.body_bytes = bytes;
    } else {
      record.form = static_cast<std::uint8_t>(Form::whole);
      record.body_bytes = record.bytes;
      record.changed = record.bytes / tensor.element_bytes;
      return;
    }
    record.before = checksum(entry.before->data, executor_);
  }

  /// Elements of two words, of which both may have changed.
  [[nodiscard]] static std::uint64_t changed_elements(const Entry& entry) noexcept {
    if (entry.before == nullptr) return 0;
    std::uint64_t count = 0;
    const std::byte *a = entry.before->data.data(), *b = entry.after->data.data();
    for (std::size_t i = 0; i < entry.after->data.size(); i += 8)
      count += load_le<std::uint64_t>(a + i) != load_le<std::uint64_t>(b + i) ? 1 : 0;
    return count;
  }

  std::vector<std::byte> write() {
    std::size_t head = sizeof(Header) + padded(note_.size()), bodies = 0;
    for (const Entry& entry : entries_) {
      const PatchTensor& tensor = *entry.after;
      head += sizeof(Record) +
              padded(8 * tensor.shape.size() + tensor.name.size() + tensor.type.size());
      bodies += entry.record.body_bytes;
    }
    head += kChecksumBytes;
    std::vector<std::byte> out(head + bodies);
    std::size_t body = head;
    for (Entry& entry : entries_) {
      write_body(entry, out.data() + body);
      const ConstBytes written = ConstBytes(out).subspan(body, entry.record.body_bytes);
      entry.record.body = checksum(written, executor_);
      body += entry.record.body_bytes;
    }
    write_head(out, head);
    return out;
  }

  void write_body(const Entry& entry, std::byte* to) const {
    if (entry.record.form == static_cast<std::uint8_t>(Form::same)) return;
    if (entry.record.form == static_cast<std::uint8_t>(Form::whole)) {
      std::copy(entry.after->data.begin(), entry.after->data.end(), to);
      return;
    }
    for (const Block& block : blocks_of(entry)) {
      store_le(to, static_cast<std::uint32_t>(block.bytes.size()));
      to += 4;
    }
    for (const Block& block : blocks_of(entry))
      to = std::copy(block.bytes.begin(), block.bytes.end(), to);
  }

  void write_head(std::vector<std::byte>& out, std::size_t head) const {
    Header header{{},   kVersion,   static_cast<std::uint32_t>(entries_.size()),
                  head, out.size(), static_cast<std::uint32_t>(note_.size()),
                  0};
    std::memcpy(header.magic, kMagic, sizeof kMagic);
    std::byte* at = out.data();
    const auto put = [&at](const void* from, std::size_t bytes) {
      if (bytes > 0) std::memcpy(at, from, bytes);
      at += bytes;
    };
    put(&header, sizeof header);
    put(note_.data(), note_.size());
    at += padded(note_.size()) - note_.size();
    for (const Entry& entry : entries_) {
      const PatchTensor& tensor = *entry.after;
      put(&entry.record, sizeof entry.record);
      const std::byte* const begin = at;
      put(tensor.shape.data(), 8 * tensor.shape.size());
      put(tensor.name.data(), tensor.name.size());
      put(tensor.type.data(), tensor.type.size());
      const auto used = static_cast<std::size_t>(at - begin);
      at += padded(used) - used;
    }
    store_le(at, checksum(ConstBytes(out).first(head - kChecksumBytes), executor_));
  }

  std::string_view note_;
  Executor* executor_;
  std::vector<Entry> entries_;
  std::vector<Block> blocks_;
};

}  // namespace
}  // namespace patch

std::vector<std::byte> make_patch(std::span<const PatchTensor> before,
                                  std::span<const PatchTensor> after, std::string_view note,
                                  Executor* executor) {
  return patch::Maker(before, after, note, executor).make();
}

}  // namespace atomo
