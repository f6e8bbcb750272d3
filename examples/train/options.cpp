// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <CLI/CLI.hpp>
#include <atomo/atomo.hpp>
#include <cmath>
#include <fstream>
#include <numbers>
#include <sstream>

#include "algorithms/algorithms.hpp"
#include "learning/images.hpp"
#include "learning/text.hpp"

namespace train {
namespace {

/// \throws CLI::ValidationError for what does not go with the device.
void check_device(const Options& o) {
  if (!o.on_device()) {
    if (o.cuda_aware_mpi)
      throw CLI::ValidationError("--cuda-aware-mpi", "goes with --device cuda only");
    return;
  }
  if (!find_algorithm(o.algorithm)->on_device) {
    throw CLI::ValidationError(
        "--device",
        "cuda goes with --algorithm allgather only: the others encode parts of a model on the CPU");
  }
  if (!o.dump_gradients.empty())
    throw CLI::ValidationError("--dump-gradients", "works with --device cpu only");
}

constexpr const char* kFooter =
    R"(One process serves and the others train, or with --algorithm allgather or twoshot all train:
  mpirun --oversubscribe -n 5 atomo-train --model lenet --budget 0.5bit --steps 800
  mpirun --oversubscribe -n 4 atomo-train --algorithm allgather --codec qsgd:bits=4
As root add --allow-run-as-root. Ctrl-C, or SIGUSR1 to mpirun, saves a checkpoint (--save) and stops.)";

/// "0.5bit", "0.5bits" or "0.5" -> 0.5
double parse_budget(const std::string& text) {
  std::size_t used = 0;
  double bits = 0;
  try {
    bits = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  const std::string unit = text.substr(used);
  if (used == 0 || !(bits > 0) || !std::isfinite(bits) ||
      (unit != "" && unit != "bit" && unit != "bits")) {
    throw CLI::ValidationError("--budget", "'" + text +
                                               "' is not a positive number of bits a parameter; "
                                               "write for example 0.5bit");
  }
  return bits;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw CLI::ValidationError("--policy", "cannot read '" + path + "'");
  return text.str();
}

void add_algorithm_options(CLI::App& app, Options& o) {
  std::vector<std::string> names;
  for (const auto& algorithm : algorithms()) names.emplace_back(algorithm.name);
  app.add_flag("--list", o.list, "only say which algorithms there are; with --json as an array");
  app.add_option("--algorithm", o.algorithm, "how the processes work together; see --list")
      ->check(CLI::IsMember(names))
      ->capture_default_str();
  app.add_option("--servers", o.servers, "ranks that serve, each some of the layers")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--aggregate", o.aggregate, "gradients that a step waits for (0: of all workers)")
      ->capture_default_str();
  app.add_option("--late", o.late, "what becomes of gradients that come after --aggregate others")
      ->check(CLI::IsMember({"drop", "add"}))
      ->capture_default_str();
  app.add_option("--down", o.down_policy,
                 "codec of the weights' changes on their way back (default: weights as they are)");
  app.add_flag("--double-buffer", o.double_buffer,
               "compute the next gradient while the last one travels: it is a step old");
  app.add_option("--compensation", o.compensation, "lambda of dcasgd")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--adaptive", o.adaptive_compensation,
               "dcasgd: divide lambda by the root of the mean squared gradient");
  app.add_option("--local-steps", o.local_steps, "steps a process takes alone between exchanges")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--outer-optimizer", o.outer_optimizer,
                 "how the mean change of local steps becomes a step")
      ->check(CLI::IsMember({"sgd", "momentum", "adam", "adagrad", "adadelta", "rmsprop"}))
      ->capture_default_str();
  app.add_option("--outer-lr", o.outer_lr, "its learning rate")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--outer-momentum", o.outer_momentum, "its momentum")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

void add_graph_options(CLI::App& app, Options& o) {
  app.add_option("--graph", o.graph,
                 "who talks to whom: ring, double-ring, star, complete, "
                 "random:edges=N, or a topology file (JSON)")
      ->capture_default_str();
  app.add_option("--hosts", o.hosts, "file with the order of the nodes (JSON)")
      ->check(CLI::ExistingFile);
  app.add_option("--period", o.period, "steps between two exchanges over an edge")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--asynchronous", o.asynchronous, "do not wait for neighbours");
  app.add_option("--gossip-step", o.gossip_step, "step of compressed gossip (0: what theory gives)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--codec-scale", o.codec_scale,
                 "factor of what is decoded where differences are sent (0: 1 / (1 + omega))")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

void add_training_options(CLI::App& app, Options& o) {
  app.add_option("--device", o.device,
                 "cuda: compute and encode on a GPU, one a process; with --algorithm allgather")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_flag("--cuda-aware-mpi", o.cuda_aware_mpi,
               "hand MPI the GPU's memory instead of pinned copies");
  app.add_option("--model", o.model,
                 "the network; the transformer predicts text, the others classify images")
      ->check(CLI::IsMember({"logistic", "lenet", "resnet20", "resnet18", "transformer"}))
      ->capture_default_str();
  app.add_option("--data", o.data,
                 "folder of MNIST-like idx files (.gz too) or CIFAR-10 binaries (default: " +
                     std::string(kFashionMnist) +
                     "); for a transformer a text, file or folder (default: " + kCMakeManual + ")");
  app.add_option("--split", o.split, "which worker sees which samples")->capture_default_str();
  app.add_option("--steps", o.steps, "steps of the whole run")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", o.batch, "samples a step and worker")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--optimizer", o.optimizer, "how a gradient becomes a step")
      ->check(CLI::IsMember({"sgd", "adamw"}))
      ->capture_default_str();
  app.add_option("--lr", o.lr, "learning rate of the first step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--schedule", o.schedule, "of the learning rate; cosine ends at 0")
      ->check(CLI::IsMember({"cosine", "constant"}))
      ->capture_default_str();
  app.add_option("--warmup", o.warmup, "steps over which the learning rate rises from 0")
      ->capture_default_str();
  app.add_option("--momentum", o.momentum, "of sgd")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--weight-decay", o.weight_decay, "L2 for sgd, decoupled for adamw")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option(
         "--loss-scale", o.loss_scale,
         "the loss is multiplied by it, and the mean gradient divided, as for half precision")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--loss-scale-from", o.loss_scale_from, "the first step with --loss-scale")
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of weights, data order and every draw of the codecs")
      ->capture_default_str();
  app.add_option("--eval-every", o.eval_every, "test every N steps (0: only at the end)")
      ->capture_default_str();
  app.add_option("--eval-samples", o.eval_samples,
                 "test on the first N samples (0: all); at the end on all")
      ->capture_default_str();
  app.add_flag("--check", o.check, "only say whether the command line is right");
}

