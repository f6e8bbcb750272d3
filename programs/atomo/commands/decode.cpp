// SPDX-License-Identifier: Apache-2.0
/// \file
/// `atomo decode` turns a container into tensors, on the CPU or on a GPU, and writes them as .npy,
/// .npz or .safetensors. The sizes that the container claims are compared with the free memory
/// before anything is allocated. A GPU decodes no lossless stage, so the host removes it first.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <new>
#include <nlohmann/json.hpp>

#include "atomo/container.hpp"
#include "atomo/own_codec.hpp"
#include "commands/commands.hpp"
#include "device/device.hpp"
#include "tensors/files.hpp"
#include "tensors/model.hpp"
#include "terminal/failure.hpp"
#include "terminal/progress.hpp"
#include "terminal/table.hpp"

namespace atomo::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Bytes that programs can still take, by the kernel's estimate; of all memory where there is none.
std::uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::uint64_t kibibytes = 0, available = 0;
  for (std::string name, unit; file >> name >> kibibytes; std::getline(file, unit)) {
    if (name == "MemAvailable:" || name == "SwapFree:") {
      available += kibibytes * 1024;
    }
  }
  if (available > 0) {
    return available;
  }
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::size_t workspace_of(const std::vector<Tensor>& tensors) {
  std::size_t workspace = 0;
  for (const Tensor& t : tensors) {
    workspace = std::max(workspace, decode_workspace_bytes(t.shape, t.dtype));
  }
  return workspace;
}

/// Tensors for the layers of a container, not yet filled. A container of a few bytes may stand for
/// a huge tensor of zeros, so what it claims and what decoding it takes are held against the memory
/// that is free.
std::vector<Tensor> allocate(const ContainerInfo& info, const DecodeOptions& options,
                             const std::string& label) {
  const std::vector<std::string> names = layer_names(info, label);
  std::vector<Tensor> tensors;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const LayerInfo& layer = info.layers[i];
    tensors.push_back({names[i], options.dtype.value_or(layer.dtype), layer.shape, {}});
    total += tensors.back().bytes();  // 65,536 layers of 2^40 elements stay below 2^64
  }
  const std::uint64_t memory = available_memory();
  const std::uint64_t workspace = options.device == Device::cpu ? workspace_of(tensors) : 0;
  if (total > memory || workspace > memory - total) {
    throw PayloadRefused(fmt::format(
        "{}: refused: it claims tensors of {} bytes, and decoding takes {} beside them; {} bytes "
        "of this machine's memory are free",
        label, total, workspace, memory));
  }
  for (Tensor& t : tensors) {
    t.data = Buffer(t.bytes()).data;
  }
  return tensors;
}

Format output_format(const DecodeOptions& options, const ContainerInfo& info) {
  if (options.format) {
    return *options.format;
  }
  if (options.output == "-") {
    return info.layers.size() == 1 ? Format::npy : Format::npz;
  }
  return format_of_path(options.output);
}

Status decode_on_host(const Buffer& message, std::vector<Tensor>& tensors, unsigned threads) {
  Scratch scratch(workspace_of(tensors), threads);
  return decode(message.view(), writable_views_of(tensors), scratch.context());
}

/// Lossless stages are undone before the copy to the device.
Status decode_on_device(const Buffer& message, const ContainerInfo& info,
                        std::vector<Tensor>& tensors) {
  Buffer plain = message;
  if (std::any_of(info.layers.begin(), info.layers.end(),
                  [](const LayerInfo& layer) { return layer.lossless; })) {
    plain = Buffer(unpacked_bytes(message.view()));
    std::uint64_t bytes = 0;
    const Status s = unpack_lossless(message.view(), {plain.data.get(), plain.bytes, &bytes});
    if (failed(s)) {
      return s;
    }
  }
  const auto model = make_device_decoder(info, tensors);
  const Status status = model->decode_from_host(plain.view()).status;
  if (!failed(status)) {
    model->download(tensors);
  }
  return status;
}

std::vector<Tensor> decode_all(const Buffer& message, const ContainerInfo& info,
                               const DecodeOptions& options, const std::string& label,
                               Status& status) {
  try {
    std::vector<Tensor> tensors = allocate(info, options, label);
    status = options.device == Device::cuda ? decode_on_device(message, info, tensors)
                                            : decode_on_host(message, tensors, options.threads);
    if (failed(status)) {
      throw PayloadRefused(fmt::format("{}: refused: {}", label, explain(status)));
    }
    return tensors;
  } catch (const std::bad_alloc&) {
    throw PayloadRefused(fmt::format("{}: refused: there is no memory for its {} elements", label,
                                     grouped(info.elements())));
  }
}

void report(const DecodeOptions& options, const std::vector<Tensor>& tensors, Format format,
            bool to_pipe) {
  const std::uint64_t elements = elements_of(tensors);
  Json list = Json::array();
  for (const Tensor& t : tensors) {
    list.push_back({{"name", t.name}, {"dtype", name_of(t.dtype)}, {"shape", t.shape.dims()}});
  }
  if (options.json) {
    const Json json{{"output", options.output},
                    {"format", name_of(format)},
                    {"elements", elements},
                    {"tensors", list}};
    const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    to_pipe ? fmt::print(stderr, "{}", text) : print(text);
  } else if (!to_pipe) {
    print(fmt::format("{}: {}, {}\n", printable(options.output), counted(tensors.size(), "tensor"),
                      counted(elements, "element")));
  }
}

}  // namespace

void run_decode(const DecodeOptions& options) {
  if (!options.format && options.output != "-") {
    (void)format_of_path(options.output);
  }
  if (options.device == Device::cuda) {
    require_cuda();
  }
  OutputFile out(options.output);
  Progress progress("reading");
  const std::string label = input_label(options.input);
  const Buffer message = read_whole(options.input);
  const ContainerInfo info = inspect_file(message, label);
  const Format format = output_format(options, info);
  if (format == Format::npy && info.layers.size() != 1) {
    throw InputError(fmt::format(
        "{}: holds {} tensors and a .npy file takes exactly one; write .npz or .safetensors", label,
        info.layers.size()));
  }
  progress.set(fmt::format("decoding {} elements", grouped(info.elements())));
  Status status = Status::ok;
  const std::vector<Tensor> tensors = decode_all(message, info, options, label, status);
  progress.set("writing");
  out.commit(write_tensors(tensors, format).parts);
  if (status != Status::ok) {
    fmt::print(stderr, "atomo: note: {}\n", describe(status));
  }
  report(options, tensors, format, out.is_standard_output());
}

}  // namespace atomo::cli
