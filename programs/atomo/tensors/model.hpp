// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Tensors as the library wants them, and the memory and threads its calls need.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "atomo/compressor.hpp"
#include "atomo/container.hpp"
#include "atomo/thread_pool.hpp"
#include "tensors/tensor_io.hpp"

namespace atomo::cli {

/// Of all tensors together.
[[nodiscard]] std::uint64_t elements_of(const std::vector<Tensor>& tensors);
[[nodiscard]] std::vector<LayerSpec> layer_specs(const std::vector<Tensor>& tensors);
[[nodiscard]] std::vector<ConstTensorView> views_of(const std::vector<Tensor>& tensors);
[[nodiscard]] std::vector<TensorView> writable_views_of(std::vector<Tensor>& tensors);

/// \throws InputError for a codec with a memory: a file has no step before it.
void require_no_memory(const Codec& codec);

/// One line on standard error where some of them are biased: a file has no memory to send later what
/// they leave out.
void warn_of_bias(std::span<const Codec> codecs);

/// As many of the threads as the limit of the address space (ulimit -v) leaves memory for, where
/// encoding by the codec multiplies matrices: OpenBLAS takes 128 MiB for each thread that does, and
/// asks for it again and again where it gets none.
/// \throws InputError when there is not enough for one.
[[nodiscard]] unsigned threads_with_memory(unsigned threads, const Codec& codec);

/// A workspace and a pool of threads, handed out as a Context.
class Scratch {
 public:
  /// For decoding.
  Scratch(std::size_t workspace_bytes, unsigned threads)
      : workspace_(workspace_bytes), pool_(threads) {}
  /// For encoding by a codec.
  Scratch(std::size_t workspace_bytes, unsigned threads, const Codec& codec)
      : workspace_(workspace_bytes), pool_(threads_with_memory(threads, codec)) {}
  [[nodiscard]] Context context() { return {.workspace = workspace_.span(), .executor = &pool_}; }

 private:
  Buffer workspace_;
  ThreadPool pool_;
};

/// Reads the head of a container that must fill its file exactly. \throws PayloadRefused in one
/// line naming the file.
[[nodiscard]] ContainerInfo inspect_file(const Buffer& message, const std::string& label);

/// A name for every layer: its own, or tensor_0, tensor_1, ... \throws PayloadRefused when two
/// layers share one.
[[nodiscard]] std::vector<std::string> layer_names(const ContainerInfo& info,
                                                   const std::string& label);

}  // namespace atomo::cli
