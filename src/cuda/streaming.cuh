// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Steps whose layers come one by one, on the device (streaming.cu): what the price search needs of
/// each layer is kept from its message on, in memory of the model, and the controller
/// (price_controller.hpp) stands there too, so nothing of a step comes back to the host.

#include <vector>

#include "backend/backend.hpp"
#include "cuda/atoms.cuh"
#include "cuda/container.cuh"
#include "cuda/coordinate.cuh"
#include "cuda/device_bytes.hpp"

namespace atomo::cuda {

/// A layer in the tables of the steps.
struct StepLayer {
  static constexpr std::uint32_t kNoPool = 2;
  std::uint32_t pool = kNoPool;  ///< PoolNumber
  double budget_bits = 0;
  std::uint64_t fixed_bits = 0;  ///< of these, what stands beside the body
  Scratch<float> entries;        ///< its values, where its grid has no histogram
};

/// What a step has seen of a layer; zero again at its end.
struct KeptLayer {
  static constexpr std::uint32_t kNothing = 1, kBody = 2;
  std::uint32_t seen = 0;   ///< what it sent; 0: it was not encoded
  std::uint64_t bytes = 0;  ///< of its body, own price included
};

/// What a step comes to, of a pool.
struct StepPool {
  double actual = 0;             ///< bits of bodies
  double budget = 0, fixed = 0;  ///< bits: the whole budget, and what stands beside bodies
  float used = 0;                ///< its price; 0: layers found their own
  float plain = 0;               ///< the price that would have met the whole budget
  std::uint32_t bodies = 0;      ///< 1: there are some
  std::uint32_t overspent = 0;   ///< 1: no price would have met it
};

/// A message of all layers that is never written: its prices alone. Its workspace is the memory of
/// the steps.
struct StepPlan {
  FramePlan frame;
  atoms::Plan atom_pool;
  coordinate::Plan grid_pool;
  Table<StepLayer> layers;
  Scratch<KeptLayer> kept;
  Scratch<StepPool> pools;  ///< two
  Scratch<price::LearntPrices> learnt;
  Scratch<price::RankState> ranks, next_ranks;  ///< of this step and of the next, a layer each
};

/// Where that memory has what is kept of a layer; a place of 0: nowhere.
struct KeptPlaces {
  bool any = false;
  Scratch<double> amplitudes;
  Scratch<PriceDemand> demands;
  Scratch<GridOffer> offer;
  Scratch<coordinate::State> grid;
  Scratch<std::uint64_t> counts;
  Scratch<float> entries;
  Scratch<std::uint64_t> limit;  ///< under a cap
  std::uint64_t atoms = 0;
  std::uint32_t jobs = 0;  ///< of demands
};

/// Of a plan's layers, by number: where its workspace has what is kept. Both directions' plans have
/// it, of messages and of steps.
[[nodiscard]] std::vector<KeptPlaces> find_places(const atoms::Plan& atoms,
                                                  const coordinate::Plan& grid, std::size_t layers,
                                                  std::span<const std::byte> tables);

class Streaming {
 public:
  /// Sets up: allocates and copies. `cap_room`: bytes that the caps leave for a step's bodies
  /// beside the reserve.
  Streaming(std::span<const LayerPlan> layers, std::span<const backend::StreamedLayer> streamed,
            std::size_t cap_room);

  /// What a layer's message takes from the steps before.
  void fill(std::size_t layer, const price::StepPrices& prices, MessageCall& call) const noexcept;
  /// Behind a layer's message, planned alone: keeps what the end of the step needs. One launch,
  /// none for layers without a budget.
  void keep(std::size_t layer, const Frame& message, const atoms::Plan& atoms,
            const coordinate::Plan& grid, Queue& queue) const noexcept;
  /// Where what is kept of a layer goes, and that it came.
  [[nodiscard]] const KeptPlaces& places(std::size_t layer) const { return places_[layer]; }
  [[nodiscard]] Scratch<KeptLayer> kept(std::size_t layer) const noexcept;
  [[nodiscard]] std::byte* memory() const noexcept { return memory_.get(); }
  /// The prices of the next step. Three launches; two more with layers in the pool of atoms, four
  /// more with coordinates; one more with caps. `status` may be null.
  void end_step(const price::StepPrices& prices, const price::StepShares& shares, Status* status,
                Queue& queue) const noexcept;

  /// On the device.
  [[nodiscard]] price::LearntPrices* learnt() const noexcept { return frame()(plan_.learnt); }
  /// On the device, a layer each.
  [[nodiscard]] price::RankState* ranks() const noexcept { return frame()(plan_.ranks); }
  [[nodiscard]] price::RankState* next_ranks() const noexcept { return frame()(plan_.next_ranks); }
  /// On the device: bytes that a layer may take in the next step; null where it has no cap.
  [[nodiscard]] std::uint64_t* limit(std::size_t layer) const noexcept {
    const Scratch<std::uint64_t> place = places_[layer].limit;
    return place.at != 0 ? frame()(place) : nullptr;
  }

 private:
  [[nodiscard]] Frame frame() const noexcept {
    return {plan_.frame, tables_.get(), memory_.get(), memory_.get(), nullptr, 0};
  }
  void set_places(std::span<const StepLayer> layers, std::span<const std::byte> tables);
  void set_first_ranks();
  void set_first_limits(std::span<const backend::StreamedLayer> streamed,
                        std::span<const std::byte> tables);

  StepPlan plan_;
  std::vector<KeptPlaces> places_;  ///< a layer
  std::size_t cap_room_;
  std::uint64_t reserve_ = 0;  ///< beside that, of one layer
  DeviceBytes tables_, memory_;
};

/// The layers from `first` on, in messages of their own (streaming_part.cu).
class PartOfSteps {
 public:
  /// Sets up. `steps` outlives it; `places`: of the messages' plan.
  PartOfSteps(const Streaming& steps, std::size_t first, std::span<const LayerPlan> layers,
              std::span<const KeptPlaces> places);

  /// As those of Streaming, for all layers of the part.
  void fill(const price::StepPrices& prices, MessageCall& call) const noexcept;
  void keep(const Frame& message, Queue& queue) const noexcept;

 private:
  const Streaming& steps_;
  std::size_t first_;
  std::uint32_t count_ = 0;  ///< layers of which something is kept
  std::uint64_t units_ = 0;
  DeviceBytes jobs_;
};

}  // namespace atomo::cuda