void add_fault_options(CLI::App& app, Options& o) {
  app.add_option("--timeout", o.timeout_seconds, "seconds without a sign of life from a process")
      ->check(CLI::Range(0.5, 86400.0))
      ->capture_default_str();
  app.add_option("--retries", o.retries, "further time-outs before a silent process ends the run")
      ->capture_default_str();
  app.add_option("--corrupt-payload-at", o.corrupt_payload_at,
                 "flip a bit of a payload of worker 1")
      ->group("");
  app.add_option("--slow-rank", o.slow_rank, "the rank whose steps are slowed")->group("");
  app.add_option("--slow-factor", o.slow_factor, "by this")->group("");
}

void add_file_options(CLI::App& app, Options& o) {
  app.add_option("--save", o.save, "checkpoint, at the end, on Ctrl-C and with --save-every");
  app.add_option("--save-every", o.save_every, "steps between checkpoints")->needs("--save");
  app.add_option("--stop-at", o.stop_at, "stop (and save) before this step, to be resumed");
  app.add_option("--resume", o.resume, "go on from this checkpoint; every process reads it");
  app.add_flag("--json", o.json, "JSON lines on standard output instead of progress and table");
  app.add_option("--log", o.log, "JSON lines to this file");
  app.add_option("--progress", o.progress,
                 "a line rewritten every step: on a terminal, or always, or never")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  app.add_option("--timeline", o.timeline,
                 "trace of one step (chrome://tracing JSON; text at the end)");
  app.add_option("--dump-gradients", o.dump_gradients,
                 "folder for the gradients of one step, the workers' own and the mean that the "
                 "optimiser gets, .safetensors");
  app.add_option("--at", o.at, "the step of --timeline and --dump-gradients, from 0")
      ->capture_default_str();
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Options o;
  CLI::App app{"Trains a network over MPI processes that exchange compressed gradients."};
  app.footer(kFooter);
  std::string budget, codec, policy;
  auto* choice =
      app.add_option_group("codec", "how gradients travel (default: identity:dtype=f32)");
  choice->add_option("--budget", budget,
                     "bits a parameter at one price for the model, e.g. 0.5bit");
  choice->add_option("--codec", codec, "one codec for every layer, e.g. qsgd:bits=4");
  choice->add_option("--policy", policy, "file of lines 'pattern = codec'")
      ->check(CLI::ExistingFile);
  choice->require_option(0, 1);
  add_algorithm_options(app, o);
  add_graph_options(app, o);
  add_training_options(app, o);
  add_fault_options(app, o);
  add_file_options(app, o);
  try {
    app.parse(argc, argv);
    if (!budget.empty()) {
      parse_budget(budget);
      codec = "atomo:bits=" + budget.substr(0, budget.find('b'));
    }
    if (!codec.empty()) {
      o.codec_label = codec;
      o.policy = "* = " + codec;
      (void)atomo::Codec::parse(codec);
    } else if (!policy.empty()) {
      o.codec_label = "policy " + policy;
      o.policy = read_text(policy);
      (void)atomo::Policy::parse(o.policy);
    }
    if (o.data.empty()) o.data = default_data(o.model);
    check_device(o);
  } catch (const CLI::Success&) {
    o.help = app.help();
  } catch (const std::exception& e) {
    o.error = e.what();
  }
  return o;
}

nlohmann::json Options::fingerprint(int workers) const {
  return {
      {"algorithm", algorithm},
      {"servers", servers},
      {"aggregate", aggregate},
      {"late", late},
      {"down", down_policy},
      {"double-buffer", double_buffer},
      {"compensation", compensation},
      {"adaptive", adaptive_compensation},
      {"local-steps", local_steps},
      {"outer-optimizer", outer_optimizer},
      {"outer-lr", outer_lr},
      {"outer-momentum", outer_momentum},
      {"graph", graph},
      {"period", period},
      {"asynchronous", asynchronous},
      {"gossip-step", gossip_step},
      {"codec-scale", codec_scale},
      {"split", split},
      {"device", device},
      {"model", model},
      {"optimizer", optimizer},
      {"schedule", schedule},
      {"warmup", warmup},
      {"steps", steps},
      {"batch", batch},
      {"lr", lr},
      {"momentum", momentum},
      {"weight-decay", weight_decay},
      {"loss-scale", loss_scale},
      {"loss-scale-from", loss_scale_from},
      {"seed", seed},
      {"policy", policy},
      {"workers", workers},
  };
}

double Options::learning_rate(std::uint32_t step) const {
  const double rise = step < warmup ? (step + 1.0) / warmup : 1.0;
  if (schedule == "constant") return rise * lr;
  return rise * 0.5 * lr * (1 + std::cos(std::numbers::pi * step / steps));
}

}  // namespace train
