// SPDX-License-Identifier: Apache-2.0
/// Any text as a spec: it is refused with an Error of a line, or what it says reads as the same.
#include "atomo/atomo.hpp"
#include "fuzz/input.hpp"

namespace atomo::fuzz {
namespace {

const std::vector<std::string>& tokens() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> made{"+blosc",
                                  "+blosc:codec=",
                                  "level=9",
                                  "shuffle=bit",
                                  "ef+",
                                  "+",
                                  ":",
                                  ",",
                                  "=",
                                  "-1",
                                  "nan",
                                  "inf",
                                  "1e999",
                                  "0x10",
                                  "1e-400",
                                  "2147483648",
                                  "18446744073709551616",
                                  "auto",
                                  "none"};
    const auto add = [&made](const std::vector<CodecHelp>& rows) {
      for (const CodecHelp& row : rows) {
        made.push_back(row.name);
        made.push_back(row.example);
        // "bits=1..8, norm=max|l2" as bits=, 1, 8, norm=, max, l2.
        std::string piece;
        for (const char c : row.keys + ",") {
          if (c != ',' && c != ' ' && c != '|' && c != '.') piece += c;
          if (!piece.empty() && (c == '=' || c == ',' || c == ' ' || c == '|' || c == '.')) {
            made.push_back(piece);
            piece.clear();
          }
        }
      }
    };
    add(list_codecs());
    add(list_memories());
    return made;
  }();
  return all;
}

std::uint64_t run(ConstBytes input) {
  const std::string text = text_of(input);
  try {
    const Codec codec = Codec::parse(text);
    const std::string canonical = codec.to_string();
    require(Codec::parse(canonical).to_string() == canonical, "the canonical spec reads as itself");
    require(Codec::parse(canonical) == codec, "the canonical spec is the codec");
    require(codec.without_memory().without_lossless() == codec.without_lossless().without_memory(),
            "stages are left out in any order");
    for (const Shape& shape :
         {Shape{}, Shape{0}, Shape{7}, Shape{20, 30}, Shape{1 << 20, 1 << 20}}) {
      try {
        const std::size_t most = codec.max_encoded_bytes(shape);
        const auto wire = codec.wire_bytes(shape);
        require(!wire.has_value() || *wire <= most, "wire bytes are within the bound");
        static_cast<void>(codec.expected_bytes(shape));
        static_cast<void>(codec.decode_workspace_bytes(shape));
      } catch (const Error& error) {
        require(error.what()[0] != 0, "an error says something");
      }
    }
    const std::string name = canonical.substr(0, canonical.find_first_of(":+"));
    return seen(std::hash<std::string>{}(name), canonical.size());
  } catch (const Error& error) {
    const std::string said = error.what();
    require(!said.empty() && said.size() < 4096, "an error is a line");
    require(said.find('\0') == std::string::npos, "an error has no zeros");
    std::uint64_t words = 0;
    for (const char c : said) words += c == ' ' ? 1 : 0;
    return seen(3, words);
  }
}

std::vector<Buffer> seeds() {
  std::vector<Buffer> all{{},
                          buffer_of("ef+topk:keep=0.01"),
                          buffer_of("qsgd:bits=2+blosc:codec=zstd,level=9,shuffle=bit")};
  for (const auto& rows : {list_codecs(), list_memories()}) {
    for (const CodecHelp& row : rows) {
      all.push_back(buffer_of(row.example));
      for (const std::string& spec : row.specs) all.push_back(buffer_of(spec));
    }
  }
  return all;
}

}  // namespace

const Target kTarget{300, run, seeds, mutate_plainly, tokens};

}  // namespace atomo::fuzz
