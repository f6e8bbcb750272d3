// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Where gradients and payloads live in an all-gather: in host memory, or on a CUDA device.
///
///   begin(key, ...)           -> put(layer, gradient)... -> encode()   every rank
///   outgoing(longest)         -> all-gather -> incoming(longest)
///   add_all(bytes)            -> sum()
///
/// The sums are the same to the bit wherever they are made.

#include <atomo/compressor.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exchange/background.hpp"
#include "exchange/threads.hpp"

namespace train {

class Exchange {
 public:
  /// What another thread did for a layer before all layers were there.
  struct OfLayer {
    std::size_t layer = 0;
    Background::Times times;
  };
  struct Encoded {
    atomo::Status status = atomo::Status::ok;
    std::uint64_t bytes = 0;           ///< of the payload
    std::vector<OfLayer> layers = {};  ///< in the order in which they came
    double beside = 0;                 ///< milliseconds of encoding that held up nothing
  };

  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// A new payload. `computing`: back-propagation goes on between its layers.
  virtual void begin(const atomo::Key& key, bool computing) = 0;
  /// A layer of what this process sends, in the memory that the network computes in or the host's.
  virtual void put(std::size_t layer, std::span<const float> values) = 0;
  /// The whole gradient into the payload.
  [[nodiscard]] virtual Encoded encode() = 0;
  /// What the payload decodes to, all layers one behind the other.
  virtual void decode_own(std::span<float> out) = 0;
  /// Flips a bit of the payload: whoever gets it must refuse it.
  virtual void corrupt() = 0;

  /// The payload, padded with zeros to `longest` bytes, where MPI can read it.
  [[nodiscard]] virtual atomo::ConstBytes outgoing(std::size_t longest) = 0;
  /// Room for `longest` bytes of every worker, in rank order.
  [[nodiscard]] virtual atomo::Bytes incoming(std::size_t longest) = 0;
  /// The sum over workers, in rank order, of decode(payload) / W; worker k sent bytes[k] bytes.
  /// Returns what became of each payload.
  [[nodiscard]] virtual std::vector<atomo::Status> add_all(
      std::span<const std::uint64_t> bytes) = 0;
  /// Of all layers, one behind the other, in host memory.
  [[nodiscard]] virtual std::span<float> sum() = 0;

 protected:
  Exchange() = default;
};

/// `compressor` is one for host memory; it and `threads` outlive the exchange. `votes`: of layers that
/// are all signs, the sum is the majority's sign, and bits are counted in place of being decoded.
[[nodiscard]] std::unique_ptr<Exchange> make_host_exchange(atomo::Compressor& compressor,
                                                           Threads& threads, std::size_t workers,
                                                           bool votes = false);

/// `compressor` is one for the current CUDA device and outlives the exchange; its policy is
/// `policy` without lossless stages, which follow on the host. Gradients are taken in the order of
/// the default stream, torch's own. Without `cuda_aware_mpi`, or with a lossless stage, payloads go
/// through pinned host memory. `votes` as of `make_host_exchange`: then all payloads are on the device
/// at once. \throws std::runtime_error when the device has not the memory.
[[nodiscard]] std::unique_ptr<Exchange> make_device_exchange(atomo::Compressor& compressor,
                                                             const atomo::Policy& policy,
                                                             std::size_t workers,
                                                             bool cuda_aware_mpi,
                                                             bool votes = false);
/// Why `make_device_exchange` cannot work here and what would help; empty when it can.
[[nodiscard]] std::string device_objection();
/// Makes a GPU current: each process of a machine gets its own while there are enough. Returns its
/// number.
int choose_gpu();

}  // namespace train
