// SPDX-License-Identifier: Apache-2.0
/// \file
/// A graph is made in stages: a generator or a topology file gives the pairs of neighbours, pairs
/// without a slot get one, the constructor computes the weights, and `make` checks that every node
/// can be reached. Power iteration finds the eigenvalues from which CHOCO-SGD takes its default step.

#include "exchange/graph.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "exchange/graph_generators.hpp"

namespace train {
namespace {

using Json = nlohmann::ordered_json;

// ---- slots ------------------------------------------------------------------------------------

/// Edges of pairs, in order. Each without a slot gets the one that fewest edges of its two ends
/// have: with a large enough period, edges that share a node have different ones.
std::vector<Edge> with_slots(const std::map<Pair, Slots>& pairs, std::uint32_t period) {
  std::map<std::pair<int, std::uint32_t>, int> used;  // edges of a node with a slot
  std::vector<Edge> edges;
  const auto add = [&](const Pair& pair, const Slots& slots) {
    for (const auto slot : slots) {
      ++used[{pair.first, slot}];
      ++used[{pair.second, slot}];
    }
    edges.push_back({pair.first, pair.second, slots});
  };
  for (const auto& [pair, slots] : pairs) {
    if (!slots.empty()) add(pair, slots);
  }
  for (const auto& [pair, given] : pairs) {
    if (!given.empty()) continue;
    std::uint32_t best = 0;
    int least = -1;
    for (std::uint32_t slot = 0; slot < period && least != 0; ++slot) {
      const int count = used[{pair.first, slot}] + used[{pair.second, slot}];
      if (least < 0 || count < least) {
        least = count;
        best = slot;
      }
    }
    add(pair, {best});
  }
  return edges;
}

// ---- files ------------------------------------------------------------------------------------

/// \throws std::runtime_error for what is not JSON, and for an object with a name twice.
Json read_json(const std::string& path) {
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path)) refuse_graph("cannot read " + in_quotes(path));
  std::vector<std::set<std::string>> open;  // names of the objects around
  std::string twice;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key && !open.back().insert(value.get<std::string>()).second)
      twice = value.get<std::string>();
    return true;
  };
  try {
    auto json = Json::parse(file, watch);
    if (!twice.empty())
      refuse_graph(in_quotes(path) + " has the name " + in_quotes(twice) + " twice");
    return json;
  } catch (const Json::exception& e) {
    refuse_graph(in_quotes(path) + " is not JSON: " + e.what());
  }
}

/// A topology file on its way to a graph.
struct Topology {
  std::string path;
  std::vector<std::string> names{};
  std::uint32_t period = 1;
  std::map<Pair, Slots> edges{};

  [[noreturn]] void wrong(const std::string& what) const {
    refuse_graph(what + " in " + in_quotes(path));
  }

  [[nodiscard]] int number(const std::string& name, const std::string& of) const {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      wrong("node " + in_quotes(of) + " has an edge to " + in_quotes(name) +
            ", which is not among the nodes");
    }
    return static_cast<int>(found - names.begin());
  }
};

std::uint32_t whole_number(const Topology& topology, const Json& value, const std::string& what,
                           std::uint32_t from) {
  if (!value.is_number_integer() || value.get<std::int64_t>() < from ||
      value.get<std::int64_t>() > UINT32_MAX) {
    topology.wrong(what + " is " + value.dump() + ", not a whole number of at least " +
                   std::to_string(from));
  }
  return value.get<std::uint32_t>();
}

/// A node's slot for each of its edges, by the other end's number.
using OwnSlots = std::map<int, std::optional<std::uint32_t>>;

