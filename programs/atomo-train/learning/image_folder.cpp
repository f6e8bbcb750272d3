// SPDX-License-Identifier: Apache-2.0
/// \file
/// Folders of images: train/CLASS/* and test/CLASS/* (or val/CLASS/*). Classes have numbers in the
/// order of their names in train, images in the order of theirs. Where every image is grey, one
/// channel is kept.

#include <algorithm>
#include <stdexcept>
#include <string>

#include "files/image_file.hpp"
#include "learning/image_set.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostClasses = 65536;  // a label has 16 bits

fs::path test_folder(const fs::path& folder) {
  for (const char* name : {"test", "val"})
    if (fs::is_directory(folder / name)) return folder / name;
  return {};
}

std::vector<std::string> sorted_names(const fs::path& folder, bool of_folders) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (of_folders ? entry.is_directory() : entry.is_regular_file() && is_image_name(name))
      names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

/// Channels x height x width of height x width x channels.
std::vector<std::uint8_t> planes_of(const ImageFile& image) {
  const std::size_t plane = image.pixels.size() / 3;
  std::vector<std::uint8_t> planes(image.pixels.size());
  for (std::size_t k = 0; k < plane; ++k)
    for (std::size_t c = 0; c < 3; ++c) planes[c * plane + k] = image.pixels[3 * k + c];
  return planes;
}

void add_image(const fs::path& path, std::int64_t side, ImageSet& set) {
  const ImageFile image = read_image_file(path);
  const auto planes = planes_of(image);
  const ImageShape shape{3, image.height, image.width, set.shape.classes};
  if (side != 0) {
    append_resized(planes, shape, side, set.images);
    set.shape.height = set.shape.width = side;
    return;
  }
  if (set.images.empty()) set.shape = shape;
  if (shape.height != set.shape.height || shape.width != set.shape.width) {
    throw std::runtime_error(path.string() + " has " + std::to_string(shape.height) + " x " +
                             std::to_string(shape.width) + " pixels, images before it " +
                             std::to_string(set.shape.height) + " x " +
                             std::to_string(set.shape.width) + "; --image-size N makes all N x N");
  }
  set.images.insert(set.images.end(), planes.begin(), planes.end());
}

ImageSet load_classes(const fs::path& folder, const std::vector<std::string>& classes,
                      std::int64_t side) {
  ImageSet set;
  set.shape = {3, 0, 0, static_cast<std::int64_t>(classes.size())};
  for (std::size_t label = 0; label < classes.size(); ++label) {
    if (!fs::is_directory(folder / classes[label])) continue;  // a test may lack a class
    for (const auto& name : sorted_names(folder / classes[label], false)) {
      add_image(folder / classes[label] / name, side, set);
      set.labels.push_back(static_cast<std::uint16_t>(label));
    }
  }
  if (set.size() == 0)
    throw std::runtime_error(
        "no images (.png, .jpg, .jpeg, .ppm, .pgm) in the folders of classes of " +
        folder.string());
  return set;
}

bool is_grey(const ImageSet& set) {
  const std::size_t plane = set.shape.pixels() / 3;
  for (std::size_t at = 0; at < set.images.size(); at += 3 * plane) {
    const auto red = set.images.begin() + static_cast<std::ptrdiff_t>(at);
    const auto length = static_cast<std::ptrdiff_t>(plane);
    if (!std::equal(red, red + 2 * length, red + length)) return false;
  }
  return true;
}

void keep_one_channel(ImageSet& set) {
  const std::size_t plane = set.shape.pixels() / 3;
  for (std::size_t k = 0; k < set.size(); ++k)
    std::copy_n(set.images.begin() + static_cast<std::ptrdiff_t>(3 * k * plane), plane,
                set.images.begin() + static_cast<std::ptrdiff_t>(k * plane));
  set.images.resize(set.size() * plane);
  set.shape.channels = 1;
}

bool has_folders(const fs::path& folder) {
  return fs::is_directory(folder / "train") && !test_folder(folder).empty();
}

ImageData load_folders(const fs::path& folder, std::int64_t side) {
  const auto training = folder / "train", test = test_folder(folder);
  const auto classes = sorted_names(training, true);
  if (classes.size() > kMostClasses)
    throw std::runtime_error(training.string() + " has " + std::to_string(classes.size()) +
                             " classes, more than " + std::to_string(kMostClasses));
  for (const auto& name : sorted_names(test, true)) {
    if (!std::ranges::binary_search(classes, name))
      throw std::runtime_error("the class '" + name + "' of " + test.string() + " is not in " +
                               training.string());
  }
  ImageData data{load_classes(training, classes, side), load_classes(test, classes, side)};
  if (is_grey(data.training) && is_grey(data.test)) {
    keep_one_channel(data.training);
    keep_one_channel(data.test);
  }
  return data;
}

}  // namespace

const ImageFormat kImageFolderFormat{"the folders train and test (or val), with a folder a class",
                                     has_folders, load_folders};

}  // namespace train
