// SPDX-License-Identifier: Apache-2.0
/// \file
/// The command line. Exit codes: 0 done, 1 a payload was refused or a claim is not kept, 2 anything else, always with one
/// line on standard error that says what was wrong and what would be right.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "atomo/catalogue.hpp"
#include "atomo/own_codec.hpp"
#include "atomo/version.hpp"
#include "commands/commands.hpp"
#include "common/cores.hpp"
#include "tensors/files.hpp"
#include "terminal/failure.hpp"
#include "terminal/table.hpp"

namespace atomo::cli {
namespace {

constexpr std::uint64_t kMaxThreads = 1024;

struct Options {
  CodecsOptions codecs;
  EncodeOptions encode;
  DecodeOptions decode;
  InspectOptions inspect;
  MeasureOptions measure;
  VerifyOptions verify;
  AddOptions add;
  DeltaOptions delta;
  ApplyOptions apply;
  std::string decode_format, decode_dtype = "f32";
};

/// CLI11's help with a usage line that shows the order of the paths.
class CommandHelp : public CLI::Formatter {
 public:
  explicit CommandHelp(std::string usage) : usage_(std::move(usage)) {
    column_width(30);
    label("Positionals", "Paths");
  }
  std::string make_usage(const CLI::App*, std::string) const override {
    return fmt::format("Usage: {}\n", usage_);
  }

 private:
  std::string usage_;
};

/// Accepts decimal integers from `lowest` to the largest the option can hold.
CLI::Validator integer_between(std::uint64_t lowest, std::uint64_t highest) {
  return CLI::Validator(
      [=](std::string& text) {
        std::uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool whole = error == std::errc() && end == text.data() + text.size();
        if (!whole || value < lowest || value > highest) {
          return fmt::format("'{}' is not an integer from {} to {}", text, lowest, highest);
        }
        text = std::to_string(value);  // CLI11 would read a leading 0 as octal
        return std::string();
      },
      "");
}

template <typename T>
CLI::Option* add_integer(CLI::App& command, const std::string& name, T& value, std::uint64_t lowest,
                         const std::string& help,
                         std::uint64_t highest = std::numeric_limits<T>::max()) {
  return command.add_option(name, value, help)
      ->transform(integer_between(lowest, highest))
      ->capture_default_str()
      ->type_name("N");
}

unsigned all_cores() {
  return std::min(programs::usable_cores(), static_cast<unsigned>(kMaxThreads));
}

CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& what,
                      const std::string& arguments) {
  CLI::App* command = app.add_subcommand(name, what);
  command->formatter(
      std::make_shared<CommandHelp>(fmt::format("atomo {} [OPTIONS]{}", name, arguments)));
  return command;
}

/// A path, or several: its place on the command line is in the usage line.
template <typename T>
void add_path(CLI::App& command, const std::string& name, T& value, const std::string& help) {
  command.add_option(name, value, help)->required()->option_text(" ");
}

void add_common(CLI::App& command, bool& json, const std::string& example) {
  command.add_flag("--json", json, "Report as JSON");
  command.footer("Example:\n  " + example);
}

void add_threads(CLI::App& command, unsigned& threads) {
  add_integer(command, "--threads", threads, 1,
              "Threads to work with on the CPU; the bytes never depend on it", kMaxThreads);
}

void add_device(CLI::App& command, Device& device, const std::string& help) {
  command
      .add_option_function<std::string>(
          "--device",
          [&device](const std::string& name) {
            device = name == "cuda" ? Device::cuda : Device::cpu;
          },
          help)
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->option_text("cpu|cuda");
}

void add_codecs(CLI::App& app, Options& options) {
  CLI::App* command =
      add_command(app, "codecs", "List the codecs, their keys and what they promise", "");
  add_common(*command, options.codecs.json, "atomo codecs");
  command->callback([&] { run_codecs(options.codecs); });
}

void add_encode(CLI::App& app, Options& options) {
  EncodeOptions& o = options.encode;
  o.threads = all_cores();
  CLI::App* command =
      add_command(app, "encode", "Encode tensors into a container", " --codec SPEC IN... OUT");
  command->add_option("--codec", o.codec, "What to encode with; see atomo codecs")
      ->required()
      ->type_name("SPEC");
  // Not required here: run_encode says which of the two is missing.
  command
      ->add_option("PATHS", o.paths,
                   "The .npy, .npz or .safetensors files of one model, then OUT; '-' is a pipe")
      ->option_text(" ");
  const std::string key = "Randomness";
  add_integer(*command, "--seed", o.key.seed, 0, "Seed of every draw")->group(key);
  add_integer(*command, "--step", o.key.step, 0, "Number of the training step")->group(key);
  add_integer(*command, "--worker", o.key.worker, 0, "Number of the worker")->group(key);
  command->add_flag("--without-names", o.without_names,
                    "Leave the tensors' names out, as between workers");
  add_device(
      *command, o.device,
      "Where to encode, by default cpu; the bytes are the same. A lossless stage runs on the "
      "CPU, after the copy");
  add_threads(*command, o.threads);
  add_common(*command, o.json,
             "atomo encode --codec atomo:bits=0.5 --seed 1 grads.safetensors grads.atomo");
  command->callback([&] { run_encode(o); });
}

void add_decode(CLI::App& app, Options& options) {
  DecodeOptions& o = options.decode;
  o.threads = all_cores();
  CLI::App* command = add_command(app, "decode", "Decode a container into tensors", " IN OUT");
  add_path(*command, "IN", o.input, "The container; '-' is a pipe");
  add_path(*command, "OUT", o.output,
           "A .npy (for one tensor), .npz or .safetensors file; '-' is a pipe");
  command
      ->add_option("--format", options.decode_format,
                   "Format of OUT, by default what its extension says; on a pipe npy for one "
                   "tensor, else npz")
      ->check(CLI::IsMember({"npy", "npz", "safetensors"}))
      ->option_text("npy|npz|safetensors");
  command
      ->add_option("--dtype", options.decode_dtype,
                   "Elements to write, by default f32; same: as they were encoded; halves are "
                   "rounded stochastically")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "same"}))
      ->option_text("f32|f16|bf16|same");
  add_device(
      *command, o.device,
      "Where to decode, by default cpu; the tensors are the same. Lossless stages are undone "
      "on the CPU, before the copy");
  add_threads(*command, o.threads);
  add_common(*command, o.json, "atomo decode grads.atomo grads.npz");
  command->callback([&options, &o] {
    for (const Format f : {Format::npy, Format::npz, Format::safetensors}) {
      if (options.decode_format == name_of(f)) {
        o.format = f;
      }
    }
    for (const DType t : {DType::f32, DType::f16, DType::bf16}) {
      if (options.decode_dtype == name_of(t)) {
        o.dtype = t;
      }
    }
    run_decode(o);
  });
}

