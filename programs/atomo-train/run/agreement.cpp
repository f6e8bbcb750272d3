// SPDX-License-Identifier: Apache-2.0
/// \file
/// Each process sends a hash of every option that a run depends on. Where not all have the same hash, each
/// says its own value, and `all_ready` puts those who say the same together.

#include "run/agreement.hpp"

#include <array>
#include <atomo/version.hpp>
#include <cstdint>
#include <stdexcept>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "run/run.hpp"

namespace train {
namespace {

constexpr std::size_t kMost = 128;
constexpr std::size_t kShown = 80;  // characters of a value

std::string shown(const nlohmann::json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

}  // namespace

std::string disagreement(const Options& options, const FirstFiles& files, Transport& transport) {
  nlohmann::json mine = options.fingerprint(transport.workers());
  mine.erase("data");
  mine["atomo"] = atomo::kVersion;
  // A run may go on with others of these than its checkpoint's, so the fingerprint leaves them out.
  mine["epochs"] = options.epochs;
  mine["stop-at"] = options.stop_at;
  mine["eval-every"] = options.eval_every;
  mine["eval-samples"] = options.eval_samples;
  mine["save"] = !options.save.empty();
  mine["save-every"] = options.save_every;
  mine["on-lost-node"] = options.on_lost_node;
  // Of paths it counts whether there is one: where only some processes record a step, some wait for what
  // others do not send, or their gradients are missing.
  mine["timeline"] = !options.timeline.empty();
  mine["dump-gradients"] = !options.dump_gradients.empty();
  mine["at"] = options.at;
  mine["every"] = options.every;
  mine["init"] = files.init;
  mine["resume"] = files.resume;
  // These may differ by intent: where files are (data, graph, hosts, init, plugin, resume and those that are
  // written), what rank 0 alone does (json, log, progress, overwrite, keep-checkpoints, sample-scores), and
  // what a machine can do (threads, cuda-aware-mpi, test-batch, timeout, retries).
  if (mine.size() > kMost) throw std::logic_error("more options than processes compare");
  std::array<std::uint64_t, kMost> hashes{};
  std::size_t at = 0;
  for (const auto& [key, value] : mine.items()) {
    const std::string text = key + "=" + value.dump();
    hashes[at++] = XXH3_64bits(text.data(), text.size());
  }
  std::vector<std::uint64_t> all(kMost * static_cast<std::size_t>(transport.size()));
  auto transfer = transport.all_gather(std::as_bytes(std::span(hashes)),
                                       std::as_writable_bytes(std::span(all)));
  transport.wait(transfer);
  std::string differing;
  at = 0;
  for (const auto& [key, value] : mine.items()) {
    bool alike = true;
    for (std::size_t other = at; other < all.size(); other += kMost)
      alike = alike && all[other] == hashes[at];
    if (!alike) differing += (differing.empty() ? "" : ", ") + key + " = " + shown(value);
    ++at;
  }
  return differing.empty() ? "" : "the processes were not started alike: " + differing;
}

}  // namespace train
