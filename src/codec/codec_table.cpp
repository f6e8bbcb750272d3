// SPDX-License-Identifier: Apache-2.0
/// The table of codecs and the dispatch of decoders, as format/methods.def has them.

#include <string_view>

#include "atomo/codec.hpp"
#include "codec/body_decoder.hpp"
#include "codec/memory_stage.hpp"
#include "codec/own_codecs.hpp"
#include "codec/spec.hpp"

namespace atomo::codec {
namespace {

/// The words of help that stand before a "=": "bits=1..8, norm=max|l2" has bits and norm.
std::vector<std::string> keys_in(std::string_view help) {
  std::vector<std::string> keys;
  for (std::size_t end = help.find('='); end != help.npos; end = help.find('=', end + 1)) {
    const std::size_t before = help.find_last_of(" |", end);
    const std::size_t begin = before == help.npos ? 0 : before + 1;
    keys.emplace_back(help.substr(begin, end - begin));
  }
  return keys;
}

}  // namespace

const std::vector<CodecEntry>& codec_table() {
  static const std::vector<CodecEntry> table{
#define ATOMO_CODEC(maker, name, keys, summary, example, ...) \
  {name, keys, summary, example, {__VA_ARGS__}, keys_in(keys), make_##maker},
#include "format/methods.def"
  };
  return table;
}

const BodyDecoder* find_decoder(MethodId id) noexcept {
  switch (id) {
#define ATOMO_METHOD(number, id, price, row, parameters) \
  case MethodId::id:                                     \
    return &decoders::id;
#include "format/methods.def"
  }
  return nullptr;
}

}  // namespace atomo::codec

namespace atomo {

std::vector<CodecHelp> list_codecs() {
  std::vector<CodecHelp> list;
  for (const auto& entry : codec::codec_table())
    list.push_back({entry.name, entry.keys, entry.summary, entry.example, entry.specs});
  for (CodecHelp& row : codec::own_codec_help()) list.push_back(std::move(row));
  list.push_back({"+blosc",
                  "codec=lz4|zstd|blosclz, level=0..9, shuffle=none|byte|bit",
                  "a lossless stage behind any codec, stored when it does not shrink",
                  "topk:keep=0.01+blosc:codec=zstd",
                  {"topk:keep=0.05+blosc:codec=zstd", "qsgd:bits=2+blosc:codec=lz4,shuffle=none",
                   "identity+blosc:codec=blosclz,shuffle=bit,level=9"}});
  return list;
}

std::vector<CodecHelp> list_memories() {
  std::vector<CodecHelp> list;
  for (const auto& memory : codec::memory_table())
    list.push_back({memory.name, memory.keys, memory.summary, memory.example, memory.specs});
  return list;
}

}  // namespace atomo
