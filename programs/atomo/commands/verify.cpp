// SPDX-License-Identifier: Apache-2.0
/// \file
/// `atomo verify` looks at what a codec, or a pair of commands, claims (atomo/verify.hpp), prints the
/// report as text or JSON, and draws the bias by magnitude. A claim that is not kept ends the tool with
/// exit code 1.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <utility>

#include "atomo/verify.hpp"
#include "commands/command_subject.hpp"
#include "commands/commands.hpp"
#include "commands/plot.hpp"
#include "tensors/model.hpp"
#include "terminal/failure.hpp"
#include "terminal/progress.hpp"

namespace atomo::cli {
namespace {

using verify::Claims;
using verify::NonFinite;

constexpr const char* kAccepted =
    "unbiased, bias-bound=B, omega=W, contraction=D, largest=L, step=S, smallest=S, highest=H, "
    "workers, entries, "
    "fixed-size, "
    "max-bytes=N, average-bytes=N, bits=B, deterministic, order-free, non-finite=told or "
    "non-finite=everywhere";

[[noreturn]] void refuse_claim(const std::string& text) {
  throw InputError(fmt::format("--claim {}: accepted are {}", text, kAccepted));
}

double number_in(const std::string& text, std::string_view value) {
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size()) {
    refuse_claim(text);
  }
  return number;
}

void add_number(Claims& claims, const std::string& text, std::string_view name, double value) {
  if (name == "bias-bound") {
    claims.bias_bound = value;
  } else if (name == "omega") {
    claims.omega = value;
  } else if (name == "contraction") {
    claims.contraction = value;
  } else if (name == "largest") {
    claims.largest = value;
  } else if (name == "step") {
    claims.step = value;
  } else if (name == "smallest") {
    claims.smallest = value;
  } else if (name == "highest") {
    claims.highest = value;
  } else if (name == "max-bytes" && value >= 0 && value < 0x1p53) {
    claims.max_bytes = [most = static_cast<std::size_t>(value)](const Shape&) { return most; };
  } else if (name == "average-bytes") {
    claims.average_bytes = [value](const verify::Input&) { return value; };
  } else if (name == "bits") {
    claims.average_bytes = [value](const verify::Input& input) {
      return value / 8 * static_cast<double>(input.values.size());
    };
  } else {
    refuse_claim(text);
  }
}

void add_claim(Claims& claims, const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string_view name = std::string_view(text).substr(0, equals);
  if (equals != std::string::npos) {
    const std::string_view value = std::string_view(text).substr(equals + 1);
    if (name == "non-finite" && (value == "told" || value == "everywhere")) {
      claims.non_finite = value == "told" ? NonFinite::told : NonFinite::everywhere;
      return;
    }
    return add_number(claims, text, name, number_in(text, value));
  }
  const std::pair<std::string_view, bool*> flags[] = {
      {"unbiased", &claims.unbiased},           {"workers", &claims.independent_workers},
      {"entries", &claims.independent_entries}, {"fixed-size", &claims.fixed_size},
      {"deterministic", &claims.deterministic}, {"order-free", &claims.order_free}};
  for (const auto& [flag, value] : flags) {
    if (flag == name) {
      *value = true;
      return;
    }
  }
  refuse_claim(text);
}

/// Only what is named.
Claims claims_of(const std::vector<std::string>& texts) {
  Claims claims;
  claims.deterministic = false;
  claims.order_free = false;
  for (const std::string& text : texts) {
    add_claim(claims, text);
  }
  return claims;
}

/// Checked before anything is drawn.
verify::Subject subject_of(const VerifyOptions& options) {
  const bool commands = !options.encode.empty() || !options.decode.empty();
  if (options.codec.empty() == !commands) {
    throw InputError("verify: give --codec SPEC, or --encode CMD and --decode CMD");
  }
  if (!commands) {
    if (options.outcomes != 0) {
      throw InputError("verify: --outcomes is for --encode and --decode");
    }
    const Codec codec = Codec::parse(options.codec);
    require_no_memory(codec);
    return verify::subject_of(codec);
  }
  if (options.encode.empty() || options.decode.empty() || options.claims.empty()) {
    throw InputError(
        "verify: commands need --encode, --decode and what they claim: --claim unbiased");
  }
  return command_subject(options.encode, options.decode, options.outcomes);
}

std::vector<verify::Input> inputs_of(const std::vector<std::string>& paths) {
  std::vector<verify::Input> inputs;
  if (paths.empty()) {
    return inputs;
  }
  for (const Tensor& tensor : read_model(paths)) {
    const Tensor exact = to_f32(tensor);
    std::vector<float> values(exact.shape.elements());
    if (!values.empty()) {
      std::memcpy(values.data(), exact.data.get(), exact.bytes());
    }
    inputs.push_back({tensor.name, tensor.shape, std::move(values)});
  }
  return inputs;
}

std::string failure_of(const verify::Report& report) {
  std::string claims;
  std::size_t failed = 0;
  for (const verify::Check& check : report.checks) {
    if (check.holds) {
      continue;
    }
    ++failed;
    if (claims.find(check.claim) == std::string::npos) {
      claims += (claims.empty() ? "" : ", ") + check.claim;
    }
  }
  return fmt::format("{}: {} of {} checks failed: {}", report.subject, failed, report.checks.size(),
                     claims);
}

}  // namespace

void run_verify(const VerifyOptions& options) {
  const verify::Subject subject = subject_of(options);
  const Claims claims = options.claims.empty() ? verify::claims_of(Codec::parse(options.codec))
                                               : claims_of(options.claims);
  check_plot_path(options.plot);
  std::unique_ptr<OutputFile> plot_file;
  if (!options.plot.empty()) {
    plot_file = std::make_unique<OutputFile>(options.plot);
  }
  verify::Options settings;
  settings.seed = options.seed;
  settings.draws =
      options.draws.value_or(options.codec.empty() ? std::max(128u, options.outcomes) : 4096);
  settings.family_error = options.family_error;
  settings.own_inputs = !options.only_inputs;
  settings.inputs = inputs_of(options.inputs);
  verify::Report report;
  {
    Progress progress("drawing");
    settings.progress = [&](const std::string& name) { progress.set("drawing: " + name); };
    report = verify::run(subject, claims, settings);
    if (plot_file) {
      const Buffer png = draw_plot(report.to_json());
      const std::vector<ConstBytes> parts{png.view()};
      plot_file->commit(parts);
    }
  }
  print(options.json ? report.to_json() : report.to_text());
  if (!report.holds()) {
    throw PayloadRefused(failure_of(report));
  }
}

}  // namespace atomo::cli
