// SPDX-License-Identifier: Apache-2.0
/// write_format_cases DIR [--goldens]: for every case a container (NAME.atomo) and what the library
/// decodes from it into each element type (NAME.f32, NAME.f16, NAME.bf16), all raw bytes.
///
/// --goldens writes the goldens instead, and the messages that must be refused into DIR/rejected.
/// --mutations writes damaged messages whose checksums hold; where the library decodes one, its
/// values stand beside it.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "hostile/rejected_messages.hpp"
#include "support/mutated_messages.hpp"
#include "wire/format_cases.hpp"

namespace {

namespace fs = std::filesystem;
using namespace atomo;  // NOLINT: a program of its own

void write(const fs::path& path, const std::vector<std::byte>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
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

void write_cases(const fs::path& folder, const std::vector<test::FormatCase>& cases, bool halves) {
  for (const test::FormatCase& c : cases) {
    if (!c.of_older) write_case(folder, c, halves);
  }
}

void write_goldens(const fs::path& folder) {
  write_cases(folder, test::golden_cases(), false);
  fs::create_directories(folder / "rejected");
  for (const test::RejectedMessage& m : test::rejected_messages())
    write(folder / "rejected" / m.file, m.bytes);
}

void write_mutations(const fs::path& folder) {
  constexpr std::size_t kLongest = 1500;
  constexpr int kMutations = 25;
  for (const test::FormatCase& c : test::format_cases()) {
    const std::vector<std::byte> message = test::encode_case(c);
    for (int i = 0; message.size() <= kLongest && i < kMutations; ++i) {
      const std::string name = c.name + "-" + std::to_string(i);
      const std::vector<std::byte> mutated =
          test::mutated_message(message, static_cast<std::uint64_t>(i));
      write(folder / (name + ".atomo"), mutated);
      std::vector<std::byte> values;
      if (test::decodes(c, mutated, values)) write(folder / (name + ".f32"), values);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 2 ? argv[2] : "";
  if (argc < 2 || argc > 3 || !(what.empty() || what == "--goldens" || what == "--mutations")) {
    std::fprintf(stderr, "usage: write_format_cases DIR [--goldens | --mutations]\n");
    return 2;
  }
  try {
    const fs::path folder = argv[1];
    fs::create_directories(folder);
    if (what == "--goldens") {
      write_goldens(folder);
    } else if (what == "--mutations") {
      write_mutations(folder);
    } else {
      write_cases(folder, test::format_cases(), true);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
