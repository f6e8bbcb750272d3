// SPDX-License-Identifier: Apache-2.0
/// \file
/// `atomo codecs` lists the codecs of the library with their keys and summaries, the memories that may
/// stand in front of them, and the traits of an example of each codec. The lists are tables for the
/// terminal, or one JSON document with --json.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "atomo/codec.hpp"
#include "commands/commands.hpp"
#include "tensors/files.hpp"
#include "terminal/table.hpp"

namespace atomo::cli {
namespace {

using Json = nlohmann::ordered_json;

Json number_or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value) : Json(nullptr);
}

Json to_json(const CodecHelp& help, const Traits& t) {
  return {{"name", help.name},
          {"keys", help.keys},
          {"summary", help.summary},
          {"example", help.example},
          {"traits",
           {{"unbiased", t.unbiased},
            {"bias_bound", number_or_null(t.bias_bound)},
            {"omega", number_or_null(t.omega)},
            {"contraction", number_or_null(t.contraction)},
            {"largest", number_or_null(t.largest)},
            {"step", t.step},
            {"smallest", t.smallest},
            {"highest", number_or_null(t.highest)},
            {"linear", t.linear},
            {"votes", t.votes},
            {"averages_over_workers", t.averages_over_workers},
            {"fixed_size", t.fixed_size},
            {"bounded", t.bounded},
            {"allocates", t.allocates},
            {"synchronises", t.synchronises},
            {"capturable", t.capturable},
            {"cpu", t.cpu},
            {"cuda", t.cuda}}}};
}

std::string yes(bool value) { return value ? "yes" : "no"; }

}  // namespace

void run_codecs(const CodecsOptions& options) {
  using Align = Table::Align;
  Table traits({{"example", Align::left},
                {"unbiased", Align::left},
                {"omega", Align::right},
                {"contraction", Align::right},
                {"averages", Align::left},
                {"fixed size", Align::left},
                {"linear", Align::left},
                {"allocates", Align::left},
                {"runs on", Align::left}});
  Table keys({{"codec", Align::left}, {"keys", Align::left}, {"what it does", Align::left}});
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  Json list = Json::array();
  for (const CodecHelp& help : list_codecs()) {
    const Codec codec = Codec::parse(help.example);
    const Traits& t = codec.traits();
    list.push_back(to_json(help, t));
    keys.add({help.name, help.keys, help.summary});
    traits.add({help.example, yes(t.unbiased), significant(t.omega.value_or(kNone)),
                significant(t.contraction.value_or(kNone)), yes(t.averages_over_workers),
                yes(t.fixed_size), yes(t.linear), yes(t.allocates), t.cuda ? "cpu, cuda" : "cpu"});
  }
  Json memories = Json::array();
  Table of_memories(
      {{"in front", Align::left}, {"keys", Align::left}, {"what it does", Align::left}});
  for (const CodecHelp& help : list_memories()) {
    memories.push_back({{"name", help.name},
                        {"keys", help.keys},
                        {"summary", help.summary},
                        {"example", help.example}});
    of_memories.add({help.name + "+", help.keys, help.summary});
  }
  if (options.json) {
    return print(Json{{"codecs", list}, {"memories", memories}}.dump(2) + "\n");
  }
  print(keys.render() + "\n" + of_memories.render() + "\n" + traits.render() +
        "\nomega: E|decode - g|^2 <= omega |g|^2; contraction: ... <= (1 - contraction) |g|^2; "
        "averages: workers' "
        "errors\nare independent, so the mean over W workers has 1/W of the variance; \"-\": no "
        "bound known without "
        "g. A memory is a\ntrainer's: e.g. ef+topk:keep=0.01.\n");
}

}  // namespace atomo::cli
