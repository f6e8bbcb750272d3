// SPDX-License-Identifier: Apache-2.0
/// \file
/// `atomo measure` measures several codecs on the same tensors and prints size, error and bias of
/// each and its speed on one thread and on all, as tables or as JSON; --plot draws the rows as a
/// PNG. Of a folder of captures each is measured, and what they have in the mean is told, with the error
/// of large and small entries apart. Wrong specs, a missing GPU and a plot that cannot be drawn or written are reported before
/// the first measurement.
#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
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

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

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

/// What was measured: one model, or each capture of a folder.
struct Measured {
  std::vector<std::string> captures;  ///< empty: the inputs are one model
  std::size_t tensors = 0;
  std::uint64_t elements = 0;              ///< of one capture
  std::vector<LayerHistogram> histograms;  ///< empty: magnitudes were not asked for
};

double share_of(double part, double whole) { return whole > 0 ? part / whole : 0; }

/// The error of a class in units of its own energy; none where it has none.
std::optional<double> nmse_of(const MagnitudeClass& c) {
  return c.energy > 0 ? std::optional(c.squared / c.energy) : std::nullopt;
}

Json json_of_class(const MagnitudeClass& c, const Magnitudes& all) {
  MagnitudeClass whole = all.small();
  whole += all.large();
  return {{"entries", c.entries},
          {"share_of_energy", share_of(c.energy, whole.energy)},
          {"share_of_error", share_of(c.squared, whole.squared)},
          {"nmse", finite_or_null(nmse_of(c))}};
}

/// Null where nothing was counted.
Json json_of_extremes(const Extremes& extremes) {
  const auto number = [](double value) { return std::isfinite(value) ? Json(value) : Json(); };
  return {{"largest", number(extremes.largest)}, {"most_negative", number(extremes.smallest)}};
}

Json json_of_magnitudes(const Magnitudes& magnitudes) {
  Json classes = Json::array();
  for (std::size_t k = 0; k < magnitudes.octaves.size(); ++k) {
    Json row{{"octave", static_cast<int>(k) + kLowestOctave}};
    row.update(json_of_class(magnitudes.octaves[k], magnitudes));
    classes.push_back(std::move(row));
  }
  return {{"zeros", json_of_class(magnitudes.zeros, magnitudes)},
          {"small", json_of_class(magnitudes.small(), magnitudes)},
          {"large", json_of_class(magnitudes.large(), magnitudes)},
          {"octaves", std::move(classes)},
          {"decoded", json_of_extremes(magnitudes.decoded)}};
}

Json json_of_histograms(const std::vector<LayerHistogram>& histograms) {
  Json layers = Json::array();
  for (const LayerHistogram& h : histograms) {
    Json layer{{"layer", h.layer}, {"counts", h.counts}};
    layer.update(json_of_extremes(h.extremes));
    layers.push_back(std::move(layer));
  }
  return layers;
}

Json to_json(const Measured& subject, const MeasureSettings& settings,
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
    if (m.magnitudes) {
      row["magnitudes"] = json_of_magnitudes(*m.magnitudes);
    }
    codecs.push_back(std::move(row));
  }
  Json input{{"tensors", subject.tensors}, {"elements", subject.elements}};
  if (!subject.captures.empty()) {
    input["captures"] = subject.captures.size();
  }
  if (!subject.histograms.empty()) {
    input.update(json_of_extremes(rows.front().measurement.magnitudes->input));
  }
  Json report{{"input", std::move(input)}, {"device", name_of(settings.device)}};
  if (settings.device == Device::cpu) {
    report["threads"] = settings.threads;
  }
  report["codecs"] = std::move(codecs);
  if (!subject.histograms.empty()) {
    report["histograms"] = json_of_histograms(subject.histograms);
  }
  return report;
}

