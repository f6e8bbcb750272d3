// SPDX-License-Identifier: Apache-2.0
/// \file
/// The parts of a checkpoint are mapped to named tensors here, such as `weights.LAYER`,
/// `moment0.LAYER` and `worker1.compressor`, and the step and the options of the run are stored as
/// metadata. A file is refused when its format or checksum is missing or wrong, or when it was
/// written under other options than this run has; only the path of the data may differ.

#include "files/checkpoint.hpp"

#include <cstring>
#include <stdexcept>

#include "files/stored_tensors.hpp"

namespace train {
namespace {

constexpr const char* kOwesTest = "owes_test";  ///< in the metadata where a test is

/// One tensor a layer for an array as long as the weights.
void append_layers(std::vector<StoredTensor>& tensors, const std::string& prefix,
                   std::span<const float> values, const std::vector<atomo::LayerSpec>& layers) {
  for (const auto& layer : layers) {
    const auto n = layer.shape.elements();
    const auto dims = layer.shape.dims();
    tensors.push_back(
        {prefix + layer.name, "F32", {dims.begin(), dims.end()}, text_of(values.first(n))});
    values = values.subspan(n);
  }
}

std::vector<float> read_layers(const SafetensorsFile& file, const std::string& prefix,
                               const std::vector<atomo::LayerSpec>& layers) {
  std::vector<float> values;
  for (const auto& layer : layers) {
    const auto part = file.floats(prefix + layer.name);
    if (part.size() != layer.shape.elements()) {
      throw std::runtime_error("'" + prefix + layer.name + "' has " + std::to_string(part.size()) +
                               " elements, the model " + std::to_string(layer.shape.elements()));
    }
    values.insert(values.end(), part.begin(), part.end());
  }
  return values;
}

void check_fingerprint(const nlohmann::json& saved, const nlohmann::json& wanted) {
  for (const auto& [key, value] : wanted.items()) {
    if (key == "data") continue;  // a folder may move
    if (saved.value(key, nlohmann::json()) != value) {
      throw std::runtime_error("it was written with --" + key + " " +
                               saved.value(key, nlohmann::json()).dump() + ", this run has " +
                               value.dump() + "; a run goes on only with the same options");
    }
  }
}

/// A part of a packed state: its length in bytes in front.
void append_part(std::vector<std::byte>& bytes, atomo::ConstBytes part) {
  const std::uint64_t length = part.size();
  const auto prefix = std::as_bytes(std::span(&length, 1));
  bytes.insert(bytes.end(), prefix.begin(), prefix.end());
  bytes.insert(bytes.end(), part.begin(), part.end());
}

/// The next part, whose bytes it cuts off.
template <class T>
std::vector<T> take_part(atomo::ConstBytes& bytes) {
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length) throw std::runtime_error("a worker's state is too short");
  std::memcpy(&length, bytes.data(), sizeof length);
  bytes = bytes.subspan(sizeof length);
  if (length > bytes.size()) throw std::runtime_error("a worker's state is too short");
  std::vector<T> part(length / sizeof(T));
  if (!part.empty()) std::memcpy(part.data(), bytes.data(), part.size() * sizeof(T));
  bytes = bytes.subspan(length);
  return part;
}

std::string text_at(const SafetensorsFile& file, const char* key) {
  return file.metadata.at(key).get<std::string>();
}

nlohmann::json fingerprint_of(const SafetensorsFile& file) {
  if (text_at(file, "format") != "atomo-train checkpoint 1")
    throw std::runtime_error("its format is " + text_at(file, "format"));
  if (!file.has_checksum()) throw DamagedFile("it has no checksum");
  return nlohmann::json::parse(text_at(file, "options"));
}

/// One whose options and step can be read.
SafetensorsFile read_checkpoint_file(const std::string& path) {
  auto file = read_safetensors(path);
  try {
    (void)fingerprint_of(file);
    (void)std::stoul(text_at(file, "step"));
    return file;
  } catch (const DamagedFile& e) {
    throw DamagedFile("'" + path + "' is damaged: " + e.what());
  } catch (const std::exception& e) {
    throw std::runtime_error("'" + path + "' is not a checkpoint: " + e.what());
  }
}

/// Everything of worker `prefix` in a file.
WorkerState read_worker(const SafetensorsFile& file, const std::string& prefix) {
  WorkerState state;
  const auto bytes = std::as_bytes(std::span(file.at(prefix + "compressor").bytes));
  state.compressor.assign(bytes.begin(), bytes.end());
  state.buffers = file.floats(prefix + "buffers");
  const std::string arrays = prefix + "own.";
  for (const auto& tensor : file.tensors) {
    if (tensor.name.starts_with(arrays))
      state.arrays[tensor.name.substr(arrays.size())] = file.floats(tensor.name);
  }
  return state;
}

}  // namespace

