// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The codecs that were registered: their table, and those that specs of it made.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "atomo/codec.hpp"
#include "atomo/own_codec.hpp"
#include "codec/spec.hpp"

namespace atomo::codec {

/// A codec that a spec made. Immutable.
struct OwnInstance {
  std::string spec;  ///< canonical, at most format::kMaxOwnSpec bytes
  std::shared_ptr<const OwnCodec> codec;
  Traits traits;           ///< as the library completes them
  double budget_bits = 0;  ///< a parameter; 0: without a budget
};

/// Registers all or none. \throws Error
void register_definitions(std::vector<CodecDefinition> definitions);
/// Whether a codec of this name is registered.
[[nodiscard]] bool is_own_codec(std::string_view name);
/// Makes what a stage of a spec says. \throws Error, whatever the maker throws.
[[nodiscard]] std::shared_ptr<const OwnInstance> parse_own(std::string_view name, SpecArgs& args);
/// The codec of a message's canonical spec: one that is at hand, or a new one. Null, with a status, and
/// the reason in `codec_error`, where it is not registered or refuses the spec. May take heap memory.
[[nodiscard]] std::shared_ptr<const OwnInstance> find_own(std::string_view spec,
                                                          Status& status) noexcept;
/// `codec_error` says from now on that the codec did `what`.
void note_codec_error(std::string_view codec, std::string_view what) noexcept;
/// Rows for `list_codecs`.
[[nodiscard]] std::vector<CodecHelp> own_codec_help();

}  // namespace atomo::codec
