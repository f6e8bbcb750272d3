// SPDX-License-Identifier: Apache-2.0
/// \file
/// The list of the catalogue, and its registration.
#include <algorithm>
#include <mutex>
#include <utility>

#include "atomo/catalogue.hpp"
#include "catalogue/definitions.hpp"

namespace atomo {

std::vector<CodecDefinition> catalogue_definitions() {
  std::vector<CodecDefinition> all;
  all.push_back(catalogue::drive_definition());
  all.push_back(catalogue::eden_definition());
  all.push_back(catalogue::trellis_definition());
  all.push_back(catalogue::codebook_definition());
  all.push_back(catalogue::threshold_definition());
  all.push_back(catalogue::dgc_threshold_definition());
  all.push_back(catalogue::qsgd_elias_definition());
  all.push_back(catalogue::sketchml_definition());
  all.push_back(catalogue::lss_definition());
  all.push_back(catalogue::countsketch_definition());
  return all;
}

void register_catalogue() {
  static std::mutex one_at_a_time;
  const std::scoped_lock lock(one_at_a_time);
  const std::vector<std::string> there = registered_codecs();
  for (CodecDefinition& definition : catalogue_definitions())
    if (std::ranges::find(there, definition.name) == there.end())
      register_codec(std::move(definition));
}

}  // namespace atomo
