// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file Parts of a message's head that kernels write as soon as they are known: all but the header.

#include "cuda/frame.cuh"
#include "format/container_rules.hpp"

namespace atomo::cuda {

/// The row of a layer, of kind number `kind`.
__device__ inline void store_record(const Frame& frame, std::uint32_t number, std::uint16_t kind,
                                    const LayerState& layer) {
  const std::uint64_t word =
      format::LayerRecord{kind, static_cast<std::uint8_t>(layer.flags), layer.bytes}.word();
  std::byte* const to = frame.message + format::kHeaderBytes + format::kRecordBytes * number;
  store_word(to, static_cast<std::uint32_t>(word));
  store_word(to + 4, static_cast<std::uint32_t>(word >> 32));
}

/// The zeros behind a layer's body.
__device__ inline void store_padding(const Frame& frame, const LayerState& layer) {
  store_bytes(frame.message + layer.body_at + layer.bytes, 0,
              static_cast<unsigned>(format::padded(layer.bytes) - layer.bytes));
}

/// What follows the rows, from `tables`; `thread` of `threads` writes its words.
__device__ inline void store_head_tables(const Frame& frame, const std::byte* tables,
                                         std::uint64_t thread, std::uint64_t threads) {
  std::byte* const to =
      frame.message + format::kHeaderBytes + format::kRecordBytes * std::uint64_t{frame.plan.count};
  for (std::uint64_t i = thread; i < frame.plan.head_table_bytes / 4; i += threads)
    store_word(to + 4 * i, load_word(tables + 4 * i));
}

/// Keeps a whole message's prices for the next one.
__device__ inline void keep_prices(const MessageState& state, price::LearntPrices& learnt) {
  const float prices[2] = {state.price, state.grid_step};
  for (unsigned p = 0; p < 2; ++p) {
    learnt.used[p] = prices[p];
    if (prices[p] > 0) learnt.pools[p].smoothed_price = learnt.pools[p].price = prices[p];
  }
}

}  // namespace atomo::cuda
