// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What a codec is inside: the encoder of its bodies, the memory in front of it and the lossless stage
/// behind it, if any.

#include <memory>
#include <optional>
#include <string>

#include "codec/body_encoder.hpp"
#include "codec/lossless_stage.hpp"
#include "codec/memory_options.hpp"

namespace atomo::codec {

struct Stages {
  std::shared_ptr<const BodyEncoder> body;
  std::optional<BloscOptions> lossless;
  std::optional<MemoryOptions> memory;

  /// The canonical spec.
  [[nodiscard]] std::string to_string() const;
  [[nodiscard]] Traits traits() const;
};

/// The inside of the public class.
struct Access {
  [[nodiscard]] static const Stages& stages(const Codec& codec) noexcept { return *codec.stages_; }
};

/// Reads a spec (spec.hpp). \throws Error.
[[nodiscard]] Stages parse_spec(std::string_view spec);

}  // namespace atomo::codec
