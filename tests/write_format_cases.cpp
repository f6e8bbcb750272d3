// SPDX-License-Identifier: Apache-2.0
/// write_format_cases DIR [--goldens]: for every case a container (NAME.atomo) and what the library decodes from it
/// into each element type (NAME.f32, NAME.f16, NAME.bf16), all raw bytes. --goldens writes the goldens and the
/// messages that must be refused instead.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "format_cases.hpp"
#include "rejected_messages.hpp"

namespace {

namespace fs = std::filesystem;
using namespace atomo;  // NOLINT: a program of its own

void write(const fs::path& path, const std::vector<std::byte>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw Error("could not write " + path.string());
}

void write_case(const fs::path& folder, const test::FormatCase& c, bool halves) {
  const std::vector<std::byte> message = test::encode_case(c);
  write(folder / (c.name + ".atomo"), message);
  write(folder / (c.name + ".f32"), test::decode_case(c, message, DType::f32));
  if (!halves) return;
  write(folder / (c.name + ".f16"), test::decode_case(c, message, DType::f16));
  write(folder / (c.name + ".bf16"), test::decode_case(c, message, DType::bf16));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: write_format_cases DIR [--goldens]\n");
    return 2;
  }
  const fs::path folder = argv[1];
  const bool goldens = argc > 2 && std::string_view(argv[2]) == "--goldens";
  int refused = 0;
  try {
    fs::create_directories(folder);
    for (const test::FormatCase& c : goldens ? test::golden_cases() : test::format_cases()) {
      try {
        write_case(folder, c, !goldens);
      } catch (const Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        ++refused;
      }
    }
    if (goldens) {
      for (const test::RejectedMessage& m : test::rejected_messages()) write(folder / m.file, m.bytes);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return refused == 0 ? 0 : 1;
}
