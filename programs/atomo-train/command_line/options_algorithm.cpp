// SPDX-License-Identifier: Apache-2.0
/// \file
/// The options that choose an algorithm, and those of servers, local steps and graphs, are declared
/// here with their defaults and checks. An option that goes only with some algorithms is refused
/// with any other; the table in algorithms/algorithms.cpp says which go together.

#include <algorithm>
#include <sstream>

#include "algorithms/algorithms.hpp"
#include "command_line/option_groups.hpp"
#include "learning/optimiser.hpp"

namespace train {
namespace {

bool names(std::string_view options, const std::string& option) {
  std::istringstream words{std::string(options)};
  for (std::string word; words >> word;) {
    if (word == option) return true;
  }
  return false;
}

bool takes_group(const Algorithm& algorithm, const std::string& group) {
  if (group == kServerGroup) return algorithm.family == Family::server;
  if (group == kGraphGroup) return algorithm.family == Family::graph;
  return group != kCodecGroup || algorithm.takes_codec;
}

}  // namespace

void add_algorithm_options(CLI::App& app, Options& o) {
  const char* group = "Algorithm";
  std::vector<std::string> all;
  for (const auto& algorithm : algorithms()) all.emplace_back(algorithm.name);
  app.add_option("--algorithm", o.algorithm, "how the processes work together; see --list")
      ->check(CLI::IsMember(all))
      ->capture_default_str()
      ->group(group);
  app.set_config("--job", "", "all of this from a file, .toml or .json; the command line wins")
      ->option_text("FILE")
      ->group(group);
  app.add_flag("--list", o.list, "only say which algorithms there are; with --json as an array")
      ->configurable(false)
      ->group(group);
  app.add_flag("--check", o.check, "only say whether the command line is right")
      ->configurable(false)
      ->group(group);
}

void add_server_options(CLI::App& app, Options& o) {
  app.add_option("--servers", o.servers, "ranks that serve, each some of the layers")
      ->check(above_zero())
      ->capture_default_str()
      ->group(kServerGroup);
  app.add_option("--aggregate", o.aggregate, "gradients that a step waits for (0: of all workers)")
      ->capture_default_str()
      ->group(kServerGroup);
  app.add_option("--late", o.late, "what becomes of gradients that come after them")
      ->check(CLI::IsMember({"drop", "add"}))
      ->capture_default_str()
      ->group(kServerGroup);
  app.add_option("--down", o.down_policy,
                 "codec of the weights' changes on their way back (default: as they are)")
      ->option_text("CODEC")
      ->group(kServerGroup);
  app.add_flag("--double-buffer", o.double_buffer,
               "compute the next gradient while the last one travels: it is a step old")
      ->group(kServerGroup);
  app.add_option("--compensation", o.compensation, "lambda of dcasgd")
      ->check(not_below_zero())
      ->capture_default_str()
      ->group(kServerGroup);
  app.add_flag("--adaptive", o.adaptive_compensation,
               "dcasgd: divide lambda by the root of the mean squared gradient")
      ->group(kServerGroup);
}

void add_local_step_options(CLI::App& app, Options& o) {
  const char* group = "Local steps";
  app.add_option("--local-steps", o.local_steps, "steps a process takes alone between exchanges")
      ->check(above_zero())
      ->capture_default_str()
      ->group(group);
  app.add_option("--outer-optimizer", o.outer_optimizer,
                 "how the mean change of local steps becomes a step")
      ->check(CLI::IsMember(optimiser_names()))
      ->capture_default_str()
      ->group(group);
  app.add_option("--outer-lr", o.outer_lr, "its learning rate")
      ->check(above_zero())
      ->capture_default_str()
      ->group(group);
  app.add_option("--outer-momentum", o.outer_momentum,
                 "its momentum, if it is sgd, nesterov or lars")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(group);
}

void add_low_rank_options(CLI::App& app, Options& o) {
  const char* group = "Low rank (powersgd)";
  app.add_option("--rank", o.rank, "columns of a matrix's two factors, at most its shorter side")
      ->check(above_zero())
      ->capture_default_str()
      ->group(group);
  app.add_option("--min-ratio", o.min_ratio,
                 "factor matrices of more elements than so many times those of the factors")
      ->check(above_zero())
      ->capture_default_str()
      ->group(group);
  app.add_option("--start-step", o.start_step, "steps before this one add up gradients as they are")
      ->capture_default_str()
      ->group(group);
  app.add_option("--residual", o.residual,
                 "codec of what the factors leave of a gradient, and of layers that are not "
                 "factored: without bias if the codec is (default: a memory keeps it)")
      ->option_text("CODEC")
      ->group(group);
}

void add_graph_options(CLI::App& app, Options& o) {
  app.add_option("--graph", o.graph,
                 "who talks to whom: ring, double-ring, torus (a number of processes that is no "
                 "prime), hypercube (a power of two), star, complete, random:edges=N,seed=N, or a "
                 "topology file (JSON)")
      ->option_text("GRAPH")
      ->capture_default_str()
      ->group(kGraphGroup);
  app.add_option("--hosts", o.hosts, "the order of the nodes (JSON; default: the graph's own)")
      ->option_text("FILE")
      ->group(kGraphGroup);
  app.add_option("--period", o.period, "steps between two exchanges over an edge")
      ->check(above_zero())
      ->capture_default_str()
      ->group(kGraphGroup);
  app.add_flag("--asynchronous", o.asynchronous, "do not wait for neighbours")->group(kGraphGroup);
  app.add_option("--gossip-step", o.gossip_step, "step of compressed gossip (0: what theory gives)")
      ->check(not_below_zero())
      ->capture_default_str()
      ->group(kGraphGroup);
  app.add_option("--codec-scale", o.codec_scale,
                 "factor of what is decoded where differences are sent (0: 1 / (1 + omega))")
      ->check(not_below_zero())
      ->capture_default_str()
      ->group(kGraphGroup);
  app.add_option("--lazy", o.lazy,
                 "of difference: skip a message that changes little beside the last ten changes of "
                 "the weights, times this (LAQ; its authors take 0.8; 0: send all)")
      ->check(not_below_zero())
      ->capture_default_str()
      ->group(kGraphGroup);
  app.add_option("--on-lost-node", o.on_lost_node,
                 "when a process dies or falls silent: stop, or go-on without it (not without rank "
                 "0); mpirun wants --enable-recovery for that")
      ->check(CLI::IsMember({"stop", "go-on"}))
      ->capture_default_str()
      ->group(kGraphGroup);
}

bool is_graph_file(const std::string& graph) {
  return graph.ends_with(".json") || graph.find('/') != std::string::npos;
}

bool goes_with(const CLI::Option& option, const std::string& name) {
  const auto all = algorithms();
  const auto named = [&](const Algorithm& a) { return names(a.options, option.get_name()); };
  const auto& algorithm = *find_algorithm(name);
  if (std::any_of(all.begin(), all.end(), named)) return named(algorithm);
  return takes_group(algorithm, option.get_group());
}

void check_algorithm_options(const CLI::App& app, const Options& o) {
  for (const auto* option : app.get_options()) {
    if (option->count() == 0 || goes_with(*option, o.algorithm)) continue;
    std::string others;
    for (const auto& algorithm : algorithms()) {
      if (goes_with(*option, algorithm.name))
        others += (others.empty() ? "" : ", ") + std::string(algorithm.name);
    }
    const std::string with =
        others.empty() ? "goes with no algorithm" : "goes with --algorithm " + others;
    throw CLI::ValidationError(option->get_name(), with + ", not with " + o.algorithm);
  }
}

}  // namespace train