OwnSlots read_edges(const Topology& topology, const std::string& name, const Json& edges) {
  OwnSlots slots;
  const auto add = [&](const std::string& peer, std::optional<std::uint32_t> slot) {
    if (peer == name) topology.wrong("node " + in_quotes(name) + " has an edge to itself");
    if (slot && *slot >= topology.period) {
      topology.wrong("the slot of the edge from " + in_quotes(name) + " to " + in_quotes(peer) +
                     " is " + std::to_string(*slot) + ", not below the round of " +
                     std::to_string(topology.period));
    }
    if (!slots.emplace(topology.number(peer, name), slot).second)
      topology.wrong("node " + in_quotes(name) + " has two edges to " + in_quotes(peer));
  };
  if (edges.is_object()) {
    for (const auto& [peer, slot] : edges.items())
      add(peer, whole_number(
                    topology, slot,
                    "the slot of the edge from " + in_quotes(name) + " to " + in_quotes(peer), 0));
  } else if (edges.is_array()) {
    for (const auto& peer : edges) {
      if (!peer.is_string())
        topology.wrong("an edge of node " + in_quotes(name) + " is " + peer.dump() +
                       ", not the name of a node");
      add(peer.get<std::string>(), std::nullopt);
    }
  } else {
    topology.wrong("the edges of node " + in_quotes(name) + " are neither {peer: slot} nor [peer]");
  }
  return slots;
}

/// Both ends have to know an edge; its slots are those of both.
void match_edges(Topology& topology, const std::vector<OwnSlots>& slots) {
  const auto name = [&](int node) {
    return in_quotes(topology.names[static_cast<std::size_t>(node)]);
  };
  for (int a = 0; a < static_cast<int>(slots.size()); ++a) {
    for (const auto& [b, slot] : slots[static_cast<std::size_t>(a)]) {
      if (!slots[static_cast<std::size_t>(b)].contains(a)) {
        topology.wrong("node " + name(a) + " has an edge to " + name(b) + ", which has none to " +
                       name(a));
      }
      auto& kept = topology.edges[std::minmax(a, b)];
      if (slot) kept.insert(*slot);
    }
  }
}

/// The one round of all nodes, `otherwise` where none has one.
std::uint32_t read_round(const Topology& topology, const Json& nodes, std::uint32_t otherwise) {
  std::optional<std::uint32_t> round;
  for (const auto& [name, node] : nodes.items()) {
    if (!node.is_object() || !node.contains("edges"))
      topology.wrong("node " + in_quotes(name) + " has no \"edges\"");
    if (!node.contains("round")) continue;
    const auto own =
        whole_number(topology, node["round"], "the round of node " + in_quotes(name), 1);
    if (round && *round != own) {
      topology.wrong("node " + in_quotes(name) + " has a round of " + std::to_string(own) +
                     ", others of " + std::to_string(*round) +
                     ": both ends of an edge have to "
                     "come to it at the same step");
    }
    round = own;
  }
  if (round && otherwise != 1 && *round != otherwise) {
    topology.wrong("--period " + std::to_string(otherwise) + " is not the round of " +
                   std::to_string(*round));
  }
  return round.value_or(otherwise);
}

std::vector<std::string> read_hosts(const std::string& path) {
  const auto json = read_json(path);
  std::vector<std::string> names{};
  if (json.is_object() && json.contains("hosts") && json["hosts"].is_array()) {
    for (const auto& host : json["hosts"]) {
      if (!host.is_object() || !host.contains("name") || !host["name"].is_string())
        refuse_graph("a host in " + in_quotes(path) + " has no \"name\"");
      names.push_back(host["name"].get<std::string>());
      if (std::count(names.begin(), names.end(), names.back()) > 1)
        refuse_graph(in_quotes(path) + " has the host " + in_quotes(names.back()) + " twice");
    }
  }
  if (names.empty())
    refuse_graph(in_quotes(path) + " does not say {\"hosts\": [{\"name\": ...}, ...]}");
  return names;
}

