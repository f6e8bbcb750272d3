// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Payload arithmetic: messages of coordinates on one grid add without being decoded, and signs are
/// counted as votes. Messages on a device vote by `Compressor::vote`.
///
/// A decoded coordinate is level * D, an integer times the grid step, so messages of one step add
/// as integers. A server that adds W payloads decodes once instead of W times, and what it hands
/// on is a message again.
///
/// ```cpp
/// std::vector<std::byte> workspace(atomo::add_workspace_bytes(messages.size()));
/// std::vector<std::byte> sum(atomo::added_bytes_bound(messages));
/// std::uint64_t bytes = 0;
/// auto status = atomo::add(messages, workspace, {sum.data(), sum.size(), &bytes});
/// ```
///
/// Workers agree on a step in one of two ways:
/// - `delta=` names it. Only an entry of 2^29 steps and more gives its layer a larger one.
/// - With `bits=` each finds its own, from its gradients of the step before. They take the largest,
///   so that nobody sends more than its budget:
///
/// ```cpp
/// atomo::Prices prices = compressor.predicted_prices();
/// MPI_Allreduce(MPI_IN_PLACE, &prices.grid, 1, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
/// atomo::Status status = compressor.begin_step(key, prices);
/// ...  // encode_layer for every layer, end_step
/// ```
///
/// In the first step there is no prediction (0): each layer finds its own step, and what comes of
/// it does not add. Nor does a layer whose entries grew beyond 2^29 agreed steps; `add` then says
/// Status::price_mismatch, and the messages are decoded one by one.

#include <cstddef>
#include <cstdint>
#include <span>

#include "atomo/types.hpp"

namespace [[gnu::visibility("default")]] atomo {

/// Adds whole messages, of one layer or many, in host memory: `sum` receives the container of the
/// entrywise sums of levels. It is encoded as an encoder would encode these levels, so a sum of
/// sums has the bytes of the sum of all, in the same order, and the sum of one message is that
/// message.
///
/// What holds. With l_k the level of an entry in message k and D the step, the sum decodes to
/// (l_1 + ... + l_W) * D, cut to the range of f32 and rounded: once where the sum of levels is
/// below 2^29 in magnitude, else to f64 first, together off by at most (1/2 + 2^-29) units of the
/// last place. This is the exact sum of the messages' values before each is rounded to f32, where
/// none was cut at the largest f32. Decoding the messages one after another with `decode_add`
/// rounds each value and each addition instead, and gives the same bits wherever none of these
/// roundings does anything: with alpha a power of two, a step of b significant bits (8 when a
/// budget chose it) and levels of which no sum of the first few is above 2^(24 - b), as long as no
/// value is subnormal.
///
/// All messages have the same layers: shapes, dtypes, names, number of the first. Each layer is of
/// the codec `atomo:atoms=coordinate` and has one step in all messages that send something of it
/// (bodies of no bytes are zeros of any step), and the steps in the headers agree or are 0. A layer
/// that is non-finite in one message is so in the sum. The sum carries the first message's key:
/// coordinates are decoded without a draw, only outputs in f16 and bf16 are rounded by it.
///
/// On the CPU; a device decodes sums as it decodes any message. No float arithmetic, no heap, no
/// draws. `sum` is other memory than the messages. Messages are any bytes at all: what `decode`
/// refuses is refused with the same Status. Further
/// - Status::non_finite: done; a layer is non-finite;
/// - Status::invalid_argument: no message, or nowhere to write the sum;
/// - Status::unsupported: a layer of another codec or behind a lossless stage;
/// - Status::shape_mismatch: other layers than the first message's;
/// - Status::price_mismatch: other steps;
/// - Status::too_large: a level reached 2^53 in magnitude after some of the messages. 2^24 messages
///   from an encoder, of which no level reaches 2^29, cannot come to that;
/// - Status::buffer_too_small, Status::workspace_too_small.
/// Nothing but memory of `sum` and `workspace` is written when it fails.
Status add(std::span<const ConstBytes> messages, Bytes workspace, const Payload& sum) noexcept;

/// What `add` needs for so many messages: 448 KiB and some 150 bytes a message, of any alignment.
[[nodiscard]] std::size_t add_workspace_bytes(std::size_t messages) noexcept;

/// A capacity that suffices for the sum, whatever the levels: at most 55 bits an entry. Follows
/// from the first message's layers; 0 when it is not a message or not one of coordinates alone.
/// Does not allocate.
[[nodiscard]] std::uint64_t added_bytes_bound(std::span<const ConstBytes> messages) noexcept;

/// Majority vote (signSGD with majority vote, Bernstein et al., 2019, arXiv 1810.05291): each entry of
/// the views becomes the sign of the sum of the signs that the messages have for it, 1, -1, or 0 where
/// as many say + as -. Bits are counted, 64 entries at once; no message is decoded.
///
/// ```cpp
/// std::vector<float> signs(1000);
/// atomo::TensorView view{signs.data(), atomo::DType::f32, {1000}};
/// std::vector<std::byte> workspace(atomo::vote_workspace_bytes(messages.size()));
/// auto status = atomo::vote(messages, {&view, 1}, {.workspace = workspace});
/// ```
///
/// All messages have the same layers: shapes, dtypes, codecs, names, number of the first; each layer
/// is of the codec `sign`, of any scale, which a vote has no use for. Views are f32 in host memory, one
/// a layer. A layer that is non-finite in one message becomes NaN. At most 2^31 messages.
///
/// Neither allocates nor waits; an executor shares long layers out. Messages are any bytes at all:
/// what `decode` refuses is refused with the same Status. Further
/// - Status::non_finite: done; a layer is non-finite;
/// - Status::invalid_argument: no message, or a view without memory;
/// - Status::unsupported: a layer of another codec or behind a lossless stage, a view in halves or on a
///   device;
/// - Status::shape_mismatch: other layers than the first message's, or other views;
/// - Status::workspace_too_small.
/// On failure the views' contents are unspecified.
Status vote(std::span<const ConstBytes> messages, std::span<const TensorView> layers,
            const Context& context = {}) noexcept;

/// What `vote` needs for so many messages, some 100 bytes each, of any alignment.
[[nodiscard]] std::size_t vote_workspace_bytes(std::size_t messages) noexcept;

}  // namespace atomo
