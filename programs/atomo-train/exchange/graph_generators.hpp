// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Graphs that have a name: who is whose neighbour, from a text and a number of nodes.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace train {

using Pair = std::pair<int, int>;  ///< of nodes, the smaller first

/// Those of `generated_pairs`, for messages.
inline constexpr const char* kGenerators =
    "ring, double-ring, torus, hypercube, star, complete, random:edges=M,seed=S";

/// The edges of the graph of that name, see GraphSource, each once; nothing when `text` is not a
/// generator's. \throws std::runtime_error when there is no such graph of `nodes` nodes, or its
/// keys are wrong.
[[nodiscard]] std::optional<std::set<Pair>> generated_pairs(const std::string& text, int nodes);

/// \throws std::runtime_error, always: what is wrong about --graph.
[[noreturn]] inline void refuse_graph(const std::string& what) {
  throw std::runtime_error("--graph: " + what);
}

[[nodiscard]] inline std::string in_quotes(const std::string& text) { return "'" + text + "'"; }

/// Draws that are the same with every standard library.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) {
    std::seed_seq seeds{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
    random_.seed(seeds);
  }
  /// Below `bound`; a modulo is off by less than bound / 2^64.
  std::size_t below(std::size_t bound) { return random_() % bound; }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace train
