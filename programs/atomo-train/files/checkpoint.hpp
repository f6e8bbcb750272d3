// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Everything a run needs to go on to the same curve, in one .safetensors file.
///
/// The order of the data is a function of the seed and the step, so the step is all of it that is
/// stored.

#include <atomo/compressor.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace train {

/// What each worker keeps to itself.
struct WorkerState {
  std::vector<std::byte> compressor;  ///< Compressor::save
  std::vector<float> buffers;         ///< running statistics of batch normalisation
  /// What an algorithm keeps for each worker besides, by name, of any length: in the file they are
  /// worker1.own.NAME, worker2.own.NAME.
  std::map<std::string, std::vector<float>> arrays{};

  /// For a message to the process that writes the file.
  [[nodiscard]] std::vector<std::byte> pack() const;
  [[nodiscard]] static WorkerState unpack(atomo::ConstBytes bytes);
};

struct Checkpoint {
  nlohmann::json fingerprint;    ///< of the options
  std::uint32_t step = 0;        ///< the next one
  std::uint64_t sent_bytes = 0;  ///< so far, by all workers
  std::vector<float> weights;
  std::vector<std::vector<float>> moments;  ///< of the optimiser
  std::vector<WorkerState> workers;
  /// What an algorithm keeps besides, by name, each as long as the weights: NAME.LAYER in the file.
  std::map<std::string, std::vector<float>> arrays{};
  /// The test that is due after `step` steps was not done, as the run was interrupted: who goes on does it first.
  bool owes_test = false;
};

void write_checkpoint(const std::string& path, const Checkpoint& checkpoint,
                      const std::vector<atomo::LayerSpec>& layers);
/// Empty when a run may go on from it: it can be read, is a checkpoint and has every bit that was
/// written; else what is wrong and, where it is damaged, what to do. `which`: its step and checksum.
[[nodiscard]] std::string checkpoint_objection(const std::string& path, std::string& which);
/// The options of the run that wrote it. \throws DamagedFile when it is not what was written.
/// \throws std::runtime_error when it cannot be read.
[[nodiscard]] nlohmann::json read_fingerprint(const std::string& path);
/// \throws DamagedFile when it is not what was written.
/// \throws std::runtime_error when it cannot be read, or was written by a run with other options
/// than `fingerprint`.
[[nodiscard]] Checkpoint read_checkpoint(const std::string& path,
                                         const std::vector<atomo::LayerSpec>& layers,
                                         const nlohmann::json& fingerprint);

}  // namespace train
