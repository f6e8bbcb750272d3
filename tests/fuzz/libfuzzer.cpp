// SPDX-License-Identifier: Apache-2.0
/// The front of libFuzzer. `--write-seeds FOLDER` as the first argument writes the target's seeds.
#include <cstring>
#include <filesystem>
#include <fstream>

#include "fuzz/mutations.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed);

namespace {

using namespace atomo::fuzz;  // NOLINT: a program of its own

void mutate_by_libfuzzer(Buffer& input, std::size_t most) {
  const std::size_t before = input.size();
  input.resize(std::max(before, most));
  input.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(input.data()),
                                std::min(before, most), most));
}

}  // namespace

int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 3 || std::strcmp((*argv)[1], "--write-seeds") != 0) return 0;
  const std::filesystem::path folder = (*argv)[2];
  std::filesystem::create_directories(folder);
  std::size_t number = 0;
  for (const Buffer& seed : kTarget.seeds()) {
    std::ofstream file(folder / ("seed-" + std::to_string(number++)), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()),
               static_cast<std::streamsize>(seed.size()));
  }
  std::exit(0);
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static_cast<void>(kTarget.run({reinterpret_cast<const std::byte*>(data), size}));
  return 0;
}

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                    unsigned seed) {
  Draw draw(seed);
  Buffer input(reinterpret_cast<std::byte*>(data), reinterpret_cast<std::byte*>(data) + size);
  const AnyMutation any = [&](Buffer& part, std::size_t part_most) {
    if (kTarget.tokens != nullptr && draw() % 4 == 0) {
      mutate_bytes(part, part_most, draw, {}, &kTarget.tokens());
    } else {
      mutate_by_libfuzzer(part, part_most);
    }
  };
  kTarget.mutate(input, any, draw);
  if (input.size() > most) input.resize(most);
  if (!input.empty()) std::memcpy(data, input.data(), input.size());
  return input.size();
}
