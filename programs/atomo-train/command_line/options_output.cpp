// SPDX-License-Identifier: Apache-2.0
/// \file
/// The options for checkpoints, for the files that a run writes and for faults are declared here
/// with their defaults and descriptions. Three options let the tests damage a payload or slow a
/// process down; they are hidden from --help.

#include "command_line/option_groups.hpp"

namespace train {

void add_checkpoint_options(CLI::App& app, Options& o) {
  const char* group = "Checkpoints";
  app.add_option("--save", o.save, "checkpoint, at the end, on Ctrl-C and with --save-every")
      ->option_text("FILE")
      ->group(group);
  app.add_option("--save-every", o.save_every, "steps between checkpoints (0: none between)")
      ->capture_default_str()
      ->group(group);
  app.add_flag("--keep-checkpoints", o.keep_checkpoints,
               "keep each of them too, as FILE with -stepN before its ending")
      ->group(group);
  app.add_option("--stop-at", o.stop_at, "stop (and save) before this step, to be resumed")
      ->group(group);
  app.add_option(
         "--resume", o.resume,
         "go on from this checkpoint, or that of a folder of --out; every process reads it, and "
         "refuses one that is damaged")
      ->option_text("PATH")
      ->group(group);
}

void add_output_options(CLI::App& app, Options& o) {
  const char* group = "What is written";
  app.add_option("--out", o.out, "all there is of the run: job, log, tables, checkpoint, plot")
      ->option_text("FOLDER")
      ->group(group);
  app.add_flag("--sample-scores", o.sample_scores,
               "in --out, at the end: target, prediction and its probability of each test sample")
      ->group(group);
  app.add_flag("--overwrite", o.overwrite, "even if --out holds another run")->group(group);
  app.add_flag("--json", o.json, "JSON lines on standard output instead of progress and table")
      ->group(group);
  app.add_option("--log", o.log, "JSON lines to this file")->option_text("FILE")->group(group);
  app.add_option("--progress", o.progress,
                 "a line rewritten every step: on a terminal, or always, or never")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--timeline", o.timeline,
                 "trace of one step (chrome://tracing JSON; text at the end)")
      ->option_text("FILE")
      ->group(group);
  app.add_option("--dump-gradients", o.dump_gradients,
                 "the gradients of a step, the workers' own and the mean that the optimiser "
                 "gets, .safetensors; atomo measure takes the folder")
      ->option_text("FOLDER")
      ->group(group);
  app.add_option("--at", o.at, "the step of --timeline and --dump-gradients, from 0")
      ->capture_default_str()
      ->group(group);
  app.add_option("--every", o.every, "also the gradients of every N-th step behind it (0: none)")
      ->capture_default_str()
      ->group(group);
}

void add_fault_options(CLI::App& app, Options& o) {
  const char* group = "Faults";
  app.add_option("--timeout", o.timeout_seconds, "seconds without a sign of life from a process")
      ->check(CLI::Range(0.5, 86400.0))
      ->capture_default_str()
      ->group(group);
  app.add_option("--retries", o.retries, "further time-outs before a silent process ends the run")
      ->capture_default_str()
      ->group(group);
  app.add_option("--corrupt-payload-at", o.corrupt_payload_at,
                 "flip a bit of a payload of worker 1")
      ->group("");
  app.add_option("--slow-rank", o.slow_rank, "the rank whose steps are slowed")->group("");
  app.add_option("--slow-factor", o.slow_factor, "by this")->group("");
  app.add_option("--cut-link", o.cut_link, "two ranks between which messages are held up")
      ->delimiter(',')
      ->expected(2)
      ->group("");
  app.add_option("--cut-after", o.cut_after, "from so many seconds after the start on")->group("");
  app.add_option("--cut-for", o.cut_for, "for so many seconds")->group("");
}

}  // namespace train
