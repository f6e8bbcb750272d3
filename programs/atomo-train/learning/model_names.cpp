// SPDX-License-Identifier: Apache-2.0
/// \file
/// The table of models says which have normalisation, and which. The keys of mlp and the values of
/// --norm are parsed here.

#include "learning/model_names.hpp"

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <string_view>

namespace train {
namespace {

constexpr std::string_view kHiddenKey = "hidden=";
constexpr std::int64_t kUsualHidden = 256, kMostHidden = 65536;

struct Known {
  std::string_view name;
  bool has_norm;
  std::int64_t channels_a_group = 0;  ///< of its own normalisation; 0: over the batch
};
constexpr Known kKnown[] = {{"logistic", false},      {"mlp", false},
                            {"lenet", false},         {"alexnet", false},
                            {"vgg11", true},          {"vgg13", true},
                            {"vgg16", true},          {"vgg19", true},
                            {"resnet18", true},       {"resnet20", true},
                            {"resnet32", true, 8},    {"resnet34", true},
                            {"resnet50", true},       {"resnet110", true},
                            {"resnet152", true},      {"ecl-resnet32", true, 32},
                            {"densenet-40-12", true}, {"densenet-bc-100-12", true},
                            {"transformer", false},   {"quadratic", false}};

const Known& find_known(const std::string& name) {
  const auto* const found = std::ranges::find(kKnown, std::string_view(name), &Known::name);
  if (found == std::end(kKnown))
    throw std::runtime_error("there is no model '" + name + "'; there are " + model_names());
  return *found;
}

/// Nothing where it is no whole number from 1 to `most`.
std::int64_t number_of(std::string_view text, std::int64_t most) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  return whole && number >= 1 && number <= most ? number : 0;
}

}  // namespace

std::string model_names() {
  std::string names;
  for (const auto& known : kKnown) names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

ModelSpec ModelSpec::parse(const std::string& text) {
  const auto colon = text.find(':');
  ModelSpec spec{text.substr(0, colon), {}};
  (void)find_known(spec.name);
  if (spec.name == "mlp") spec.hidden = {kUsualHidden};
  if (colon == text.npos) return spec;
  std::string_view keys = std::string_view(text).substr(colon + 1);
  if (spec.name != "mlp" || !keys.starts_with(kHiddenKey)) {
    throw std::runtime_error(
        "'" + text + "': " + spec.name +
        (spec.name == "mlp" ? " takes hidden, as in mlp:hidden=300-100" : " takes no keys"));
  }
  keys.remove_prefix(kHiddenKey.size());
  spec.hidden.clear();
  for (std::size_t end = 0; end != keys.npos; keys.remove_prefix(end == keys.npos ? 0 : end + 1)) {
    end = keys.find('-');
    spec.hidden.push_back(number_of(keys.substr(0, end), kMostHidden));
    if (spec.hidden.back() == 0) {
      throw std::runtime_error("'" + text + "': hidden is '" + std::string(keys.substr(0, end)) +
                               "', it has to be whole numbers from 1 to " +
                               std::to_string(kMostHidden) + ", as in mlp:hidden=300-100");
    }
  }
  return spec;
}

NormSpec NormSpec::parse(const std::string& text, const ModelSpec& model) {
  constexpr std::string_view kGroup = "group:";
  constexpr std::int64_t kMostChannels = 65536;
  const Known& known = find_known(model.name);
  if (text.empty()) return {known.channels_a_group};
  if (!known.has_norm) throw std::runtime_error(model.name + " has no normalisation");
  if (text == "batch") return {};
  const std::int64_t channels =
      text.starts_with(kGroup)
          ? number_of(std::string_view(text).substr(kGroup.size()), kMostChannels)
          : 0;
  if (channels == 0)
    throw std::runtime_error("'" + text +
                             "' is neither batch nor group:N, with N channels a group");
  return {channels};
}

}  // namespace train
