// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Messages of coordinates for tests: made of given levels, added, and taken apart into levels.

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "atomo/atomo.hpp"
#include "cpu/coordinate_read.hpp"
#include "format/container_head.hpp"
#include "support/support.hpp"

namespace atomo::test {

using Levels = std::vector<std::int64_t>;
using Buffer = std::vector<std::byte>;

/// A message of one layer with these levels, each exact in f32, at `step`, a power of two.
inline Buffer message_of(const Levels& levels, float step = 1, const Key& key = {}) {
  std::vector<float> x(levels.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(levels[i]) * step;
  const Codec codec = Codec::parse("atomo:atoms=coordinate,delta=" + std::to_string(step));
  const Shape shape{static_cast<std::int64_t>(x.size())};
  Buffer payload(codec.max_encoded_bytes(shape)), workspace(codec.encode_workspace_bytes(shape));
  std::uint64_t bytes = 0;
  const Status status =
      codec.encode({x.data(), DType::f32, shape}, key, {payload.data(), payload.size(), &bytes},
                   {.workspace = workspace});
  EXPECT_EQ(status, Status::ok);
  payload.resize(bytes);
  return payload;
}

struct Sum {
  Status status = Status::ok;
  Buffer bytes;
};

inline Sum sum_of(const std::vector<Buffer>& messages) {
  const std::vector<ConstBytes> views(messages.begin(), messages.end());
  Buffer workspace(add_workspace_bytes(views.size())), payload(added_bytes_bound(views));
  payload.resize(std::max<std::size_t>(payload.size(), 4096));
  std::uint64_t bytes = 0;
  Sum sum;
  sum.status = add(views, workspace, {payload.data(), payload.size(), &bytes});
  if (failed(sum.status)) return sum;
  payload.resize(bytes);
  sum.bytes = std::move(payload);
  return sum;
}

/// The levels of every layer, one behind the other; empty when the message breaks a rule.
inline Levels levels_of(ConstBytes message) {
  using namespace model;
  Head head;
  if (failed(Head::parse(message, true, head))) return {};
  Levels levels;
  Status status = Status::ok;
  for (LayerCursor layer(head); layer.next(status);) {
    const std::size_t n = layer.kind.shape.elements(), first = levels.size();
    levels.resize(first + n);
    ConstBytes body = layer.body;
    if ((layer.row.flags & LayerRecord::kOwnPrice) != 0) body = body.subspan(kPriceBytes);
    if (body.empty()) continue;
    const SegmentTable table{body, segments_of(n)};
    if (!table.valid()) return {};
    std::uint64_t at = table.bytes();
    for (std::size_t s = 0; s < table.segments; ++s) {
      const std::size_t begin = s * kCoordinateSegment;
      const auto found = [&](std::size_t place, std::int64_t level) {
        levels[first + begin + place] = level;
        return true;
      };
      if (!read_segment(body.subspan(at), table.word(s), std::min(kCoordinateSegment, n - begin),
                        found))
        return {};
      at += table.word(s).bytes;
    }
  }
  return levels;
}

/// The word of a segment of a message of one layer, of a wide one with its second word.
inline format::SegmentWord word_of(ConstBytes message, std::size_t s) {
  using namespace model;
  Head head;
  if (failed(Head::parse(message, true, head))) return {};
  LayerCursor layer(head);
  Status status = Status::ok;
  if (!layer.next(status)) return {};
  ConstBytes body = layer.body;
  if ((layer.row.flags & LayerRecord::kOwnPrice) != 0) body = body.subspan(kPriceBytes);
  const SegmentTable table{body, segments_of(layer.kind.shape.elements())};
  std::uint64_t at = table.bytes();
  for (std::size_t i = 0; i < s; ++i) at += table.word(i).bytes;
  SegmentWord word = table.word(s);
  const bool good = !word.wide() || word.take_second(load_le<std::uint32_t>(body.data() + at));
  EXPECT_TRUE(good);
  return word;
}

}  // namespace atomo::test
