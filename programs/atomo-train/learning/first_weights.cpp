// SPDX-License-Identifier: Apache-2.0
/// \file
/// The tensors of a model file are compared with the layers of the model before any is taken, so
/// that one error names all that does not fit: layers that the file lacks, tensors of another
/// shape or type, and weights that the model has no layer for.

#include "learning/first_weights.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <stdexcept>
#include <vector>

#include "files/stored_tensors.hpp"
#include "learning/own_model.hpp"

namespace train {
namespace {

constexpr const char* kWeights = "weights.";
constexpr std::size_t kMostNamed = 4;  ///< misfits that an error names

std::string text_of_shape(std::span<const std::int64_t> dims) {
  std::string text;
  for (const auto size : dims) text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text.empty() ? "a single number" : text;
}

/// Null when there is none of that name.
const StoredTensor* find(const SafetensorsFile& file, const std::string& name) {
  const auto found = std::ranges::find(file.tensors, name, &StoredTensor::name);
  return found == file.tensors.end() ? nullptr : &*found;
}

std::vector<float> floats_of(const StoredTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

/// The tensor of each layer. \throws std::runtime_error
std::vector<const StoredTensor*> tensors_of(const SafetensorsFile& file,
                                            const std::vector<atomo::LayerSpec>& layers,
                                            const std::string& prefix) {
  std::vector<const StoredTensor*> tensors;
  std::vector<std::string> misfits;
  std::set<std::string> known;
  for (const auto& layer : layers) {
    const std::string name = prefix + layer.name;
    known.insert(name);
    const auto dims = layer.shape.dims();
    const std::vector<std::int64_t> wanted(dims.begin(), dims.end());
    const StoredTensor* const tensor = find(file, name);
    tensors.push_back(tensor);
    if (tensor == nullptr) {
      misfits.push_back("it has no '" + name + "', " + text_of_shape(wanted));
    } else if (tensor->shape != wanted) {
      misfits.push_back("'" + name + "' is " + text_of_shape(tensor->shape) + ", the model's " +
                        text_of_shape(wanted));
    } else if (tensor->dtype != "F32") {
      misfits.push_back("'" + name + "' is of " + tensor->dtype + ", the model's of F32");
    } else if (tensor->bytes.size() != layer.shape.elements() * sizeof(float)) {
      misfits.push_back("'" + name + "' has " + std::to_string(tensor->bytes.size()) + " bytes");
    }
  }
  for (const auto& tensor : file.tensors) {
    if (tensor.name.starts_with(prefix) && !known.contains(tensor.name)) {
      misfits.push_back("the model has no '" + tensor.name + "', " + text_of_shape(tensor.shape));
    }
  }
  if (misfits.empty()) return tensors;
  std::string text;
  for (std::size_t i = 0; i < std::min(misfits.size(), kMostNamed); ++i)
    text += (i == 0 ? "" : "; ") + misfits[i];
  if (misfits.size() > kMostNamed)
    text += "; and " + std::to_string(misfits.size() - kMostNamed) + " more";
  throw std::runtime_error(text);
}

/// Mean over the workers of a checkpoint; empty where the file has none.
std::vector<float> mean_buffers(const SafetensorsFile& file) {
  std::vector<std::vector<float>> all;
  while (const auto* buffers = find(file, "worker" + std::to_string(all.size() + 1) + ".buffers")) {
    all.push_back(floats_of(*buffers));
  }
  std::vector<float> mean(all.empty() ? 0 : all.front().size());
  for (const auto& buffers : all) {
    for (std::size_t i = 0; i < std::min(mean.size(), buffers.size()); ++i)
      mean[i] += buffers[i] / static_cast<float>(all.size());
  }
  return mean;
}

}  // namespace

void load_weights(const std::string& path, const std::string& model, Replica& replica) {
  const auto file = [&] {
    try {
      return read_safetensors(path);
    } catch (const std::exception& e) {
      throw std::runtime_error(std::string("--init: ") + e.what());
    }
  }();
  try {
    const bool is_checkpoint = std::ranges::any_of(
        file.tensors, [](const auto& tensor) { return tensor.name.starts_with(kWeights); });
    const auto tensors = tensors_of(file, replica.layers(), is_checkpoint ? kWeights : "");
    const auto buffers = mean_buffers(file);
    const std::size_t wanted = replica.buffers().size();
    if (is_checkpoint && buffers.size() != wanted) {
      throw std::runtime_error("it has " + std::to_string(buffers.size()) +
                               " running statistics of batch normalisation, the model " +
                               std::to_string(wanted));
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto values = floats_of(*tensors[i]);
      std::ranges::copy(values, replica.weights().subspan(replica.offset(i)).begin());
    }
    replica.weights_changed();
    if (buffers.size() == wanted) replica.set_buffers(buffers);
  } catch (const std::exception& e) {
    throw std::runtime_error("--init: '" + path + "' does not fit --model " + model + ": " +
                             e.what());
  }
}

std::unique_ptr<Replica> make_first_replica(const Options& options, const InputShape& input,
                                            std::optional<int> gpu) {
  auto replica = options.own != nullptr
                     ? options.own->make_replica(options.seed)
                     : make_replica(options.model, options.norm, input, options.seed, gpu);
  if (!options.init.empty() && options.resume.empty())
    load_weights(options.init, options.model, *replica);
  return replica;
}

}  // namespace train
