// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Encoding and decoding where the run wants them, on the CPU or on a CUDA device, of messages that
/// are in host memory on both. All exchanges but the all-gather's use a coder.
///
///   network's memory          coder's arrays                       host memory
///   ----------------          --------------                       -----------
///   gradient       -- put -->  array   -- encode -->               message -> MPI
///                              array  <-- decode, decode_add --    message <- MPI
///                              array   -- fetch -->                values
///
/// On the CPU all three are host memory. On a device a message is what crosses; a call that is given
/// other memory than the coder's arrays copies values there and back.

#include <atomo/compressor.hpp>
#include <cstddef>
#include <memory>
#include <span>

#include "exchange/threads.hpp"

namespace train {

struct Options;

/// One thread at a time makes calls, but `put`, which may be called beside an encoding.
class Coder {
 public:
  enum class Messages { whole, layers };

  virtual ~Coder() = default;
  Coder(const Coder&) = delete;
  Coder& operator=(const Coder&) = delete;

  /// Takes the memory that messages of `compressor` need: set-up, before the first of them.
  virtual void prepare(const atomo::Compressor& compressor, Messages kind) = 0;
  /// `elements` zeros, which live as long as the coder.
  [[nodiscard]] virtual std::span<float> make_array(std::size_t elements) = 0;
  /// The array that `fetch` copies into `values`, in host memory: on the CPU `values` themselves.
  [[nodiscard]] virtual std::span<float> stand_in(std::span<float> values) = 0;

  /// array <- values, which are the network's or in host memory and may change afterwards.
  virtual void put(std::span<const float> values, std::span<float> array) = 0;
  virtual void clear(std::span<float> array) = 0;  ///< and nothing is put there before `fetch`
  /// values <- array, once all that was asked for is done.
  virtual void fetch(std::span<const float> array, std::span<float> values) = 0;

  // As those of the compressor. `values` are an array, or as in `put`; an executor is the CPU's.
  // Each returns once it is done.
  virtual atomo::Status encode(atomo::Compressor& compressor, std::span<const float> values,
                               const atomo::Key& key, const atomo::Payload& payload,
                               atomo::Executor* executor) = 0;
  virtual atomo::Status encode_layer(atomo::Compressor& compressor, std::size_t layer,
                                     std::span<const float> values, const atomo::Payload& payload,
                                     atomo::Executor* executor) = 0;
  virtual atomo::Status end_step(atomo::Compressor& compressor) = 0;
  // `values` are an array or in host memory.
  virtual atomo::Status decode(const atomo::Compressor& compressor, atomo::ConstBytes message,
                               std::span<float> values) = 0;
  virtual atomo::Status decode_add(const atomo::Compressor& compressor, atomo::ConstBytes message,
                                   float alpha, std::span<float> values) = 0;
  virtual atomo::Status decode_layer_add(const atomo::Compressor& compressor, std::size_t layer,
                                         atomo::ConstBytes message, float alpha,
                                         std::span<float> values) = 0;

  // The last two of an array, without waiting for the device. `status` is written when the next call
  // that waits returns, `fetch` for example, and stays where it is until then.
  virtual void add_later(const atomo::Compressor& compressor, atomo::ConstBytes message,
                         float alpha, std::span<float> array, atomo::Status& status) = 0;
  virtual void add_layer_later(const atomo::Compressor& compressor, std::size_t layer,
                               atomo::ConstBytes message, float alpha, std::span<float> array,
                               atomo::Status& status) = 0;

 protected:
  Coder() = default;
};

/// `threads` decode, and outlive the coder.
[[nodiscard]] std::unique_ptr<Coder> make_host_coder(Threads& threads);

/// Works on the current device, for compressors made for it. Their policy is `policy` without
/// lossless stages, which the coder puts behind a message on the host, and undoes there.
/// \throws std::runtime_error when the device has not the memory, or fails, as do all its calls.
[[nodiscard]] std::unique_ptr<Coder> make_device_coder(const atomo::Policy& policy);

/// The coder of a run, where it encodes (--device), by `policy`.
[[nodiscard]] std::unique_ptr<Coder> make_coder(const Options& options, const atomo::Policy& policy,
                                                Threads& threads);
/// `policy` as this run's compressors take it: on a device lossless stages are the coder's.
[[nodiscard]] atomo::Policy policy_of_compressors(const Options& options,
                                                  const atomo::Policy& policy);

/// Copies what the network computed, on the device or in host memory, into host memory.
void device_to_host(std::span<const float> computed, std::span<float> copy);

}  // namespace train
