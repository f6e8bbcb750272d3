// SPDX-License-Identifier: Apache-2.0
/// The memories of a model's layers: what a finished message moves, and how they are saved
/// (docs/memories.md).
#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>

#include "core/bits.hpp"
#include "model/model.hpp"

namespace atomo {

using namespace model;

namespace {

/// In front of a saved memory; its dimensions follow, 8 bytes each, the layer's name and the values,
/// each with zeros up to a multiple of 8 bytes.
struct SavedMemory {
  std::uint64_t name_bytes, bytes;
  std::uint8_t rule, dtype, rank, zeros[5];
};
static_assert(sizeof(SavedMemory) == 24);

std::size_t whole_words(std::uint64_t bytes) noexcept { return (bytes + 7) / 8 * 8; }

void append(std::vector<std::byte>& to, const void* from, std::size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(from);
  to.insert(to.end(), first, first + bytes);
  to.resize(whole_words(to.size()));
}

/// Reads what `append` wrote.
class Reader {
 public:
  explicit Reader(ConstBytes bytes) noexcept : rest_(bytes) {}
  /// Nothing where there are not so many.
  std::optional<ConstBytes> take(std::uint64_t bytes) noexcept {
    if (bytes > rest_.size() || whole_words(bytes) > rest_.size()) return std::nullopt;
    const ConstBytes taken = rest_.first(static_cast<std::size_t>(bytes));
    rest_ = rest_.subspan(whole_words(bytes));
    return taken;
  }
  [[nodiscard]] bool ended() const noexcept { return rest_.empty(); }

 private:
  ConstBytes rest_;
};

}  // namespace

void Compressor::Impl::set_up_memories() {
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].remembers()) remembering.push_back(i);
  }
  if (whole_model != nullptr || remembering.empty()) return;
  if (options.device == Device::cuda)
    throw Error("'" + codecs[remembering.front()].to_string() +
                "': a memory on a device is not supported yet: encode on the CPU, or without it");
  memories.resize(plans.size());
  moved.resize(plans.size());
  for (const std::size_t i : remembering) {
    memories[i] = codec::LayerMemory(*plans[i].stages, plans[i].n);
    encoders[i].use(memories[i]);
  }
}

bool Compressor::Impl::any_moved() const noexcept {
  const auto& whole = whole_model != nullptr ? *whole_model : *this;
  return std::ranges::any_of(remembering,
                             [&](std::size_t i) { return whole.moved[first_layer + i] != 0; });
}

/// A message whose layers are all finite moves all of them, any other none.
Status Compressor::Impl::keep_unsent(const codec::LayerPrices& found, Status so_far,
                                     Executor* executor) noexcept {
  if (remembering.empty() || has(so_far, Status::non_finite)) return Status::ok;
  const Status status = each_layer(executor, [&](std::size_t i, Executor* own) {
    encoders[i].use(own);
    return encoders[i].take_sent(found, room_of(i));
  });
  if (failed(status)) return status;
  static_cast<void>(each_layer(executor, [&](std::size_t i, Executor* own) {
    encoders[i].use(own);
    encoders[i].keep_unsent();
    return Status::ok;
  }));
  if (whole_model == nullptr) return Status::ok;
  for (const std::size_t i : remembering) whole_model->moved[first_layer + i] = 1;
  return Status::ok;
}

void Compressor::Impl::reset_memory() noexcept {
  for (const std::size_t i : remembering) memories[i].clear();
}

void Compressor::Impl::save_memories(std::vector<std::byte>& state) const {
  for (const std::size_t i : remembering) {
    const LayerSpec& layer = layers[i];
    const ConstBytes kept = memories[i].bytes();
    const MemoryOptions& of = memories[i].options();
    const SavedMemory head{layer.name.size(),
                           kept.size(),
                           static_cast<std::uint8_t>(of.rule),
                           static_cast<std::uint8_t>(of.dtype),
                           static_cast<std::uint8_t>(layer.shape.rank()),
                           {}};
    append(state, &head, sizeof head);
    append(state, layer.shape.dims().data(), layer.shape.dims().size_bytes());
    append(state, layer.name.data(), layer.name.size());
    append(state, kept.data(), kept.size());
  }
}

bool Compressor::Impl::read_memories(ConstBytes state, std::vector<SavedValues>& found) const {
  std::map<std::string_view, std::size_t> by_name;
  for (const std::size_t i : remembering) by_name.emplace(layers[i].name, i);
  Reader reader(state);
  while (!reader.ended()) {
    SavedMemory head{};
    const auto of_head = reader.take(sizeof head);
    if (!of_head) return false;
    std::memcpy(&head, of_head->data(), sizeof head);
    const auto dims = reader.take(head.rank * sizeof(std::int64_t)),
               name = reader.take(head.name_bytes), values = reader.take(head.bytes);
    if (!dims || !name || !values) return false;
    const auto own = by_name.find({reinterpret_cast<const char*>(name->data()), name->size()});
    if (own == by_name.end()) continue;
    const std::size_t i = own->second;
    const MemoryOptions& of = memories[i].options();
    if (std::ranges::equal(std::as_bytes(layers[i].shape.dims()), *dims) &&
        static_cast<std::uint8_t>(of.rule) == head.rule &&
        static_cast<std::uint8_t>(of.dtype) == head.dtype &&
        memories[i].bytes().size() == values->size())
      found.push_back({i, *values});
  }
  return true;
}

bool Compressor::Impl::write_memories(std::span<const SavedValues> found) noexcept {
  const bool sound = std::ranges::all_of(
      found, [&](const SavedValues& saved) { return memories[saved.layer].is_sound(saved.bytes); });
  if (!sound) return false;
  reset_memory();
  for (const SavedValues& saved : found) memories[saved.layer].take(saved.bytes);
  return true;
}

}  // namespace atomo