void add_inspect(CLI::App& app, Options& options) {
  InspectOptions& o = options.inspect;
  CLI::App* command =
      add_command(app, "inspect", "Verify a container, or a patch, and show what is in it", " FILE");
  add_path(*command, "FILE", o.input, "The container; '-' is a pipe");
  add_common(*command, o.json, "atomo inspect grads.atomo");
  command->callback([&] { run_inspect(o); });
}

void add_measure(CLI::App& app, Options& options) {
  MeasureOptions& o = options.measure;
  o.threads = all_cores();
  CLI::App* command =
      add_command(app, "measure", "Measure size, error, bias and speed of codecs on tensors",
                  " --codec SPEC [--codec SPEC]... IN...");
  command->add_option("--codec", o.codecs, "A codec to measure; give --codec once for each")
      ->required()
      ->allow_extra_args(false)
      ->type_name("SPEC");
  add_path(
      *command, "IN", o.inputs,
      "The .npy, .npz or .safetensors files of one model; '-' is a pipe; or a folder of captures, "
      "as atomo-train --dump-gradients --every writes them, each a model of its own");
  add_integer(*command, "--draws", o.draws, 1, "Messages to draw; draw d is step d of the seed");
  add_integer(*command, "--seed", o.seed, 0, "Seed of every draw")->group("Randomness");
  command->add_flag("--magnitudes", o.magnitudes,
                    "Also tell the error of large and small entries apart, and how each layer's "
                    "entries are spread; of a folder always");
  command
      ->add_option("--plot", o.plot,
                   "Also draw NMSE against bits a parameter, or with magnitudes the error of each "
                   "and a histogram a layer")
      ->type_name("FILE.png");
  command->add_flag("--without-names", o.without_names,
                    "Count containers without names, as between workers");
  command->add_flag(
      "--fixed-ranks", o.fixed_ranks,
      "Every draw as a first message: sketches look for as many pairs as their shapes "
      "allow, not for as many as the draws before had a use for");
  add_device(*command, o.device,
             "Where to measure, by default cpu; on cuda times are the GPU's own, without copies to "
             "and from the host, and memcpy is a copy in its memory");
  add_integer(*command, "--threads", o.threads, 1,
              "Threads to measure with on the CPU, beside one alone; the bytes never depend on it",
              kMaxThreads);
  add_common(*command, o.json,
             "atomo measure --codec atomo:bits=0.5 --codec qsgd:bits=2 --draws 50 --plot error.png "
             "grads.npz");
  command->callback([&] { run_measure(o); });
}

