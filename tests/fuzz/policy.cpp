// SPDX-License-Identifier: Apache-2.0
/// Any text as a policy: it is refused with an Error, or its canonical text has the same rules, and
/// models under it send what they decode.
#include <cmath>

#include "atomo/atomo.hpp"
#include "fuzz/input.hpp"
#include "fuzz/room.hpp"

namespace atomo::fuzz {
namespace {

constexpr const char* kNames[] = {"fc.weight", "fc.bias", "conv1", ""};

std::vector<LayerSpec> layers() {
  return {
      {kNames[0], {12, 20}}, {kNames[1], {20}, DType::bf16}, {kNames[2], {0, 3}}, {kNames[3], {}}};
}

/// Two steps of a model: every message decodes, and a model that loads what another saved goes on
/// as that one.
std::uint64_t check_model(const Policy& policy) {
  Compressor model(layers(), policy, {.names_on_wire = true}),
      other(layers(), policy, {.names_on_wire = true});
  std::vector<std::vector<float>> values;
  std::vector<ConstTensorView> from;
  std::vector<TensorView> to;
  for (const LayerSpec& layer : model.layers()) {
    auto& x = values.emplace_back(layer.shape.elements() + 1);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 1e-3f * static_cast<float>(i % 17 * (i % 3));
    from.push_back({x.data(), layer.dtype, layer.shape});
  }
  std::vector<std::vector<float>> out = values;
  for (std::size_t i = 0; i < out.size(); ++i)
    to.push_back({out[i].data(), model.layers()[i].dtype, model.layers()[i].shape});
  const Room workspace(model.encode_workspace_bytes()), reading(model.decode_workspace_bytes());
  std::uint64_t sight = 5;
  for (std::uint32_t step = 0; step < 2; ++step) {
    const Room message(model.max_encoded_bytes()), second(message.bytes().size());
    std::uint64_t bytes = 0, same = 0;
    const Key key{.seed = 4, .step = step};
    const Status status =
        model.encode(from, key, {message.bytes().data(), message.bytes().size(), &bytes},
                     {.workspace = workspace.bytes()});
    require(!failed(status), "a model encodes");
    require(!failed(other.encode(from, key, {second.bytes().data(), second.bytes().size(), &same},
                                 {.workspace = workspace.bytes()})) &&
                bytes == same &&
                std::memcmp(message.bytes().data(), second.bytes().data(), bytes) == 0,
            "models with one history write the same bytes");
    require(bytes <= model.wire_bytes().value_or(bytes), "a model keeps to its wire bytes");
    const Status decoded =
        model.decode(message.bytes().first(bytes), to, {.workspace = reading.bytes()});
    require(!failed(decoded), "a model decodes what it encodes");
    other.load(model.save());
    sight = seen(seen(sight, static_cast<std::uint64_t>(status)), bytes);
  }
  return sight;
}

std::uint64_t run(ConstBytes input) {
  const std::string text = text_of(input);
  std::size_t rules = 0;
  try {
    const Policy policy = Policy::parse(text);
    rules = policy.rules().size();
    const std::string canonical = policy.to_string();
    const Policy again = Policy::parse(canonical);
    require(again.to_string() == canonical && again.rules().size() == rules,
            "the canonical policy reads as itself");
    for (std::size_t i = 0; i < rules; ++i)
      require(again.rules()[i].pattern == policy.rules()[i].pattern &&
                  again.rules()[i].codec == policy.rules()[i].codec,
              "the canonical policy has the same rules");
    return seen(check_model(policy), rules);
  } catch (const Error& error) {
    require(error.what()[0] != 0, "an error says something");
    std::uint64_t words = 0;
    for (const char c : std::string_view(error.what())) words += c == ' ' ? 1 : 0;
    return seen(words, rules);
  }
}

const std::vector<std::string>& tokens() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> made{"*",      "?",   "*.bias",    "fc.*", "=",     " = ",
                                  ";",      "\n",  "#",         "*=",   "conv?", ",cap=4",
                                  "+blosc", "ef+", "momentum+", "\r\n", "\t"};
    for (const CodecHelp& row : list_codecs()) {
      made.push_back(row.example);
      made.push_back("* = " + row.specs.front());
    }
    return made;
  }();
  return all;
}

std::vector<Buffer> seeds() {
  return {buffer_of("*=atomo:bits=0.5"),
          buffer_of("*.bias = identity:dtype=f32\n# half a bit\n* = atomo:bits=1"),
          buffer_of("fc.*=qsgd:bits=2+blosc;conv?=sign:scale=mean;*=topk:keep=3"),
          buffer_of("atomo:bits=1,cap=2"),
          buffer_of("ef+topk:keep=0.1"),
          buffer_of("fc*=ef+sign:scale=mean;*=atomo:atoms=coordinate,bits=2"),
          {}};
}

}  // namespace

const Target kTarget{500, run, seeds, mutate_plainly, tokens};

}  // namespace atomo::fuzz
