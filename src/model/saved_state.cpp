// SPDX-License-Identifier: Apache-2.0
/// Saving and loading what a model has learnt, and its memories.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/bits.hpp"
#include "core/utf8.hpp"
#include "model/model.hpp"

namespace atomo {

using namespace model;

namespace {

constexpr char kStateMagic[8] = {'A', 'T', 'M', 'O', 'S', 'T', '0', '5'};

struct SavedPool {
  float smoothed_price, price;
  double owed, held;
  std::uint64_t steady;

  static SavedPool of(const ControllerState& pool) noexcept {
    return {pool.smoothed_price, pool.price, pool.owed, pool.held, pool.steady};
  }
  [[nodiscard]] bool is_sound() const noexcept {
    return is_finite_price(smoothed_price) && is_finite_price(price) &&
           std::abs(owed) <= kLargestDebt && std::abs(held) <= kLargestDebt && steady <= 0xFFFF;
  }
  [[nodiscard]] ControllerState state() const noexcept {
    return {smoothed_price, price, owed, held, static_cast<std::uint32_t>(steady)};
  }
};
/// What is saved of `Saved::learnt` and of `Saved::memories`.
constexpr std::uint32_t kLearnt = 1, kMemories = 2;

/// Where `what` says that it was learnt: the limits of the layers under a cap follow, 8 bytes each, and
/// the `ranks` of layers whose sketches learn theirs, 2 bytes each and zeros up to a multiple of 8, in
/// the layers' order. Memories are last, as model_memory.cpp says.
struct SavedState {
  char magic[8];
  SavedPool atoms, grid;
  std::uint32_t ranks, what;
};
static_assert(sizeof(SavedState) == 80);

/// Words that hold so many ranks.
std::size_t rank_words(std::uint64_t ranks) noexcept { return (ranks + 3) / 4 * 4; }

void append(std::vector<std::byte>& to, ConstBytes bytes) {
  to.reserve(to.size() + bytes.size());
  for (const std::byte byte : bytes) to.push_back(byte);
}

}  // namespace

std::vector<std::byte> Compressor::save(Saved what) const {
  if (impl_->whole_model != nullptr) throw Error("a part keeps nothing: save the whole model");
  SavedState state{};
  std::memcpy(state.magic, kStateMagic, sizeof kStateMagic);
  std::vector<std::uint64_t> limits;
  std::vector<std::uint16_t> words;
  if (what != Saved::memories) {
    LearntPrices learnt;
    std::vector<RankState> ranks;
    limits.resize(impl_->capped_layers());
    if (failed(impl_->read_prices(learnt)) || failed(impl_->read_limits(limits)) ||
        failed(impl_->read_ranks(ranks)))
      throw Error("CUDA: the device did not say what it has learnt of the model");
    state.what |= kLearnt;
    state.atoms = SavedPool::of(learnt.pools[0]);
    state.grid = SavedPool::of(learnt.pools[1]);
    state.ranks = static_cast<std::uint32_t>(ranks.size());
    words.resize(rank_words(ranks.size()));
    std::transform(ranks.begin(), ranks.end(), words.begin(),
                   [](const RankState& rank) { return rank.saved(); });
  }
  if (what != Saved::learnt) state.what |= kMemories;
  std::vector<std::byte> bytes;
  append(bytes, std::as_bytes(std::span(&state, 1)));
  append(bytes, std::as_bytes(std::span(limits)));
  append(bytes, std::as_bytes(std::span(words)));
  if (what != Saved::learnt) impl_->save_memories(bytes);
  return bytes;
}

void Compressor::load(ConstBytes bytes) {
  if (impl_->whole_model != nullptr) throw Error("a part keeps nothing: load the whole model");
  impl_->check_between_steps("load");
  SavedState state{};
  std::vector<std::uint64_t> limits(impl_->capped_layers());
  const std::size_t limit_bytes = limits.size() * sizeof(std::uint64_t);
  const std::size_t own_bytes =
      sizeof state + limit_bytes + rank_words(impl_->ranked_layers.size()) * sizeof(std::uint16_t);
  const std::string expected = "not a saved compressor state: expected the " +
                               std::to_string(own_bytes) + " bytes that save() returned" +
                               (impl_->remembering.empty() ? "" : ", and its memories") +
                               ", found ";
  if (bytes.size() < sizeof state) throw Error(expected + std::to_string(bytes.size()));
  std::memcpy(&state, bytes.data(), sizeof state);
  if (std::memcmp(state.magic, kStateMagic, sizeof kStateMagic) != 0) {
    const std::string_view magic(state.magic, sizeof kStateMagic);
    throw Error(expected + "as many that start with '" + shown(magic) + "' instead of '" +
                std::string(kStateMagic, sizeof kStateMagic) + "'");
  }
  const bool learnt = (state.what & kLearnt) != 0;
  // A model of other layers, which has other ranks to learn, takes the prices alone.
  std::size_t at = sizeof state;
  if (learnt && state.ranks <= kMaxLayers)
    at += limit_bytes + rank_words(state.ranks) * sizeof(std::uint16_t);
  std::vector<Impl::SavedValues> memories;
  if (state.ranks > kMaxLayers || state.what == 0 || state.what > (kLearnt | kMemories) ||
      bytes.size() < at ||
      ((state.what & kMemories) != 0 ? !impl_->read_memories(bytes.subspan(at), memories)
                                     : bytes.size() > at))
    throw Error(expected + std::to_string(bytes.size()));
  std::vector<RankState> ranks;
  if (learnt) {
    if (!limits.empty()) std::memcpy(limits.data(), bytes.data() + sizeof state, limit_bytes);
    for (std::uint64_t k = 0; k < state.ranks; ++k)
      ranks.push_back(RankState::of_saved(core::load_le<std::uint16_t>(
          bytes.data() + sizeof state + limit_bytes + k * sizeof(std::uint16_t))));
    if (!state.atoms.is_sound() || !state.grid.is_sound())
      throw Error(expected + "as many that hold a price or a debt that no model has");
    if (!impl_->may_be_limits(limits))
      throw Error(expected + "as many that hold limits of layers beyond the model's cap");
  }
  if ((state.what & kMemories) != 0) {
    const Status written = impl_->write_memories(memories);
    if (written == Status::corrupt)
      throw Error(expected + "as many that hold a memory's value that is not finite");
    if (failed(written)) throw Error("CUDA: the device did not take the memories that were saved");
  }
  if (!learnt) return;
  if (failed(impl_->set_learnt(state.atoms.state(), state.grid.state())) ||
      failed(impl_->write_limits(limits)) || failed(impl_->write_ranks(ranks)))
    throw Error("CUDA: the device did not take what was saved of the model");
}

}  // namespace atomo
