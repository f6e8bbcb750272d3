// SPDX-License-Identifier: Apache-2.0
/// \file
/// The options for codec, data, model and optimiser are declared here with their defaults, accepted
/// values and descriptions. --budget, --codec and --policy only fill a `CodecChoice`, from which
/// options.cpp makes the policy of the run.

#include "command_line/option_groups.hpp"
#include "learning/images.hpp"
#include "learning/model_names.hpp"
#include "learning/optimiser.hpp"
#include "learning/text.hpp"

namespace train {

namespace {

constexpr int kMostThreads = 1024, kLargestImage = 4096;

}  // namespace

bool is_policy_text(const std::string& policy) { return policy.find('=') != std::string::npos; }

void add_codec_options(CLI::App& app, CodecChoice& choice, std::string& plugin) {
  const char* group = kCodecGroup;
  app.add_option("--budget", choice.budget,
                 "bits a parameter at one price for the model, e.g. 0.5bit")
      ->option_text("BITS")
      ->group(group);
  app.add_option("--codec", choice.codec, "one codec for every layer, e.g. qsgd:bits=4")
      ->option_text("CODEC")
      ->group(group);
  app.add_option("--policy", choice.policy, "lines 'pattern = codec', or a file of them")
      ->option_text("POLICY")
      ->group(group);
  app.add_option("--plugin", plugin,
                 "shared object with codecs of your own in C++, loaded by every process")
      ->option_text("FILE.so")
      ->group("Codecs of your own");
}

void add_data_options(CLI::App& app, Options& o) {
  const char* group = "Data";
  app.add_option(
         "--data", o.data,
         "folder of images: MNIST-like idx files (.gz too), CIFAR-10 or CIFAR-100 binaries, SVHN's "
         ".mat files, or train/CLASS/* and test/CLASS/* as PNG, JPEG or PPM (default: " +
             std::string(kFashionMnist) + "); for a transformer a text, file or folder (default: " +
             kCMakeManual + "); for quadratic a JSON file, see README.md")
      ->option_text("PATH")
      ->group(group);
  app.add_option(
         "--pixels", o.pixels,
         "of images: plain are in [0, 1], standardised have mean 0 and deviation 1 a channel")
      ->check(CLI::IsMember({"standardised", "plain"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--image-size", o.image_size,
                 "make images this high and wide: of their central square, each pixel the mean of "
                 "the area it covers (0: as they are)")
      ->check(CLI::Range(0, kLargestImage))
      ->capture_default_str()
      ->group(group);
  app.add_option("--augment", o.augment,
                 "of training images, drawn anew every epoch: crop moves them up to 4 pixels, "
                 "black comes in; flip mirrors half of them; crop,flip does both (default: none)")
      ->option_text("PARTS")
      ->group(group);
  app.add_option("--split", o.split,
                 "which worker sees which samples: iid, classes:k=8,shift=4, dirichlet:alpha=0.5, "
                 "blocks:r=2 or duplicate:r=2; with ,samples=N behind it each worker has N")
      ->option_text("SPLIT")
      ->capture_default_str()
      ->group(group);
  app.add_option("--batch", o.batch, "samples a step and worker")
      ->check(above_zero())
      ->capture_default_str()
      ->group(group);
  app.add_option("--eval-every", o.eval_every, "test every N steps (0: only at the end)")
      ->capture_default_str()
      ->group(group);
  app.add_option("--eval-samples", o.eval_samples,
                 "test on the first N samples (0: all); at the end on all")
      ->capture_default_str()
      ->group(group);
  app.add_option("--test-batch", o.test_batch, "samples that a test computes at once")
      ->check(above_zero())
      ->capture_default_str()
      ->group(group);
}

namespace {

void add_rate_options(CLI::App& app, Options& o, const char* group) {
  app.add_option("--lr", o.lr, "learning rate of the first step")
      ->check(above_zero())
      ->capture_default_str()
      ->group(group);
  app.add_option("--schedule", o.schedule,
                 "of the learning rate; cosine ends at 0, trapezoid falls along a line from the "
                 "share --decay-at to 0, step multiplies by --decay at each share of --decay-at, "
                 "exponential at every step")
      ->check(CLI::IsMember({"cosine", "constant", "trapezoid", "step", "exponential"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--decay", o.decay,
                 "factor of the schedules step (default: 0.1) and exponential (a step, e.g. 0.999)")
      ->check(factor())
      ->group(group);
  app.add_option("--decay-at", o.decay_at,
                 "shares of the run, of the schedule step, or the one of trapezoid")
      ->option_text("SHARES")
      ->capture_default_str()
      ->group(group);
  app.add_option("--warmup", o.warmup, "steps over which the learning rate rises from 0")
      ->capture_default_str()
      ->group(group);
  app.add_option("--momentum", o.momentum, "of sgd, nesterov and lars")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(group);
  app.add_option("--weight-decay", o.weight_decay,
                 "times the weights, joins the gradient; for adamw the step")
      ->check(not_below_zero())
      ->capture_default_str()
      ->group(group);
  app.add_option("--beta1", o.beta1,
                 "decay of the first moment, of adam, adamw, adafactor and muon")
      ->check(decay())
      ->capture_default_str()
      ->group(group);
  app.add_option("--beta2", o.beta2, "decay of the second moment, of the same")
      ->check(decay())
      ->capture_default_str()
      ->group(group);
  app.add_option("--second-moment", o.second_moment,
                 "of adam and adamw, for matrices: own, of the decoded gradients; factored, of row "
                 "and column means of the squares of every worker's own gradient, without the "
                 "codec's noise; scaled, own times a number a layer that takes the noise out of "
                 "its sum; matched, own's direction as long as factored's, to tell one from the "
                 "other; exact, for all layers, of gradients as they were, whose bytes no figure "
                 "counts: an oracle")
      ->check(CLI::IsMember({"own", "factored", "scaled", "matched", "exact"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--squares-every", o.squares_every,
                 "steps from one message about squares to the next")
      ->check(above_zero())
      ->capture_default_str()
      ->group(group);
  app.add_flag(
         "--precondition", o.precondition,
         "gradients are divided by the fourth root of adam's second moment before they are "
         "encoded, and multiplied by it once decoded, so that the codec's error is small where it "
         "would do most harm")
      ->group(group);
  app.add_flag(
         "--rate-in-memory", o.rate_in_memory,
         "gradients are multiplied by what is left of the learning rate before a memory (ef+, "
         "momentum+, dgc+) has them, and divided by it once decoded: what is sent late moves "
         "weights as far as it would have in its own step")
      ->group(group);
  app.add_option(
         "--share-by-rate", o.share_by_rate,
         "budgets (bits=) of each step in proportion to its learning rate to this power, "
         "with the bytes of the whole run as they were; 0.75 is right for plain steps in theory "
         "(0: as much in every step)")
      ->check(CLI::Range(0.0, 4.0))
      ->capture_default_str()
      ->group(group);
  app.add_option("--sparsity-warmup", o.sparsity_warmup,
                 "steps of each of the shares 0.25, 0.0625, 0.015625, ... that a codec's keep= "
                 "begins with, down to its own, as Deep Gradient Compression does for an epoch "
                 "each (0: its own at once)")
      ->capture_default_str()
      ->group(group);
  app.add_flag("--vote", o.vote,
               "of --codec sign: the step goes along the majority of the workers' signs, 0 where "
               "as many say + as -, in place of the mean (signSGD with majority vote); see --lr")
      ->group(group);
  app.add_option("--max-update", o.max_update,
                 "bound on the root mean square of a layer's update by adam and adamw, the rate "
                 "left out (0: none)")
      ->check(not_below_zero())
      ->capture_default_str()
      ->group(group);
  app.add_option("--clip-norm", o.clip_norm,
                 "bound on the norm of each worker's gradient, which is scaled down to it before "
                 "anything is added to it or encoded (0: none)")
      ->check(not_below_zero())
      ->capture_default_str()
      ->group(group);
  app.add_option("--loss-scale", o.loss_scale,
                 "the loss is multiplied by it, and the mean gradient divided, as for half "
                 "precision")
      ->check(above_zero())
      ->capture_default_str()
      ->group(group);
  app.add_option("--loss-scale-from", o.loss_scale_from, "the first step with --loss-scale")
      ->capture_default_str()
      ->group(group);
}

}  // namespace

void add_model_options(CLI::App& app, Options& o) {
  const char* group = "Model and optimiser";
  app.add_option("--model", o.model,
                 "one of " + model_names() +
                     "; mlp takes widths, mlp:hidden=300-100; the transformer "
                     "predicts text, quadratic has an optimum to find, the others classify images")
      ->option_text("MODEL")
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--norm", o.norm,
         "normalisation of vggs, resnets and densenets: batch, or group:N with N channels a "
         "group (default: batch; resnet32 group:8, ecl-resnet32 group:32)")
      ->option_text("NORM")
      ->group(group);
  app.add_option("--device", o.device,
                 "cuda: compute, encode and decode on a GPU, one a process; weights, optimiser, "
                 "told squares and powersgd's factors stay on the host")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--threads", o.threads,
                 "of each process, to encode, also beside back-propagation, and to decode; results "
                 "do not depend on it (0: its part of the cores it may run on)")
      ->check(CLI::Range(0, kMostThreads))
      ->capture_default_str()
      ->group(group);
  app.add_flag("--cuda-aware-mpi", o.cuda_aware_mpi,
               "hand MPI the GPU's memory instead of pinned copies, with --algorithm allgather or "
               "local")
      ->group(group);
  app.add_option("--steps", o.steps, "steps of the whole run")
      ->check(above_zero())
      ->capture_default_str()
      ->group(group);
  app.add_option("--epochs", o.epochs,
                 "in place of --steps: passes over a worker's share of the data, the largest")
      ->check(above_zero())
      ->group(group);
  app.add_option("--label-smoothing", o.label_smoothing,
                 "share of each target that is spread evenly over all classes (0: none)")
      ->check(decay())
      ->capture_default_str()
      ->group(group);
  app.add_option("--optimizer", o.optimizer, "how a gradient becomes a step")
      ->check(CLI::IsMember(optimiser_names()))
      ->capture_default_str()
      ->group(group);
  add_rate_options(app, o, group);
  app.add_option("--init", o.init,
                 "first weights: a checkpoint of whatever run of the model, or a .safetensors file "
                 "with its layers (default: drawn from the seed)")
      ->option_text("FILE")
      ->group(group);
  app.add_option("--seed", o.seed, "of weights, data order and every draw of the codecs")
      ->capture_default_str()
      ->group(group);
}

}  // namespace train
