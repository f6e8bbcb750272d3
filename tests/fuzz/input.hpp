// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Reads choices and numbers from the bytes of an input; zeros follow its end.

#include <algorithm>
#include <cstring>

#include "fuzz/target.hpp"

namespace atomo::fuzz {

class Input {
 public:
  explicit Input(ConstBytes bytes) : bytes_(bytes) {}

  [[nodiscard]] bool empty() const noexcept { return bytes_.empty(); }
  [[nodiscard]] ConstBytes rest() const noexcept { return bytes_; }

  template <typename T>
  T take() {
    T value{};
    const std::size_t n = std::min(sizeof value, bytes_.size());
    std::memcpy(&value, bytes_.data(), n);
    bytes_ = bytes_.subspan(n);
    return value;
  }
  /// Below `count`, which is at least 1 and at most 2^16.
  std::size_t below(std::size_t count) {
    return (count <= 256 ? take<std::uint8_t>() : take<std::uint16_t>()) % count;
  }
  /// As many bytes as there are, at most `most`.
  ConstBytes take_bytes(std::size_t most) {
    const ConstBytes front = bytes_.first(std::min(most, bytes_.size()));
    bytes_ = bytes_.subspan(front.size());
    return front;
  }
  /// A shape of at most `most` elements, of rank 0 to 4.
  Shape take_shape(std::size_t most) {
    std::vector<std::int64_t> dims(below(5));
    std::size_t elements = 1;
    for (auto& d : dims) {
      const std::size_t wanted = take<std::uint16_t>();
      d = static_cast<std::int64_t>(wanted % (most / elements + 1));
      elements = std::max<std::size_t>(elements * static_cast<std::size_t>(d), 1);
    }
    return Shape(dims);
  }

 private:
  ConstBytes bytes_;
};

}  // namespace atomo::fuzz
