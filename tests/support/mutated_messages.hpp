// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Messages damaged behind their checksums: what two decoders make of them shows where the format
/// leaves a choice.

#include <cstdint>
#include <cstring>
#include <vector>

#include "format/container_head.hpp"
#include "wire/format_cases.hpp"

namespace atomo::test {

using namespace model;

/// One change to prices, flags of the first layer, its kind or (mostly) the bodies; length and
/// shapes stay.
inline std::vector<std::byte> mutated_message(std::vector<std::byte> message, std::uint64_t seed) {
  ContainerInfo info;
  if (failed(inspect(message, info, true))) throw Error("not a message");
  SplitMix draw(seed + 1000 * message.size());
  const std::size_t head = info.head_bytes,
                    kinds = format::kHeaderBytes + format::kRecordBytes * info.layers.size();
  std::size_t first = head, count = message.size() - head;
  const std::uint64_t where = draw() % 10;
  if (where == 0 || count == 0) {
    first = 40, count = 8;  // prices
  } else if (where == 1) {
    first = format::kHeaderBytes + 2, count = 2;  // flags, lowest byte of the length
  } else if (where == 2) {
    first = kinds, count = 6;  // method, dtype, parameters
  } else if (where < 7) {
    count = std::min<std::size_t>(count, 16);  // the front of the first body
  }
  const std::size_t at = first + draw() % count;
  message[at] = draw() % 4 == 0 ? static_cast<std::byte>(draw())
                                : message[at] ^ static_cast<std::byte>(1 << draw() % 8);
  format::write_checksums(message, head);
  return message;
}

}  // namespace atomo::test
