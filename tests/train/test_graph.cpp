// SPDX-License-Identifier: Apache-2.0
/// Graphs of a decentralised training: generators, weights, slots, files and what they refuse.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <set>

#include "exchange/graph.hpp"

namespace train {
namespace {

Graph graph_of(const std::string& text, int nodes, std::uint32_t period = 1) {
  return Graph::make({.text = text, .hosts = "", .nodes = nodes, .period = period});
}

std::size_t edges_of(const Graph& graph) {
  std::size_t ends = 0;
  for (int k = 0; k < graph.nodes(); ++k) ends += graph.neighbours(k).size();
  return ends / 2;
}

/// Null when they are not neighbours.
const Neighbour* find(const Graph& graph, int node, int other) {
  for (const auto& n : graph.neighbours(node)) {
    if (n.node == other) return &n;
  }
  return nullptr;
}

/// What any graph has to be.
void check_sound(const Graph& graph) {
  for (int k = 0; k < graph.nodes(); ++k) {
    std::set<int> seen;
    double sum = graph.own_weight(k);
    EXPECT_GT(sum, 0);
    for (const auto& n : graph.neighbours(k)) {
      EXPECT_NE(n.node, k);
      EXPECT_TRUE(seen.insert(n.node).second) << "two edges from " << k << " to " << n.node;
      EXPECT_FALSE(n.slots.empty());
      EXPECT_LT(*n.slots.rbegin(), graph.period());
      sum += n.weight;
      const auto* back = find(graph, n.node, k);
      ASSERT_NE(back, nullptr);
      EXPECT_EQ(back->weight, n.weight);
      EXPECT_EQ(back->slots, n.slots);
      EXPECT_EQ(n.sign, n.node < k ? 1 : -1);
      const auto degrees = std::max(graph.neighbours(k).size(), graph.neighbours(n.node).size());
      EXPECT_DOUBLE_EQ(n.weight, 1.0 / (1.0 + static_cast<double>(degrees)));
    }
    EXPECT_NEAR(sum, 1, 1e-15);
  }
}

TEST(Graph, GeneratorsMakeSoundGraphsOfAnySize) {
  for (int n = 1; n <= 9; ++n) {
    const auto pairs = static_cast<std::size_t>(n * (n - 1) / 2);
    const auto least = static_cast<std::size_t>(n - 1);
    const std::size_t more = std::min(pairs, least + 3);
    const std::vector<std::pair<std::string, std::size_t>> edges{
        {"ring", n <= 2 ? least : static_cast<std::size_t>(n)},
        {"double-ring", n <= 5 ? pairs : 2 * static_cast<std::size_t>(n)},
        {"star", least},
        {"complete", pairs},
        {"random:edges=" + std::to_string(least), least},
        {"random:edges=" + std::to_string(more) + ",seed=7", more},
        {"random:edges=" + std::to_string(pairs), pairs}};
    for (const auto& [text, count] : edges) {
      for (const std::uint32_t period : {1U, 2U, 20U}) {
        SCOPED_TRACE(text + " of " + std::to_string(n));
        const auto graph = graph_of(text, n, period);
        ASSERT_EQ(graph.nodes(), n);
        EXPECT_EQ(edges_of(graph), count);
        check_sound(graph);
      }
    }
  }
}

TEST(Graph, KnowsItsNeighbours) {
  const auto ring = graph_of("ring", 5);
  EXPECT_TRUE(find(ring, 0, 4) && find(ring, 0, 1) && !find(ring, 0, 2));
  const auto twice = graph_of("double-ring", 7);
  EXPECT_TRUE(find(twice, 0, 5) && find(twice, 0, 6) && find(twice, 0, 1) && find(twice, 0, 2));
  EXPECT_FALSE(find(twice, 0, 3) || find(twice, 0, 4));
  EXPECT_EQ(graph_of("star", 6).neighbours(0).size(), 5U);
  EXPECT_DOUBLE_EQ(graph_of("star", 6).own_weight(3), 5.0 / 6);
}

TEST(Graph, ATorusIsAsNearToASquareAsItCanBe) {
  for (const auto& [n, rows, columns] :
       {std::array{4, 2, 2}, std::array{6, 2, 3}, std::array{9, 3, 3}, std::array{12, 3, 4},
        std::array{14, 2, 7}, std::array{36, 6, 6}}) {
    SCOPED_TRACE(n);
    const auto graph = graph_of("torus", n);
    check_sound(graph);
    const std::size_t degree = (rows == 2 ? 1U : 2U) + (columns == 2 ? 1U : 2U);
    for (int k = 0; k < n; ++k) EXPECT_EQ(graph.neighbours(k).size(), degree) << k;
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < columns; ++column) {
        const int k = row * columns + column;
        EXPECT_TRUE(find(graph, k, (row + 1) % rows * columns + column)) << k;
        EXPECT_TRUE(find(graph, k, row * columns + (column + 1) % columns)) << k;
      }
    }
  }
}

