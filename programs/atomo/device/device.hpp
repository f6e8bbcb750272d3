// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Whole models in the memory of a CUDA device, for `--device cuda`. device_cuda.cpp is compiled
/// where the library has the CUDA backend, device_none.cpp elsewhere.
///
/// ```cpp
/// require_cuda();
/// auto model = make_device_model(layer_specs(tensors), Policy(codec), true);
/// model->upload(tensors);
/// const DeviceRun run = model->encode(key);
/// const Buffer message = model->download_message(run.bytes);
/// ```

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "atomo/compressor.hpp"
#include "atomo/container.hpp"
#include "tensors/tensor_io.hpp"

namespace atomo::cli {

/// "cpu", "cuda".
[[nodiscard]] std::string_view name_of(Device device) noexcept;

/// What a call on the device came to.
struct DeviceRun {
  Status status = Status::ok;
  std::uint64_t bytes = 0;  ///< of the message written, 0 for a decode
  double seconds = 0;       ///< on the device, copies to and from the host left out
};

/// A model's tensors, one message and the memory of its calls, on one stream. Every call returns
/// when the device is done. \throws InputError when CUDA reports an error.
class DeviceModel {
 public:
  virtual ~DeviceModel() = default;
  DeviceModel(const DeviceModel&) = delete;
  DeviceModel& operator=(const DeviceModel&) = delete;

  /// The model's tensors, in its order; the same shapes and dtypes as its layers.
  virtual void upload(const std::vector<Tensor>& tensors) = 0;
  virtual void download(std::vector<Tensor>& tensors) = 0;

  /// The tensors into the message.
  [[nodiscard]] virtual DeviceRun encode(const Key& key) = 0;
  [[nodiscard]] virtual Buffer download_message(std::uint64_t bytes) = 0;
  /// On the device, good until the next encode.
  [[nodiscard]] virtual ConstBytes message(std::uint64_t bytes) const = 0;

  /// A message in host memory into the tensors, or one in that of the device.
  [[nodiscard]] virtual DeviceRun decode_from_host(ConstBytes message) = 0;
  [[nodiscard]] virtual DeviceRun decode(ConstBytes message_on_device) = 0;

  /// Seconds that the device takes to copy the tensors to another place in its memory.
  [[nodiscard]] virtual double copy() = 0;

 protected:
  DeviceModel() = default;
};

/// \throws InputError, in a line that says what would help, when there is no CUDA backend in this
/// build, no driver or no GPU.
void require_cuda();
/// \throws Error for a codec without a CUDA twin, InputError when the device has not the memory.
[[nodiscard]] std::unique_ptr<DeviceModel> make_device_model(std::vector<LayerSpec> layers,
                                                             Policy policy, bool names_on_wire);
/// For a container's messages without lossless stages, into tensors of its layers; `tensors` says
/// of what dtypes.
[[nodiscard]] std::unique_ptr<DeviceModel> make_device_decoder(const ContainerInfo& info,
                                                               const std::vector<Tensor>& tensors);

}  // namespace atomo::cli
