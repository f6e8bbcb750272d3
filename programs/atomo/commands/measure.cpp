// SPDX-License-Identifier: Apache-2.0
/// \file
/// `atomo measure` measures several codecs on the same tensors and prints size, error and bias of
/// each and its speed on one thread and on all, as tables or as JSON; --plot draws the rows as a
/// PNG. Wrong specs, a missing GPU and a plot that cannot be drawn or written are reported before
/// the first measurement.
#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
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

Json to_json(const Speed& speed) {
  return {{"encode_ms", speed.encode_ms},
          {"decode_ms", speed.decode_ms},
          {"encode_gbs", speed.encode_gbs},
          {"decode_gbs", speed.decode_gbs}};
}

Json to_json(const std::vector<Tensor>& tensors, const MeasureSettings& settings,
             const std::vector<Row>& rows) {
  Json codecs = Json::array();
  for (const auto& [spec, canonical, m] : rows) {
    Json row{{"spec", spec},
             {"canonical", canonical},
             {"bytes", m.bytes},
             {"bits_per_parameter", m.bits_per_parameter},
             {"nmse", finite_or_null(m.nmse)},
             {"nmse_stderr", finite_or_null(m.nmse_stderr)},
             {"bias_z", finite_or_null(m.bias_z)}};
    row.update(to_json(m.speed));
    row["memcpy_gbs"] = m.memcpy_gbs;
    if (m.of_one_thread) {
      row["one_thread"] = to_json(*m.of_one_thread);
    }
    codecs.push_back(std::move(row));
  }
  Json report{{"input", {{"tensors", tensors.size()}, {"elements", elements_of(tensors)}}},
              {"device", name_of(settings.device)}};
  if (settings.device == Device::cpu) {
    report["threads"] = settings.threads;
  }
  report["codecs"] = std::move(codecs);
  return report;
}

Table table_of_errors(const std::vector<Row>& rows) {
  Table table({{"codec", Table::Align::left}, {"bytes"}, {"bits"}, {"NMSE"}, {"+-"}, {"bias z"}});
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [spec, canonical, m] : rows) {
    table.add({printable(spec), grouped(static_cast<std::uint64_t>(std::llround(m.bytes))),
               significant(m.bits_per_parameter), significant(m.nmse.value_or(kNone)),
               significant(m.nmse_stderr.value_or(kNone)),
               m.bias_z ? fmt::format("{:.2f}", *m.bias_z) : "-"});
  }
  return table;
}

/// A time or a speed in five characters: three digits, none behind thousandths.
std::string brief(double value) {
  const int before = value < 1 ? 0 : static_cast<int>(std::log10(value)) + 1;
  return fmt::format("{:.{}f}", value, std::max(0, 3 - before));
}

/// Its columns are narrow: two groups of them beside a long spec fit into a hundred characters.
Table table_of_speed(const MeasureSettings& settings, const std::vector<Row>& rows) {
  std::vector<Table::Column> columns{{"codec", Table::Align::left}};
  const auto add_columns = [&](const std::string& group) {
    for (const char* title : {"enc ms", "GB/s", "dec ms", "GB/s"}) {
      columns.push_back({title, Table::Align::right, group});
    }
  };
  if (settings.several_threads()) {
    add_columns("1 thread");
  }
  add_columns(settings.device == Device::cpu ? counted(settings.threads, "thread") : "on the GPU");
  Table table(columns);
  for (const auto& [spec, canonical, m] : rows) {
    std::vector<std::string> cells{printable(spec)};
    for (const auto& speed : {m.of_one_thread, std::optional(m.speed)}) {
      if (!speed) {
        continue;
      }
      for (const double value :
           {speed->encode_ms, speed->encode_gbs, speed->decode_ms, speed->decode_gbs}) {
        cells.push_back(brief(value));
      }
    }
    table.add(std::move(cells));
  }
  return table;
}

std::string text_report(const std::vector<Tensor>& tensors, const MeasureSettings& settings,
                        const std::vector<Row>& rows) {
  return fmt::format("{}, {} as one model; {}; {} {} GB/s\n\n", counted(tensors.size(), "tensor"),
                     counted(elements_of(tensors), "element"), counted(settings.draws, "draw"),
                     settings.device == Device::cuda ? "on cuda; memcpy there" : "memcpy",
                     significant(rows.back().measurement.memcpy_gbs)) +
         table_of_errors(rows).render() + "\n" + table_of_speed(settings, rows).render();
}

/// One thread is one, and several are the executor's alone, unless the user says otherwise.
void keep_to_one_thread_of_blas() {
  if (std::getenv("OPENBLAS_NUM_THREADS") == nullptr) {
    openblas_set_num_threads(1);
  }
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
    require_no_memory(codecs.back());
  }
  if (options.device == Device::cuda) {
    for (const Codec& codec : codecs) {
      require_no_lossless_stage(codec);
    }
    require_cuda();
  }
  check_plot_path(options.plot);
  keep_to_one_thread_of_blas();
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
      const auto on_draw = [&](std::uint32_t draw, unsigned threads) {
        const std::string by =
            settings.several_threads() ? ", " + counted(threads, "thread") : std::string();
        progress.set(fmt::format("codec {} of {}: {}{}, draw {} of {}", c + 1, codecs.size(),
                                 options.codecs[c], by, draw + 1, settings.draws));
      };
      rows.push_back({options.codecs[c], codecs[c].to_string(),
                      measure_codec(tensors, codecs[c], settings, on_draw)});
    }
    if (plot_file) {
      progress.set("drawing");
      const Buffer png = draw_plot(
          to_json(tensors, settings, rows).dump(-1, ' ', false, Json::error_handler_t::replace));
      const std::vector<ConstBytes> parts{png.view()};
      plot_file->commit(parts);
    }
  }
  print(options.json
            ? to_json(tensors, settings, rows).dump(2, ' ', false, Json::error_handler_t::replace) +
                  "\n"
            : text_report(tensors, settings, rows));
}

}  // namespace atomo::cli