void add_verify(CLI::App& app, Options& options) {
  VerifyOptions& o = options.verify;
  CLI::App* command =
      add_command(app, "verify", "Look whether a codec, or any two programs, keep what they claim",
                  " --codec SPEC [IN...]");
  command->add_option("--codec", o.codec, "A codec of this library, with the claims of its traits")
      ->type_name("SPEC");
  command
      ->add_option(
          "--encode", o.encode,
          "In place of --codec: a command that reads {input}, a .npy file of f32, and writes "
          "{output}; {key} is a number, {seed}, {step}, {worker} and {tensor} are its parts")
      ->type_name("CMD");
  command
      ->add_option("--decode", o.decode,
                   "Reads a message from {input} and writes {output}, a .npy file of f32")
      ->type_name("CMD");
  command
      ->add_option(
          "--claim", o.claims,
          "What is claimed, once for each, in place of the codec's traits: unbiased, bias-bound=B, "
          "omega=W, contraction=D, largest=L, step=S, smallest=S, highest=H, workers, entries, "
          "fixed-size, "
          "max-bytes=N, average-bytes=N, bits=B (an entry, on average), deterministic, order-free, "
          "non-finite=told|everywhere")
      ->allow_extra_args(false)
      ->type_name("CLAIM");
  command
      ->add_option(
          "IN", o.inputs,
          "More tensors, beside those that the tool makes: .npy, .npz or .safetensors files")
      ->option_text(" ");
  command->add_flag("--only-inputs", o.only_inputs, "Draw of the tensors of IN alone");
  command
      ->add_option("--draws", o.draws,
                   "Messages of a tensor, at least 64; 4096 by default, 128 of commands")
      ->transform(integer_between(64, 1u << 30))
      ->type_name("N");
  command
      ->add_option(
          "--outcomes", o.outcomes,
          "Commands have so many outcomes, equally likely: {key} (and {step}) is 0 to N - 1, each "
          "is drawn once, and nothing is estimated")
      ->transform(integer_between(1, 1u << 30))
      ->type_name("N");
  add_integer(*command, "--seed", o.seed, 0, "Seed of every draw and of the tensors");
  command
      ->add_option("--family-error", o.family_error,
                   "The chance that any check fails though every claim holds")
      ->capture_default_str()
      ->type_name("P");
  command->add_option("--plot", o.plot, "Also draw the bias by magnitude and its band")
      ->type_name("FILE.png");
  command->add_flag("--json", o.json, "Report as JSON");
  command->footer(
      "Exit codes: 0 every claim holds; 1 a claim does not; 2 as everywhere.\n"
      "Example:\n  atomo verify --codec qsgd:bits=4 --plot bias.png grads.npz\n"
      "  atomo verify --encode './enc {input} {output} {key}' --decode './dec {input} {output}' "
      "--claim unbiased");
  command->callback([&] { run_verify(o); });
}

void add_add(CLI::App& app, Options& options) {
  AddOptions& o = options.add;
  CLI::App* command =
      add_command(app, "add", "Add containers of coordinates of one grid step, without decoding",
                  " IN... -o OUT");
  add_path(
      *command, "IN", o.inputs,
      "Containers of the same layers, of atomo:atoms=coordinate at one step (delta=); '-' is a "
      "pipe");
  command
      ->add_option("-o,--output", o.output,
                   "The container of the sum, with the first one's key; '-' is a pipe")
      ->required()
      ->type_name("OUT");
  add_common(*command, o.json, "atomo add worker0.atomo worker1.atomo -o sum.atomo");
  command->callback([&] { run_add(o); });
}

void add_delta(CLI::App& app, Options& options) {
  DeltaOptions& o = options.delta;
  o.threads = all_cores();
  CLI::App* command = add_command(
      app, "delta", "Write how a model's tensors have changed, without loss", " OLD NEW -o PATCH");
  add_path(*command, "OLD", o.before, "The .safetensors file that the receiver has; '-' is a pipe");
  add_path(*command, "NEW", o.after, "The .safetensors file to send; '-' is a pipe");
  command
      ->add_option(
          "-o,--output", o.output,
          "The patch, from which atomo apply makes NEW of OLD, byte for byte; '-' is a pipe")
      ->required()
      ->type_name("PATCH");
  add_threads(*command, o.threads);
  add_common(*command, o.json, "atomo delta step100.safetensors step101.safetensors -o 101.patch");
  command->callback([&] { run_delta(o); });
}

