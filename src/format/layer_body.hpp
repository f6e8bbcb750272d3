// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What a decoder is given of a layer in one message.

#include "atomo/types.hpp"
#include "format/layer_record.hpp"

namespace atomo::format {

/// A layer's body in one of several messages, and what became of it.
struct LayerBody {
  LayerRecord row;
  ConstBytes bytes;  ///< any bytes at all
  Key key;           ///< of the message, with this layer's tensor
  float price = 0;   ///< or grid step: its own, or the header's
  Status status = Status::ok;

  [[nodiscard]] bool is_thinned() const noexcept {
    return (row.flags & LayerRecord::kThinned) != 0;
  }
  /// Content stands for the centroids of its levels.
  [[nodiscard]] bool is_centred() const noexcept {
    return (row.flags & LayerRecord::kCentred) != 0;
  }
};

}  // namespace atomo::format
