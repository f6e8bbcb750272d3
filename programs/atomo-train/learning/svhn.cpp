// SPDX-License-Identifier: Apache-2.0
/// \file
/// The cropped digits of SVHN, train_32x32.mat and test_32x32.mat, as they are published: X is height
/// x width x 3 x images, its first dimension fastest, and y the labels, where 10 is the digit 0.

#include <algorithm>
#include <stdexcept>
#include <string>

#include "files/mat_file.hpp"
#include "learning/image_set.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;

constexpr const char *kTraining = "train_32x32.mat", *kTest = "test_32x32.mat";
constexpr std::int64_t kDigits = 10;

const MatArray& array_of(const std::vector<MatArray>& arrays, const std::string& name,
                         const fs::path& path) {
  const auto found = std::ranges::find(arrays, name, &MatArray::name);
  if (found == arrays.end())
    throw std::runtime_error(path.string() + " has no array '" + name + "', as SVHN has");
  return *found;
}

ImageSet load_mat(const fs::path& path) {
  const auto arrays = read_mat_file(path);
  const auto& x = array_of(arrays, "X", path);
  const auto& y = array_of(arrays, "y", path);
  if (x.dims.size() != 4 || x.dims[2] != 3 || x.bytes.empty() ||
      y.bytes.size() != static_cast<std::size_t>(x.dims[3])) {
    throw std::runtime_error(path.string() +
                             ": X is not height x width x 3 x images, with a label of y for each");
  }
  ImageSet set;
  set.shape = {3, x.dims[0], x.dims[1], kDigits};
  set.images.resize(x.bytes.size());
  const auto height = static_cast<std::size_t>(x.dims[0]),
             width = static_cast<std::size_t>(x.dims[1]);
  const std::size_t plane = height * width;
  for (std::size_t at = 0; at < x.bytes.size(); at += plane) {  // of an image's channel
    for (std::size_t c = 0; c < width; ++c)
      for (std::size_t r = 0; r < height; ++r)
        set.images[at + r * width + c] = x.bytes[at + c * height + r];
  }
  for (const auto label : y.bytes)
    set.labels.push_back(label == kDigits ? std::uint16_t{0} : std::uint16_t{label});
  return set;
}

bool has_svhn(const fs::path& folder) { return fs::exists(folder / kTraining); }

ImageData load_svhn(const fs::path& folder, std::int64_t side) {
  ImageData data{load_mat(folder / kTraining), load_mat(folder / kTest)};
  resize_images(data.training, side);
  resize_images(data.test, side);
  return data;
}

}  // namespace

const ImageFormat kSvhnFormat{"train_32x32.mat as SVHN has it", has_svhn, load_svhn};

}  // namespace train
