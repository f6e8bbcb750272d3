// SPDX-License-Identifier: Apache-2.0
#include "dataset.hpp"

#include <zlib.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>

namespace train {
namespace {

namespace fs = std::filesystem;
using Raw = std::vector<std::uint8_t>;

constexpr std::size_t kCifarRecord = 1 + 3 * 32 * 32;
constexpr std::array kCifarTrain = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                    "data_batch_4.bin", "data_batch_5.bin"};

/// zlib reads plain files as they are.
Raw read_file(const fs::path& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) throw std::runtime_error("cannot open " + path.string());
  Raw raw;
  std::array<std::uint8_t, 1 << 16> piece;
  for (;;) {
    const int got = gzread(file.get(), piece.data(), piece.size());
    if (got < 0) throw std::runtime_error("cannot read " + path.string() + ": damaged gzip data");
    if (got == 0) return raw;
    raw.insert(raw.end(), piece.begin(), piece.begin() + got);
  }
}

/// `name` or `name.gz` in `folder`, empty when neither is there.
fs::path find_idx(const fs::path& folder, const std::string& name) {
  for (const char* ending : {"", ".gz"}) {
    if (fs::exists(folder / (name + ending))) return folder / (name + ending);
  }
  return {};
}

std::uint32_t big_endian(const Raw& raw, std::size_t at) {
  return static_cast<std::uint32_t>(raw[at]) << 24 | static_cast<std::uint32_t>(raw[at + 1]) << 16 |
         static_cast<std::uint32_t>(raw[at + 2]) << 8 | raw[at + 3];
}

/// Checks an idx header (two zeros, type 8 = bytes, rank, then one big-endian size a dimension) and
/// drops it.
std::vector<std::uint32_t> take_idx_header(Raw& raw, std::size_t rank, const fs::path& path) {
  const std::size_t header = 4 + 4 * rank;
  if (raw.size() < header || raw[0] != 0 || raw[1] != 0 || raw[2] != 8 || raw[3] != rank) {
    throw std::runtime_error(path.string() + " is not an idx file of bytes with " +
                             std::to_string(rank) + " dimensions");
  }
  std::vector<std::uint32_t> dims(rank);
  std::uint64_t product = 1;
  for (std::size_t i = 0; i < rank; ++i) {
    dims[i] = big_endian(raw, 4 + 4 * i);
    if (dims[i] != 0 && product > raw.size() / dims[i])
      product = raw.size();  // more than there is: refused below
    else
      product *= dims[i];
  }
  if (product != raw.size() - header) {
    throw std::runtime_error(path.string() + " holds " + std::to_string(raw.size() - header) +
                             " bytes, its header says otherwise");
  }
  raw.erase(raw.begin(), raw.begin() + static_cast<std::ptrdiff_t>(header));
  return dims;
}

Dataset load_idx(const fs::path& images, const fs::path& labels) {
  Dataset set;
  set.images = read_file(images);
  const auto dims = take_idx_header(set.images, 3, images);
  set.labels = read_file(labels);
  const auto count = take_idx_header(set.labels, 1, labels);
  if (dims[0] != count[0] || count[0] == 0) {
    throw std::runtime_error(images.string() + " has " + std::to_string(dims[0]) + " images and " +
                             labels.string() + " " + std::to_string(count[0]) + " labels");
  }
  set.shape = {1, dims[1], dims[2]};
  return set;
}

Dataset load_cifar(const fs::path& folder, Split split) {
  Dataset set;
  set.shape = {3, 32, 32};
  std::vector<fs::path> files;
  if (split == Split::test)
    files.push_back(folder / "test_batch.bin");
  else
    for (const char* name : kCifarTrain) files.push_back(folder / name);
  for (const auto& path : files) {
    const Raw raw = read_file(path);
    if (raw.empty() || raw.size() % kCifarRecord != 0) {
      throw std::runtime_error(path.string() +
                               " is not a CIFAR-10 binary: " + std::to_string(raw.size()) +
                               " bytes are no multiple of " + std::to_string(kCifarRecord));
    }
    for (std::size_t at = 0; at < raw.size(); at += kCifarRecord) {
      const auto record = raw.begin() + static_cast<std::ptrdiff_t>(at);
      set.labels.push_back(*record);
      set.images.insert(set.images.end(), record + 1, record + kCifarRecord);
    }
  }
  return set;
}

}  // namespace

