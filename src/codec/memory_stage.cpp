// SPDX-License-Identifier: Apache-2.0
/// The table of memories, and how their specs are read.
#include "codec/memory_stage.hpp"

#include <algorithm>

namespace atomo::codec {
namespace {

using Rule = MemoryOptions::Rule;

const std::vector<std::string> kScales{"none", "contract"}, kTypes{"f32", "bf16", "int8"};

/// In the order of kTypes.
constexpr math::KeptType kKeptTypes[] = {math::KeptType::f32, math::KeptType::bf16,
                                         math::KeptType::int8};

/// What the factor of each rule is called, null where there is none, and what it is where the spec does not say.
struct Factor {
  const char* key;
  double fallback;
};
constexpr Factor kFactors[] = {{"decay", 1}, {"beta", 0.999}, {"momentum", 0.9}, {nullptr, 1}};

const char* name_of_rule(Rule rule) { return memory_table()[static_cast<std::size_t>(rule)].name; }
const Factor& factor_of(Rule rule) { return kFactors[static_cast<std::size_t>(rule)]; }
const std::string& name_of_type(math::KeptType type) {
  return kTypes[static_cast<std::size_t>(std::ranges::find(kKeptTypes, type) - kKeptTypes)];
}
/// A velocity is never scaled.
bool has_scale(Rule rule) { return rule != Rule::dgc; }
/// Receivers add up what messages decode to, so a sum that is rounded would not stay theirs.
bool has_type(Rule rule) { return rule != Rule::ef21; }

}  // namespace

std::string MemoryOptions::to_string() const {
  std::vector<std::string> settings;
  if (const char* const key = factor_of(rule).key; key != nullptr)
    settings.push_back(std::string(key) + "=" + format_number(factor));
  if (has_scale(rule)) settings.push_back("scale=" + kScales[contract ? 1 : 0]);
  if (has_type(rule)) settings.push_back("memory=" + name_of_type(type));
  std::string text = name_of_rule(rule);
  for (const std::string& setting : settings)
    text += (&setting == settings.data() ? ":" : ",") + setting;
  return text;
}

const std::vector<MemoryEntry>& memory_table() {
  static const std::vector<MemoryEntry> table{
      {"ef",
       "decay=0..1, scale=none|contract, memory=f32|bf16|int8",
       "error feedback: what a message leaves out is added to the next gradient",
       "ef+topk:keep=0.01",
       {"ef+topk:keep=0.05", "ef:decay=0.95+sign:scale=mean", "ef:scale=contract+qsgd:bits=4",
        "ef:memory=bf16+topk:keep=3", "ef:memory=int8+topk:keep=3",
        "ef+topk:keep=0.05+blosc:codec=zstd"}},
      {"momentum",
       "beta=0..1, scale=none|contract, memory=f32|bf16|int8",
       "sends of a momentum what the codec takes, and keeps the rest",
       "momentum:beta=0.999+topk:keep=0.01",
       {"momentum+topk:keep=0.05", "momentum:memory=int8+sign:scale=mean"}},
      {"dgc",
       "momentum=0..1, memory=f32|bf16|int8",
       "momentum correction and factor masking in front of a sparse codec",
       "dgc:momentum=0.9+topk:keep=0.01",
       {"dgc+topk:keep=0.05", "dgc:memory=bf16+topk:keep=0.05", "dgc:memory=int8+topk:keep=0.05"}},
      {"ef21",
       "scale=none|contract",
       "sends differences to what was sent before, which receivers add up",
       "ef21+topk:keep=0.01",
       {"ef21+topk:keep=0.05", "ef21:scale=contract+qsgd:bits=4",
        "ef21+atomo:bits=1,content=nearest"}}};
  return table;
}

bool is_memory(std::string_view stage) {
  const auto& table = memory_table();
  return std::any_of(table.begin(), table.end(), [&](const auto& e) { return e.name == stage; });
}

MemoryOptions read_memory(const std::string& stage, SpecArgs& args) {
  const auto& table = memory_table();
  const auto entry =
      std::find_if(table.begin(), table.end(), [&](const auto& e) { return e.name == stage; });
  MemoryOptions memory;
  memory.rule = static_cast<Rule>(entry - table.begin());
  const Factor& factor = factor_of(memory.rule);
  std::vector<std::string> known;
  if (factor.key != nullptr) known.emplace_back(factor.key);
  if (has_type(memory.rule)) known.emplace_back("memory");
  if (has_scale(memory.rule)) known.emplace_back("scale");
  args.check_keys(known);
  if (factor.key != nullptr) memory.factor = args.number(factor.key, 0, 1, factor.fallback);
  if (has_type(memory.rule)) memory.type = kKeptTypes[args.choice("memory", kTypes, 0)];
  if (has_scale(memory.rule)) memory.contract = args.choice("scale", kScales, 0) == 1;
  return memory;
}

void check_memory(const MemoryOptions& memory, const Traits& codec, const SpecArgs& args) {
  if (!memory.contract || (codec.unbiased && codec.omega)) return;
  args.fail("scale", codec.unbiased
                         ? "scale=contract divides by 1 + omega, and no omega is known of "
                           "the codec behind it"
                         : "scale=contract is for an unbiased codec, and the one behind "
                           "it is biased");
}

}  // namespace atomo::codec
