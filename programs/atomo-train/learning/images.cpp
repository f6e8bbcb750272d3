// SPDX-License-Identifier: Apache-2.0
/// \file
/// The format of a folder is found and its images are loaded and checked here. Images stay bytes in
/// memory; a batch is converted to floats when it is gathered, and normalised by the mean and deviation
/// of each channel unless plain pixels are wanted. Tests on images are measured by the accuracy.

#include "learning/images.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <stdexcept>

#include "learning/image_set.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;

/// Mean and standard deviation of each channel, of pixels scaled to [0, 1].
struct Normalisation {
  std::vector<float> mean, deviation;
};

/// \throws std::runtime_error for a label that is no class, naming it.
void check_labels(const ImageSet& set, std::int64_t classes, const std::string& which) {
  const auto largest = std::ranges::max_element(set.labels);
  if (*largest < classes) return;
  throw std::runtime_error("a " + which + " label is " + std::to_string(*largest) +
                           ", the data have " + std::to_string(classes) + " classes, 0 to " +
                           std::to_string(classes - 1));
}

/// Counts the classes where the format does not say how many there are, and checks that training and
/// test go together.
void check_data(ImageData& data) {
  auto& training = data.training.shape;
  auto& test = data.test.shape;
  if (training.classes == 0) training.classes = 1 + *std::ranges::max_element(data.training.labels);
  test.classes = training.classes;
  check_labels(data.training, training.classes, "training");
  check_labels(data.test, training.classes, "test");
  if (training.height != test.height || training.width != test.width) {
    throw std::runtime_error("training images have " + std::to_string(training.height) + " x " +
                             std::to_string(training.width) + " pixels, those of the test " +
                             std::to_string(test.height) + " x " + std::to_string(test.width));
  }
}

ImageData load(const std::string& folder, std::int64_t side) {
  const std::array formats = {kIdxFormat, kCifar10Format, kCifar100Format, kSvhnFormat,
                              kImageFolderFormat};
  std::string files;
  for (const auto& format : formats) {
    if (!format.is_in(folder)) {
      files += (files.empty() ? "" : ", ") + std::string(format.files);
      continue;
    }
    ImageData data = format.load(folder, side);
    try {
      check_data(data);
    } catch (const std::exception& e) {
      throw std::runtime_error("'" + folder + "': " + e.what());
    }
    return data;
  }
  throw std::runtime_error(
      "no data in '" + folder + "': none of " + files +
      " is there; scripts/fetch-data.sh fetches data sets, and Fashion-MNIST is in the package "
      "dataset-fashion-mnist (apt-get install dataset-fashion-mnist)");
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
  ImageTask(const std::string& folder, bool plain, std::int64_t side)
      : data_(load(folder, side)),
        normalisation_(plain ? unchanged(data_.training) : normalisation_of(data_.training)) {
    for (std::size_t c = 0; c < normalisation_.mean.size(); ++c)
      black_.push_back((0.0F - normalisation_.mean[c]) / normalisation_.deviation[c]);
  }

  [[nodiscard]] InputShape input() const override { return data_.training.shape; }
  [[nodiscard]] const Measure& measure() const override { return kAccuracy; }
  [[nodiscard]] std::size_t samples(Split split) const override { return set(split).size(); }
  [[nodiscard]] std::span<const std::uint16_t> labels() const override {
    return data_.training.labels;
  }
  [[nodiscard]] std::size_t classes() const override {
    return static_cast<std::size_t>(data_.training.shape.classes);
  }
  [[nodiscard]] std::span<const float> black() const override { return black_; }
  void gather(Split split, std::span<const std::uint32_t> which, Batch& batch) const override {
    gather_images(set(split), normalisation_, which, batch);
  }

 private:
  [[nodiscard]] const ImageSet& set(Split split) const noexcept {
    return split == Split::train ? data_.training : data_.test;
  }
  ImageData data_;
  Normalisation normalisation_;
  std::vector<float> black_;
};

}  // namespace

std::unique_ptr<Task> make_image_task(const std::string& folder, bool plain, std::int64_t side) {
  return std::make_unique<ImageTask>(folder, plain, side);
}

}  // namespace train
