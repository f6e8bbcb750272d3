// SPDX-License-Identifier: Apache-2.0
// Runs one operation of codecs on a fixed tensor of 65,536 entries for whoever counts instructions.
//
//   bench_count [--target=NAME] REPEATS [SPEC/OPERATION]...
//
// Prints the compiler and the kind of build. Without names all codecs run, each operation in turn,
// and each name is printed when its turn is over. All calls of a turn are made by `bench_counted`,
// which callgrind is told to count alone.
#include <charconv>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "codec_case.hpp"
#include "target.hpp"

namespace {

using atomo::bench::CodecCase;
using atomo::bench::Operation;

constexpr std::pair<const char*, Operation> kOperations[] = {{"encode", Operation::encode},
                                                             {"decode", Operation::decode},
                                                             {"decode_add", Operation::decode_add}};

}  // namespace

extern "C" {
/// Calls the operation `repeats` times; false when one failed.
[[gnu::noinline, gnu::used]] bool bench_counted(CodecCase* made, Operation operation, int repeats) {
  bool good = true;
  for (int i = 0; i < repeats; ++i) good = !atomo::failed(made->run(operation)) && good;
  return good;
}
}

namespace {

void run(const std::string& spec, std::string_view wanted, int repeats) {
  // A tensor as small as this has use for a sketch where most of it is of low rank.
  const atomo::bench::Size size{
      .name = "64Ki", .layers = {{"tensor", {256, 256}}}, .low_rank = 4.0f};
  CodecCase made(spec, size, nullptr);
  for (const auto& [name, operation] : kOperations) {
    if (!wanted.empty() && wanted != name) continue;
    if (!bench_counted(&made, operation, repeats))
      throw std::runtime_error(spec + ": " + name + " failed");
    std::printf("%s/%s\n", spec.c_str(), name);
    std::fflush(stdout);
  }
}

void run_named(std::string_view name, int repeats) {
  const std::size_t slash = name.rfind('/');
  const std::string_view operation = slash == name.npos ? "" : name.substr(slash + 1);
  for (const auto& [known, value] : kOperations) {
    if (operation == known) return run(std::string(name.substr(0, slash)), operation, repeats);
  }
  std::string message = "not a SPEC/OPERATION of encode, decode or decode_add: ";
  throw std::runtime_error(message.append(name));
}

int number(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1)
    throw std::runtime_error("REPEATS is '" + text + "'; 1 or more are wanted");
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<std::string> words(argv + 1, argv + argc);
    if (!words.empty() && words[0].starts_with("--target=")) {
      atomo::bench::force_target(words[0].substr(words[0].find('=') + 1));
      words.erase(words.begin());
    }
    if (words.empty()) throw std::runtime_error("REPEATS is wanted");
    const int repeats = number(words[0]);
    std::printf("%s, %s\n", BENCH_COMPILER, BENCH_BUILD_TYPE);
    for (std::size_t i = 1; i < words.size(); ++i) run_named(words[i], repeats);
    if (words.size() > 1) return 0;
    for (const std::string& spec :
         atomo::bench::specs_with(atomo::bench::kListed, atomo::Device::cpu)) {
      // Most of an exact SVD is LAPACK's: one spec of it is enough.
      if (!atomo::bench::is_svd(spec) || spec.find("bits=") != spec.npos) run(spec, "", repeats);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_count: %s\n", error.what());
    return 1;
  }
  return 0;
}
