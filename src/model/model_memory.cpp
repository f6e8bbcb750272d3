// SPDX-License-Identifier: Apache-2.0
/// The memories of a model's layers: what a finished message moves, and how they are saved
/// (docs/memories.md). Those on a device its kernels move; they are saved in the same bytes.
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
  std::uint8_t rule, type, rank, zeros[5];
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
  moved.resize(plans.size());
  if (options.device != Device::cpu) return;
  memories.resize(plans.size());
  for (const std::size_t i : remembering) {
    memories[i] = codec::LayerMemory(plans[i].memory, plans[i].n, options.takes_back);
    encoders[i].use(memories[i]);
  }
}

bool Compressor::Impl::any_moved() const noexcept {
  const auto& whole = whole_model != nullptr ? *whole_model : *this;
  return std::ranges::any_of(remembering,
                             [&](std::size_t i) { return whole.moved[first_layer + i] != 0; });
}

void Compressor::Impl::note_moves() noexcept {
  auto& whole = whole_model != nullptr ? *whole_model : *this;
  for (const std::size_t i : remembering) whole.moved[first_layer + i] = 1;
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
  auto& whole = whole_model != nullptr ? *whole_model : *this;
  static_cast<void>(each_layer(executor, [&](std::size_t i, Executor* own) {
    encoders[i].use(own);
    whole.moved[first_layer + i] = encoders[i].keep_unsent() ? 1 : 0;
    return Status::ok;
  }));
  return Status::ok;
}

void Compressor::Impl::check_between_steps(const char* call) const {
  if (in_step || in_message)
    throw Error(std::string(call) + ": the " + (in_step ? "step" : "message") +
                " under way has to end first");
}

Status Compressor::Impl::reset_memory() noexcept {
  forget_moves();
  if (device != nullptr) return remembering.empty() ? Status::ok : device->clear_memories();
  for (const std::size_t i : remembering) memories[i].clear();
  return Status::ok;
}

Status Compressor::Impl::take_memory_back(const Context& context, const Status* only_if) noexcept {
  if (whole_model != nullptr || in_step || in_message) return Status::wrong_stage;
  if (!options.takes_back) return Status::unsupported;
  if (remembering.empty()) return Status::ok;
  if (device != nullptr) return take_back_on_device(context, only_if);
  if (only_if != nullptr && !has(*only_if, Status::non_finite)) return Status::ok;
  for (const std::size_t i : remembering) {
    if (moved[i] != 0) memories[i].take_back();
  }
  forget_moves();
  return Status::ok;
}

/// One launch, where the last step had all layers: a run of layers ends before one that it left out.
Status Compressor::Impl::take_back_on_device(const Context& context,
                                             const Status* only_if) noexcept {
  if (context.stream == nullptr) return Status::invalid_argument;
  const auto stayed = [&](std::size_t i) { return plans[i].remembers() && moved[i] == 0; };
  Status status = Status::ok;
  for (std::size_t first = 0, end = 0; first < plans.size(); first = end + 1) {
    for (end = first; end < plans.size() && !stayed(end);) ++end;
    if (end > first) status |= device->take_memories_back(first, end - first, only_if, context);
  }
  return status;
}

std::vector<std::byte> Compressor::Impl::kept_bytes(std::size_t i) const {
  if (device == nullptr) {
    const ConstBytes kept = memories[i].bytes();
    return {kept.begin(), kept.end()};
  }
  std::vector<std::byte> kept(plans[i].memory.bytes(plans[i].n));
  if (failed(device->read_memory(i, kept)))
    throw Error("CUDA: the device did not give what the model's memories hold");
  return kept;
}

std::size_t Compressor::Impl::memory_bytes() const noexcept {
  if (device != nullptr && whole_model == nullptr) return device->memory_bytes();
  std::size_t bytes = 0;
  for (const auto& memory : memories) bytes += memory.size();
  return bytes;
}

void Compressor::Impl::save_memories(std::vector<std::byte>& state) const {
  for (const std::size_t i : remembering) {
    const LayerSpec& layer = layers[i];
    const std::vector<std::byte> kept = kept_bytes(i);
    const MemoryOptions& of = *plans[i].stages->memory;
    const SavedMemory head{layer.name.size(),
                           kept.size(),
                           static_cast<std::uint8_t>(of.rule),
                           static_cast<std::uint8_t>(of.type),
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
    const MemoryOptions& of = *plans[i].stages->memory;
    if (std::ranges::equal(std::as_bytes(layers[i].shape.dims()), *dims) &&
        static_cast<std::uint8_t>(of.rule) == head.rule &&
        static_cast<std::uint8_t>(of.type) == head.type &&
        plans[i].memory.bytes(plans[i].n) == values->size())
      found.push_back({i, *values});
  }
  return true;
}

Status Compressor::Impl::write_memories(std::span<const SavedValues> found) noexcept {
  const bool sound = std::ranges::all_of(found, [&](const SavedValues& saved) {
    const auto& plan = plans[saved.layer];
    return codec::is_sound(plan.memory, plan.n, saved.bytes);
  });
  if (!sound) return Status::corrupt;
  if (const Status s = reset_memory(); failed(s)) return s;
  for (const SavedValues& saved : found) {
    if (device == nullptr) {
      memories[saved.layer].take(saved.bytes);
    } else if (const Status s = device->write_memory(saved.layer, saved.bytes); failed(s)) {
      return s;
    }
  }
  return Status::ok;
}

}  // namespace atomo
