// SPDX-License-Identifier: Apache-2.0
/// Reads specs and explains what is wrong with them: the token, its position, what is accepted
/// there and the nearest known name.
#include "codec/spec.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "codec/memory_stage.hpp"
#include "codec/own_codecs.hpp"
#include "core/utf8.hpp"

namespace atomo::codec {
namespace {

std::string join_words(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

[[noreturn]] void fail_at(std::string_view spec, std::size_t at, const std::string& what) {
  throw Error(shown("in the spec '" + std::string(spec) + "', position " + std::to_string(at + 1) +
                    ": " + what));
}

bool is_word(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

struct StageText {
  std::string name;
  std::size_t at = 0;
  std::vector<SpecArgs::Arg> args;
};

StageText read_stage(std::string_view spec, std::size_t begin, std::size_t end) {
  StageText stage;
  stage.at = begin;
  const std::string_view text = spec.substr(begin, end - begin);
  const std::size_t colon = text.find(':');
  stage.name = text.substr(0, colon);
  if (!is_word(stage.name)) {
    fail_at(
        spec, begin,
        "expected a codec's name, found '" + stage.name + "'; names are small letters, e.g. qsgd");
  }
  if (colon == std::string_view::npos) return stage;
  for (std::size_t at = begin + colon + 1; at <= end;) {
    const std::size_t stop = std::min(spec.find(',', at), end);
    const std::string_view pair = spec.substr(at, stop - at);
    const std::size_t equals = pair.find('=');
    if (equals == std::string_view::npos || !is_word(pair.substr(0, equals)) ||
        equals + 1 == pair.size()) {
      fail_at(spec, at, "expected key=value, found '" + std::string(pair) + "'");
    }
    SpecArgs::Arg arg;
    arg.key = pair.substr(0, equals);
    arg.value = pair.substr(equals + 1);
    arg.key_at = at;
    arg.value_at = at + equals + 1;
    for (const auto& other : stage.args) {
      if (other.key == arg.key) fail_at(spec, at, "the key '" + arg.key + "' stands twice");
    }
    stage.args.push_back(std::move(arg));
    at = stop + 1;
  }
  return stage;
}

std::vector<StageText> read_stages(std::string_view spec) {
  if (spec.empty()) throw Error("an empty spec: expected a codec's name, e.g. atomo:bits=0.5");
  std::vector<StageText> stages;
  for (std::size_t begin = 0; begin <= spec.size();) {
    // A '+' inside a number ("1e+5") belongs to the number.
    std::size_t end = begin;
    while (end < spec.size()) {
      end = std::min(spec.find('+', end), spec.size());
      const bool exponent = end >= begin + 2 && end + 1 < spec.size() && spec[end - 1] == 'e' &&
                            spec[end - 2] >= '0' && spec[end - 2] <= '9' && spec[end + 1] >= '0' &&
                            spec[end + 1] <= '9';
      if (!exponent) break;
      ++end;
    }
    stages.push_back(read_stage(spec, begin, end));
    begin = end + 1;
  }
  return stages;
}

std::vector<std::string> codec_names() {
  std::vector<std::string> names;
  for (const auto& entry : codec_table()) names.emplace_back(entry.name);
  for (const std::string& name : registered_codecs()) names.push_back(name);
  return names;
}

}  // namespace

SpecArgs read_one_stage(std::string_view spec) {
  StageText stage = read_stage(spec, 0, spec.size());
  return {std::string(spec), stage.name, std::move(stage.args)};
}

bool SpecArgs::has(std::string_view key) const {
  return std::any_of(args_.begin(), args_.end(), [&](const Arg& a) { return a.key == key; });
}

SpecArgs::Arg* SpecArgs::find(std::string_view key) {
  for (auto& arg : args_) {
    if (arg.key == key) {
      arg.used = true;
      return &arg;
    }
  }
  return nullptr;
}

void SpecArgs::fail(std::string_view key, const std::string& what) const {
  for (const auto& arg : args_) {
    if (arg.key == key) fail_at(spec_, arg.value_at, what);
  }
  throw Error(shown("in the spec '" + spec_ + "': " + what));
}

double SpecArgs::number(std::string_view key, double low, double high,
                        std::optional<double> fallback) {
  const std::string range = "a number from " + format_number(low) + " to " + format_number(high);
  const Arg* arg = find(key);
  if (arg == nullptr) {
    if (fallback) return *fallback;
    throw Error("in the spec '" + shown(spec_) + "': " + stage_ + " needs " + std::string(key) +
                "=, " + range);
  }
  double value = 0;
  const char* end = arg->value.data() + arg->value.size();
  const auto [stop, error] = std::from_chars(arg->value.data(), end, value);
  if (error != std::errc{} || stop != end || !(value >= low) || !(value <= high)) {
    fail(key, std::string(key) + "=" + arg->value + ": expected " + range);
  }
  return value;
}

std::int64_t SpecArgs::integer(std::string_view key, std::int64_t low, std::int64_t high,
                               std::optional<std::int64_t> fallback) {
  const std::string range =
      "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
  const Arg* arg = find(key);
  if (arg == nullptr) {
    if (fallback) return *fallback;
    throw Error("in the spec '" + shown(spec_) + "': " + stage_ + " needs " + std::string(key) +
                "=, " + range);
  }
  std::int64_t value = 0;
  const char* end = arg->value.data() + arg->value.size();
  const auto [stop, error] = std::from_chars(arg->value.data(), end, value);
  if (error != std::errc{} || stop != end || value < low || value > high) {
    fail(key, std::string(key) + "=" + arg->value + ": expected " + range);
  }
  return value;
}

std::size_t SpecArgs::choice(std::string_view key, const std::vector<std::string>& choices,
                             std::optional<std::size_t> fallback) {
  const Arg* arg = find(key);
  if (arg == nullptr) {
    if (fallback) return *fallback;
    throw Error("in the spec '" + shown(spec_) + "': " + stage_ + " needs " + std::string(key) +
                "=" + join_words(choices));
  }
  const auto it = std::find(choices.begin(), choices.end(), arg->value);
  if (it == choices.end()) {
    fail(key, std::string(key) + "=" + arg->value + ": expected " + join_words(choices) +
                  "; the nearest is " + nearest(arg->value, choices));
  }
  return static_cast<std::size_t>(it - choices.begin());
}

std::optional<std::string> SpecArgs::text(std::string_view key) {
  const Arg* arg = find(key);
  return arg == nullptr ? std::nullopt : std::optional(arg->value);
}

void SpecArgs::finish() const {
  for (const auto& arg : args_) {
    if (!arg.used) {
      fail_at(spec_, arg.key_at,
              "the key '" + arg.key + "' does not go with the other keys of " + stage_ + " here");
    }
  }
}

void SpecArgs::check_keys(const std::vector<std::string>& known) const {
  for (const auto& arg : args_) {
    if (std::find(known.begin(), known.end(), arg.key) != known.end()) continue;
    std::string what = "unknown key '" + arg.key + "' of " + stage_;
    what += known.empty()
                ? ": it takes none"
                : ": it takes " + join_words(known) + "; the nearest is " + nearest(arg.key, known);
    fail_at(spec_, arg.key_at, what);
  }
}

std::uint64_t Keep::of(std::uint64_t total) const noexcept {
  const double count = fraction ? std::round(value * static_cast<double>(total)) : value;
  if (!(count >= 1)) return std::min<std::uint64_t>(1, total);
  return count >= static_cast<double>(total) ? total : static_cast<std::uint64_t>(count);
}

std::string Keep::to_string() const {
  std::string text = format_number(value);
  if (fraction && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

Keep read_keep(SpecArgs& args) {
  const auto text = args.text("keep");
  if (!text)
    args.fail("keep",
              "keep= is missing: a whole number is a count, a number with a point a fraction");
  Keep keep;
  keep.fraction = text->find_first_of(".e") != std::string::npos;
  keep.value = keep.fraction ? args.number("keep", 0, 1)
                             : static_cast<double>(args.integer("keep", 1, std::int64_t{1} << 40));
  if (keep.value <= 0)
    args.fail("keep", "keep=" + *text + ": expected a fraction above 0 and at most 1.0");
  return keep;
}

std::string format_number(double value) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return error == std::errc{} ? std::string(buffer, end) : std::to_string(value);
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  return *std::min_element(candidates.begin(), candidates.end(), [&](const auto& a, const auto& b) {
    return edit_distance(word, a) < edit_distance(word, b);
  });
}

namespace {

/// What other libraries call something that a spec here does.
struct KnownElsewhere {
  std::string_view name, spec;
};
constexpr KnownElsewhere kKnownElsewhere[] = {{"fp16", "identity:dtype=f16"},
                                              {"f16", "identity:dtype=f16"},
                                              {"half", "identity:dtype=f16"},
                                              {"float16", "identity:dtype=f16"},
                                              {"bf16", "identity:dtype=bf16"},
                                              {"bfloat16", "identity:dtype=bf16"},
                                              {"none", "identity"},
                                              {"fp32", "identity"},
                                              {"f32", "identity"},
                                              {"float32", "identity"},
                                              {"powersgd", "atomo:bits=0.5"},
                                              {"svd", "atomo:atoms=svd,bits=0.5"},
                                              {"lowrank", "atomo:bits=0.5"},
                                              {"sketch", "atomo:atoms=sketch,bits=0.5"},
                                              {"int8", "qsgd:bits=8"},
                                              {"quantize", "qsgd:bits=8"},
                                              {"signsgd", "sign:scale=mean"},
                                              {"onebit", "sign:scale=means"},
                                              {"error-feedback", "ef+topk:keep=0.01"},
                                              {"demo", "momentum+topk:keep=0.01"},
                                              {"sparse", "topk:keep=0.01"}};

/// A hint behind "unknown codec": what is called so elsewhere, or the nearest name.
std::string hint_for(const std::string& name, const std::vector<std::string>& names) {
  for (const auto& known : kKnownElsewhere) {
    if (known.name == name) return "; did you mean " + std::string(known.spec) + "?";
  }
  const std::string closest = nearest(name, names);
  const bool mistyped = edit_distance(name, closest) <= 2;
  return "; the nearest is " + closest +
         (mistyped ? ""
                   : "; a codec of your own has to be registered first (register_codec, --plugin)");
}

}  // namespace

Stages parse_spec(std::string_view spec) {
  Stages stages;
  std::optional<SpecArgs> of_memory;
  for (const auto& stage : read_stages(spec)) {
    SpecArgs args(std::string(spec), stage.name, stage.args);
    if (is_memory(stage.name)) {
      if (stages.memory || stages.body != nullptr)
        fail_at(spec, stage.at, "'" + stage.name + "' is a memory, which must be first, and alone");
      stages.memory = read_memory(stage.name, args);
      args.finish();
      of_memory = args;
      continue;
    }
    if (stages.lossless)
      fail_at(spec, stage.at, "'" + stage.name + "' stands behind blosc, which must be last");
    if (stage.name == "blosc") {
      if (stages.body == nullptr)
        fail_at(spec, stage.at, "blosc needs a codec before it, e.g. topk:keep=0.01+blosc");
      args.check_keys({"codec", "level", "shuffle"});
      BloscOptions options;
      const std::vector<std::string> codecs{"lz4", "zstd", "blosclz"},
          shuffles{"none", "byte", "bit"};
      options.codec = codecs[args.choice("codec", codecs, 0)];
      options.level = static_cast<int>(args.integer("level", 0, 9, 5));
      options.shuffle = shuffles[args.choice("shuffle", shuffles, 1)];
      args.finish();
      check_blosc(options);
      stages.lossless = options;
      continue;
    }
    const auto& table = codec_table();
    const auto entry = std::find_if(table.begin(), table.end(),
                                    [&](const auto& e) { return e.name == stage.name; });
    const bool is_own = entry == table.end() && is_own_codec(stage.name);
    if (entry == table.end() && !is_own) {
      auto names = codec_names();
      const std::string known = join_words(names);
      names.emplace_back("blosc");
      for (const auto& memory : memory_table()) names.emplace_back(memory.name);
      fail_at(
          spec, stage.at,
          "unknown codec '" + stage.name + "': expected " + known + hint_for(stage.name, names));
    }
    if (stages.body != nullptr) {
      fail_at(spec, stage.at, "'" + stage.name + "' cannot follow another codec: only blosc can");
    }
    if (!is_own) args.check_keys(entry->known);
    stages.body = is_own ? make_own(stage.name, args) : entry->make(args);
    args.finish();
  }
  if (stages.memory && stages.body == nullptr)
    throw Error("in the spec '" + shown(spec) +
                "': a memory needs a codec behind it, e.g. ef+topk:keep=0.01");
  if (stages.memory) check_memory(*stages.memory, stages.body->traits(), *of_memory);
  return stages;
}

}  // namespace atomo::codec