TEST(Graph, NeighboursInAHypercubeDifferInOneBit) {
  for (const unsigned dimension : {0U, 1U, 2U, 3U, 4U, 5U}) {
    const int n = 1 << dimension;
    SCOPED_TRACE(n);
    const auto graph = graph_of("hypercube", n);
    check_sound(graph);
    for (int k = 0; k < n; ++k) {
      ASSERT_EQ(graph.neighbours(k).size(), dimension);
      for (const auto& neighbour : graph.neighbours(k))
        EXPECT_TRUE(std::has_single_bit(static_cast<unsigned>(k ^ neighbour.node)));
    }
  }
}

TEST(Graph, SlotsOfEdgesThatShareANodeDifferWhereTheyCan) {
  for (const std::string text :
       {"ring", "double-ring", "torus", "hypercube", "star", "complete", "random:edges=12"}) {
    const auto graph = graph_of(text, 8, 20);  // more slots than two nodes of 7 edges use up
    for (int k = 0; k < 8; ++k) {
      std::set<std::uint32_t> slots;
      for (const auto& n : graph.neighbours(k)) slots.insert(n.slots.begin(), n.slots.end());
      EXPECT_EQ(slots.size(), graph.neighbours(k).size()) << text;
      std::size_t due = 0;
      for (std::uint32_t step = 100; step < 120; ++step) due += graph.due(k, step).size();
      EXPECT_EQ(due, graph.neighbours(k).size()) << "every edge once in a period, " << text;
    }
  }
  const auto crowded = graph_of("complete", 4, 2);
  for (const auto& n : crowded.neighbours(0)) EXPECT_LT(*n.slots.rbegin(), 2U);
}

TEST(Graph, RandomGraphsFollowTheirSeed) {
  const auto ends = [](const std::string& text) {
    const auto graph = graph_of(text, 9);
    std::string all;
    for (int k = 0; k < 9; ++k) {
      for (const auto& n : graph.neighbours(k)) all += std::to_string(n.node) + " ";
      all += "/ ";
    }
    return all;
  };
  EXPECT_EQ(ends("random:edges=12,seed=3"), ends("random:seed=3,edges=12"));
  EXPECT_NE(ends("random:edges=12,seed=3"), ends("random:edges=12,seed=4"));
  // Whatever the standard library.
  EXPECT_EQ(ends("random:edges=9,seed=1"),
            "2 5 / 5 8 / 0 3 4 7 8 / 2 / 2 / 0 1 6 / 5 / 2 / 1 2 / ");
}

TEST(Graph, SpectrumIsThatOfTheory) {
  // The ring's W is circulant: (1 + 2 cos(2 pi k / n)) / 3.
  for (const int n : {3, 4, 8, 9}) {
    double second = 0, least = 1;
    for (int k = 1; k < n; ++k) {
      const double value = (1 + 2 * std::cos(2 * std::numbers::pi * k / n)) / 3;
      second = std::max(second, std::abs(value));
      least = std::min(least, value);
    }
    const auto [gap, beta] = graph_of("ring", n).spectrum();
    EXPECT_NEAR(gap, 1 - second, 1e-6);
    EXPECT_NEAR(beta, 1 - least, 1e-6);
  }
  for (const int n : {2, 5}) {
    const auto [gap, beta] = graph_of("complete", n).spectrum();
    EXPECT_NEAR(gap, 1, 1e-6);
    EXPECT_NEAR(beta, 1, 1e-6);
  }
  // Star: eigenvalues 1, (n - 1) / n (n - 2 times) and 0.
  EXPECT_NEAR(graph_of("star", 6).spectrum().gap, 1.0 / 6, 1e-6);
  EXPECT_NEAR(graph_of("star", 6).spectrum().beta, 1, 1e-6);
  EXPECT_EQ(graph_of("ring", 1).spectrum().gap, 1);
}

