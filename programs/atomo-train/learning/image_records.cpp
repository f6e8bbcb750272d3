// SPDX-License-Identifier: Apache-2.0
/// \file
/// The files of MNIST-like data sets (idx, plain or gzip) and the binary versions of CIFAR-10 and
/// CIFAR-100 are found, checked and read here.

#include <array>
#include <stdexcept>
#include <string>

#include "files/unpacked_file.hpp"
#include "learning/image_set.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;
using Raw = std::vector<std::uint8_t>;

constexpr const char *kImagesEnd = "-images-idx3-ubyte", *kLabelsEnd = "-labels-idx1-ubyte";

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

ImageSet load_idx_files(const fs::path& folder, const std::string& prefix) {
  const auto images = find_idx(folder, prefix + kImagesEnd);
  const auto labels = find_idx(folder, prefix + kLabelsEnd);
  if (images.empty() || labels.empty()) {
    throw std::runtime_error("'" + folder.string() + "' has no " + prefix +
                             (images.empty() ? kImagesEnd : kLabelsEnd) + ", plain or .gz");
  }
  ImageSet set;
  set.images = read_unpacked_file(images);
  const auto dims = take_idx_header(set.images, 3, images);
  Raw classes = read_unpacked_file(labels);
  const auto count = take_idx_header(classes, 1, labels);
  if (dims[0] != count[0] || count[0] == 0) {
    throw std::runtime_error(images.string() + " has " + std::to_string(dims[0]) + " images and " +
                             labels.string() + " " + std::to_string(count[0]) + " labels");
  }
  set.labels.assign(classes.begin(), classes.end());
  set.shape = {1, dims[1], dims[2], 0};
  return set;
}

bool has_idx(const fs::path& folder) {
  for (const char* prefix : {"train", "t10k"}) {
    for (const char* end : {kImagesEnd, kLabelsEnd})
      if (!find_idx(folder, std::string(prefix) + end).empty()) return true;
  }
  return false;
}

ImageData load_idx(const fs::path& folder, std::int64_t side) {
  ImageData data{load_idx_files(folder, "train"), load_idx_files(folder, "t10k")};
  resize_images(data.training, side);
  resize_images(data.test, side);
  return data;
}

/// What the binary versions of CIFAR differ in. A record is its labels, of which the last counts, and
/// an image.
struct Cifar {
  const char* folder;  ///< in which the archive has them
  std::vector<std::string> training;
  const char* test;
  std::size_t labels;  ///< of a record
  std::int64_t classes;
};

const Cifar& cifar10() {
  static const Cifar cifar{"cifar-10-batches-bin",
                           {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                            "data_batch_4.bin", "data_batch_5.bin"},
                           "test_batch.bin",
                           1,
                           10};
  return cifar;
}
const Cifar& cifar100() {
  static const Cifar cifar{"cifar-100-binary", {"train.bin"}, "test.bin", 2, 100};
  return cifar;
}

/// Where the files are: in `folder`, or as they were unpacked there. Empty when they are not.
fs::path find_cifar(const Cifar& cifar, const fs::path& folder) {
  for (const auto& place : {folder, folder / cifar.folder})
    if (fs::exists(place / cifar.training.front())) return place;
  return {};
}

ImageSet load_cifar_files(const Cifar& cifar, const fs::path& folder,
                          const std::vector<std::string>& names) {
  constexpr std::size_t kImage = 3 * 32 * 32;
  const std::size_t record = cifar.labels + kImage;
  ImageSet set;
  set.shape = {3, 32, 32, cifar.classes};
  for (const auto& name : names) {
    const auto path = folder / name;
    const Raw raw = read_unpacked_file(path);
    if (raw.empty() || raw.size() % record != 0) {
      throw std::runtime_error(path.string() + " is not a CIFAR-" + std::to_string(cifar.classes) +
                               " binary: " + std::to_string(raw.size()) +
                               " bytes are no multiple of " + std::to_string(record));
    }
    for (std::size_t at = 0; at < raw.size(); at += record) {
      const auto image = raw.begin() + static_cast<std::ptrdiff_t>(at + cifar.labels);
      set.labels.push_back(*(image - 1));
      set.images.insert(set.images.end(), image, image + kImage);
    }
  }
  return set;
}

template <const Cifar& (*of)()>
bool has_cifar(const fs::path& folder) {
  return !find_cifar(of(), folder).empty();
}
template <const Cifar& (*of)()>
ImageData load_cifar(const fs::path& folder, std::int64_t side) {
  const auto place = find_cifar(of(), folder);
  ImageData data{load_cifar_files(of(), place, of().training),
                 load_cifar_files(of(), place, {of().test})};
  resize_images(data.training, side);
  resize_images(data.test, side);
  return data;
}

}  // namespace

const ImageFormat kIdxFormat{"train-images-idx3-ubyte (or .gz) as MNIST has it", has_idx, load_idx};
const ImageFormat kCifar10Format{"data_batch_1.bin as CIFAR-10 has it", has_cifar<cifar10>,
                                 load_cifar<cifar10>};
const ImageFormat kCifar100Format{"train.bin as CIFAR-100 has it", has_cifar<cifar100>,
                                  load_cifar<cifar100>};

}  // namespace train