Table table_of_errors(const std::vector<Row>& rows) {
  Table table({{"codec", Table::Align::left}, {"bytes"}, {"bits"}, {"NMSE"}, {"+-"}, {"bias z"}});
  for (const auto& [spec, canonical, m] : rows) {
    table.add({printable(spec), grouped(static_cast<std::uint64_t>(std::llround(m.bytes))),
               significant(m.bits_per_parameter), significant(m.nmse.value_or(kNoNumber)),
               significant(m.nmse_stderr.value_or(kNoNumber)),
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

std::string text_of_extremes(const Extremes& extremes) {
  return significant(extremes.largest) + " and " + significant(extremes.smallest);
}

/// A row a class of magnitudes, its error under each codec; small and large ones in sum below.
std::string text_of_magnitudes(const std::vector<Row>& rows) {
  std::vector<Table::Column> columns{
      {"of the layer's rms", Table::Align::left}, {"entries"}, {"of |g|^2"}};
  for (const Row& row : rows) {
    columns.push_back({printable(row.spec), Table::Align::right, "NMSE"});
  }
  Table table(columns);
  const auto add = [&](const std::string& name, auto&& chosen) {
    const Magnitudes& first = *rows.front().measurement.magnitudes;
    MagnitudeClass whole = first.small();
    whole += first.large();
    const MagnitudeClass c = chosen(first);
    std::vector<std::string> cells{name, grouped(c.entries),
                                   fmt::format("{:.2f} %", 100 * share_of(c.energy, whole.energy))};
    for (const Row& row : rows) {
      cells.push_back(
          significant(nmse_of(chosen(*row.measurement.magnitudes)).value_or(kNoNumber)));
    }
    table.add(std::move(cells));
  };
  add("0", [](const Magnitudes& m) { return m.zeros; });
  for (int octave = kLowestOctave; octave <= kHighestOctave; ++octave) {
    const bool is_end = octave == kLowestOctave || octave == kHighestOctave;
    const std::string name = octave == kLowestOctave ? fmt::format("below 2^{}", octave + 1)
                             : is_end                ? fmt::format("2^{} and above", octave)
                                      : fmt::format("2^{} to 2^{}", octave, octave + 1);
    add(name, [octave](const Magnitudes& m) {
      return m.octaves[static_cast<std::size_t>(octave - kLowestOctave)];
    });
  }
  add("small: below 1", [](const Magnitudes& m) { return m.small(); });
  add("large: 1 and above", [](const Magnitudes& m) { return m.large(); });
  std::string text = table.render() + "\nlargest and most negative entry: " +
                     text_of_extremes(rows.front().measurement.magnitudes->input) + "\n";
  for (const Row& row : rows) {
    text += "  decoded, " + printable(row.spec) + ": " +
            text_of_extremes(row.measurement.magnitudes->decoded) + "\n";
  }
  return text;
}

std::string text_report(const Measured& subject, const MeasureSettings& settings,
                        const std::vector<Row>& rows) {
  const std::string what = subject.captures.empty()
                               ? std::string("as one model")
                               : "in each of " + counted(subject.captures.size(), "capture");
  return fmt::format("{}, {} {}; {}; {} {} GB/s\n\n", counted(subject.tensors, "tensor"),
                     counted(subject.elements, "element"), what, counted(settings.draws, "draw"),
                     settings.device == Device::cuda ? "on cuda; memcpy there" : "memcpy",
                     significant(rows.back().measurement.memcpy_gbs)) +
         table_of_errors(rows).render() + "\n" +
         (settings.magnitudes ? text_of_magnitudes(rows) + "\n" : "") +
         table_of_speed(settings, rows).render();
}

/// One thread is one, and several are the executor's alone, unless the user says otherwise.
void keep_to_one_thread_of_blas() {
  if (std::getenv("OPENBLAS_NUM_THREADS") == nullptr) {
    openblas_set_num_threads(1);
  }
}

/// The captures where the input is a folder; else none. \throws InputError for more beside it.
std::vector<std::string> captures_of(const std::vector<std::string>& inputs) {
  std::error_code none;
  const auto folder = std::ranges::find_if(
      inputs, [&](const std::string& path) { return std::filesystem::is_directory(path, none); });
  if (folder == inputs.end()) {
    return {};
  }
  if (inputs.size() != 1) {
    throw InputError(fmt::format("{} is a folder of captures, which is measured alone", *folder));
  }
  return captures_in(*folder);
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
  const std::vector<std::string> captures = captures_of(options.inputs);
  const MeasureSettings settings{options.seed,
                                 options.draws,
                                 options.device,
                                 options.threads,
                                 !options.without_names,
                                 !options.fixed_ranks,
                                 options.magnitudes || !captures.empty()};
  std::vector<Row> rows;
  Measured subject{captures, 0, 0, {}};
  {
    Progress progress("reading");
    const std::size_t models = std::max<std::size_t>(captures.size(), 1);
    std::vector<std::vector<Measurement>> measured(codecs.size());
    for (std::size_t k = 0; k < models; ++k) {
      const auto tensors =
          captures.empty() ? read_model(options.inputs) : read_model({captures[k]});
      subject.tensors = tensors.size();
      subject.elements = elements_of(tensors);
      if (settings.magnitudes) {
        add_histograms(subject.histograms, tensors, captures.empty() ? "" : captures[k]);
      }
      for (std::size_t c = 0; c < codecs.size(); ++c) {
        const auto on_draw = [&](std::uint32_t draw, unsigned threads) {
          const std::string by =
              settings.several_threads() ? ", " + counted(threads, "thread") : std::string();
          const std::string of =
              models > 1 ? fmt::format("capture {} of {}, ", k + 1, models) : std::string();
          progress.set(fmt::format("{}codec {} of {}: {}{}, draw {} of {}", of, c + 1,
                                   codecs.size(), options.codecs[c], by, draw + 1, settings.draws));
        };
        measured[c].push_back(measure_codec(tensors, codecs[c], settings, on_draw));
      }
    }
    for (std::size_t c = 0; c < codecs.size(); ++c) {
      rows.push_back({options.codecs[c], codecs[c].to_string(), mean_of(measured[c])});
    }
    if (plot_file) {
      progress.set("drawing");
      const Buffer png = draw_plot(
          to_json(subject, settings, rows).dump(-1, ' ', false, Json::error_handler_t::replace));
      const std::vector<ConstBytes> parts{png.view()};
      plot_file->commit(parts);
    }
  }
  warn_of_bias(codecs);
  print(options.json
            ? to_json(subject, settings, rows).dump(2, ' ', false, Json::error_handler_t::replace) +
                  "\n"
            : text_report(subject, settings, rows));
}

}  // namespace atomo::cli
