// SPDX-License-Identifier: Apache-2.0
/// Patches are read here, any bytes at all: the head and the checksums are verified, tensors matched with
/// those of the state before, and blocks made anew by tasks (patch/changes.hpp).
#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>

#include "core/bits.hpp"
#include "core/run_tasks.hpp"
#include "patch/patch_head.hpp"

namespace atomo {
namespace patch {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error("not a patch that can be used: " + what);
}

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
  e.checksum = r.after;
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
