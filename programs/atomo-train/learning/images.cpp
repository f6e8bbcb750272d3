// SPDX-License-Identifier: Apache-2.0
/// \file
/// The files of MNIST-like data sets and of CIFAR-10 are found, checked and read here. Images stay
/// bytes in memory; a batch is converted to floats when it is gathered, and normalised by the mean
/// and deviation of each channel unless plain pixels are wanted. Tests on images are measured by
/// the accuracy.

#include "learning/images.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <stdexcept>

#include "files/unpacked_file.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;
using Raw = std::vector<std::uint8_t>;

struct ImageSet {
  ImageShape shape;
  std::vector<std::uint8_t> images;  ///< size() x channels x height x width
  std::vector<std::uint8_t> labels;  ///< size(), below kImageClasses
  [[nodiscard]] std::size_t size() const noexcept { return labels.size(); }
};

/// Mean and standard deviation of each channel, of pixels scaled to [0, 1].
struct Normalisation {
  std::vector<float> mean, deviation;
};

constexpr std::size_t kCifarRecord = 1 + 3 * 32 * 32;
constexpr std::array kCifarTrain = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                    "data_batch_4.bin", "data_batch_5.bin"};

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

ImageSet load_idx(const fs::path& images, const fs::path& labels) {
  ImageSet set;
  set.images = read_unpacked_file(images);
  const auto dims = take_idx_header(set.images, 3, images);
  set.labels = read_unpacked_file(labels);
  const auto count = take_idx_header(set.labels, 1, labels);
  if (dims[0] != count[0] || count[0] == 0) {
    throw std::runtime_error(images.string() + " has " + std::to_string(dims[0]) + " images and " +
                             labels.string() + " " + std::to_string(count[0]) + " labels");
  }
  set.shape = {1, dims[1], dims[2]};
  return set;
}

ImageSet load_cifar(const fs::path& folder, Split split) {
  ImageSet set;
  set.shape = {3, 32, 32};
  std::vector<fs::path> files;
  if (split == Split::test)
    files.push_back(folder / "test_batch.bin");
  else
    for (const char* name : kCifarTrain) files.push_back(folder / name);
  for (const auto& path : files) {
    const Raw raw = read_unpacked_file(path);
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

ImageSet load(const std::string& folder, Split split) {
  const std::string prefix = split == Split::train ? "train" : "t10k";
  const auto images = find_idx(folder, prefix + "-images-idx3-ubyte");
  const auto labels = find_idx(folder, prefix + "-labels-idx1-ubyte");
  ImageSet set;
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
    if (label >= kImageClasses) {
      throw std::runtime_error("a label of '" + folder + "' is " + std::to_string(label) +
                               ", above 9");
    }
  }
  return set;
}

Normalisation normalisation_of(const ImageSet& set) {
  Normalisation by;
  const auto channels = static_cast<std::size_t>(set.shape.channels);
  const std::size_t plane = set.shape.pixels() / channels;
  std::vector<std::uint64_t> sum(channels), squares(channels);
  for (std::size_t at = 0, c = 0; at < set.images.size(); at += plane, c = (c + 1) % channels) {
    for (std::size_t i = 0; i < plane; ++i) {
      const std::uint64_t pixel = set.images[at + i];
      sum[c] += pixel;
      squares[c] += pixel * pixel;
    }
  }
  const double count = static_cast<double>(set.size() * plane);
  for (std::size_t c = 0; c < channels; ++c) {
    const double mean = static_cast<double>(sum[c]) / count / 255;
    const double variance = static_cast<double>(squares[c]) / count / (255.0 * 255.0) - mean * mean;
    by.mean.push_back(static_cast<float>(mean));
    by.deviation.push_back(static_cast<float>(variance > 0 ? std::sqrt(variance) : 1));
  }
  return by;
}

Normalisation unchanged(const ImageSet& set) {
  const auto channels = static_cast<std::size_t>(set.shape.channels);
  return {.mean = std::vector<float>(channels), .deviation = std::vector<float>(channels, 1)};
}

void gather_images(const ImageSet& set, const Normalisation& by,
                   std::span<const std::uint32_t> which, Batch& batch) {
  const std::size_t pixels = set.shape.pixels();
  const std::size_t plane = pixels / by.mean.size();
  batch.pixels.resize(which.size() * pixels);
  batch.targets.resize(which.size());
  float* out = batch.pixels.data();
  for (std::size_t k = 0; k < which.size(); ++k) {
    const std::uint8_t* in = set.images.data() + which[k] * pixels;
    batch.targets[k] = set.labels[which[k]];
    for (std::size_t c = 0; c < by.mean.size(); ++c) {
      for (std::size_t i = 0; i < plane; ++i) {
        *out++ = (static_cast<float>(*in++) / 255.0F - by.mean[c]) / by.deviation[c];
      }
    }
  }
}

double accuracy(const Score& score) {
  return static_cast<double>(score.correct) / static_cast<double>(score.predictions);
}
std::string percent_text(double share) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f %%", 100 * share);
  return text.data();
}
constexpr Measure kAccuracy{"accuracy", "accuracy", accuracy, percent_text, true};

class ImageTask final : public Task {
 public:
  ImageTask(const std::string& folder, bool plain)
      : training_(load(folder, Split::train)),
        test_(load(folder, Split::test)),
        normalisation_(plain ? unchanged(training_) : normalisation_of(training_)) {
    for (std::size_t c = 0; c < normalisation_.mean.size(); ++c)
      black_.push_back((0.0F - normalisation_.mean[c]) / normalisation_.deviation[c]);
  }

  [[nodiscard]] InputShape input() const override { return training_.shape; }
  [[nodiscard]] const Measure& measure() const override { return kAccuracy; }
  [[nodiscard]] std::size_t samples(Split split) const override { return set(split).size(); }
  [[nodiscard]] std::span<const std::uint8_t> labels() const override { return training_.labels; }
  [[nodiscard]] std::span<const float> black() const override { return black_; }
  void gather(Split split, std::span<const std::uint32_t> which, Batch& batch) const override {
    gather_images(set(split), normalisation_, which, batch);
  }

 private:
  [[nodiscard]] const ImageSet& set(Split split) const noexcept {
    return split == Split::train ? training_ : test_;
  }
  ImageSet training_, test_;
  Normalisation normalisation_;
  std::vector<float> black_;
};

}  // namespace

std::unique_ptr<Task> make_image_task(const std::string& folder, bool plain) {
  return std::make_unique<ImageTask>(folder, plain);
}

}  // namespace train
