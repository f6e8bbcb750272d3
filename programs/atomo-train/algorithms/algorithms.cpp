// SPDX-License-Identifier: Apache-2.0
/// \file
/// The table `kAlgorithms` describes each algorithm in one row: its name on the command line, who
/// holds the weights, the function that runs it, the options that go with it, and what it promises.
/// The help text, `--list`, the checks of options and the start of a run all read this table, so
/// adding an algorithm means adding a row.

#include "algorithms/algorithms.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

namespace train {
namespace {

constexpr Algorithm kAlgorithms[] = {
    {.name = "ps",
     .family = Family::server,
     .what = "synchronous SGD, each layer sent as back-propagation produces it",
     .origin = "ATOMO, arXiv 1806.04090",
     .run = parameter_server,
     .options = "--aggregate --late --double-buffer"},
    {.name = "asgd",
     .family = Family::server,
     .what = "asynchronous SGD: a gradient is applied when it comes",
     .origin = "Downpour SGD, Dean et al. 2012",
     .run = asgd,
     .repeats = false},
    {.name = "dcasgd",
     .family = Family::server,
     .what = "the same, corrected for what the weights have become since",
     .origin = "DC-ASGD, arXiv 1609.08326",
     .run = dcasgd,
     .repeats = false,
     .options = "--compensation --adaptive"},
    {.name = "fedavg",
     .family = Family::server,
     .what = "steps of one's own, then the server steps along their mean change",
     .origin = "FedAvg, arXiv 1602.05629",
     .run = fedavg,
     .options = "--aggregate --late --local-steps --outer-optimizer --outer-lr --outer-momentum"},
    {.name = "average",
     .family = Family::server,
     .what = "steps of one's own, then the mean of the weights",
     .origin = "parameter averaging",
     .run = parameter_averaging,
     .options = "--aggregate --late --local-steps"},
    {.name = "difference",
     .family = Family::server,
     .what = "what is new about gradients goes up, and about weights down",
     .origin = "DIANA, arXiv 1901.09269",
     .run = gradient_difference,
     .options = "--codec-scale --lazy"},
    {.name = "allgather",
     .family = Family::all_reduce,
     .what = "every rank gets every gradient",
     .origin = "Horovod-style exchange of payloads",
     .run = all_gather,
     .gathers_payloads = true,
     .options = "--second-moment --squares-every --precondition --rate-in-memory --vote "
                "--sparsity-warmup"},
    {.name = "twoshot",
     .family = Family::all_reduce,
     .what = "every rank adds up a part of the model and sends the mean, encoded again",
     .origin = "reduce-scatter and all-gather of payloads",
     .run = two_shot},
    {.name = "ring",
     .family = Family::all_reduce,
     .what = "partial sums travel round a ring, added undecoded or encoded again at each hop",
     .origin = "ring all-reduce of payloads",
     .run = ring},
    {.name = "local",
     .family = Family::all_reduce,
     .what = "--local-steps steps alone, then an outer step along what they changed",
     .origin = "DiLoCo, arXiv 2311.08105; local SGD, arXiv 1805.09767",
     .run = local_sgd,
     .gathers_payloads = true,
     .options = "--local-steps --outer-optimizer --outer-lr --outer-momentum --sparsity-warmup"},
    {.name = "powersgd",
     .family = Family::all_reduce,
     .what = "factors of low rank add up; a memory keeps the rest, or --residual sends it",
     .origin = "PowerSGD, arXiv 1905.13727",
     .run = power_sgd,
     .takes_codec = false,
     .options = "--rank --min-ratio --start-step --residual --second-moment --squares-every"},
    {.name = "dpsgd",
     .family = Family::graph,
     .what = "a gradient step and an average with the neighbours at once",
     .origin = "D-PSGD, arXiv 1705.09056",
     .run = dpsgd,
     .options = "--graph --hosts --period"},
    {.name = "dsgd",
     .family = Family::graph,
     .what = "steps of one's own, and averages over the edges whose slot it is",
     .origin = "decentralised SGD, Metropolis weights",
     .run = dsgd,
     .options = "--graph --hosts --period --asynchronous"},
    {.name = "dsgd-stale",
     .family = Family::graph,
     .what = "DSGD that averages at every step with the last models it has",
     .origin = "asynchronous gossip with a period",
     .run = dsgd_stale,
     .options = "--graph --hosts --period"},
    {.name = "choco",
     .family = Family::graph,
     .what = "gossip of compressed differences to public copies",
     .origin = "CHOCO-SGD, arXiv 1902.00340",
     .run = choco,
     .options = "--graph --hosts --period --gossip-step --codec-scale"},
    {.name = "pdmm",
     .family = Family::graph,
     .what = "edge consensus: a dual variable an edge, exchanged with its other end",
     .origin = "PDMM-ISVR, Niwa et al., ICML 2021",
     .run = pdmm,
     .options = "--graph --hosts --period --asynchronous"},
    {.name = "admm",
     .family = Family::graph,
     .what = "edge consensus, half of a dual variable kept in an exchange",
     .origin = "ADMM-ISVR, Niwa et al., ICML 2021",
     .run = admm,
     .options = "--graph --hosts --period --asynchronous"},
    {.name = "alone",
     .family = Family::graph,
     .what = "no exchange at all: every node trains by itself",
     .origin = "what the others have to beat",
     .run = alone},
};

constexpr const char* title(Family family) {
  switch (family) {
    case Family::server:
      return "With servers: they hold the weights, the other ranks train";
    case Family::all_reduce:
      return "All-reduce: every rank trains and holds the same weights";
    case Family::graph:
      return "Decentralised: every rank trains weights of its own and talks to its neighbours";
  }
  return "";
}

constexpr const char* key(Family family) {
  switch (family) {
    case Family::server:
      return "server";
    case Family::all_reduce:
      return "all-reduce";
    case Family::graph:
      return "graph";
  }
  return "";
}

std::string json_list() {
  auto rows = nlohmann::json::array();
  for (const auto& a : kAlgorithms) {
    rows.push_back({{"name", a.name},
                    {"family", key(a.family)},
                    {"what", a.what},
                    {"origin", a.origin},
                    {"repeats", a.repeats},
                    {"outlives-silent", a.outlives_silent}});
  }
  return rows.dump(1) + "\n";
}

}  // namespace

std::span<const Algorithm> algorithms() noexcept { return kAlgorithms; }

const Algorithm* find_algorithm(const std::string& name) noexcept {
  const auto* found =
      std::find_if(std::begin(kAlgorithms), std::end(kAlgorithms),
                   [&](const Algorithm& algorithm) { return algorithm.name == name; });
  return found == std::end(kAlgorithms) ? nullptr : found;
}

std::string list_of_algorithms(bool as_json) {
  if (as_json) return json_list();
  std::size_t name_width = 0, what_width = 0;
  for (const auto& algorithm : kAlgorithms) {
    name_width = std::max(name_width, std::string_view(algorithm.name).size());
    what_width = std::max(what_width, std::string_view(algorithm.what).size());
  }
  std::string text;
  const Algorithm* before = nullptr;
  for (const auto& algorithm : kAlgorithms) {
    if (before == nullptr || before->family != algorithm.family) {
      text += std::string(before == nullptr ? "" : "\n") + title(algorithm.family) + "\n";
    }
    std::string name = algorithm.name, what = algorithm.what;
    name.resize(name_width, ' ');
    what.resize(what_width, ' ');
    text += "  " + name + "  " + what + "  " + algorithm.origin + "\n";
    before = &algorithm;
  }
  return text;
}

}  // namespace train
