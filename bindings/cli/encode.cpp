// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "atomo/compressor.hpp"
#include "commands.hpp"
#include "failure.hpp"
#include "files.hpp"
#include "model.hpp"
#include "progress.hpp"
#include "table.hpp"

namespace atomo::cli {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> inputs_of(const EncodeOptions& options) {
  if (options.paths.size() < 2) {
    throw InputError("encode needs IN and OUT, e.g. atomo encode --codec sign g.npy g.atomo");
  }
  if (has_tensor_extension(options.paths.back())) {
    throw InputError(fmt::format(
        "{}: the last path is the output, a container such as g.atomo; give IN before OUT",
        options.paths.back()));
  }
  return {options.paths.begin(), options.paths.end() - 1};
}

/// What a successful status has to say, empty for plain success.
void note(Status status) {
  if (status != Status::ok) {
    fmt::print(stderr, "atomo: note: {}\n", describe(status));
  }
}

}  // namespace

void run_encode(const EncodeOptions& options) {
  const std::vector<std::string> inputs = inputs_of(options);
  const Codec codec = Codec::parse(options.codec);
  OutputFile out(options.paths.back());
  Progress progress("reading");
  const std::vector<Tensor> tensors = read_model(inputs);
  Compressor model(layer_specs(tensors), Policy(codec), {.names_on_wire = !options.without_names});
  progress.set(
      fmt::format("encoding {} elements by {}", grouped(model.elements()), codec.to_string()));

  Scratch scratch(model.workspace_bytes(), options.threads);
  Buffer message(model.max_encoded_bytes());
  std::uint64_t bytes = 0;
  const Status status =
      model.encode(views_of(tensors), options.key, {message.data.get(), message.bytes, &bytes},
                   scratch.context());
  if (failed(status)) {
    throw InputError(
        fmt::format("{} could not encode this: {}", codec.to_string(), describe(status)));
  }
  progress.set("writing");
  const std::vector<ConstBytes> parts{message.view().first(bytes)};
  out.commit(parts);
  note(status);

  const double bits = bits_per_parameter(static_cast<double>(bytes), model.elements());
  const bool to_pipe = out.is_standard_output();
  if (options.json) {
    const Json report{{"output", options.paths.back()},
                      {"codec", codec.to_string()},
                      {"tensors", tensors.size()},
                      {"elements", model.elements()},
                      {"bytes", bytes},
                      {"bits_per_parameter", bits},
                      {"status", describe(status)}};
    const std::string text = report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    to_pipe ? fmt::print(stderr, "{}", text) : print(text);
  } else if (!to_pipe) {
    print(fmt::format("{}: {}, {}, {}, {} bits a parameter\n", printable(options.paths.back()),
                      counted(tensors.size(), "tensor"), counted(model.elements(), "element"),
                      counted(bytes, "byte"), significant(bits)));
  }
}

}  // namespace atomo::cli