std::vector<std::byte> WorkerState::pack() const {
  std::vector<std::byte> bytes;
  append_part(bytes, compressor);
  append_part(bytes, std::as_bytes(std::span(buffers)));
  for (const auto& [name, values] : arrays) {
    append_part(bytes, std::as_bytes(std::span(name)));
    append_part(bytes, std::as_bytes(std::span(values)));
  }
  return bytes;
}

WorkerState WorkerState::unpack(atomo::ConstBytes bytes) {
  WorkerState state;
  state.compressor = take_part<std::byte>(bytes);
  state.buffers = take_part<float>(bytes);
  while (!bytes.empty()) {
    const auto name = take_part<char>(bytes);
    state.arrays[{name.begin(), name.end()}] = take_part<float>(bytes);
  }
  return state;
}

void write_checkpoint(const std::string& path, const Checkpoint& checkpoint,
                      const std::vector<atomo::LayerSpec>& layers) {
  std::vector<StoredTensor> tensors;
  append_layers(tensors, "weights.", checkpoint.weights, layers);
  for (std::size_t m = 0; m < checkpoint.moments.size(); ++m) {
    append_layers(tensors, "moment" + std::to_string(m) + ".", checkpoint.moments[m], layers);
  }
  auto names = nlohmann::json::array();
  for (const auto& [name, values] : checkpoint.arrays) {
    append_layers(tensors, name + ".", values, layers);
    names.push_back(name);
  }
  for (std::size_t k = 0; k < checkpoint.workers.size(); ++k) {
    const auto& worker = checkpoint.workers[k];
    const std::string prefix = "worker" + std::to_string(k + 1) + ".";
    tensors.push_back(
        {prefix + "compressor",
         "U8",
         {static_cast<std::int64_t>(worker.compressor.size())},
         {reinterpret_cast<const char*>(worker.compressor.data()), worker.compressor.size()}});
    tensors.push_back({prefix + "buffers",
                       "F32",
                       {static_cast<std::int64_t>(worker.buffers.size())},
                       text_of(worker.buffers)});
    for (const auto& [name, values] : worker.arrays) {
      tensors.push_back({prefix + "own." + name,
                         "F32",
                         {static_cast<std::int64_t>(values.size())},
                         text_of(values)});
    }
  }
  nlohmann::json metadata{{"format", "atomo-train checkpoint 1"},
                          {"options", checkpoint.fingerprint.dump()},
                          {"step", std::to_string(checkpoint.step)},
                          {"sent_bytes", std::to_string(checkpoint.sent_bytes)},
                          {"arrays", names.dump()},
                          {"moments", std::to_string(checkpoint.moments.size())}};
  if (checkpoint.owes_test) metadata[kOwesTest] = "true";
  write_safetensors(path, tensors, metadata);
}

std::string checkpoint_objection(const std::string& path, std::string& which) {
  try {
    const auto file = read_checkpoint_file(path);
    which = "step " + text_at(file, "step") + ", xxh3 " + text_at(file, "xxh3");
    return "";
  } catch (const DamagedFile& e) {
    return "--resume: " + std::string(e.what()) +
           ". Nothing was overwritten; go on from another checkpoint, or begin again without "
           "--resume";
  } catch (const std::exception& e) {
    return "--resume: " + std::string(e.what());
  }
}

nlohmann::json read_fingerprint(const std::string& path) {
  return fingerprint_of(read_checkpoint_file(path));
}

Checkpoint read_checkpoint(const std::string& path, const std::vector<atomo::LayerSpec>& layers,
                           const nlohmann::json& fingerprint) {
  const auto file = read_safetensors(path);
  try {
    const auto text = [&](const char* key) { return text_at(file, key); };
    Checkpoint checkpoint;
    checkpoint.fingerprint = fingerprint_of(file);
    check_fingerprint(checkpoint.fingerprint, fingerprint);
    checkpoint.step = static_cast<std::uint32_t>(std::stoul(text("step")));
    checkpoint.sent_bytes = std::stoull(text("sent_bytes"));
    checkpoint.owes_test = file.metadata.contains(kOwesTest);
    checkpoint.weights = read_layers(file, "weights.", layers);
    const auto moments = std::stoul(text("moments"));
    for (std::size_t m = 0; m < moments; ++m) {
      checkpoint.moments.push_back(read_layers(file, "moment" + std::to_string(m) + ".", layers));
    }
    for (const std::string name : nlohmann::json::parse(text("arrays")))
      checkpoint.arrays[name] = read_layers(file, name + ".", layers);
    const auto workers = fingerprint.at("workers").get<std::size_t>();
    for (std::size_t k = 0; k < workers; ++k) {
      checkpoint.workers.push_back(read_worker(file, "worker" + std::to_string(k + 1) + "."));
    }
    return checkpoint;
  } catch (const DamagedFile& e) {
    throw DamagedFile("'" + path + "' is damaged: " + e.what());
  } catch (const std::exception& e) {
    throw std::runtime_error("cannot use the checkpoint '" + path + "': " + e.what());
  }
}

}  // namespace train
