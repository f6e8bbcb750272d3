// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What codecs whose bodies are written and read by one operation do alike: qsgd, terngrad and
/// sign, which send every entry, and topk and randomk, which send k of them.

#include <algorithm>
#include <optional>
#include <span>

#include "codec/body_decoder.hpp"
#include "codec/spec.hpp"
#include "cpu/qsgd.hpp"
#include "cpu/random_k.hpp"
#include "cpu/sign.hpp"
#include "cpu/ternary.hpp"
#include "cpu/topk.hpp"
#include "format/kind.hpp"

namespace atomo::codec {

/// Decoder of a method that sends every entry: the kind gives the configuration, decoding needs no
/// workspace.
template <auto kConfigOf, auto kSpecOf>
inline constexpr BodyDecoder kEveryEntryDecoder = {
    [](const Kind& kind) { return valid_kind(kind) ? kSpecOf(kConfigOf(kind)) : std::string(); },
    [](const Kind& kind) noexcept {
      return cpu::max_encoded_bytes(kConfigOf(kind), kind.shape.elements());
    },
    [](const Kind&) noexcept { return std::size_t{0}; },
    [](const LayerOutput& out) noexcept {
      const auto config = kConfigOf(*out.kind);
      if (out.add)
        return cpu::decode_add(config, out.bodies, out.alpha, out.y, out.n, out.executor);
      LayerBody& body = out.bodies.front();
      body.status = cpu::decode(config, body.bytes, out.y, out.n, out.executor);
    },
    count_no_atoms};

/// A method that sends k of n entries, k from 1 to n; params hold k modulo 2^32. `Format` names it
/// (`kId`, `kName`, `Config`), has `keep_in(body, n)`, the k that a body says, 0 when it says none,
/// `workspace_bytes(config, n)` and `decode_workspace_bytes(n)`, and `decode(config, out)`.
template <typename Format>
class KeepMethod : public BodyEncoder {
 public:
  explicit KeepMethod(Keep keep) : keep_(keep) {}

  std::string to_string() const final { return Format::kName + (":keep=" + keep_.to_string()); }
  Kind kind(const Shape& shape, DType dtype) const final {
    return {Format::kId, dtype, static_cast<std::uint32_t>(config(shape).keep), shape};
  }
  std::size_t max_body_bytes(const Shape& shape) const final {
    return cpu::max_encoded_bytes(config(shape), shape.elements());
  }
  std::size_t scratch_bytes(const Shape& shape) const final {
    return Format::workspace_bytes(config(shape), shape.elements());
  }

 protected:
  [[nodiscard]] typename Format::Config config(const Shape& shape) const noexcept {
    return {shape.elements() == 0 ? 0 : keep_.of(shape.elements())};
  }
  Keep keep_;
};

/// The k of a body, from the params or, where they do not hold it, from the body. Nothing when they
/// disagree.
template <typename Format>
std::optional<typename Format::Config> keep_of(ConstBytes body, const Kind& kind) noexcept {
  using Config = typename Format::Config;
  const std::size_t n = kind.shape.elements();
  if (n < kManyEntries) return Config{kind.params};
  const std::uint64_t keep = Format::keep_in(body, n);
  if (keep == 0 || static_cast<std::uint32_t>(keep) != kind.params) return {};
  return Config{keep};
}

template <typename Format>
inline constexpr BodyDecoder kKeepDecoder = {
    [](const Kind& kind) -> std::string {
      if (!valid_kind(kind)) return "";
      if (kind.shape.elements() >= kManyEntries) return Format::kName;
      return Format::kName + (":keep=" + std::to_string(kind.params));
    },
    [](const Kind& kind) noexcept {
      const std::size_t n = kind.shape.elements();
      return cpu::max_encoded_bytes(typename Format::Config{n >= kManyEntries ? n : kind.params},
                                    n);
    },
    [](const Kind& kind) noexcept { return Format::decode_workspace_bytes(kind.shape.elements()); },
    [](const LayerOutput& out) noexcept {
      // Bodies of one k go together: all of them, unless one is broken.
      for (std::span<LayerBody> left = out.bodies; !left.empty();) {
        const auto config = keep_of<Format>(left.front().bytes, *out.kind);
        const auto is_other = [&](const LayerBody& body) {
          const auto own = keep_of<Format>(body.bytes, *out.kind);
          return !own || !config || own->keep != config->keep;
        };
        const auto other = std::find_if(left.begin() + 1, left.end(), is_other);
        LayerOutput same = out;
        same.bodies = left.first(static_cast<std::size_t>(other - left.begin()));
        if (config) {
          Format::decode(*config, same);
        } else {
          left.front().status = Status::corrupt;
        }
        left = left.subspan(same.bodies.size());
      }
    },
    [](ConstBytes body, const Kind& kind, std::uint8_t, std::uint64_t& atoms,
       std::uint64_t& kept) noexcept {
      const auto config = keep_of<Format>(body, kind);
      if (!config) return Status::corrupt;
      atoms = kind.shape.elements();
      kept = config->keep;
      return Status::ok;
    }};

}  // namespace atomo::codec
