// SPDX-License-Identifier: Apache-2.0
/// The container of patches: its head is read and written here, tensors are matched and verified,
/// and blocks of words are given to tasks (patch/changes.hpp).
#include "atomo/patch.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <new>
#include <set>

#include "core/bits.hpp"
#include "core/run_tasks.hpp"
#include "core/utf8.hpp"
#include "format/checksum.hpp"
#include "patch/changes.hpp"

namespace atomo {
namespace patch {
namespace {

using Form = PatchEntry::Form;

constexpr char kMagic[8] = {'A', 'T', 'M', 'P', 'A', 'T', 'C', 'H'};
constexpr std::uint32_t kVersion = 1;

struct Header {
  char magic[8];
  std::uint32_t version, tensors;
  std::uint64_t head_bytes, bytes;  ///< up to the bodies; of the whole patch
  std::uint32_t note_bytes, zero;
};
static_assert(sizeof(Header) == 40);

/// The dimensions follow, 8 bytes each, the name, the type, zeros up to a multiple of 8.
struct Record {
  std::uint64_t before, after, body;  ///< checksums
  std::uint64_t bytes, body_bytes, changed;
  std::uint16_t name_bytes;
  std::uint8_t type_bytes, dimensions, element_bytes, floating, form, zero;
};
static_assert(sizeof(Record) == 56);
constexpr std::size_t kChecksumBytes = 8;

std::uint64_t checksum(ConstBytes bytes, Executor* executor) noexcept {
  return format::body_checksum(bytes, {}, executor);
}

std::size_t padded(std::size_t bytes) noexcept { return (bytes + 7) / 8 * 8; }

[[noreturn]] void refuse(const std::string& what) {
  throw Error("not a patch that can be used: " + what);
}
std::string quoted(std::string_view name) {
  std::string text = core::shown(name);
  text.insert(text.begin(), '\'');
  text.push_back('\'');
  return text;
}

std::size_t block_bytes(WordType type) noexcept {
  return static_cast<std::size_t>(kBlockWords) * type.bytes;
}
std::size_t count_blocks(std::uint64_t bytes, WordType type) noexcept {
  const std::uint64_t each = block_bytes(type);
  return static_cast<std::size_t>(bytes / each + (bytes % each != 0 ? 1 : 0));
}

void check(const PatchTensor& tensor) {
  const auto fail = [&](const std::string& what) {
    throw Error("the tensor " + quoted(tensor.name) + ": " + what);
  };
  const std::size_t size = tensor.element_bytes;
  if (size != 1 && size != 2 && size != 4 && size != 8)
    fail("elements of " + std::to_string(size) + " bytes; 1, 2, 4 and 8 are accepted");
  if (tensor.data.size() % size != 0)
    fail(std::to_string(tensor.data.size()) + " bytes are no whole number of elements of " +
         std::to_string(size));
  if (tensor.name.size() > 0xFFFF) fail("its name is longer than 65,535 bytes");
  if (tensor.type.size() > 0xFF) fail("its type's name is longer than 255 bytes");
  if (tensor.shape.size() > 0xFF) fail("it has more than 255 dimensions");
}

using ByName = std::map<std::string_view, const PatchTensor*>;

ByName by_name(std::span<const PatchTensor> tensors) {
  ByName found;
  for (const PatchTensor& tensor : tensors) {
    check(tensor);
    if (!found.emplace(tensor.name, &tensor).second)
      throw Error("the tensor " + quoted(tensor.name) + " stands twice in one state");
  }
  return found;
}

const PatchTensor* find(const ByName& tensors, std::string_view name) {
  const auto at = tensors.find(name);
  return at == tensors.end() ? nullptr : at->second;
}

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

/// A tensor of a patch that is read.
struct ReadEntry {
  Record record;
  PatchEntry entry;
  ConstBytes body;
};
struct ReadPatch {
  std::string note;
  std::vector<ReadEntry> tensors;
};

/// Takes parts of the head off its begin.
class HeadReader {
 public:
  explicit HeadReader(ConstBytes rest) : rest_(rest) {}
  ConstBytes take(std::size_t bytes, const char* what) {
    if (bytes > rest_.size()) refuse(std::string("its head ends within ") + what);
    const ConstBytes taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return taken;
  }
  template <typename T>
  T take_one(const char* what) {
    T value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }
  std::string take_text(std::size_t bytes, const char* what) {
    const ConstBytes text = take(bytes, what);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }
  void skip_padding(std::size_t used) {
    const ConstBytes zeros = take(padded(used) - used, "padding");
    if (!core::all_zero(zeros.data(), 0, zeros.size())) refuse("padding of its head is not zero");
  }
  [[nodiscard]] std::size_t left() const noexcept { return rest_.size(); }

