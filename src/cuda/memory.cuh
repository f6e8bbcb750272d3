// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The memories of a model's layers on the device (memory.cu, docs/memories.md): what its messages left
/// out, which the next ones are formed with.

#include <span>
#include <vector>

#include "cuda/container.cuh"
#include "cuda/device_bytes.hpp"
#include "cuda/frame.cuh"

namespace atomo::cuda {

using backend::MemoryPlan;

/// A layer with a memory, in a table on the device.
struct MemoryJob {
  std::uint64_t n = 0;
  std::uint64_t first_unit = 0;  ///< among those of all jobs
  std::uint64_t units = 0;
  std::uint64_t at = 0;      ///< bytes from the start of all memories to what is kept
  std::uint64_t pitch = 0;   ///< from there to v, behind u
  std::uint64_t values = 0;  ///< from the start of e, u or v to its values, behind their scales
  std::uint64_t other =
      0;  ///< from there to what was kept before, and is written next; 0: in place
  std::uint32_t layer = 0;  ///< of the model
  float factor = 1, scale = 1;
  MemoryPlan::Rule rule = MemoryPlan::Rule::none;
  math::KeptType type = math::KeptType::f32;
  std::uint8_t bytes = 4, vectors = 1;  ///< of a value; that are kept
};

/// Which of the two is kept, of a job.
struct MemorySide {
  std::uint32_t now = 0;    ///< what the next message is formed with
  std::uint32_t from = 0;   ///< what the last one was formed with
  std::uint32_t moved = 0;  ///< 1: by the last message
};

/// Jobs of the layers of a message, as kernels take them.
struct MemoryRange {
  const MemoryJob* jobs = nullptr;
  MemorySide* sides = nullptr;
  std::byte* memory = nullptr;
  std::uint32_t count = 0;
  std::uint32_t first_layer = 0;  ///< of the message, among those of the model
  std::uint64_t first_unit = 0, units = 0;
  std::uint32_t kinds = 0;  ///< of jobs: bytes of a value and rules, a bit each pair
  bool scales = false;      ///< a codec is given x times a scale

  [[nodiscard]] static std::uint32_t bit_of(unsigned bytes, MemoryPlan::Rule rule) noexcept {
    return 1u << (4 * bytes + static_cast<unsigned>(rule));
  }
  [[nodiscard]] bool has(unsigned bytes, MemoryPlan::Rule rule) const noexcept {
    return (kinds & bit_of(bytes, rule)) != 0;
  }
};

/// What encoding a message with memories is given.
struct Remembered {
  MemoryRange range;
  Elsewhere x;  ///< where what is encoded is formed
  [[nodiscard]] bool empty() const noexcept { return range.units == 0; }
};

/// Room for what is encoded, of the layers of a message that have memories.
struct MemoryRoom {
  std::vector<std::uint64_t> at;  ///< a layer, in entries; none without memories
  std::size_t bytes = 0;          ///< a multiple of 256

  explicit MemoryRoom(std::span<const LayerPlan> layers);
  /// Of one layer.
  [[nodiscard]] static std::size_t bytes_of(const LayerPlan& layer) noexcept;
};

/// Of all layers of a model.
class Memories {
 public:
  /// Sets up: allocates, and clears. `takes_back`: what was kept before a message is kept too.
  Memories(std::span<const LayerPlan> layers, bool takes_back);

  /// Of `count` layers from `first` on.
  [[nodiscard]] MemoryRange range(std::size_t first, std::size_t count) const noexcept;
  /// Bytes on the device.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Between messages; these three wait for the device.
  Status read(std::size_t layer, Bytes values) const noexcept;
  Status write(std::size_t layer, ConstBytes values) const noexcept;
  Status clear() const noexcept;

 private:
  /// Copies between the host and what is kept of a layer: `copy(on the device, first byte, bytes)`.
  template <typename Copy>
  Status each_part(std::size_t layer, std::size_t bytes, Copy copy) const noexcept;

  OwnDevice device_;
  std::vector<MemoryJob> jobs_;
  std::size_t bytes_ = 0;
  DeviceBytes memory_, table_, sides_;
};

/// Behind `begin`: what is encoded of the layers, of their gradients and of what is kept; not `scaled`,
/// what is kept follows from, of those layers alone whose codecs are given something else. One launch.
void form(const Frame& frame, const MemoryRange& range, bool scaled, Queue& queue);
/// What the message left of it, which stands where the message was decoded to, is kept; nothing moves where
/// a layer of the message is not finite. `status`, a device word or null, is told of a message that
/// could not be read. One launch of each
/// rule and type that layers have.
void keep(const Frame& frame, const MemoryRange& range, Status* status, Queue& queue);
/// What the last message of each layer moved becomes what it was, where `only_if`, a device word, is null
/// or has `non_finite`. One launch.
void take_back(const MemoryRange& range, const Status* only_if, Queue& queue);

}  // namespace atomo::cuda
