// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What the benchmarks of codecs measure.

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "atomo/codec.hpp"

namespace atomo::bench {

/// `listed`, and the example of every codec that it has no spec of and that runs on `device`: a new
/// codec is measured without a line here.
[[nodiscard]] inline std::vector<std::string> specs_with(std::span<const char* const> listed,
                                                         Device device) {
  std::vector<std::string> specs(listed.begin(), listed.end());
  for (const CodecHelp& codec : list_codecs()) {
    const bool is_stage = codec.name.starts_with('+');
    const bool measured = std::any_of(listed.begin(), listed.end(), [&](std::string_view spec) {
      return is_stage ? spec.find(codec.name) != spec.npos
                      : spec.substr(0, spec.find_first_of(":+")) == codec.name;
    });
    const bool runs = device == Device::cpu || Codec::parse(codec.example).traits().cuda;
    if (!measured && runs) specs.push_back(codec.example);
  }
  return specs;
}

}  // namespace atomo::bench