 private:
  ConstBytes rest_;
};

ReadEntry read_entry(HeadReader& head) {
  ReadEntry read{head.take_one<Record>("a tensor's record"), {}, {}};
  const Record& r = read.record;
  PatchEntry& e = read.entry;
  for (int d = 0; d < r.dimensions; ++d) e.shape.push_back(head.take_one<std::uint64_t>("a shape"));
  e.name = head.take_text(r.name_bytes, "a name");
  e.type = head.take_text(r.type_bytes, "a type");
  head.skip_padding(8 * std::size_t{r.dimensions} + r.name_bytes + r.type_bytes);
  const bool sized =
      r.element_bytes == 1 || r.element_bytes == 2 || r.element_bytes == 4 || r.element_bytes == 8;
  const bool formed = r.form <= 2 && r.floating <= 1 && r.zero == 0;
  if (!sized || !formed || r.bytes % r.element_bytes != 0 || r.changed > r.bytes / r.element_bytes)
    refuse("the record of " + quoted(e.name) + " has values that none has");
  const bool told = r.form == static_cast<std::uint8_t>(Form::same)
                        ? r.changed == 0 && r.before == r.after
                    : r.form == static_cast<std::uint8_t>(Form::whole)
                        ? r.changed == r.bytes / r.element_bytes && r.before == 0
                        : r.changed > 0;
  if (!told) refuse("the record of " + quoted(e.name) + " has values that its form has not");
  e.element_bytes = r.element_bytes;
  e.floating = r.floating != 0;
  e.form = static_cast<Form>(r.form);
  e.bytes = r.bytes;
  e.changed = r.changed;
  e.sent = r.body_bytes;
  const std::size_t blocks = count_blocks(r.bytes, word_type(r.element_bytes, e.floating));
  const bool bodied = e.form == Form::same ? r.body_bytes == 0
                      : e.form == Form::whole
                          ? r.body_bytes == r.bytes
                          : r.body_bytes / 4 >= blocks && r.body_bytes < r.bytes;
  if (!bodied) refuse("the body of " + quoted(e.name) + " is not as long as its form asks");
  return read;
}

ReadPatch read_patch(ConstBytes patch, Executor* executor) {
  if (patch.size() < sizeof(Header) + kChecksumBytes)
    refuse(std::to_string(patch.size()) + " bytes, a patch has at least " +
           std::to_string(sizeof(Header) + kChecksumBytes));
  Header header;
  std::memcpy(&header, patch.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0)
    refuse("it does not begin with '" + std::string(kMagic, sizeof kMagic) + "'");
  if (header.version != kVersion)
    refuse("version " + std::to_string(header.version) + " of the format; version " +
           std::to_string(kVersion) + " is read");
  if (header.bytes != patch.size())
    refuse("it says " + std::to_string(header.bytes) + " bytes, " + std::to_string(patch.size()) +
           " are there");
  if (header.head_bytes > patch.size() || header.head_bytes < sizeof(Header) + kChecksumBytes ||
      header.zero != 0)
    refuse("its header has values that none has");
  const ConstBytes summed = patch.first(header.head_bytes - kChecksumBytes);
  if (load_le<std::uint64_t>(summed.data() + summed.size()) != checksum(summed, executor))
    refuse("its head is damaged: the checksum differs");
  ReadPatch read;
  HeadReader head(summed.subspan(sizeof(Header)));
  read.note = head.take_text(header.note_bytes, "the note");
  head.skip_padding(header.note_bytes);
  std::uint64_t at = header.head_bytes;
  std::set<std::string> names;
  for (std::uint32_t i = 0; i < header.tensors; ++i) {
    read.tensors.push_back(read_entry(head));
    ReadEntry& entry = read.tensors.back();
    if (!names.insert(entry.entry.name).second)
      refuse("the tensor " + quoted(entry.entry.name) + " stands twice in it");
    if (entry.record.body_bytes > patch.size() - at)
      refuse("the body of " + quoted(entry.entry.name) + " is not all there");
    entry.body = patch.subspan(at, entry.record.body_bytes);
    at += entry.record.body_bytes;
    if (checksum(entry.body, executor) != entry.record.body)
      refuse("the body of " + quoted(entry.entry.name) + " is damaged: the checksum differs");
  }
  if (head.left() != 0 || at != patch.size()) refuse("bytes of it belong to no tensor");
  return read;
}

/// A block of a tensor that is made anew.
struct Task {
  std::size_t tensor = 0;
  ConstBytes block;  ///< of changes
  ConstBytes before;
  Bytes out;
};

void add_tasks(const ReadEntry& read, std::size_t tensor, ConstBytes before, Bytes out,
               std::vector<Task>& tasks) {
  const WordType type = word_type(read.record.element_bytes, read.entry.floating);
  const std::size_t blocks = count_blocks(read.record.bytes, type);
  const bool has_blocks = read.entry.form == Form::changes;
  std::size_t next = 4 * blocks;
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::size_t at = b * block_bytes(type),
                      size = std::min(block_bytes(type), out.size() - at);
    Task task{tensor, {}, before.subspan(at, size), out.subspan(at, size)};
    if (has_blocks) {
      const auto bytes = load_le<std::uint32_t>(read.body.data() + 4 * b);
      if (bytes > read.body.size() - next)
        refuse("the blocks of " + quoted(read.entry.name) + " do not fit its body");
      task.block = read.body.subspan(next, bytes);
      next += bytes;
    }
    tasks.push_back(task);
  }
  if (has_blocks && next != read.body.size())
    refuse("the blocks of " + quoted(read.entry.name) + " do not fill its body");
}

const PatchTensor& verified_before(const ReadEntry& read, const ByName& before,
                                   Executor* executor) {
  const PatchTensor* const tensor = find(before, read.entry.name);
  if (tensor == nullptr)
    throw Error("the patch changes the tensor " + quoted(read.entry.name) +
                ", which the state to patch has not");
  if (tensor->data.size() != read.record.bytes)
    throw Error("the tensor " + quoted(read.entry.name) + " has " +
                std::to_string(tensor->data.size()) + " bytes, the patch was made for " +
                std::to_string(read.record.bytes));
  if (checksum(tensor->data, executor) != read.record.before)
    throw Error("the tensor " + quoted(read.entry.name) +
                " is not the one that the patch was made from: its checksum differs");
  return *tensor;
}

/// Whether so many words differ as the record says of elements, of which one may have two.
bool counts_fit(const ReadEntry& read, std::uint64_t words) noexcept {
  if (read.entry.form != Form::changes) return true;
  const std::uint64_t elements = read.record.changed;
  return words >= elements && words <= (read.record.element_bytes == 8 ? 2 * elements : elements);
}

void apply(const ReadPatch& patch, std::span<const PatchTensor> before, std::span<const Bytes> out,
           Executor* executor) {
  if (out.size() != patch.tensors.size())
    throw Error("the patch has " + std::to_string(patch.tensors.size()) +
                " tensors, room is given for " + std::to_string(out.size()));
  const ByName old = by_name(before);
  std::vector<Task> tasks;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const ReadEntry& read = patch.tensors[i];
    if (out[i].size() != read.record.bytes)
      throw Error("the tensor " + quoted(read.entry.name) + " has " +
                  std::to_string(read.record.bytes) + " bytes, room is given for " +
                  std::to_string(out[i].size()));
    const ConstBytes from =
        read.entry.form == Form::whole ? read.body : verified_before(read, old, executor).data;
    add_tasks(read, i, from, out[i], tasks);
  }
  std::vector<std::atomic<std::uint64_t>> refused(out.size()), changed(out.size());
  core::run_tasks(executor, tasks.size(), [&](std::size_t t) {
    const Task& task = tasks[t];
    if (task.out.data() != task.before.data())
      std::memcpy(task.out.data(), task.before.data(), task.out.size());
    const Record& record = patch.tensors[task.tensor].record;
    const WordType type = word_type(record.element_bytes, record.floating != 0);
    const std::uint64_t words = apply_changes(task.block, type, task.out);
    if (words == ~std::uint64_t{0}) {
      refused[task.tensor] = 1;
    } else {
      changed[task.tensor] += words;
    }
  });
  for (std::size_t i = 0; i < out.size(); ++i) {
    const ReadEntry& read = patch.tensors[i];
    if (refused[i] != 0 || checksum(out[i], executor) != read.record.after)
      refuse("the changes of " + quoted(read.entry.name) + " do not make its new state");
    if (!counts_fit(read, changed[i]))
      refuse("the elements of " + quoted(read.entry.name) +
             " that differ are not as many as its record says");
  }
}

}  // namespace
}  // namespace patch

std::vector<std::byte> make_patch(std::span<const PatchTensor> before,
                                  std::span<const PatchTensor> after, std::string_view note,
                                  Executor* executor) {
  return patch::Maker(before, after, note, executor).make();
}

PatchInfo inspect_patch(ConstBytes bytes) {
  patch::ReadPatch read = patch::read_patch(bytes, nullptr);
  PatchInfo info{std::move(read.note), {}, bytes.size()};
  for (patch::ReadEntry& entry : read.tensors) info.tensors.push_back(std::move(entry.entry));
  return info;
}

void apply_patch(ConstBytes bytes, std::span<const PatchTensor> before, std::span<const Bytes> out,
                 Executor* executor) {
  patch::apply(patch::read_patch(bytes, executor), before, out, executor);
}

}  // namespace atomo
