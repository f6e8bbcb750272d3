// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "atomo/atomo.hpp"
#include "fuzz/mutations.hpp"

namespace atomo::fuzz {

std::vector<Buffer> container_seeds() {
  std::vector<Buffer> seeds;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(ATOMO_TESTS_DIR "/golden")) {
    if (entry.path().extension() == ".atomo" && entry.file_size() < 16'000)
      paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    seeds.push_back(buffer_of(bytes));
  }
  std::uint64_t number = 0;
  for (const CodecHelp& help : list_codecs()) {
    for (const std::string& spec : help.specs) {
      for (const Shape& shape : {Shape{12, 40}, Shape{300}, Shape{3}}) {
        const test::Content content =
            ++number % 3 == 0 ? test::Content::mixed : test::Content::flat;
        seeds.push_back(test::encode_case({spec, {{spec, shape, content}}}));
      }
    }
  }
  return seeds;
}

}  // namespace atomo::fuzz