TEST(Graph, SpectrumOfATorusAndAHypercubeIsThatOfTheory) {
  // A node of a torus has one neighbour along a side of 2, and two along a longer one.
  const auto along = [](int side, int k) {
    return (side == 2 ? 1 : 2) * std::cos(2 * std::numbers::pi * k / side);
  };
  for (const auto& [rows, columns] : {std::array{2, 2}, std::array{2, 3}, std::array{2, 7},
                                      std::array{3, 3}, std::array{3, 4}, std::array{4, 5}}) {
    const double degree = along(rows, 0) + along(columns, 0);
    double second = 0, least = 1;
    for (int k = 1; k < rows * columns; ++k) {
      const double value =
          (1 + along(rows, k / columns) + along(columns, k % columns)) / (1 + degree);
      second = std::max(second, std::abs(value));
      least = std::min(least, value);
    }
    const auto [gap, beta] = graph_of("torus", rows * columns).spectrum();
    EXPECT_NEAR(gap, 1 - second, 1e-6) << rows << " x " << columns;
    EXPECT_NEAR(beta, 1 - least, 1e-6) << rows << " x " << columns;
  }
  // d dimensions: (1 + d - 2 k) / (d + 1) for k = 0 to d.
  for (int d = 1; d <= 5; ++d) {
    const auto [gap, beta] = graph_of("hypercube", 1 << d).spectrum();
    EXPECT_NEAR(gap, 2.0 / (d + 1), 1e-6) << d;
    EXPECT_NEAR(beta, 2.0 * d / (d + 1), 1e-6) << d;
  }
}

class GraphFiles : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  Graph read(const std::string& topology, int nodes, const std::string& hosts = "",
             std::uint32_t period = 1) const {
    return Graph::make({.text = file("topology.json", topology),
                        .hosts = hosts.empty() ? "" : file("hosts.json", hosts),
                        .nodes = nodes,
                        .period = period});
  }
  /// What is said against it.
  std::string objection(const std::string& topology, int nodes, const std::string& hosts = "",
                        std::uint32_t period = 1) const {
    try {
      (void)read(topology, nodes, hosts, period);
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "nothing";
  }

 private:
  std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) /
      ("graph-" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
};

constexpr const char* kPath =
    R"({"nodes": {"zoe": {"round": 8, "device": "cuda:0", "edges": {"ann": 3}},
                  "ann": {"round": 8, "edges": {"zoe": 3, "bob": 5}},
                  "bob": {"round": 8, "device": "cpu", "edges": {"ann": 5}}}})";
constexpr const char* kHosts =
    R"({"hosts": [{"name": "bob", "addr": "10.0.0.1", "port": "10000"},
                  {"name": "ann", "addr": "10.0.0.2", "port": "10000"},
                  {"name": "zoe", "addr": "10.0.0.3", "port": "10000"}]})";

TEST_F(GraphFiles, OrderIsTheFilesOwnWithoutHosts) {
  const auto graph = read(kPath, 3);
  check_sound(graph);
  EXPECT_EQ(graph.name(0), "zoe");
  EXPECT_EQ(graph.name(2), "bob");
  EXPECT_EQ(graph.period(), 8U);
  ASSERT_EQ(graph.neighbours(0).size(), 1U);
  EXPECT_EQ(graph.neighbours(0)[0],
            (Neighbour{.node = 1, .slots = {3}, .weight = 1.0 / 3, .sign = -1}));
  EXPECT_EQ(graph.neighbours(1)[1],
            (Neighbour{.node = 2, .slots = {5}, .weight = 1.0 / 3, .sign = -1}));
  EXPECT_TRUE(graph.due(0, 11).size() == 1 && graph.due(0, 12).empty());
}

TEST_F(GraphFiles, HostsGiveTheOrder) {
  const auto graph = read(kPath, 3, kHosts);
  check_sound(graph);
  EXPECT_EQ(graph.name(0), "bob");
  EXPECT_EQ(graph.neighbours(0)[0],
            (Neighbour{.node = 1, .slots = {5}, .weight = 1.0 / 3, .sign = -1}));
  EXPECT_EQ(graph.neighbours(2)[0],
            (Neighbour{.node = 1, .slots = {3}, .weight = 1.0 / 3, .sign = 1}));
  // A generator's nodes get the hosts' names.
  const auto ring = Graph::make({.text = "ring", .hosts = file("hosts.json", kHosts), .nodes = 3});
  EXPECT_EQ(ring.name(2), "zoe");
}

