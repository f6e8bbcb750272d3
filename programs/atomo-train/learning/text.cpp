// SPDX-License-Identifier: Apache-2.0
/// \file
/// The text is one file, or all files below a folder in the order of their paths, read as bytes.
/// Every tenth block of 4096 characters is kept for the test. Samples are windows of 64 characters
/// that do not overlap; the targets are the same window moved on by one character. A test is
/// measured in bits a character.

#include "learning/text.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numbers>
#include <stdexcept>

#include "files/unpacked_file.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kWindow = 64;     // characters
constexpr std::size_t kBlock = 4096;    // characters that stay in one split
constexpr std::size_t kTestShare = 10;  // one block of so many is for the test

double bits_a_character(const Score& score) {
  return score.loss / static_cast<double>(score.predictions) / std::numbers::ln2;
}
std::string bits_text(double bits) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3f", bits);
  return text.data();
}
constexpr Measure kBitsACharacter{"bits_per_character", "bits a character", bits_a_character,
                                  bits_text};

std::vector<fs::path> files_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(path))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

class TextTask final : public Task {
 public:
  explicit TextTask(const std::string& path) {
    std::size_t at = 0;
    for (const auto& file : files_of(path)) {
      for (const std::uint8_t character : read_unpacked_file(file.string())) {
        auto& text = at++ / kBlock % kTestShare == kTestShare - 1 ? test_ : training_;
        text.push_back(character);
      }
    }
    if (at < kTestShare * kBlock) {
      throw std::runtime_error("the text at '" + path + "' has " + std::to_string(at) +
                               " characters, training and test need at least " +
                               std::to_string(kTestShare * kBlock));
    }
  }

  [[nodiscard]] InputShape input() const override {
    return TextShape{.characters = static_cast<std::int64_t>(kWindow)};
  }
  [[nodiscard]] const Measure& measure() const override { return kBitsACharacter; }
  /// The last character of a split is predicted, but predicts nothing.
  [[nodiscard]] std::size_t samples(Split split) const override {
    return (text(split).size() - 1) / kWindow;
  }

  void gather(Split split, std::span<const std::uint32_t> which, Batch& batch) const override {
    batch.characters.clear();
    batch.targets.clear();
    for (const auto number : which) {
      const auto from = text(split).begin() + static_cast<std::ptrdiff_t>(number * kWindow);
      batch.characters.insert(batch.characters.end(), from, from + kWindow);
      batch.targets.insert(batch.targets.end(), from + 1, from + 1 + kWindow);
    }
  }

 private:
  [[nodiscard]] const std::vector<std::uint8_t>& text(Split split) const noexcept {
    return split == Split::train ? training_ : test_;
  }
  std::vector<std::uint8_t> training_, test_;
};

}  // namespace

std::unique_ptr<Task> make_text_task(const std::string& path) {
  return std::make_unique<TextTask>(path);
}

}  // namespace train
