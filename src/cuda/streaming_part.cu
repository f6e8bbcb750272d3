// SPDX-License-Identifier: Apache-2.0
/// A part of a model in streamed steps: what is kept of all layers of one message.
///
/// Mapping: a warp 1,024 words of a layer, found by bisection among the layers, as keep_layer
/// (streaming.cu) does for one. Where words come from and go to is a table, made with the part, of
/// offsets in the message's workspace and in the memory of the steps.
///
/// Traffic: that of keep_layer a layer: 8 bytes an atom read and written, and 255 KiB a layer with a
/// histogram, or 4 bytes an entry of a small one with a grid. No shared memory. Determinism: copies.
/// Alignment: memory of the library, and the layers' tensors, aligned to their entries.

#include <algorithm>

#include "cuda/streaming.cuh"
#include "price/coordinate_levels.hpp"

namespace atomo::cuda {
namespace {

using format::LayerRecord;

constexpr std::uint64_t kWordsByWarp = 1024;

struct KeptRange {
  std::uint64_t from = 0;  ///< bytes from the workspace's start
  std::uint64_t to = 0;    ///< bytes from the start of the memory of the steps
  std::uint64_t words = 0;
};

struct KeepJob {
  static constexpr unsigned kRanges = 5;
  KeptRange ranges[kRanges];
  std::uint64_t entries = 0;     ///< where the layer's values go; 0: nowhere
  std::uint64_t kept = 0;        ///< its KeptLayer
  std::uint64_t first_unit = 0;  ///< among those of all layers
  std::uint64_t units = 0;
  std::uint32_t layer = 0;  ///< of the message
};

__global__ void keep_layers(Frame frame, std::byte* steps, const KeepJob* jobs,
                            std::uint32_t count) {
  const std::uint64_t unit = warp_in_grid();
  std::uint32_t low = 0, high = count - 1;
  while (low < high) {
    const std::uint32_t middle = (low + high + 1) / 2;
    if (jobs[middle].first_unit <= unit)
      low = middle;
    else
      high = middle - 1;
  }
  const KeepJob& job = jobs[low];
  if (unit >= job.first_unit + job.units) return;
  const std::uint64_t thread = (unit - job.first_unit) * kLanes + lane();
  const std::uint64_t threads = job.units * kLanes;
  for (const KeptRange& range : job.ranges) {
    const auto* const from = reinterpret_cast<const std::uint32_t*>(frame.work + range.from);
    auto* const to = reinterpret_cast<std::uint32_t*>(steps + range.to);
    for (std::uint64_t i = thread; i < range.words; i += threads) to[i] = from[i];
  }
  if (job.entries != 0) {
    auto* const to = reinterpret_cast<float*>(steps + job.entries);
    const Entries x = frame.entries(job.layer);
    for (std::uint64_t i = thread; i < frame.info(job.layer).n; i += threads) to[i] = x(i);
  }
  if (thread != 0) return;
  const LayerState& layer = frame.layer(job.layer);
  auto& kept = *reinterpret_cast<KeptLayer*>(steps + job.kept);
  kept.seen = (layer.flags & LayerRecord::kNonFinite) != 0 ? KeptLayer::kNothing : KeptLayer::kBody;
  kept.bytes = layer.bytes;
}

template <typename T>
void add_range(Scratch<T> from, Scratch<T> to, std::uint64_t count, KeptRange*& next) {
  static_assert(sizeof(T) % sizeof(std::uint32_t) == 0);
  if (to.at != 0) *next++ = {from.at, to.at, count * (sizeof(T) / 4)};
}

KeepJob job_of(const KeptPlaces& from, const KeptPlaces& to) {
  KeepJob job;
  KeptRange* next = job.ranges;
  add_range(from.amplitudes, to.amplitudes, to.atoms, next);
  add_range(from.demands, to.demands, to.jobs, next);
  add_range(from.offer, to.offer, 1, next);
  add_range(from.grid, to.grid, 1, next);
  add_range(from.counts, to.counts, price::kMagnitudeBins, next);
  job.entries = to.entries.at;
  return job;
}

}  // namespace

PartOfSteps::PartOfSteps(const Streaming& steps, std::size_t first,
                         std::span<const LayerPlan> layers, std::span<const KeptPlaces> places)
    : steps_(steps), first_(first) {
  std::vector<KeepJob> jobs;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const KeptPlaces& to = steps.places(first + i);
    if (!to.any) continue;
    KeepJob job = job_of(places[i], to);
    job.layer = static_cast<std::uint32_t>(i);
    job.kept = steps.kept(first + i).at;
    std::uint64_t words = job.entries != 0 ? layers[i].n : 0;
    for (const KeptRange& range : job.ranges) words += range.words;
    job.first_unit = units_;
    job.units = std::max<std::uint64_t>(1, divide_up(words, kWordsByWarp));
    units_ += job.units;
    jobs.push_back(job);
  }
  count_ = static_cast<std::uint32_t>(jobs.size());
  if (count_ != 0) jobs_ = on_device(std::as_bytes(std::span(jobs)), "a part's tables");
}

void PartOfSteps::fill(const price::StepPrices& prices, MessageCall& call) const noexcept {
  call.streamed = call.shares = true;
  if (prices.predicted) call.predicted = steps_.learnt();
  for (unsigned p = 0; p < 2; ++p) call.given[p] = prices.given[p];
  call.ranks = {steps_.ranks() + first_, steps_.next_ranks() + first_, nullptr};
}

void PartOfSteps::keep(const Frame& message, Queue& queue) const noexcept {
  if (count_ == 0) return;
  queue.launch_warps(keep_layers, units_, message, steps_.memory(),
                     reinterpret_cast<const KeepJob*>(jobs_.get()), count_);
}

}  // namespace atomo::cuda