TEST_F(GraphFiles, AnEdgeIsUsedInTheSlotsOfBothItsEnds) {
  const auto graph = read(R"({"nodes": {"a": {"round": 8, "edges": {"b": 4}},
      "b": {"round": 8, "edges": {"a": 1, "c": 6}}, "c": {"round": 8, "edges": {"b": 6}}}})",
                          3);
  check_sound(graph);
  EXPECT_EQ(find(graph, 0, 1)->slots, (Slots{1, 4}));
  EXPECT_EQ(find(graph, 1, 2)->slots, Slots{6});
  for (std::uint32_t step = 16; step < 24; ++step)
    EXPECT_EQ(graph.due(0, step).size(), step == 17 || step == 20 ? 1U : 0U) << step;
}

TEST_F(GraphFiles, ListsGetSlots) {
  const auto graph = read(R"({"nodes": {"a": {"round": 3, "edges": ["b", "c"]},
      "b": {"round": 3, "edges": {"a": 2, "c": 0}}, "c": {"round": 3, "edges": ["a", "b"]}}})",
                          3);
  check_sound(graph);
  EXPECT_EQ(find(graph, 0, 1)->slots, Slots{2});
  EXPECT_EQ(find(graph, 1, 2)->slots, Slots{0});
  EXPECT_EQ(find(graph, 0, 2)->slots, Slots{1});
  const auto two = read(R"({"nodes": {"a": {"edges": ["b"]}, "b": {"edges": ["a"]}}})", 2, "", 5);
  EXPECT_EQ(two.period(), 5U);
}

void expect_said(const std::string& said, const std::vector<std::string>& words) {
  for (const auto& word : words) {
    EXPECT_NE(said.find(word), std::string::npos) << "'" << word << "' is missing in: " << said;
  }
}

TEST_F(GraphFiles, WrongOnesAreNamed) {
  const auto nodes = [](const std::string& inside) { return "{\"nodes\": {" + inside + "}}"; };
  expect_said(objection(kPath, 4), {"3 nodes", "4 processes"});
  expect_said(objection("nonsense", 2), {"not JSON", "topology.json"});
  expect_said(objection("[]", 2), {"nodes"});
  expect_said(objection(nodes(R"("a": {"edges": ["b"]}, "b": {"edges": []})"), 2),
              {"'a'", "'b'", "none to"});
  expect_said(objection(nodes(R"("a": {"round": 4, "edges": {"b": 1}},
                                 "b": {"round": 8, "edges": {"a": 1}})"),
                        2),
              {"round", "4", "8"});
  expect_said(objection(nodes(R"("a": {"round": 4, "edges": {"b": 4}},
                                 "b": {"round": 4, "edges": {"a": 4}})"),
                        2),
              {"slot", "4", "below the round"});
  expect_said(objection(nodes(R"("a": {"edges": {"b": -1}}, "b": {"edges": {"a": -1}})"), 2),
              {"-1", "whole number"});
  expect_said(objection(nodes(R"("a": {"edges": ["x"]}, "b": {"edges": ["a"]})"), 2),
              {"'a'", "'x'", "not among the nodes"});
  expect_said(objection(nodes(R"("a": {"edges": ["a", "b"]}, "b": {"edges": ["a"]})"), 2),
              {"'a'", "itself"});
  expect_said(objection(nodes(R"("a": {"edges": ["b", "b"]}, "b": {"edges": ["a"]})"), 2),
              {"two edges to 'b'"});
  expect_said(objection(nodes(R"("a": {"edges": ["b"]}, "b": {"edges": ["a"]},
                                 "a": {"edges": ["b"]})"),
                        2),
              {"'a' twice"});
  expect_said(objection(nodes(R"("a": {"edges": ["b"]}, "b": {"edges": ["a"]},
                                 "c": {"edges": ["d"]}, "d": {"edges": ["c"]})"),
                        4),
              {"not connected", "'a'", "'c'"});
  expect_said(objection(nodes(R"("a": {"round": 0, "edges": []})"), 1), {"round", "0"});
  expect_said(objection(nodes(R"("a": {"round": 3})"), 1), {"'a'", "edges"});
  expect_said(objection(kPath, 3, "", 4), {"--period 4", "round of 8"});
}

