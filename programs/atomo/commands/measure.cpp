// SPDX-License-Identifier: Apache-2.0
/// \file
/// `atomo measure` measures several codecs on the same tensors and prints a row of size, error,
/// bias and speed for each, as a table or as JSON; --plot draws the rows as a PNG. Wrong specs, a
/// missing GPU and a plot that cannot be drawn or written are reported before the first
/// measurement.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands/commands.hpp"
#include "commands/measurement.hpp"
#include "commands/plot.hpp"
#include "device/device.hpp"
#include "tensors/model.hpp"
#include "terminal/failure.hpp"
#include "terminal/progress.hpp"
#include "terminal/table.hpp"

namespace atomo::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Row {
  std::string spec;
  std::string canonical;
  Measurement measurement;
};

/// JSON knows no infinity: a bias without any spread is told by the largest number.
Json finite_or_null(const std::optional<double>& value) {
  if (!value || std::isnan(*value)) {
    return nullptr;
  }
  constexpr double kLargest = std::numeric_limits<double>::max();
  return std::clamp(*value, -kLargest, kLargest);
}

Json to_json(const std::vector<Tensor>& tensors, Device device, const std::vector<Row>& rows) {
  Json codecs = Json::array();
  for (const auto& [spec, canonical, m] : rows) {
    codecs.push_back({{"spec", spec},
                      {"canonical", canonical},
                      {"bytes", m.bytes},
                      {"bits_per_parameter", m.bits_per_parameter},
                      {"nmse", finite_or_null(m.nmse)},
                      {"nmse_stderr", finite_or_null(m.nmse_stderr)},
                      {"bias_z", finite_or_null(m.bias_z)},
                      {"encode_ms", m.encode_ms},
                      {"decode_ms", m.decode_ms},
                      {"encode_gbs", m.encode_gbs},
                      {"decode_gbs", m.decode_gbs},
                      {"memcpy_gbs", m.memcpy_gbs}});
  }
  return {{"input", {{"tensors", tensors.size()}, {"elements", elements_of(tensors)}}},
          {"device", name_of(device)},
          {"codecs", codecs}};
}

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.0f} %", 100 * part / whole) : "-";
}

std::string text_report(const std::vector<Tensor>& tensors, const MeasureOptions& options,
                        const std::vector<Row>& rows) {
  Table table({{"codec", Table::Align::left},
               {"bytes"},
               {"bits"},
               {"NMSE"},
               {"+-"},
               {"bias z"},
               {"encode ms"},
               {"decode ms"},
               {"encode GB/s"},
               {"decode GB/s"},
               {"enc/memcpy"},
               {"dec/memcpy"}});
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [spec, canonical, m] : rows) {
    table.add({printable(spec), grouped(static_cast<std::uint64_t>(std::llround(m.bytes))),
               significant(m.bits_per_parameter), significant(m.nmse.value_or(kNone)),
               significant(m.nmse_stderr.value_or(kNone)),
               m.bias_z ? fmt::format("{:.2f}", *m.bias_z) : "-", significant(m.encode_ms),
               significant(m.decode_ms), significant(m.encode_gbs), significant(m.decode_gbs),
               percent(m.encode_gbs, m.memcpy_gbs), percent(m.decode_gbs, m.memcpy_gbs)});
  }
  return fmt::format("{}, {} as one model; {}; {} {} GB/s\n\n", counted(tensors.size(), "tensor"),
                     counted(elements_of(tensors), "element"), counted(options.draws, "draw"),
                     options.device == Device::cuda ? "on cuda; memcpy there" : "memcpy",
                     significant(rows.back().measurement.memcpy_gbs)) +
         table.render();
}

void check_plot_path(const std::string& path) {
  if (path.empty()) {
    return;
  }
  if (!path.ends_with(".png")) {
    throw InputError(fmt::format("--plot {}: a path that ends in .png is needed", path));
  }
  require_plotting();
}

/// Times on a device are its own.
void require_no_lossless_stage(const Codec& codec) {
  const std::string spec = codec.to_string();
  if (codec.without_lossless() != codec) {
    throw InputError(fmt::format(
        "--device cuda: a lossless stage runs on the CPU only; leave '{}' out or take --device cpu",
        spec.substr(spec.find('+'))));
  }
}

}  // namespace

void run_measure(const MeasureOptions& options) {
  std::vector<Codec> codecs;
  for (const std::string& spec : options.codecs) {
    codecs.push_back(Codec::parse(spec));
  }
  if (options.device == Device::cuda) {
    for (const Codec& codec : codecs) {
      require_no_lossless_stage(codec);
    }
    require_cuda();
  }
  check_plot_path(options.plot);
  std::unique_ptr<OutputFile> plot_file;
  if (!options.plot.empty()) {
    plot_file = std::make_unique<OutputFile>(options.plot);
  }
  const MeasureSettings settings{options.seed,    options.draws,          options.device,
                                 options.threads, !options.without_names, !options.fixed_ranks};
  std::vector<Row> rows;
  std::vector<Tensor> tensors;
  {
    Progress progress("reading");
    tensors = read_model(options.inputs);
    for (std::size_t c = 0; c < codecs.size(); ++c) {
      const auto on_draw = [&](std::uint32_t draw) {
        progress.set(fmt::format("codec {} of {}: {}, draw {} of {}", c + 1, codecs.size(),
                                 options.codecs[c], draw + 1, settings.draws));
      };
      rows.push_back({options.codecs[c], codecs[c].to_string(),
                      measure_codec(tensors, codecs[c], settings, on_draw)});
    }
    if (plot_file) {
      progress.set("drawing");
      const Buffer png = draw_plot(to_json(tensors, options.device, rows)
                                       .dump(-1, ' ', false, Json::error_handler_t::replace));
      const std::vector<ConstBytes> parts{png.view()};
      plot_file->commit(parts);
    }
  }
  print(options.json ? to_json(tensors, options.device, rows)
                               .dump(2, ' ', false, Json::error_handler_t::replace) +
                           "\n"
                     : text_report(tensors, options, rows));
}

}  // namespace atomo::cli
