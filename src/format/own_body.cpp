// SPDX-License-Identifier: Apache-2.0
/// Opens the bodies of codecs that are not the library's.
#include "format/own_body.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace atomo::format {

std::uint32_t own_params(std::string_view spec) noexcept {
  return static_cast<std::uint32_t>(XXH3_64bits(spec.data(), spec.size()));
}

Status open_own_body(ConstBytes body, std::uint32_t params, std::size_t n,
                     OwnBody& opened) noexcept {
  if (body.size() > max_own_body_bytes(n)) return Status::corrupt;
  if (body.empty()) return Status::truncated;
  const auto length = static_cast<std::size_t>(body[0]);
  if (body.size() - 1 < length) return Status::truncated;
  opened.spec = {reinterpret_cast<const char*>(body.data()) + 1, length};
  opened.proper = body.subspan(1 + length);
  const bool sound = is_own_spec(opened.spec) && own_params(opened.spec) == params;
  return sound ? Status::ok : Status::corrupt;
}

}  // namespace atomo::format