/// `own`: the names in the order of the topology file.
void check_same_names(const std::vector<std::string>& own, const std::vector<std::string>& hosts,
                      const GraphSource& source) {
  const auto missing = [](const auto& in, const auto& of) {
    return std::find_if(of.begin(), of.end(), [&](const auto& name) {
      return std::find(in.begin(), in.end(), name) == in.end();
    });
  };
  if (const auto at = missing(hosts, own); at != own.end())
    refuse_graph("node " + in_quotes(*at) + " of " + in_quotes(source.text) + " is not in " +
                 in_quotes(source.hosts));
  if (const auto at = missing(own, hosts); at != hosts.end())
    refuse_graph("host " + in_quotes(*at) + " of " + in_quotes(source.hosts) + " is not in " +
                 in_quotes(source.text));
}

void check_count(std::size_t found, const std::string& where, int processes) {
  if (found == static_cast<std::size_t>(processes)) return;
  refuse_graph(in_quotes(where) + " has " + std::to_string(found) + " nodes, the run has " +
               std::to_string(processes) + " processes: mpirun -n " + std::to_string(found));
}

Topology read_topology(const GraphSource& source) {
  const auto json = read_json(source.text);
  if (!json.is_object() || !json.contains("nodes") || !json["nodes"].is_object() ||
      json["nodes"].empty()) {
    refuse_graph(in_quotes(source.text) +
                 " does not say {\"nodes\": {name: {\"edges\": ...}, ...}}");
  }
  const auto& nodes = json["nodes"];
  Topology topology{.path = source.text};
  for (const auto& [name, node] : nodes.items()) topology.names.push_back(name);
  check_count(topology.names.size(), source.text, source.nodes);
  if (!source.hosts.empty()) {
    auto hosts = read_hosts(source.hosts);
    check_same_names(topology.names, hosts, source);
    topology.names = std::move(hosts);
  }
  topology.period = read_round(topology, nodes, source.period);
  std::vector<OwnSlots> slots;
  for (const auto& name : topology.names)
    slots.push_back(read_edges(topology, name, nodes[name]["edges"]));
  match_edges(topology, slots);
  return topology;
}

Topology generated(const GraphSource& source, const std::set<Pair>& pairs) {
  Topology topology{.path = source.text, .period = source.period};
  if (source.hosts.empty()) {
    for (int k = 0; k < source.nodes; ++k) topology.names.push_back(std::to_string(k + 1));
  } else {
    topology.names = read_hosts(source.hosts);
    check_count(topology.names.size(), source.hosts, source.nodes);
  }
  for (const auto& pair : pairs) topology.edges[pair];
  return topology;
}

double length_of(const std::vector<double>& x) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  return std::sqrt(squares);
}

}  // namespace

// ---- the graph --------------------------------------------------------------------------------

Graph Graph::make(const GraphSource& source) {
  const auto pairs = generated_pairs(source.text, source.nodes);
  if (!pairs && !std::filesystem::exists(source.text)) {
    refuse_graph(in_quotes(source.text) + " is neither a file nor one of " + kGenerators);
  }
  const auto topology = pairs ? generated(source, *pairs) : read_topology(source);
  Graph graph(topology.names, with_slots(topology.edges, topology.period), topology.period);
  const auto reached = graph.reached_from(0);
  for (int k = 0; k < graph.nodes(); ++k) {
    if (!std::binary_search(reached.begin(), reached.end(), k))
      refuse_graph("the graph is not connected: no path leads from node " +
                   in_quotes(graph.name(0)) + " to node " + in_quotes(graph.name(k)));
  }
  return graph;
}

Graph::Graph(std::vector<std::string> names, const std::vector<Edge>& edges, std::uint32_t period)
    : names_(std::move(names)), neighbours_(names_.size()), period_(period) {
  for (const auto& [a, b, slots] : edges) {
    neighbours_[index(a)].push_back({.node = b, .slots = slots, .sign = -1});
    neighbours_[index(b)].push_back({.node = a, .slots = slots, .sign = +1});
  }
  for (auto& own : neighbours_) {
    std::sort(own.begin(), own.end(),
              [](const Neighbour& x, const Neighbour& y) { return x.node < y.node; });
    for (auto& n : own) {
      const auto degree = std::max(own.size(), neighbours_[index(n.node)].size());
      n.weight = 1.0 / (1.0 + static_cast<double>(degree));
    }
  }
}

