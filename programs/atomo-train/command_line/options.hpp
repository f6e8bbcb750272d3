// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The trainer's command line.

#include <atomo/types.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace train {

struct OwnModel;

/// Everything a run depends on. Every process of a run reads the same command line.
struct Options {
  std::string help;   ///< not empty: it was asked for, and nothing else is set
  std::string error;  ///< not empty: what is wrong with the command line

  std::string job;  ///< text of a job file that repeats the run

  bool check = false;  ///< only say whether the command line is right
  bool list = false;   ///< only say which algorithms there are
  std::string algorithm = "ps";

  // With servers.
  int servers = 1;              ///< ranks that share the layers between them
  std::uint32_t aggregate = 0;  ///< gradients a step waits for; 0: those of all workers
  std::string late = "drop";    ///< what becomes of a gradient that comes after them
  std::string down_policy;      ///< of the weights' way back; empty: uncompressed
  bool double_buffer = false;   ///< compute the next gradient while the last one travels
  double compensation = 0.04;   ///< lambda of DC-ASGD
  bool adaptive_compensation = false;

  // With steps of their own between exchanges.
  std::uint32_t local_steps = 1;
  double outer_lr = 1, outer_momentum = 0;
  std::string outer_optimizer = "sgd";

  // Of low rank.
  std::uint32_t rank = 4;        ///< of the factors
  double min_ratio = 2;          ///< by which a matrix is larger than its factors
  std::uint32_t start_step = 0;  ///< before it gradients are added up as they are
  std::string residual;          ///< codec or policy of what factors leave; empty: a memory

  // Decentralised.
  std::string graph = "ring";         ///< text of a generator, or a topology file
  std::string hosts;                  ///< file with the order of the nodes; empty: the graph's own
  std::uint32_t period = 1;           ///< steps between two exchanges over an edge
  bool asynchronous = false;          ///< do not wait for neighbours
  double gossip_step = 0;             ///< gamma of compressed gossip; 0: what theory gives
  double lazy = 0;                    ///< LAQ's sum of xi; 0: every message is sent
  double codec_scale = 0;             ///< of what is decoded; 0: 1 / (1 + omega)
  std::string on_lost_node = "stop";  ///< or "go-on"

  // Data.
  std::string split = "iid";  ///< which worker sees which samples

  std::uint32_t threads = 0;  ///< that encode and decode; 0: the process's part of the cores
  std::string device = "cpu";
  bool cuda_aware_mpi = false;
  std::optional<int> gpu;  ///< that this process uses, once chosen
  std::string model = "lenet";
  std::string norm;                     ///< of NormSpec; empty: the model's own
  std::string data;                     ///< empty until it is known which the model is for
  std::string pixels = "standardised";  ///< or "plain"
  std::uint32_t image_size = 0;         ///< height and width of images; 0: as they are
  std::string augment;                  ///< parts of Augmentation; empty: images as they are
  double label_smoothing = 0;           ///< share of a target that goes to all classes
  std::string init;                     ///< file of the first weights; empty: drawn from the seed
  std::string policy = "* = identity:dtype=f32";   ///< text of the policy, whichever option gave it
  std::string codec_label = "identity:dtype=f32";  ///< how tables name it
  const OwnModel* own = nullptr;                   ///< in place of --model and --data; not owned
  std::string plugin;  ///< shared object with codecs of one's own; empty: none
  std::string optimizer = "sgd";
  std::string schedule = "cosine";
  double decay = 0;  ///< factor of the schedules step and exponential; 0: not given
  std::string decay_at = "0.5,0.75";  ///< shares of the run, of step and trapezoid
  std::uint32_t warmup = 0;           ///< steps over which the learning rate rises
  std::uint32_t steps = 800;          ///< with epochs, known once the data are
  std::uint32_t epochs = 0;  ///< passes over a worker's share; 0: --steps says how long the run is
  std::uint32_t batch = 32;  ///< of one worker
  double lr = 0.05;
  double momentum = 0.9;
  double weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.999;  ///< of adam, adamw, adafactor and muon
  std::string second_moment = "own";  ///< of adam and adamw; SecondMoment's names
  std::uint32_t squares_every = 10;   ///< steps between the messages that all but "own" need
  /// Gradients are encoded in units of their second moment's fourth root.
  bool precondition = false;
  bool rate_in_memory = false;  ///< gradients are encoded times their step's rate
  bool vote = false;            ///< steps go along the majority of workers' signs
  double max_update = 0;        ///< root mean square of a layer's update; 0: no bound
  double clip_norm = 0;         ///< of a worker's gradient, the loss scale left out; 0: no bound
  double share_by_rate = 0;     ///< power of the rate that budgets follow; 0: they do not
  std::uint32_t sparsity_warmup = 0;  ///< steps of each share of a warm-up; 0: none
  double loss_scale = 1;              ///< the loss's factor from a step on, as in mixed precision
  std::uint32_t loss_scale_from = 0;  ///< that step
  std::uint64_t seed = 1;
  std::uint32_t eval_every = 0;    ///< 0: only after the last step
  std::uint32_t eval_samples = 0;  ///< before the end; 0: the whole test set
  std::uint32_t test_batch = 100;  ///< samples that a test computes at once
  double timeout_seconds = 30;
  std::uint32_t retries = 1;  ///< further time-outs before a silent process ends the run

