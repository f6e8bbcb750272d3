// SPDX-License-Identifier: Apache-2.0
/// \file
/// `parse_options` collects the groups of options, parses the command line and then checks what no
/// single option can know: which codec is meant, what goes with a device, and
/// where the run keeps its files. The learning rate of each step and the fingerprint, which a
/// checkpoint has to match, are computed from the options here too.

#include "command_line/options.hpp"

#include <algorithm>
#include <atomo/atomo.hpp>
#include <cmath>
#include <filesystem>

#include "algorithms/algorithms.hpp"
#include "command_line/job.hpp"
#include "command_line/option_groups.hpp"
#include "files/whole_file.hpp"
#include "learning/augment.hpp"
#include "learning/model_names.hpp"
#include "learning/own_model.hpp"
#include "learning/schedule.hpp"
#include "learning/sparsity_warmup.hpp"
#include "learning/split.hpp"
#include "run/run_folder.hpp"

namespace train {
namespace {

/// \throws CLI::ValidationError for what does not go with the device.
void check_device(const Options& o) {
  if (!o.on_device()) {
    if (o.cuda_aware_mpi)
      throw CLI::ValidationError("--cuda-aware-mpi", "goes with --device cuda only");
    return;
  }
  if (o.cuda_aware_mpi && !find_algorithm(o.algorithm)->gathers_payloads) {
    throw CLI::ValidationError("--cuda-aware-mpi",
                               "goes with --algorithm allgather and local only: messages of " +
                                   o.algorithm + " go through host memory");
  }
}

/// Of a codec of the policy.
bool any_has(bool atomo::Traits::*trait, const std::string& policy) {
  return std::ranges::any_of(
      atomo::Policy::parse(policy).rules(),
      [&](const atomo::Policy::Rule& rule) { return rule.codec.traits().*trait; });
}
bool has_memory(const std::string& policy) { return any_has(&atomo::Traits::memory, policy); }

/// \throws CLI::ValidationError where a memory would have no rates, or a rate would be lost in what it has.
void check_rate_in_memory(const Options& o) {
  if (!has_memory(o.policy) || any_has(&atomo::Traits::differences, o.policy)) {
    throw CLI::ValidationError("--rate-in-memory",
                               "needs a codec with a memory, such as ef+topk:keep=0.01, and none "
                               "of ef21+, not " +
                                   o.codec_label);
  }
  if (o.schedule == "constant")
    throw CLI::ValidationError("--rate-in-memory",
                               "goes with a --schedule whose rate falls, not with constant");
}

/// \throws CLI::ValidationError for a memory where a rank's messages are not all of one thing, sent once
/// a step and added up by those who receive them.
void check_memories(const Options& o) {
  if (!o.down_policy.empty() && has_memory(o.down_policy))
    throw CLI::ValidationError("--down", "a memory (ef+, momentum+, dgc+, ef21+) is a worker's");
  if (o.rate_in_memory) check_rate_in_memory(o);
  if (!has_memory(o.policy)) return;
  if (!find_algorithm(o.algorithm)->gathers_payloads) {
    throw CLI::ValidationError(
        "--codec",
        "a memory (ef+, momentum+, dgc+, ef21+) goes with --algorithm allgather and "
        "local only, not with " +
            o.algorithm);
  }
  if (o.has_squares() && any_has(&atomo::Traits::differences, o.policy)) {
    throw CLI::ValidationError(
        "--second-moment",
        o.second_moment +
            " compares gradients with what their messages decode to, and those of "
            "ef21+ are differences: take own, or ef+");
  }
}

/// \throws CLI::ValidationError where no message is of one step's gradient.
void check_shares(const Options& o) {
  constexpr const char* kOfGradients[] = {"allgather", "ps", "asgd", "dcasgd", "difference"};
  if (o.share_by_rate > 0 &&
      std::ranges::find(kOfGradients, o.algorithm) == std::end(kOfGradients)) {
    throw CLI::ValidationError(
        "--share-by-rate",
        "goes with --algorithm allgather, ps, asgd, dcasgd and difference, not with " +
            o.algorithm);
  }
}

Schedule schedule_of(const Options& o) {
  return {.name = o.schedule,
          .rate = o.lr,
          .warmup = o.warmup,
          .steps = o.steps,
          .decay = o.decay,
          .decay_at = parse_decay_at(o.decay_at)};
}

constexpr double kUsualDecay = 0.1;  // of the schedule step

constexpr const char* kFooter =
    R"(One process serves and the others train, or with --algorithm allgather or twoshot all train:
  mpirun --oversubscribe -n 5 atomo-train --model lenet --budget 0.5bit --steps 800
  mpirun --oversubscribe -n 4 atomo-train --algorithm allgather --codec qsgd:bits=4
As root add --allow-run-as-root.
Ctrl-C, or SIGUSR1 to mpirun, saves a checkpoint (--save, --out) and stops.
Several runs in one plot: atomo-train plot RUN...; see atomo-train plot --help.)";

/// \throws CLI::ValidationError for what no optimiser but Adam's has.
void check_second_moment(const CLI::App& app, const Options& o) {
  const bool squares = o.has_squares();
  const bool is_adam = o.optimizer == "adam" || o.optimizer == "adamw";
  const auto refuse_for = [&](const char* name, const char* right) {
    throw CLI::ValidationError(
        name, std::string("goes with --optimizer ") + right + ", not with " + o.optimizer);
  };
  const bool own = o.second_moment == "own";
  if (!own && !is_adam) refuse_for("--second-moment", "adam and adamw");
  if (o.algorithm == "powersgd" && o.second_moment == "exact")
    throw CLI::ValidationError("--second-moment",
                               "exact goes with --algorithm allgather only, not with powersgd");
  if (squares && !o.residual.empty())
    throw CLI::ValidationError("--second-moment",
                               o.second_moment +
                                   " of powersgd is told of its factors, not of what --residual "
                                   "sends: take own, or leave --residual out");
  if (o.max_update > 0 && !is_adam) refuse_for("--max-update", "adam and adamw");
  if (!is_adam && o.optimizer != "adafactor" && o.optimizer != "muon") {
    for (const char* name : {"--beta1", "--beta2"})
      if (asks_for(app, name)) refuse_for(name, "adam, adamw, adafactor and muon");
  }
  if (!squares && asks_for(app, "--squares-every"))
    throw CLI::ValidationError("--squares-every",
                               "goes with --second-moment factored, scaled and matched only");
  if (o.precondition && !is_adam) refuse_for("--precondition", "adam and adamw");
}

/// \throws CLI::ValidationError where no codec keeps a share.
void check_sparsity_warmup(const Options& o) {
  try {
    (void)o.policy_at(0);
  } catch (const std::exception& e) {
    throw CLI::ValidationError("--sparsity-warmup", e.what());
  }
}

/// \throws CLI::ValidationError where not all layers are sent as signs, or bits cannot be counted.
void check_vote(const Options& o) {
  if (!o.vote) return;
  if (o.loss_scale != 1) throw CLI::ValidationError("--vote", "a majority has no --loss-scale");
  const auto policy = atomo::Policy::parse(o.policy);
  for (const auto& rule : policy.rules()) {
    const atomo::Traits& traits = rule.codec.traits();
    if (traits.votes && !traits.memory) continue;
    throw CLI::ValidationError("--vote", "needs layers of sign alone, not of " +
                                             rule.codec.to_string() + ": give --codec sign");
  }
}

/// \throws CLI::ValidationError where changes of gradients and of weights cannot be compared.
void check_lazy(const Options& o) {
  if (o.lazy == 0) return;
  if (o.loss_scale != 1)
    throw CLI::ValidationError("--lazy", "compares gradients with weights: no --loss-scale");
}

/// \throws CLI::ValidationError for what does not go with a schedule. Sets the factor of `step`.
void check_schedule(const CLI::App& app, Options& o) {
  const bool falls = o.schedule == "step" || o.schedule == "exponential";
  if (o.schedule == "exponential" && o.decay == 0) {
    throw CLI::ValidationError("--schedule",
                               "exponential needs --decay X, the factor a step, e.g. 0.999");
  }
  if (!falls && asks_for(app, "--decay")) {
    throw CLI::ValidationError("--decay",
                               "goes with --schedule step and exponential, not with " + o.schedule);
  }
  const bool trapezoid = o.schedule == "trapezoid";
  if (o.schedule != "step" && !trapezoid && asks_for(app, "--decay-at")) {
    throw CLI::ValidationError("--decay-at",
                               "goes with --schedule step and trapezoid, not with " + o.schedule);
  }
  try {
    const bool one = parse_decay_at(o.decay_at).size() == 1;
    if (trapezoid && !one) {
      throw std::runtime_error("'" + o.decay_at +
                               "' is not one share of the run, from which on a trapezoid falls to "
                               "0; write for example 0.5");
    }
  } catch (const std::exception& e) {
    throw CLI::ValidationError("--decay-at", e.what());
  }
  if (o.schedule == "step" && o.decay == 0) o.decay = kUsualDecay;
  if (app.get_option("--epochs")->count() != 0 && app.get_option("--steps")->count() != 0)
    throw CLI::ValidationError("--epochs", "take one of --epochs and --steps");
}

/// \throws CLI::ValidationError for a model that there is not, or has not this normalisation.
void check_model(const Options& o) {
  const char* option = "--model";
  try {
    const auto spec = ModelSpec::parse(o.model);
    option = "--norm";
    (void)NormSpec::parse(o.norm, spec);
  } catch (const std::exception& e) {
    throw CLI::ValidationError(option, e.what());
  }
}

/// \throws CLI::ValidationError for what does not go with the model's samples.
void check_samples(const CLI::App& app, const Options& o) {
  if (o.own != nullptr) return;
  const bool has_classes = o.model != "quadratic";
  if (!o.augment.empty() && (!has_classes || o.model == "transformer")) {
    throw CLI::ValidationError("--augment", "goes with models of images only, not with " + o.model);
  }
  try {
    (void)Augmentation::parse(o.augment);
  } catch (const std::exception& e) {
    throw CLI::ValidationError("--augment", e.what());
  }
  if (o.image_size != 0 && (!has_classes || o.model == "transformer")) {
    throw CLI::ValidationError("--image-size",
                               "goes with models of images only, not with " + o.model);
  }
  if (o.sample_scores && (!has_classes || o.model == "transformer")) {
    throw CLI::ValidationError("--sample-scores",
                               "goes with models of images only, not with " + o.model);
  }
  if (o.label_smoothing > 0 && !has_classes) {
    throw CLI::ValidationError("--label-smoothing",
                               "goes with models that predict classes, not with " + o.model);
  }
  if (!o.resume.empty() && is_given(app, "--init"))
    throw CLI::ValidationError("--init", "leave it out: --resume has weights of its own");
}

/// \throws CLI::ValidationError for an option that the program's model takes the place of.
void take_own_model(const CLI::App& app, const OwnModel& own, Options& o) {
  for (const char* name : kModelOptions) {
    if (is_given(app, name))
      throw CLI::ValidationError(name, "leave it out: the program brings a model and data");
  }
  if (!own.optimiser.empty()) {
    if (is_given(app, "--optimizer"))
      throw CLI::ValidationError("--optimizer", "leave it out: the program brings one");
    if (asks_for(app, "--weight-decay"))
      throw CLI::ValidationError("--weight-decay", "leave it out: the program's optimizer has one");
    o.optimizer = own.optimiser;
  }
  if (o.on_lost_node == "go-on")
    throw CLI::ValidationError("--on-lost-node", "go-on goes with the models of atomo-train alone");
  o.own = &own;
  o.model = own.name;
  o.data = own.data;
}

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

void add_options(CLI::App& app, Options& o, CodecChoice& choice) {
  add_algorithm_options(app, o);
  add_server_options(app, o);
  add_local_step_options(app, o);
  add_low_rank_options(app, o);
  add_graph_options(app, o);
  add_codec_options(app, choice, o.plugin);
  add_data_options(app, o);
  add_model_options(app, o);
  add_checkpoint_options(app, o);
  add_output_options(app, o);
  add_fault_options(app, o);
  check_numbers(app);
}

/// How tables name what PowerSGD sends, and the policy of its messages. \throws atomo::Error
void choose_residual(Options& o) {
  o.codec_label = "rank=" + std::to_string(o.rank);
  if (o.residual.empty()) return;
  (void)atomo::Policy::parse(o.residual);
  o.policy = o.residual;
  const bool has_rules = o.residual.find_first_of(" \n;") != std::string::npos;
  o.codec_label += "+" + (has_rules ? "policy" : o.residual);
}

/// Fills in the policy. \throws CLI::ValidationError, atomo::Error for what cannot be read.
void choose_codec(CodecChoice choice, Options& o) {
  if (!choice.budget.empty() + !choice.codec.empty() + !choice.policy.empty() > 1)
    throw CLI::ValidationError("--codec", "take one of --budget, --codec and --policy");
  if (!choice.budget.empty()) {
    parse_budget(choice.budget);
    choice.codec = "atomo:bits=" + choice.budget.substr(0, choice.budget.find('b'));
  }
  if (!choice.codec.empty()) {
    o.codec_label = choice.codec;
    o.policy = "* = " + choice.codec;
    (void)atomo::Codec::parse(choice.codec);
  } else if (!choice.policy.empty()) {
    const bool is_text = is_policy_text(choice.policy);
    o.codec_label = is_text ? "policy" : "policy " + choice.policy;
    o.policy = is_text ? choice.policy : read_whole_file(choice.policy);
    (void)atomo::Policy::parse(o.policy);
  }
}

/// Where what is kept goes. \throws CLI::ValidationError for what has no place, or two.
void choose_places(const CLI::App& app, Options& o) {
  const auto given = [&](const char* name) { return app.get_option(name)->count() != 0; };
  if (!o.out.empty()) {
    for (const char* name : {"--save", "--log"}) {
      if (given(name))
        throw CLI::ValidationError(name, "leave it out: --out keeps it in its folder");
    }
    o.save = o.out + "/" + kCheckpointName;
  }
  if (o.overwrite && o.out.empty()) throw CLI::ValidationError("--overwrite", "needs --out FOLDER");
  if (o.sample_scores && o.out.empty())
    throw CLI::ValidationError("--sample-scores", "needs --out FOLDER");
  // A job may say how often to save wherever there is a place.
  if (o.save_every != 0 && o.save.empty() && !given("--job"))
    throw CLI::ValidationError("--save-every", "needs --save FILE or --out FOLDER");
  if (o.keep_checkpoints && o.save_every == 0)
    throw CLI::ValidationError("--keep-checkpoints", "needs --save-every N");
  if (o.every != 0 && o.dump_gradients.empty())
    throw CLI::ValidationError("--every", "needs --dump-gradients FOLDER");
  if (std::filesystem::is_directory(o.resume)) o.resume += std::string("/") + kCheckpointName;
}

}  // namespace