std::vector<int> Graph::reached_from(int node) const {
  std::vector<int> open{node};
  std::set<int> seen{node};
  while (!open.empty()) {
    const int next = open.back();
    open.pop_back();
    for (const auto& n : neighbours(next)) {
      if (seen.insert(n.node).second) open.push_back(n.node);
    }
  }
  return {seen.begin(), seen.end()};
}

std::vector<Edge> Graph::edges() const {
  std::vector<Edge> edges;
  for (int a = 0; a < nodes(); ++a) {
    for (const auto& n : neighbours(a)) {
      if (a < n.node) edges.push_back({a, n.node, n.slots});
    }
  }
  return edges;
}

Graph Graph::without(const std::set<int>& lost) const {
  auto left = edges();
  std::erase_if(left, [&](const Edge& e) { return lost.contains(e.a) || lost.contains(e.b); });
  return Graph(names_, left, period_);
}

void Graph::forget(int node, int other) {
  std::erase_if(neighbours_[index(node)], [&](const Neighbour& n) { return n.node == other; });
}

std::vector<Neighbour> Graph::due(int node, std::uint32_t step) const {
  std::vector<Neighbour> due;
  std::copy_if(neighbours(node).begin(), neighbours(node).end(), std::back_inserter(due),
               [&](const Neighbour& n) { return is_due(n, step); });
  return due;
}

double Graph::own_weight(int node) const {
  double rest = 1;
  for (const auto& n : neighbours(node)) rest -= n.weight;
  return rest;
}

std::vector<double> Graph::mix(const std::vector<double>& x) const {
  std::vector<double> y;
  for (int k = 0; k < nodes(); ++k) {
    double sum = own_weight(k) * x[index(k)];
    for (const auto& n : neighbours(k)) sum += n.weight * x[index(n.node)];
    y.push_back(sum);
  }
  return y;
}

Graph::Spectrum Graph::spectrum_around(int node) const {
  const auto part = reached_from(node);
  std::map<int, int> place;
  std::vector<std::string> names;
  for (const int k : part) {
    place[k] = static_cast<int>(names.size());
    names.push_back(name(k));
  }
  std::vector<Edge> own;
  for (const auto& [a, b, slots] : edges()) {
    if (place.contains(a)) own.push_back({place[a], place[b], slots});
  }
  return Graph(names, own, period_).spectrum();
}

/// Power iteration: on W^2 without its constant vector, and on I - W, which does not have it. Both
/// have no negative eigenvalue, so signs do not take turns.
Graph::Spectrum Graph::spectrum() const {
  constexpr int kMostSteps = 20000;
  constexpr double kEnough = 1e-13;  // change of an eigenvalue in a step
  if (nodes() == 1) return {};
  const auto largest = [&](const auto& apply) {
    Draws draws(1);
    std::vector<double> x(names_.size());
    for (double& v : x) v = static_cast<double>(draws.below(2000)) - 999.5;
    double value = 0;
    for (int step = 0; step < kMostSteps; ++step) {
      double mean = 0;
      for (const double v : x) mean += v / static_cast<double>(nodes());
      for (double& v : x) v -= mean;
      const double before = length_of(x);
      if (before == 0) return 0.0;
      for (double& v : x) v /= before;
      x = apply(x);
      const double after = length_of(x);
      if (std::abs(after - value) < kEnough) return after;
      value = after;
    }
    return value;
  };
  const double square = largest([&](const auto& x) { return mix(mix(x)); });
  const double beta = largest([&](const auto& x) {
    auto y = mix(x);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = x[i] - y[i];
    return y;
  });
  return {.gap = 1 - std::sqrt(square), .beta = beta};
}

}  // namespace train
