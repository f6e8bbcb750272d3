// SPDX-License-Identifier: Apache-2.0
/// \file
/// `atomo add` adds the messages of several containers without decoding them and writes the sum as
/// another container. Only layers of coordinates without a lossless stage can be added, and the
/// first other layer is named in the error. When messages do not fit together, each is tried with
/// the first one to find which to blame.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "atomo/arithmetic.hpp"
#include "atomo/container.hpp"
#include "commands/commands.hpp"
#include "tensors/files.hpp"
#include "tensors/model.hpp"
#include "terminal/failure.hpp"
#include "terminal/table.hpp"

namespace atomo::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Sum {
  Status status = Status::ok;
  Buffer message;
};

Sum sum_of(std::span<const ConstBytes> messages) {
  Buffer workspace(add_workspace_bytes(messages.size()));
  Sum sum{Status::ok, Buffer(added_bytes_bound(messages))};
  std::uint64_t bytes = 0;
  sum.status = add(messages, workspace.span(), {sum.message.data.get(), sum.message.bytes, &bytes});
  sum.message.bytes = failed(sum.status) ? 0 : bytes;
  return sum;
}

/// Only coordinates add: names the first layer that is something else.
void require_coordinates(const ContainerInfo& info, const std::string& label) {
  const std::vector<std::string> names = layer_names(info, label);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const LayerInfo& layer = info.layers[i];
    if (layer.codec == "atomo/coordinate" && !layer.lossless) {
      continue;
    }
    throw PayloadRefused(fmt::format(
        "{}: refused: layer '{}' was encoded with {}{}; only layers of atomo:atoms=coordinate add",
        label, names[i], layer.codec, layer.lossless ? " and a lossless stage" : ""));
  }
}

/// The label of the first message that does not add to the first one.
std::string culprit(std::span<const ConstBytes> messages, const std::vector<std::string>& labels) {
  for (std::size_t k = 1; k < messages.size(); ++k) {
    const ConstBytes two[] = {messages[0], messages[k]};
    if (failed(sum_of(two).status)) {
      return labels[k];
    }
  }
  return "the sum";
}

std::string why(Status status) {
  return status == Status::shape_mismatch
             ? "it has other layers (shape, dtype, name or number) than the first message"
             : std::string(describe(status));
}

void report(const AddOptions& options, const ContainerInfo& info) {
  if (options.json) {
    const Json json{{"output", options.output},
                    {"messages", options.inputs.size()},
                    {"layers", info.layers.size()},
                    {"elements", info.elements()},
                    {"bytes", info.bytes}};
    print(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return;
  }
  print(fmt::format("{}: the sum of {}, {}, {}\n", printable(options.output),
                    counted(options.inputs.size(), "message"), counted(info.layers.size(), "layer"),
                    counted(info.bytes, "byte")));
}

}  // namespace

void run_add(const AddOptions& options) {
  OutputFile out(options.output);
  std::vector<Buffer> files;
  std::vector<ConstBytes> messages;
  std::vector<std::string> labels;
  for (const std::string& path : options.inputs) {
    labels.push_back(input_label(path));
    files.push_back(read_whole(path));
    messages.push_back(files.back().view());
    require_coordinates(inspect_file(files.back(), labels.back()), labels.back());
  }
  const Sum sum = sum_of(messages);
  if (failed(sum.status)) {
    throw PayloadRefused(
        fmt::format("{}: refused: {}", culprit(messages, labels), why(sum.status)));
  }
  const ConstBytes parts[] = {sum.message.view()};
  out.commit(parts);
  if (sum.status != Status::ok) {
    fmt::print(stderr, "atomo: note: {}\n", describe(sum.status));
  }
  if (!out.is_standard_output()) {
    report(options, inspect_file(sum.message, options.output));
  }
}

}  // namespace atomo::cli