Options parse_options(int argc, char** argv, const OwnModel* own) {
  Options o;
  CodecChoice choice;
  CLI::App app{"Trains a network over MPI processes that exchange compressed gradients."};
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(kFooter);
  app.get_help_ptr()->description("print this and stop")->group("Algorithm");
  add_options(app, o, choice);
  app.config_formatter(std::make_shared<JobReader>(app));
  try {
    atomo::register_catalogue();
    app.parse(argc, argv);
    if (!o.plugin.empty()) atomo::load_codecs(o.plugin);
    if (own != nullptr) take_own_model(app, *own, o);
    check_algorithm_options(app, o);
    choose_codec(choice, o);
    if (o.algorithm == "powersgd") choose_residual(o);
    (void)SplitSpec::parse(o.split);
    if (!o.down_policy.empty()) (void)atomo::Policy::parse(o.down_policy);
    if (own == nullptr) check_model(o);
    if (o.data.empty() && own == nullptr) o.data = default_data(o.model);
    if (o.data.empty() && own == nullptr)
      throw CLI::ValidationError("--data", "--model " + o.model + " needs a file of its own");
    check_device(o);
    check_memories(o);
    check_second_moment(app, o);
    check_vote(o);
    check_sparsity_warmup(o);
    check_lazy(o);
    check_schedule(app, o);
    check_shares(o);
    check_samples(app, o);
    check_effects(app, o);
    choose_places(app, o);
    o.job = write_job(app, o);
  } catch (const CLI::Success&) {
    o.help = app.help();
  } catch (const std::exception& e) {
    o.error = e.what();
    o.check = app.get_option("--check")->count() != 0;  // a job's error comes before its callback
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
      {"rank", rank},
      {"min-ratio", min_ratio},
      {"start-step", start_step},
      {"residual", residual},
      {"graph", is_graph_file(graph) ? read_whole_file(graph) : graph},
      {"hosts", hosts.empty() ? "" : read_whole_file(hosts)},
      {"period", period},
      {"asynchronous", asynchronous},
      {"gossip-step", gossip_step},
      {"codec-scale", codec_scale},
      {"lazy", lazy},
      {"split", split},
      {"pixels", pixels},
      {"image-size", image_size},
      {"augment", augment},
      {"label-smoothing", label_smoothing},
      {"device", device},
      {"model", model},
      {"norm", norm},
      {"data", data},
      {"optimizer", optimizer},
      {"schedule", schedule},
      {"decay", decay},
      {"decay-at", decay_at},
      {"warmup", warmup},
      {"steps", steps},
      {"batch", batch},
      {"lr", lr},
      {"momentum", momentum},
      {"weight-decay", weight_decay},
      {"beta1", beta1},
      {"beta2", beta2},
      {"second-moment", second_moment},
      {"squares-every", squares_every},
      {"precondition", precondition},
      {"rate-in-memory", rate_in_memory},
      {"vote", vote},
      {"max-update", max_update},
      {"clip-norm", clip_norm},
      {"share-by-rate", share_by_rate},
      {"sparsity-warmup", sparsity_warmup},
      {"loss-scale", loss_scale},
      {"loss-scale-from", loss_scale_from},
      {"seed", seed},
      {"policy", policy},
      {"workers", workers},
  };
}

std::string Options::policy_at(std::uint32_t step) const {
  return sparsity_warmup == 0 ? policy : warmed_up(policy, step / sparsity_warmup);
}

std::optional<std::uint32_t> Options::dumped(std::uint32_t step, std::uint32_t count) const {
  if (dump_gradients.empty()) return std::nullopt;
  std::uint64_t next = at;
  if (step > at) {
    if (every == 0) return std::nullopt;
    next += (std::uint64_t{step} - at + every - 1) / every * every;
  }
  if (next - step >= count) return std::nullopt;
  return static_cast<std::uint32_t>(next);
}

double Options::learning_rate(std::uint32_t step) const { return schedule_of(*this)(step); }

double Options::rate_in_memory_at(std::uint32_t step) const {
  constexpr double kLeast = 1.0 / 1024;
  return rate_in_memory ? std::max(schedule_of(*this).left(step), kLeast) : 1;
}

}  // namespace train