Dataset load_dataset(const std::string& folder, Split split) {
  const std::string prefix = split == Split::train ? "train" : "t10k";
  const auto images = find_idx(folder, prefix + "-images-idx3-ubyte");
  const auto labels = find_idx(folder, prefix + "-labels-idx1-ubyte");
  Dataset set;
  if (!images.empty() && !labels.empty()) {
    set = load_idx(images, labels);
  } else if (fs::exists(fs::path(folder) / kCifarTrain[0])) {
    set = load_cifar(folder, split);
  } else if (fs::exists(fs::path(folder) / "cifar-10-batches-bin" / kCifarTrain[0])) {
    set = load_cifar(fs::path(folder) / "cifar-10-batches-bin", split);
  } else {
    const std::string missing = images.empty() ? "-images-idx3-ubyte" : "-labels-idx1-ubyte";
    throw std::runtime_error("no data in '" + folder + "': neither " + prefix + missing +
                             " (or .gz) as MNIST has it nor " + kCifarTrain[0] +
                             " as CIFAR-10 has it is there; Fashion-MNIST is in the package "
                             "dataset-fashion-mnist (apt-get install dataset-fashion-mnist)");
  }
  for (const auto label : set.labels) {
    if (label >= kClasses) {
      throw std::runtime_error("a label of '" + folder + "' is " + std::to_string(label) +
                               ", above 9");
    }
  }
  return set;
}

Normalisation measure(const Dataset& dataset) {
  Normalisation by;
  const auto channels = static_cast<std::size_t>(dataset.shape.channels);
  const std::size_t plane = dataset.shape.pixels() / channels;
  std::vector<std::uint64_t> sum(channels), squares(channels);
  for (std::size_t at = 0, c = 0; at < dataset.images.size(); at += plane, c = (c + 1) % channels) {
    for (std::size_t i = 0; i < plane; ++i) {
      const std::uint64_t pixel = dataset.images[at + i];
      sum[c] += pixel;
      squares[c] += pixel * pixel;
    }
  }
  const double count = static_cast<double>(dataset.size() * plane);
  for (std::size_t c = 0; c < channels; ++c) {
    const double mean = static_cast<double>(sum[c]) / count / 255;
    const double variance = static_cast<double>(squares[c]) / count / (255.0 * 255.0) - mean * mean;
    by.mean.push_back(static_cast<float>(mean));
    by.deviation.push_back(static_cast<float>(variance > 0 ? std::sqrt(variance) : 1));
  }
  return by;
}

void gather(const Dataset& dataset, const Normalisation& by, std::span<const std::uint32_t> which,
            Batch& batch) {
  const std::size_t pixels = dataset.shape.pixels();
  const std::size_t plane = pixels / by.mean.size();
  batch.images.resize(which.size() * pixels);
  batch.labels.resize(which.size());
  float* out = batch.images.data();
  for (std::size_t k = 0; k < which.size(); ++k) {
    const std::uint8_t* in = dataset.images.data() + which[k] * pixels;
    batch.labels[k] = dataset.labels[which[k]];
    for (std::size_t c = 0; c < by.mean.size(); ++c) {
      for (std::size_t i = 0; i < plane; ++i) {
        *out++ = (static_cast<float>(*in++) / 255.0F - by.mean[c]) / by.deviation[c];
      }
    }
  }
}

DataOrder::DataOrder(std::size_t samples, std::size_t workers, std::size_t batch,
                     std::uint64_t seed)
    : workers_(workers),
      batch_(batch),
      steps_per_epoch_(samples / (workers * batch)),
      seed_(seed),
      order_(samples) {
  if (steps_per_epoch_ == 0) {
    throw std::runtime_error("a step of " + std::to_string(workers) + " workers with --batch " +
                             std::to_string(batch) + " needs " + std::to_string(workers * batch) +
                             " samples, the training set has " + std::to_string(samples));
  }
}

std::span<const std::uint32_t> DataOrder::samples(std::uint32_t step, std::size_t worker) {
  const std::uint64_t epoch = step / steps_per_epoch_;
  if (epoch != epoch_) shuffle(epoch);
  const std::size_t first = ((step % steps_per_epoch_) * workers_ + worker) * batch_;
  return std::span(order_).subspan(first, batch_);
}

void DataOrder::shuffle(std::uint64_t epoch) {
  epoch_ = epoch;
  std::iota(order_.begin(), order_.end(), 0U);
  std::seed_seq seeds{static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32),
                      static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(epoch >> 32)};
  std::mt19937_64 random(seeds);
  for (std::size_t i = order_.size(); i > 1; --i) {
    // A modulo is off by less than i / 2^64; std::shuffle would differ between standard libraries.
    std::swap(order_[i - 1], order_[random() % i]);
  }
}

}  // namespace train
