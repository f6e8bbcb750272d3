// SPDX-License-Identifier: Apache-2.0
/// \file
/// Tensors from files become the layer specs and views that the library takes, and a container's
/// head is read and checked here for all commands. `threads_with_memory` tries whether a limited
/// address space has room for OpenBLAS's threads and halves their number until it has.
#include "tensors/model.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdio>
#include <set>

#include "atomo/own_codec.hpp"
#include "terminal/failure.hpp"
#include "terminal/table.hpp"

namespace atomo::cli {
namespace {

/// What OpenBLAS takes for a thread, with the thread's own stack.
constexpr std::size_t kBytesOfProducts = std::size_t{144} << 20;

bool multiplies_matrices(const Codec& codec) {
  const std::string spec = codec.to_string();
  if (!spec.starts_with("atomo")) {
    return false;
  }
  const auto has = [&spec](const char* atoms) { return spec.find(atoms) != std::string::npos; };
  return !has("atoms=rows") && !has("atoms=blocks") && !has("atoms=coordinate");
}

/// Whether as much address space can be had now.
bool can_be_mapped(std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory != MAP_FAILED && ::munmap(memory, bytes) == 0;
}

}  // namespace

void require_no_memory(const Codec& codec) {
  if (!codec.traits().memory) {
    return;
  }
  throw InputError(fmt::format(
      "'{}' keeps a memory from step to step, and a file has no past: take '{}', which writes the "
      "same messages",
      codec.to_string(), codec.without_memory().to_string()));
}

void warn_of_bias(std::span<const Codec> codecs) {
  std::string biased, first;
  for (const Codec& codec : codecs) {
    if (codec.traits().unbiased) {
      continue;
    }
    const std::string spec = codec.to_string();
    first = first.empty() ? spec : first;
    biased += (biased.empty() ? "" : ", ") + spec;
  }
  if (!biased.empty()) {
    fmt::print(
        stderr,
        "atomo: note: biased: {}; what a message leaves out is lost, and in a training a memory "
        "sends it later: ef+{}\n",
        biased, first);
  }
}

unsigned threads_with_memory(unsigned threads, const Codec& codec) {
  rlimit limit{};
  if (!multiplies_matrices(codec) || ::getrlimit(RLIMIT_AS, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return threads;
  }
  for (unsigned count = threads; count > 0; count /= 2) {
    if (can_be_mapped(count * kBytesOfProducts)) {
      return count;
    }
  }
  throw InputError(fmt::format(
      "there is not enough memory to encode by {}: it needs {} MiB of address space beside the "
      "tensors, the limit of all (ulimit -v) is {} MiB",
      codec.to_string(), kBytesOfProducts >> 20, limit.rlim_cur >> 20));
}

std::uint64_t elements_of(const std::vector<Tensor>& tensors) {
  std::uint64_t elements = 0;
  for (const Tensor& t : tensors) {
    elements += t.shape.elements();
  }
  return elements;
}

std::vector<LayerSpec> layer_specs(const std::vector<Tensor>& tensors) {
  std::vector<LayerSpec> layers;
  for (const Tensor& t : tensors) {
    layers.push_back({t.name, t.shape, t.dtype});
  }
  return layers;
}

std::vector<ConstTensorView> views_of(const std::vector<Tensor>& tensors) {
  std::vector<ConstTensorView> views;
  for (const Tensor& t : tensors) {
    views.push_back(t.view());
  }
  return views;
}

std::vector<TensorView> writable_views_of(std::vector<Tensor>& tensors) {
  std::vector<TensorView> views;
  for (Tensor& t : tensors) {
    views.push_back(t.writable());
  }
  return views;
}

ContainerInfo inspect_file(const Buffer& message, const std::string& label) {
  ContainerInfo info;
  const Status status = inspect(message.view(), info, true);
  if (!failed(status)) {
    return info;
  }
  ContainerInfo shorter;
  if (!failed(inspect(message.view(), shorter, false)) && shorter.bytes < message.bytes) {
    throw PayloadRefused(
        fmt::format("{}: refused: {} bytes after the end of the container, whose length is {}",
                    label, message.bytes - shorter.bytes, shorter.bytes));
  }
  if (message.bytes == 0) {
    throw PayloadRefused(fmt::format("{}: refused: it is empty; a container was expected", label));
  }
  throw PayloadRefused(fmt::format("{}: refused: {}", label, explain(status)));
}

std::vector<std::string> layer_names(const ContainerInfo& info, const std::string& label) {
  std::vector<std::string> names;
  std::set<std::string> taken;
  for (const LayerInfo& layer : info.layers) {
    names.push_back(layer.name.empty() ? fmt::format("tensor_{}", names.size()) : layer.name);
    if (!taken.insert(names.back()).second) {
      throw PayloadRefused(
          fmt::format("{}: refused: two layers are called '{}'", label, printable(names.back())));
    }
  }
  return names;
}

}  // namespace atomo::cli