  std::string out;             ///< folder of what is kept of the run; empty: none
  bool overwrite = false;      ///< whatever run is in it
  bool sample_scores = false;  ///< how each sample of the test was classified, at the end
  std::string save;
  std::uint32_t save_every = 0;
  bool keep_checkpoints = false;  ///< each under a name of its own, too
  std::string resume;
  std::uint32_t stop_at = 0;  ///< 0: run to the last step

  bool json = false;  ///< JSON lines on standard output instead of progress and table
  std::string log;    ///< JSON lines to this file
  std::string progress = "auto";

  std::string timeline;
  std::string dump_gradients;
  std::uint32_t at = 2;     ///< the step that `timeline` and `dump_gradients` record
  std::uint32_t every = 0;  ///< with how many between them `dump_gradients` records more; 0: none

  std::optional<std::uint32_t> corrupt_payload_at;  ///< fault planted by the tests
  std::optional<int> slow_rank;  ///< whose steps take `slow_factor` times as long, by the tests
  double slow_factor = 10;       ///< 1 in the others, once they know who they are
  std::vector<int> cut_link;     ///< two ranks that hear nothing of each other, by the tests,
  double cut_after = 0.5, cut_for = 0;  ///< for so many seconds from so many on

  /// What has to be equal for a checkpoint to go on to the same curve.
  [[nodiscard]] nlohmann::json fingerprint(int workers) const;
  /// The first step to dump among `count` from `step` on, if there is one.
  [[nodiscard]] std::optional<std::uint32_t> dumped(std::uint32_t step,
                                                    std::uint32_t count = 1) const;
  [[nodiscard]] bool on_device() const noexcept { return device == "cuda"; }
  /// Where the run encodes and decodes.
  [[nodiscard]] atomo::Device encodes_on() const noexcept {
    return on_device() ? atomo::Device::cuda : atomo::Device::cpu;
  }
  [[nodiscard]] double learning_rate(std::uint32_t step) const;
  /// What gradients are multiplied by before a memory has them: 1 without --rate-in-memory.
  [[nodiscard]] double rate_in_memory_at(std::uint32_t step) const;
  /// Whether the workers tell each other of their gradients' squares.
  [[nodiscard]] bool has_squares() const noexcept {
    return second_moment != "own" && second_moment != "exact";
  }
  /// Whether they do at a step.
  [[nodiscard]] bool tells_squares(std::uint32_t step) const noexcept {
    return has_squares() && step % squares_every == 0;
  }
  /// By which the messages of a step are encoded.
  [[nodiscard]] std::string policy_at(std::uint32_t step) const;
  /// Gradients of a step are this many times too large until the optimiser has them.
  [[nodiscard]] double gradient_scale(std::uint32_t step) const noexcept {
    return step < loss_scale_from ? 1 : loss_scale;
  }
};

/// Reads the command line. Does not throw: see `help` and `error`. `own`: the model of a program that
/// brings one, which lives as long as the options do.
[[nodiscard]] Options parse_options(int argc, char** argv, const OwnModel* own = nullptr);

}  // namespace train
