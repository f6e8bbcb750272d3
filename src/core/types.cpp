// SPDX-License-Identifier: Apache-2.0
/// The texts of statuses, types and shapes, and what a shape refuses.
#include "atomo/types.hpp"

#include <array>
#include <utility>

namespace atomo {

namespace {

constexpr std::string_view kDone = "done, but ";
/// By the bit of the notice.
constexpr std::array<std::string_view, 4> kNotices = {
    "a layer holds an Inf or NaN and decodes to NaN",
    "the budget is above what the finest class can spend",
    "a value too large for the half output became infinite",
    "the budget does not pay for a message worth sending, so it is exceeded"};
constexpr std::size_t kNoticeSets = std::size_t{1} << kNotices.size();

/// The line of a set of notices, made while compiling.
struct NoticeText {
  std::array<char, 320> text{};
  std::size_t length = 0;

  constexpr void append(std::string_view part) {
    for (const char c : part) text[length++] = c;
  }
  constexpr explicit NoticeText(std::size_t set) {
    for (std::size_t bit = 0; bit < kNotices.size(); ++bit) {
      if ((set >> bit & 1) == 0) continue;
      append(length == 0 ? kDone : "; ");
      append(kNotices[bit]);
    }
    if (length == 0) append("ok");
  }
};

template <std::size_t... Sets>
constexpr std::array<NoticeText, kNoticeSets> notice_texts(std::index_sequence<Sets...>) {
  return {NoticeText(Sets)...};
}
constexpr auto kNoticeTexts = notice_texts(std::make_index_sequence<kNoticeSets>());

}  // namespace

std::string_view describe(Status s) noexcept {
  const auto number = static_cast<std::size_t>(s);
  if (number < kNoticeSets) return {kNoticeTexts[number].text.data(), kNoticeTexts[number].length};
  switch (s) {
    case Status::buffer_too_small:
      return "the output's buffer is too small: for a payload max_encoded_bytes says what is "
             "needed";
    case Status::workspace_too_small:
      return "the workspace is too small: encode_workspace_bytes or decode_workspace_bytes says "
             "what is needed";
    case Status::truncated:
      return "the message ends before its header says";
    case Status::bad_magic:
      return "not a message of atomo";
    case Status::bad_version:
      return "a format version or flag this build does not know";
    case Status::bad_checksum:
      return "the checksum does not match: bytes were changed";
    case Status::corrupt:
      return "the checksums hold, but the content breaks the format's rules";
    case Status::shape_mismatch:
      return "the message holds other layers than the tensors given, or than belong with the "
             "messages given before it";
    case Status::codec_mismatch:
      return "the message was written by another codec";
    case Status::unsupported:
      return "this dtype, device or size is not supported by this codec or call";
    case Status::external:
      return "a library below (LAPACK, blosc, CUDA) reported failure";
    case Status::price_mismatch:
      return "the messages have different grid steps or prices: only those of the same add or join";
    case Status::too_large:
      return "a sum of levels reached 2^53, more than a message can hold";
    case Status::invalid_argument:
      return "an argument is not what the call accepts: a pointer that is needed is null, a number "
             "is out of its range, or a call on CUDA has no stream";
    case Status::wrong_stage:
      return "a call out of its order: begin_step begins a step, end_step ends it";
    case Status::codec_unknown:
      return "a layer was written by a codec that is not registered here: codec_error names it";
    case Status::codec_failed:
      return "a registered codec failed: codec_error says why";
    default:
      return "unknown status";
  }
}

std::string_view name_of(DType t) noexcept {
  switch (t) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
  }
  return "unknown";
}

Shape::Shape(std::span<const std::int64_t> dims) {
  if (dims.size() > static_cast<std::size_t>(kMaxRank)) {
    throw Error("a shape of " + std::to_string(dims.size()) +
                " dimensions: at most 8 are supported");
  }
  rank_ = static_cast<int>(dims.size());
  bool empty = false;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 0) {
      throw Error("dimension " + std::to_string(i) + " is " + std::to_string(dims[i]) +
                  ": it must be at least 0");
    }
    if (dims[i] > kMaxDimension) {
      throw Error("dimension " + std::to_string(i) + " is " + std::to_string(dims[i]) +
                  ": it must be at most 2^62");
    }
    dims_[i] = dims[i];
    empty = empty || dims[i] == 0;
  }
  std::uint64_t elements = empty ? 0 : 1;
  for (std::size_t i = 0; i < dims.size() && !empty; ++i) {
    const auto d = static_cast<std::uint64_t>(dims[i]);
    if (d > kMaxElements / elements)
      throw Error("the shape " + to_string() + " has more than 2^40 elements");
    elements *= d;
  }
  elements_ = static_cast<std::size_t>(elements);
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string((*this)[i]);
  }
  return text + "]";
}

}  // namespace atomo
