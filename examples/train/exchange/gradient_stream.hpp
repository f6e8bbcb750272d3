// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Gradients on their way to the server, a layer at a time while back-propagation runs.

#include <atomo/atomo.hpp>
#include <cstdint>
#include <span>
#include <vector>

#include "exchange/transport.hpp"
#include "learning/learner.hpp"
#include "timeline.hpp"

namespace train {

/// The worker's end: encodes a layer the moment its gradient exists and posts it.
class GradientSender {
 public:
  GradientSender(Transport& transport, Learner& learner, int server);

  void begin(std::uint32_t step);
  /// One layer, any order. Returns as soon as the send is posted. \throws std::runtime_error when
  /// it cannot be encoded.
  void push(std::size_t layer, std::span<const float> gradient, Timeline& timeline);
  /// Waits until everything is away.
  void finish();
  /// Flips a bit of the first payload of the step: the server must refuse it.
  void corrupt_next() noexcept { corrupt_next_ = true; }

  [[nodiscard]] double encode_milliseconds() const noexcept { return encode_milliseconds_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  Transport& transport_;
  Learner& learner_;
  int server_;
  std::uint32_t step_ = 0;
  bool corrupt_next_ = false;
  double encode_milliseconds_ = 0;
  std::uint64_t bytes_ = 0;
  std::vector<std::vector<std::byte>>
      payloads_;  ///< one a layer: it stays put until its send is done
  std::vector<std::byte> workspace_;
  std::vector<Transfer> transfers_;
};

/// The server's end: adds every payload to the gradient as it comes, each layer in rank order, so
/// that the sum does not depend on who was first. Payloads of a linear codec that `atomo::add`
/// takes (coordinates at one agreed step) are added as they are once all of a layer are there, and
/// decoded once: the values are those of decoding one by one up to that order of rounding, and the
/// same bits where a power of two workers have a step that is one (atomo/arithmetic.hpp).
class GradientReceiver {
 public:
  /// `policy` is the compressor's.
  GradientReceiver(Transport& transport, const atomo::Compressor& compressor,
                   const atomo::Policy& policy, const Replica& replica);

  /// Posts all receives of a step.
  void begin();
  /// gradient = mean over workers of what they sent. \throws Fault naming the
  /// worker whose payload is refused, and why.
  void add_all(std::uint32_t step, std::span<float> gradient, Timeline& timeline);

  [[nodiscard]] double decode_milliseconds() const noexcept { return decode_milliseconds_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  void add(std::uint32_t step, std::size_t layer, std::size_t worker, std::span<float> gradient,
           Timeline& timeline);
  /// All payloads of a layer, undecoded where that is possible.
  void add_together(std::uint32_t step, std::size_t layer, std::span<float> gradient,
                    Timeline& timeline);
  /// The payload of their sum; empty when they do not add.
  atomo::ConstBytes sum_of(std::size_t layer);

  Transport& transport_;
  const atomo::Compressor& compressor_;
  const Replica& replica_;
  std::size_t workers_;
  double decode_milliseconds_ = 0;
  std::uint64_t bytes_ = 0;
  /// Of layer i and worker k: at i * workers + k.
  std::vector<std::vector<std::byte>> payloads_;
  std::vector<Transfer> transfers_;
  std::vector<std::byte> workspace_;
  std::vector<std::uint8_t> adds_;  ///< of a layer: 1 when its payloads may add undecoded
  std::vector<std::byte> sum_, sum_workspace_;
};

/// A layer of a flat array as a view.
[[nodiscard]] inline atomo::TensorView view_of(std::span<float> flat, const Replica& replica,
                                               std::size_t layer) {
  return {flat.data() + replica.offset(layer), atomo::DType::f32, replica.layers()[layer].shape};
}

}  // namespace train
