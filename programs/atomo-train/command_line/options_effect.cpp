// SPDX-License-Identifier: Apache-2.0
/// \file
/// An option that would change nothing beside the others is refused, with its value and what would be
/// right: who gave it expects something of it. What an algorithm or a group of options knows of its
/// own is checked where they are; here is what one option needs of another.

#include <algorithm>
#include <atomo/atomo.hpp>
#include <string>

#include "command_line/option_groups.hpp"
#include "learning/optimiser.hpp"

namespace train {
namespace {

/// Refuses an option that is asked for where `has_effect` is false.
void need(const CLI::App& app, bool has_effect, const char* name, const std::string& right) {
  if (has_effect || !asks_for(app, name)) return;
  throw CLI::ValidationError(name, "'" + app.get_option(name)->results().front() + "' " + right);
}

/// Whether messages of the codec take part in the one price of a model, so that shares of budgets are theirs.
bool has_budget(const atomo::Codec& codec) {
  constexpr std::int64_t kSide = 64;  // of a layer that any codec takes
  const atomo::Compressor compressor({{"layer", atomo::Shape{kSide, kSide}}},
                                     atomo::Policy::parse("* = " + codec.to_string()));
  return compressor.budget_bytes() > 0;
}

bool any_has_budget(const std::string& policy) {
  const auto parsed = atomo::Policy::parse(policy);
  return std::ranges::any_of(parsed.rules(),
                             [](const auto& rule) { return has_budget(rule.codec); });
}

}  // namespace

void check_effects(const CLI::App& app, const Options& o) {
  need(app, o.aggregate != 0, "--late",
       "needs --aggregate K: without it a step waits for all gradients, and none is late");
  if (o.adaptive_compensation && o.compensation == 0)
    throw CLI::ValidationError("--adaptive", "needs a --compensation above 0, not 0");
  need(app, has_momentum(o.optimizer), "--momentum",
       "goes with --optimizer sgd, nesterov and lars, not with " + o.optimizer);
  need(app, has_momentum(o.outer_optimizer), "--outer-momentum",
       "goes with --outer-optimizer sgd, nesterov and lars, not with " + o.outer_optimizer);
  need(app, o.loss_scale != 1, "--loss-scale-from",
       "needs --loss-scale X: it is the first step with one");
  need(app, o.share_by_rate == 0 || any_has_budget(o.policy), "--share-by-rate",
       "needs a codec with a budget, such as atomo:bits=0.5, not " + o.codec_label);
  need(app, o.own != nullptr || (o.model != "transformer" && o.model != "quadratic"), "--pixels",
       "goes with models of images only, not with " + o.model);
  need(app, !o.json || o.progress != "on", "--progress",
       "goes with lines for people, not with --json");
  need(app, !o.timeline.empty() || !o.dump_gradients.empty(), "--at",
       "needs --timeline FILE or --dump-gradients FOLDER");
  need(app, o.slow_rank.has_value(), "--slow-factor", "needs --slow-rank N");
  for (const char* name : {"--cut-after", "--cut-for"})
    need(app, !o.cut_link.empty(), name, "needs --cut-link N,N");
}

}  // namespace train
