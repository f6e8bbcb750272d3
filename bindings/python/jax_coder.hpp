// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a call from JAX encodes and decodes with: a codec for one tensor or a compressor for a
/// model, made from a text on the first call and kept for the next ones.

#include <atomo/atomo.hpp>
#include <atomo/cuda.hpp>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace atomo_jax {

/// What a call says of its tensors.
struct Request {
  std::string_view spec;   ///< a codec's spec, or a policy when `model`
  bool model = false;      ///< layers of a model at one price, not one tensor
  std::string_view names;  ///< of the layers, joined by newlines; empty unless `model`
  std::vector<atomo::LayerSpec> layers{};  ///< shapes and dtypes; their names are not read
  atomo::Device device = atomo::Device::cpu;
  int ordinal = 0;  ///< of the device, when it is not the CPU
};

/// A codec for one tensor or a compressor for a model, of fixed shapes. Used by one call at a time.
class Coder {
 public:
  virtual ~Coder() = default;
  /// The three calls of `atomo::Compressor`; without a model there is one layer.
  virtual atomo::Status encode(std::span<const atomo::ConstTensorView> layers,
                               const atomo::Key& key, const atomo::Payload& payload,
                               const atomo::Context& context) noexcept = 0;
  virtual atomo::Status decode(atomo::ConstBytes message, std::span<const atomo::TensorView> layers,
                               const atomo::Context& context) const noexcept = 0;
  /// Messages are added in the order given.
  virtual atomo::Status decode_add_all(std::span<const atomo::ConstBytes> messages, float alpha,
                                       std::span<const atomo::TensorView> layers,
                                       const atomo::Context& context) const noexcept = 0;

  std::size_t max_encoded_bytes = 0;  ///< what `encode` has to be given
  std::size_t longest_message = 0;    ///< `wire_bytes` where that is known, else the same
  std::size_t workspace_bytes = 0;    ///< of either direction
  atomo::HandlesPtr handles;          ///< on a device, where encoding needs them
  std::shared_ptr<void> notes;        ///< on a device: what its calls leave for its later ones
  std::vector<std::byte> workspace;   ///< in host memory; grows on the first use
  std::vector<std::byte> staging;     ///< where a payload is smaller than `max_encoded_bytes`
};

/// Gives a coder back when the call is over.
struct ReturnCoder {
  std::vector<std::unique_ptr<Coder>>* idle = nullptr;
  std::uint64_t forgotten = 0;  ///< how often coders had been forgotten when this one was lent
  void operator()(Coder* coder) const noexcept;
};
using CoderLease = std::unique_ptr<Coder, ReturnCoder>;

/// A coder for the request: one that an earlier call made, else a new one. As many are kept for
/// each request as there were calls at once. On a device the coder is made on the current one.
/// \throws atomo::Error for a bad spec, policy, name or shape.
CoderLease take_coder(const Request& request);

/// Gives up all coders that were made so far, those in use when their calls end: a spec may mean another codec
/// from now on.
void forget_coders();

}  // namespace atomo_jax
