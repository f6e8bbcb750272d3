// SPDX-License-Identifier: Apache-2.0
/// \file
/// `atomo inspect` verifies a container's checksums and prints its key, price and size and a row
/// for each layer, as text or as JSON. No layer is decoded for this. Of a patch (`atomo delta`) it
/// shows what changed.
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "atomo/container.hpp"
#include "commands/commands.hpp"
#include "tensors/files.hpp"
#include "tensors/model.hpp"
#include "terminal/table.hpp"

namespace atomo::cli {
namespace {

using Json = nlohmann::ordered_json;

double bits_of(std::uint64_t bytes, std::uint64_t elements) {
  return bits_per_parameter(static_cast<double>(bytes), elements);
}

Json to_json(const LayerInfo& layer, const std::string& name) {
  const std::uint64_t elements = layer.shape.elements();
  return {{"name", name},
          {"codec", layer.codec},
          {"dtype", name_of(layer.dtype)},
          {"shape", layer.shape.dims()},
          {"elements", elements},
          {"price", layer.price},
          {"atoms", layer.atoms},
          {"kept", layer.kept},
          {"bytes", layer.bytes},
          {"bits_per_parameter", bits_of(layer.bytes, elements)},
          {"lossless", layer.lossless},
          {"non_finite", layer.non_finite}};
}

std::string json_report(const ContainerInfo& info, const std::vector<std::string>& names,
                        const std::string& path) {
  Json layers = Json::array();
  for (std::size_t i = 0; i < names.size(); ++i) {
    layers.push_back(to_json(info.layers[i], names[i]));
  }
  const Json json{{"file", path},
                  {"format", fmt::format("{}.{}", info.major, info.minor)},
                  {"key",
                   {{"seed", info.key.seed},
                    {"step", info.key.step},
                    {"tensor", info.key.tensor},
                    {"worker", info.key.worker},
                    {"channel", info.key.channel}}},
                  {"price", info.prices.atoms},
                  {"grid_step", info.prices.grid},
                  {"bytes", info.bytes},
                  {"head_bytes", info.head_bytes},
                  {"elements", info.elements()},
                  {"bits_per_parameter", bits_of(info.bytes, info.elements())},
                  {"checksums", "verified"},
                  {"layers", layers}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// A price of 0 means that the layer has none.
std::string price_text(float price) {
  return significant(price == 0 ? std::numeric_limits<double>::quiet_NaN()
                                : static_cast<double>(price));
}

std::string note_of(const LayerInfo& layer) {
  std::string text = layer.non_finite ? "non-finite: decodes to NaN" : "";
  if (layer.lossless) {
    text += text.empty() ? "lossless stage" : ", lossless stage";
  }
  return text;
}

std::string text_report(const ContainerInfo& info, const std::vector<std::string>& names,
                        const std::string& label) {
  std::string text = fmt::format(
      "{}: atomo container, format {}.{}, checksums verified\n"
      "key: seed {}, step {}, worker {}, channel {}, first tensor {}\n"
      "price: {}   grid step: {}\n"
      "{}, {}, {} ({} of them head), {} bits a parameter\n\n",
      printable(label), info.major, info.minor, info.key.seed, info.key.step, info.key.worker,
      info.key.channel, info.key.tensor, price_text(info.prices.atoms),
      price_text(info.prices.grid), counted(info.layers.size(), "layer"),
      counted(info.elements(), "element"), counted(info.bytes, "byte"), grouped(info.head_bytes),
      significant(bits_of(info.bytes, info.elements())));
  using Align = Table::Align;
  Table table({{"layer", Align::left},
               {"codec", Align::left},
               {"dtype", Align::left},
               {"shape", Align::left},
               {"price", Align::right},
               {"atoms", Align::right},
               {"kept", Align::right},
               {"bytes", Align::right},
               {"bits", Align::right},
               {"notes", Align::left}});
  for (std::size_t i = 0; i < names.size(); ++i) {
    const LayerInfo& layer = info.layers[i];
    table.add({printable(names[i]), printable(layer.codec), std::string(name_of(layer.dtype)),
               layer.shape.to_string(), price_text(layer.price),
               layer.atoms == 0 ? "-" : grouped(layer.atoms),
               layer.atoms == 0 ? "-" : grouped(layer.kept), grouped(layer.bytes),
               significant(bits_of(layer.bytes, layer.shape.elements())), note_of(layer)});
  }
  return text + table.render();
}

}  // namespace

void run_inspect(const InspectOptions& options) {
  const std::string label = input_label(options.input);
  const Buffer file = read_whole(options.input);
  if (is_patch(file.view())) {
    print(describe_patch(file.view(), options.input, options.json));
    return;
  }
  const ContainerInfo info = inspect_file(file, label);
  const std::vector<std::string> names = layer_names(info, label);
  print(options.json ? json_report(info, names, options.input) : text_report(info, names, label));
}

}  // namespace atomo::cli