TEST_F(GraphFiles, WrongHostsAreNamed) {
  const auto hosts = [](const std::string& inside) { return "{\"hosts\": [" + inside + "]}"; };
  expect_said(objection(kPath, 3, hosts(R"({"name": "ann"}, {"name": "bob"})")), {"'zoe'"});
  expect_said(objection(kPath, 3, hosts(R"({"name": "ann"}, {"name": "bob"}, {"name": "zoe"},
                                           {"name": "eve"})")),
              {"'eve'"});
  expect_said(objection(kPath, 3, hosts(R"({"name": "ann"}, {"name": "ann"})")), {"'ann' twice"});
  expect_said(objection(kPath, 3, hosts(R"({"addr": "10.0.0.1"})")), {"name"});
  expect_said(objection(kPath, 3, "{}"), {"hosts.json", "hosts"});
}

TEST(Graph, WithoutLostNodesWeightsAreMetropolissAgain) {
  const auto whole = graph_of("double-ring", 7);
  const auto left = whole.without({2, 6});
  check_sound(left);
  EXPECT_EQ(left.nodes(), 7);
  for (const int lost : {2, 6}) EXPECT_TRUE(left.neighbours(lost).empty());
  EXPECT_EQ(left.reached_from(3), (std::vector<int>{0, 1, 3, 4, 5}));
  EXPECT_EQ(find(left, 3, 2), nullptr);
  EXPECT_EQ(find(left, 3, 4)->slots, find(whole, 3, 4)->slots);
  EXPECT_NEAR(left.spectrum().gap, 0, 1e-12);  // lost nodes are parts of their own
  EXPECT_GT(left.spectrum_around(3).gap, 0.1);
}

TEST(Graph, FallsApart) {
  const auto left = graph_of("ring", 6).without({0, 3});
  check_sound(left);
  EXPECT_EQ(left.reached_from(2), (std::vector<int>{1, 2}));
  EXPECT_EQ(left.reached_from(4), (std::vector<int>{4, 5}));
  // Two nodes of one edge meet in one step.
  EXPECT_NEAR(left.spectrum_around(4).gap, 1, 1e-12);
}

TEST(Graph, AnEdgeThatOneEndForgetsIsTheEndsOwnWeight) {
  auto graph = graph_of("ring", 4);
  graph.forget(1, 2);
  EXPECT_EQ(find(graph, 1, 2), nullptr);
  EXPECT_NEAR(graph.own_weight(1), 2.0 / 3, 1e-15);
  EXPECT_NEAR(find(graph, 1, 0)->weight, 1.0 / 3, 1e-15);
  EXPECT_NE(find(graph, 2, 1), nullptr);
  check_sound(graph.without({2}));
}

TEST(Graph, WrongTextsAreNamed) {
  const auto objection = [](const std::string& text, int nodes) -> std::string {
    try {
      (void)graph_of(text, nodes);
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "nothing";
  };
  expect_said(objection("rign", 4), {"'rign'", "double-ring", "random:edges=M"});
  expect_said(objection("ring:edges=3", 4), {"'ring'", "no keys"});
  expect_said(objection("random", 4), {"lacks edges="});
  expect_said(objection("random:edges=many", 4), {"edges=many"});
  expect_said(objection("random:edges", 4), {"'edges'"});
  expect_said(objection("random:edges=4,speed=1", 4), {"speed=1"});
  expect_said(objection("random:edges=2", 4), {"edges=2", "4 processes", "3 to 6"});
  expect_said(objection("random:edges=7", 4), {"edges=7", "3 to 6"});
  for (const int n : {1, 2, 3, 5, 13})
    expect_said(objection("torus", n), {"torus with " + std::to_string(n), "not a prime"});
  for (const int n : {3, 6, 12})
    expect_said(objection("hypercube", n), {"hypercube with " + std::to_string(n), "power of two"});
  expect_said(objection("hypercube", 6), {"for example 4 or 8"});
  expect_said(objection("torus:rows=2", 4), {"'torus'", "no keys"});
}

}  // namespace
}  // namespace train
