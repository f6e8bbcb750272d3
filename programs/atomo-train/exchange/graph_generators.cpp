// SPDX-License-Identifier: Apache-2.0
/// \file
/// A generator makes a set of pairs, so an edge that two rules of a small graph give is there once.
/// The one that draws does so in a way that does not depend on the standard library: all processes
/// build the same graph.

#include "exchange/graph_generators.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <iterator>
#include <map>

namespace train {
namespace {

std::string count_of_processes(int nodes) {
  return std::to_string(nodes) + (nodes == 1 ? " process" : " processes");
}

void join(std::set<Pair>& pairs, int a, int b) {
  if (a != b) pairs.insert(std::minmax(a, b));
}

std::set<Pair> circle(int nodes, int reach) {
  std::set<Pair> pairs;
  for (int k = 0; k < nodes; ++k) {
    for (int step = 1; step <= reach; ++step) join(pairs, k, (k + step) % nodes);
  }
  return pairs;
}

std::set<Pair> star(int nodes) {
  std::set<Pair> pairs;
  for (int k = 1; k < nodes; ++k) join(pairs, 0, k);
  return pairs;
}

std::set<Pair> complete(int nodes) {
  std::set<Pair> pairs;
  for (int a = 0; a < nodes; ++a) {
    for (int b = a + 1; b < nodes; ++b) join(pairs, a, b);
  }
  return pairs;
}

/// As near to a square as the number of nodes allows: its rows are its largest divisor up to its
/// root. Node (r, c) is r * columns + c. Two rows are one edge apart, not two.
std::set<Pair> torus(int nodes) {
  int rows = 1;
  for (int side = 2; side <= nodes / side; ++side) {
    if (nodes % side == 0) rows = side;
  }
  if (rows == 1) {
    refuse_graph(
        "torus with " + count_of_processes(nodes) +
        ": a torus has two sides of at least 2, whose product is the number of processes, so that "
        "number is 4 or more and not a prime; take another one, or ring");
  }
  const int columns = nodes / rows;
  std::set<Pair> pairs;
  for (int k = 0; k < nodes; ++k) {
    const int row = k / columns, column = k % columns;
    join(pairs, k, (row + 1) % rows * columns + column);
    join(pairs, k, row * columns + (column + 1) % columns);
  }
  return pairs;
}

/// Neighbours differ in one bit of their numbers.
std::set<Pair> hypercube(int nodes) {
  if (!std::has_single_bit(static_cast<unsigned>(nodes))) {
    const unsigned below = std::bit_floor(static_cast<unsigned>(nodes));
    refuse_graph("hypercube with " + count_of_processes(nodes) +
                 ": a hypercube has a power of two, for example " + std::to_string(below) + " or " +
                 std::to_string(2 * below));
  }
  std::set<Pair> pairs;
  for (int k = 0; k < nodes; ++k) {
    for (int bit = 1; bit < nodes; bit *= 2) join(pairs, k, k ^ bit);
  }
  return pairs;
}

/// A tree in which every node of a shuffled order hangs on one before it, and further edges.
std::set<Pair> random_graph(int nodes, std::uint64_t edges, std::uint64_t seed) {
  const auto all = complete(nodes);
  const auto least = static_cast<std::uint64_t>(nodes - 1);
  if (edges < least || edges > all.size()) {
    refuse_graph("random:edges=" + std::to_string(edges) + " with " + std::to_string(nodes) +
                 " processes: a connected graph of that many nodes has " + std::to_string(least) +
                 " to " + std::to_string(all.size()) + " edges");
  }
  Draws draws(seed);
  std::vector<int> order(static_cast<std::size_t>(nodes));
  for (int k = 0; k < nodes; ++k) order[static_cast<std::size_t>(k)] = k;
  draws.shuffle(order);
  std::set<Pair> pairs;
  for (std::size_t k = 1; k < order.size(); ++k) join(pairs, order[k], order[draws.below(k)]);
  std::vector<Pair> others;
  std::set_difference(all.begin(), all.end(), pairs.begin(), pairs.end(),
                      std::back_inserter(others));
  draws.shuffle(others);
  for (std::size_t i = 0; pairs.size() < edges; ++i) pairs.insert(others[i]);
  return pairs;
}

/// "edges=12,seed=3" -> its values; `known` holds the keys and what they are without a value.
std::map<std::string, std::uint64_t> read_keys(
    const std::string& text, const std::string& keys,
    std::map<std::string, std::optional<std::uint64_t>> known) {
  for (std::size_t at = 0; at < keys.size();) {
    const std::size_t end = std::min(keys.find(',', at), keys.size());
    const std::string item = keys.substr(at, end - at);
    const std::size_t equals = item.find('=');
    const auto found = known.find(item.substr(0, equals));
    std::uint64_t value = 0;
    const char* last = item.data() + item.size();
    const char* first = equals == std::string::npos ? last : item.data() + equals + 1;
    const auto [stop, error] = std::from_chars(first, last, value);
    if (found == known.end() || first == last || stop != last || error != std::errc{}) {
      refuse_graph(in_quotes(item) + " in " + in_quotes(text) +
                   " is not understood; write for example random:edges=12,seed=1");
    }
    found->second = value;
    at = end + 1;
  }
  std::map<std::string, std::uint64_t> values;
  for (const auto& [key, value] : known) {
    if (!value)
      refuse_graph(in_quotes(text) + " lacks " + key +
                   "=; write for example random:edges=12,seed=1");
    values[key] = *value;
  }
  return values;
}

}  // namespace

std::optional<std::set<Pair>> generated_pairs(const std::string& text, int nodes) {
  const std::size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const std::string keys = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (name == "random") {
    auto values = read_keys(text, keys, {{"edges", std::nullopt}, {"seed", 1}});
    return random_graph(nodes, values["edges"], values["seed"]);
  }
  std::optional<std::set<Pair>> pairs;
  if (name == "ring") pairs = circle(nodes, 1);
  if (name == "double-ring") pairs = circle(nodes, 2);
  if (name == "star") pairs = star(nodes);
  if (name == "complete") pairs = complete(nodes);
  if (name == "torus") pairs = torus(nodes);
  if (name == "hypercube") pairs = hypercube(nodes);
  if (pairs && colon != std::string::npos)
    refuse_graph(in_quotes(name) + " takes no keys: " + in_quotes(text));
  return pairs;
}

}  // namespace train
