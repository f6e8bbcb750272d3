// SPDX-License-Identifier: Apache-2.0
/// \file
/// What nodes do together between steps, all through rank 0: they agree on who is left, test each
/// node's model and the mean of all, and write checkpoints. What was gathered while a node was lost
/// is gathered again, so that it is of the nodes left.

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "roles/node.hpp"

namespace train {
namespace {

constexpr int kStateTag = 10, kGatherTag = 14, kMeanTag = 15, kAgreeTag = 16, kTestedTag = 17;

constexpr std::size_t kMeanChunk = std::size_t{1} << 18;  ///< elements of a node in memory at once

std::vector<float> floats_of(atomo::ConstBytes bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<std::byte> copy_of(atomo::ConstBytes bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

// ---- who is left ------------------------------------------------------------------------------

std::vector<int> Node::left() const {
  std::vector<int> nodes;
  for (int k = 0; k < transport_.size(); ++k) {
    if (!lost_.contains(k)) nodes.push_back(k);
  }
  return nodes;
}

std::vector<std::byte> Node::lost_nodes() const {
  std::vector<std::byte> lost;
  for (int k = 0; k < transport_.size(); ++k) lost.push_back(std::byte{transport_.lost(k)});
  return lost;
}

bool Node::go_on_without(std::span<const std::byte> lost) {
  bool any = false;
  for (int k = 0; k < transport_.size(); ++k) {
    if (lost[static_cast<std::size_t>(k)] == std::byte{0} || !lost_.insert(k).second) continue;
    any = true;
    const auto known = neighbours();
    if (std::ranges::any_of(known, [k](const Neighbour& j) { return j.node == k; })) drop(k, done_);
    if (!first()) continue;
    auto& node = unlogged_.emplace_back();
    node.node = k;
    node.name = transport_.name(k);
    node.reweighted = done_;
  }
  if (!any) return false;
  graph_ = graph_.without(lost_);
  graph_changed();
  if (!first()) return true;
  std::set<int> seen;
  std::vector<std::vector<int>> parts;
  for (const int node : left()) {
    if (seen.contains(node)) continue;
    parts.push_back(graph_.reached_from(node));
    seen.insert(parts.back().begin(), parts.back().end());
  }
  for (auto& node : unlogged_) {
    if (node.parts.empty()) node.parts = parts;
  }
  return true;
}

void Node::log_lost(bool all) {
  std::erase_if(unlogged_, [&](LostNode& lost) {
    const auto own = dropped_[static_cast<std::size_t>(lost.node)];
    if (own != kNever) lost.dropped[0] = own;
    const bool told_by_all = posted_from_ + posted_.size() >= lost.reweighted;
    if (all || told_by_all) log_->lost(lost);
    return all || told_by_all;
  });
}

bool Node::lost_meanwhile() {
  if (!transport_.outlives_lost()) return false;
  std::vector<std::byte> lost;
  if (first()) {
    for (const int node : left())
      if (node != 0) (void)from(node, kAgreeTag);
    lost = lost_nodes();
    send_to_all(kAgreeTag, lost);
  } else {
    transport_.deliver(0, kAgreeTag, {});
    lost = transport_.receive_any_length(0, kAgreeTag);
  }
  return go_on_without(lost);
}

std::optional<std::vector<std::byte>> Node::from(int node, int tag) {
  try {
    return transport_.receive_any_length(node, tag);
  } catch (const Lost&) {
    return std::nullopt;
  }
}

std::optional<std::vector<std::byte>> Node::from_if_there(int node, int tag) {
  try {
    return transport_.receive_if_there(node, tag);
  } catch (const Lost&) {
    return std::nullopt;
  }
}

void Node::send_to_all(int tag, atomo::ConstBytes bytes) {
  for (const int node : left()) {
    if (node == 0 || transport_.lost(node)) continue;
    try {
      transport_.deliver(node, tag, copy_of(bytes));
    } catch (const Lost&) {
      // It is told nothing more.
    }
  }
}

// ---- tests and checkpoints --------------------------------------------------------------------

template <class T>
std::vector<T> Node::gather(const T& mine) {
  if (!first()) {
    transport_.deliver(0, kGatherTag, copy_of(bytes_of(mine)));
    return {};
  }
  std::vector<T> all{mine};
  for (const int node : left()) {
    if (node == 0) continue;
    if (const auto bytes = from(node, kGatherTag))
      std::memcpy(&all.emplace_back(), bytes->data(), sizeof(T));
  }
  return all;
}

bool Node::as_first_says(bool answer) {
  if (first()) {
    send_to_all(kTestedTag, bytes_of(answer));
    return answer;
  }
  return transport_.receive_any_length(0, kTestedTag).at(0) != std::byte{0};
}

std::vector<float> Node::mean_over_nodes(std::span<const float> own) {
  std::vector<float> mean;
  while (!own.empty()) {
    const auto part = own.first(std::min(own.size(), kMeanChunk));
    own = own.subspan(part.size());
    std::vector<float> of_part;
    if (first()) {
      std::vector<float> all(part.begin(), part.end());
      std::size_t nodes = 1;
      for (const int node : left()) {
        if (node == 0) continue;
        const auto bytes = from(node, kMeanTag);
        if (!bytes) continue;
        const auto theirs = floats_of(*bytes);
        all.insert(all.end(), theirs.begin(), theirs.end());
        ++nodes;
      }
      of_part = mean_over_workers(all, nodes);
      send_to_all(kMeanTag, std::as_bytes(std::span(of_part)));
    } else {
      transport_.deliver(0, kMeanTag, copy_of(std::as_bytes(part)));
      of_part = floats_of(transport_.receive_any_length(0, kMeanTag));
    }
    mean.insert(mean.end(), of_part.begin(), of_part.end());
  }
  return mean;
}

bool Node::test(std::uint32_t done) {
  flush();
  const auto own = here();
  const auto set = [&](std::span<const float> weights, std::span<const float> buffers) {
    auto& replica = learner_.replica();
    std::copy(weights.begin(), weights.end(), replica.weights().begin());
    replica.weights_changed();
    replica.set_buffers(buffers);
  };
  std::vector<Score> scores, of_mean;
  do {
    scores = gather(learner_.evaluate(done, true));
    set(mean_over_nodes(own.weights), mean_over_nodes(own.buffers));
    const auto nodes = left();
    const auto place = std::ranges::find(nodes, transport_.rank()) - nodes.begin();
    of_mean = gather(learner_.evaluate_part(done, static_cast<std::size_t>(place), nodes.size()));
    set(own.weights, own.buffers);
  } while (lost_meanwhile());
  const auto each = total_of(scores), mean = total_of(of_mean);
  if (first() && each && mean) log_->evaluation(done, *each, &*mean, scores, left());
  return as_first_says(each && mean);
}

WorkerState Node::state() {
  auto state = learner_.state();
  const auto own = weights();
  state.arrays["weights"] = {own.begin(), own.end()};
  const auto& moments = optimiser_->moments();
  for (std::size_t m = 0; m < moments.size(); ++m)
    state.arrays["moment" + std::to_string(m)] = moments[m];
  for (const auto& [name, kept] : kept_) state.arrays[name] = *kept.values;
  return state;
}

void Node::save(std::uint32_t done, bool owes_test) {
  flush();
  Checkpoint checkpoint;
  std::vector<float> mean_buffers;
  do {
    checkpoint.weights = mean_over_nodes(weights());
    mean_buffers = mean_over_nodes(learner_.replica().buffers());
    auto own = state().pack();
    if (!first()) {
      transport_.deliver(0, kStateTag, std::move(own));
      continue;
    }
    checkpoint.workers.assign(static_cast<std::size_t>(transport_.size()), {});
    checkpoint.workers[0] = WorkerState::unpack(own);
    for (const int node : left()) {
      if (node == 0) continue;
      if (const auto bytes = from(node, kStateTag))
        checkpoint.workers[static_cast<std::size_t>(node)] = WorkerState::unpack(*bytes);
    }
  } while (lost_meanwhile());
  if (!first()) return;
  // A lost node begins afresh; its statistics do not change the mean of all.
  for (const int node : lost_)
    checkpoint.workers[static_cast<std::size_t>(node)].buffers = mean_buffers;
  checkpoint.fingerprint = run_.options.fingerprint(transport_.workers());
  checkpoint.step = done;
  checkpoint.owes_test = owes_test;
  checkpoint.sent_bytes = log_->sent_bytes();
  run_.save(checkpoint, learner_.replica().layers());
  log_->checkpoint(done);
}

std::uint64_t Node::restore() {
  const auto checkpoint = run_.resume(learner_.replica());
  if (!checkpoint) return 0;
  const auto& of_node = checkpoint->workers;
  const auto present = [&](int node) {
    return !of_node[static_cast<std::size_t>(node)].compressor.empty();
  };
  const auto fill = [&](int node, const std::string& name, std::span<float> values) {
    const auto& arrays = of_node[static_cast<std::size_t>(node)].arrays;
    const auto found = arrays.find(name);
    if (found == arrays.end() || found->second.size() != values.size()) {
      throw std::runtime_error("'" + run_.options.resume + "' has no '" + name + "' of " +
                               std::to_string(values.size()) + " values for node " +
                               std::to_string(node + 1));
    }
    std::copy(found->second.begin(), found->second.end(), values.begin());
  };
  const int here = transport_.rank();
  const auto& own = of_node[static_cast<std::size_t>(here)];
  for (const auto& [name, kept] : kept_) {
    if (present(here) && (kept.of == kNobody || present(kept.of))) {
      fill(here, name, *kept.values);
    } else if (kept.of != kNobody && present(kept.of) && !kept.theirs.empty()) {
      fill(kept.of, kept.theirs, *kept.values);
    } else if (kept.without == Without::mean_weights) {
      *kept.values = checkpoint->weights;
    } else if (kept.without == Without::mean_buffers) {
      *kept.values = of_node[static_cast<std::size_t>(present(here) ? kept.of : here)].buffers;
    }
  }
  done_ = checkpoint->step;
  owes_test_ = checkpoint->owes_test;
  if (!present(here)) {
    std::copy(checkpoint->weights.begin(), checkpoint->weights.end(), weights().begin());
    learner_.replica().weights_changed();
    learner_.replica().set_buffers(own.buffers);
    return checkpoint->sent_bytes;
  }
  fill(here, "weights", weights());
  learner_.replica().weights_changed();
  auto& moments = optimiser_->moments();
  for (std::size_t m = 0; m < moments.size(); ++m)
    fill(here, "moment" + std::to_string(m), moments[m]);
  learner_.restore(own);
  return checkpoint->sent_bytes;
}

void Node::finish(std::uint32_t done, bool stopped) {
  flush();
  if (run_.options.asynchronous) {
    std::vector<int> ranks;
    for (const auto& neighbour : neighbours()) ranks.push_back(neighbour.node);
    mail_.close(ranks);
  }
  if (!first()) return;
  log_lost(true);
  log_->finish(done, stopped);
}

}  // namespace train
