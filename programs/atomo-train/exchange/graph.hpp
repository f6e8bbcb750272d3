// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Who talks to whom: an undirected graph over the processes of a run, from a generator or a file.
///
/// It is connected, as long as no node is lost. Node k is rank k. Both ends of an edge exchange over it when the step, modulo the graph's
/// period, is one of the edge's slots.

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace train {

/// Below a graph's period.
using Slots = std::set<std::uint32_t>;

/// An edge between two nodes and the slots it is used in.
struct Edge {
  int a = 0, b = 0;
  Slots slots;
};

/// One end's view of an edge.
struct Neighbour {
  int node = 0;  ///< the other end
  Slots slots;
  double weight = 0;  ///< W_ij, see Graph
  int sign = 0;       ///< A_ij: +1 when the other end comes first, else -1

  friend bool operator==(const Neighbour&, const Neighbour&) = default;
};

/// Where a graph comes from.
struct GraphSource {
  /// "ring", "double-ring" (the next node and the one behind it, both ways), "torus" (rows and
  /// columns that close into rings, as near to a square as the number of nodes allows; 4 or more,
  /// not a prime), "hypercube" (numbers that differ in one bit; a power of two), "star" (node 0 in
  /// the middle), "complete", "random:edges=M,seed=S" (connected, M edges), or the path of a
  /// topology file:
  ///   {"nodes": {"a": {"round": 8, "edges": {"b": 3}}, "b": {"round": 8, "edges": {"a": 3}}}}
  /// Each node lists its edges with a slot, or without ("edges": ["b"]). Where the two ends have
  /// different ones the edge is used in both; where none has one, it is given one. "round" is the
  /// period.
  std::string text;
  /// Path of a file that orders the nodes, {"hosts": [{"name": "a"}, ...]}; empty: the order of the
  /// topology file. Addresses and ports in it are not read: MPI's launcher places the processes.
  std::string hosts;
  int nodes = 1;             ///< that there have to be
  std::uint32_t period = 1;  ///< where no file has a "round"
};

/// Its weights W are Metropolis's, W_ij = 1 / (1 + max(|N_i|, |N_j|)) for neighbours and what is
/// missing to 1 for W_ii: symmetric and doubly stochastic on any graph.
class Graph {
 public:
  /// The same graph in every process. \throws std::runtime_error for a text or file that does not
  /// make a connected graph of as many nodes as there are processes.
  [[nodiscard]] static Graph make(const GraphSource& source);

  [[nodiscard]] int nodes() const noexcept { return static_cast<int>(neighbours_.size()); }
  [[nodiscard]] std::uint32_t period() const noexcept { return period_; }
  /// Of a file, or the node's number from 1.
  [[nodiscard]] const std::string& name(int node) const { return names_[index(node)]; }
  /// In ascending order.
  [[nodiscard]] const std::vector<Neighbour>& neighbours(int node) const {
    return neighbours_[index(node)];
  }
  /// Whether a neighbour is one to exchange with at `step`.
  [[nodiscard]] bool is_due(const Neighbour& neighbour, std::uint32_t step) const {
    return neighbour.slots.contains(step % period_);
  }
  /// Those of `node` with whom it exchanges at `step`.
  [[nodiscard]] std::vector<Neighbour> due(int node, std::uint32_t step) const;
  [[nodiscard]] double own_weight(int node) const;  ///< W_ii

  /// This graph without the nodes in `lost`, which keep their numbers and have no neighbours: those
  /// that are left have Metropolis weights again. It may have several parts.
  [[nodiscard]] Graph without(const std::set<int>& lost) const;
  /// `node` has `other` as a neighbour no longer; what was its weight goes to `node` itself. The
  /// other end of the edge is not told.
  void forget(int node, int other);
  /// The nodes that paths lead to from `node`, itself included, in ascending order.
  [[nodiscard]] std::vector<int> reached_from(int node) const;

  /// What the speed of gossip depends on.
  struct Spectrum {
    double gap = 1;   ///< 1 - the second largest magnitude of an eigenvalue of W
    double beta = 0;  ///< largest eigenvalue of I - W
  };
  [[nodiscard]] Spectrum spectrum() const;
  /// Of the part of the graph that `node` is in, by itself.
  [[nodiscard]] Spectrum spectrum_around(int node) const;

 private:
  Graph(std::vector<std::string> names, const std::vector<Edge>& edges, std::uint32_t period);
  [[nodiscard]] std::vector<Edge> edges() const;
  static std::size_t index(int node) noexcept { return static_cast<std::size_t>(node); }
  [[nodiscard]] std::vector<double> mix(const std::vector<double>& x) const;  ///< W x

  std::vector<std::string> names_;
  std::vector<std::vector<Neighbour>> neighbours_;
  std::uint32_t period_;
};

}  // namespace train