void add_apply(CLI::App& app, Options& options) {
  ApplyOptions& o = options.apply;
  o.threads = all_cores();
  CLI::App* command =
      add_command(app, "apply", "Make a new state of a model from a patch", " OLD PATCH -o NEW");
  add_path(*command, "OLD", o.before,
           "The .safetensors file that the patch was made from; '-' is a pipe");
  add_path(*command, "PATCH", o.patch, "What atomo delta wrote; '-' is a pipe");
  command
      ->add_option("-o,--output", o.output,
                   "The new .safetensors file, which may be OLD; '-' is a pipe")
      ->required()
      ->type_name("NEW");
  add_threads(*command, o.threads);
  add_common(*command, o.json, "atomo apply step100.safetensors 101.patch -o step101.safetensors");
  command->callback([&] { run_apply(o); });
}

void build(CLI::App& app, Options& options) {
  app.name("atomo");
  app.set_version_flag("--version", fmt::format("atomo {} (container format {}.{})", kVersion,
                                                kFormatMajor, kFormatMinor));
  app.get_formatter()->column_width(34);
  app.add_option_function<std::vector<std::string>>(
         "--plugin",
         [](const std::vector<std::string>& files) {
           for (const std::string& file : files) load_codecs(file);
         },
         "A shared object with codecs of your own, for every command; it stands before the "
         "command, "
         "once for each file")
      ->allow_extra_args(false)
      ->type_name("FILE.so");
  app.footer(
      "Exit codes: 0 done; 1 a payload was refused, or a claim is not kept; 2 wrong usage, a path "
      "or a tensor that cannot "
      "be used.\n"
      "Example:\n  atomo encode --codec atomo:bits=0.5 grads.npz grads.atomo && atomo inspect "
      "grads.atomo");
  add_codecs(app, options);
  add_encode(app, options);
  add_decode(app, options);
  add_inspect(app, options);
  add_measure(app, options);
  add_verify(app, options);
  add_add(app, options);
  add_delta(app, options);
  add_apply(app, options);
  app.require_subcommand(1);
}

/// One line for a mistake on the command line, with the help that tells more.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error, int argc,
                          char** argv) {
  const auto commands = app.get_subcommands();
  if (commands.empty()) {
    const std::string accepted =
        "codecs, encode, decode, inspect, measure, verify, add, delta or apply (see atomo --help)";
    const bool is_option = argc > 1 && argv[1][0] == '-';
    return argc < 2 || is_option
               ? fmt::format("a command is needed{}: {}", is_option ? " behind the options" : "",
                             accepted)
               : fmt::format("'{}' is no command; accepted is {}", argv[1], accepted);
  }
  std::string text = error.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return fmt::format("{} (see atomo {} --help)", text, commands.front()->get_name());
}

int complain(const std::string& message, int exit_code) {
  fmt::print(stderr, "atomo: {}\n", printable(message));
  return exit_code;
}

int run(int argc, char** argv) {
  CLI::App app(
      "Compress gradients: encode, decode, inspect, measure, verify and add; send changes of "
      "weights: "
      "delta "
      "and apply");
  Options options;
  build(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const auto commands = app.get_subcommands();
    print(commands.empty() ? app.help() : commands.front()->help(app.get_name()));
  } catch (const CLI::CallForVersion& version) {
    print(std::string(version.what()) + "\n");
  } catch (const CLI::ParseError& error) {
    return complain(usage_message(app, error, argc, argv), kExitInput);
  }
  return 0;
}

}  // namespace
}  // namespace atomo::cli

namespace {

int main_of(int argc, char** argv) {
  using namespace atomo::cli;
  try {
    prepare_process(argv);
    atomo::register_catalogue();
    return run(argc, argv);
  } catch (const PayloadRefused& error) {
    return complain(error.what(), kExitRefused);
  } catch (const std::bad_alloc&) {
    return complain("there is not enough memory for this", kExitInput);
  } catch (const std::exception& error) {
    return complain(error.what(), kExitInput);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int status = main_of(argc, argv);
  // Nothing waits for threads of libraries, which may wait for memory that never comes.
  std::fflush(nullptr);
  std::_Exit(status);
}
