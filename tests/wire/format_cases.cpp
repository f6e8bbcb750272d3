// SPDX-License-Identifier: Apache-2.0
#include "wire/format_cases.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/half.hpp"
#include "support/own_codecs.hpp"
#include "support/support.hpp"

namespace atomo::test {

using namespace model;
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

/// Of integers below 2^8 in magnitude, in units of 2^-20: exact in f32.
void add_outer_product(std::vector<float>& x, std::size_t columns) {
  const auto integer = [](std::uint64_t seed) {
    return static_cast<int>(SplitMix(seed)() % 511) - 255;
  };
  for (std::size_t i = 0; i < x.size(); ++i) {
    const int product = integer(i / columns) * integer(1000000 + i % columns);
    x[i] += std::ldexp(static_cast<float>(product), -20);
  }
}

/// Entries in runs of one scale each: sums of four uniform integers times powers of two, exact in
/// f32.
std::vector<float> make_values(const CaseLayer& layer) {
  const std::size_t n = layer.shape.elements();
  const std::size_t run =
      layer.shape.rank() > 1 && layer.shape[0] > 0
          ? std::max<std::size_t>(1, n / static_cast<std::size_t>(layer.shape[0]))
          : 64;
  SplitMix draw(n + 1000 * static_cast<std::uint64_t>(layer.content));
  std::vector<float> x(n);
  const bool one_scale = layer.content == Content::flat || layer.content == Content::even ||
                         layer.content == Content::largest || layer.content == Content::outer;
  int exponent = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i % run == 0) exponent = draw() % 16 == 0 ? -400 : -16 + static_cast<int>(draw() % 13);
    const std::uint64_t bits = draw();
    const auto sum = static_cast<int>((bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) +
                                      (bits >> 24 & 255)) -
                     510;
    int shift = (one_scale ? -6 : exponent) - 8 +
                (bits >> 58 == 0 && layer.content != Content::even ? 5 : 0);
    if (layer.content == Content::outer) shift -= 6;
    if (layer.content == Content::tiny) shift -= 124;
    if (layer.content == Content::huge) shift += 104;
    x[i] = std::ldexp(static_cast<float>(sum), shift);
    if (layer.content == Content::zero) x[i] = sum < 0 ? -0.0f : 0.0f;
    if (layer.content == Content::largest && i % 7 == 0) x[i] = sum < 0 ? -kLargest : kLargest;
  }
  if (layer.content == Content::outer) add_outer_product(x, run);
  if (layer.content == Content::non_finite) x[n / 2] = std::numeric_limits<float>::quiet_NaN();
  return x;
}

/// The layer's entries in its dtype, rounded towards zero where that is a half type.
std::vector<std::byte> make_data(const CaseLayer& layer) {
  const std::vector<float> x = make_values(layer);
  std::vector<std::byte> data(x.size() * size_of(layer.dtype));
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &x[i], 4);
    if (layer.dtype == DType::f32) std::memcpy(&data[4 * i], &bits, 4);
    auto half = static_cast<std::uint16_t>(bits >> 16);
    if (layer.dtype == DType::f16) {
      const int exponent = static_cast<int>(bits >> 23 & 255) - 112;
      const std::uint32_t magnitude =
          exponent <= 0 ? 0 : static_cast<std::uint32_t>(exponent) << 10 | (bits >> 13 & 1023);
      half = static_cast<std::uint16_t>((bits >> 16 & 0x8000) | magnitude);
    }
    if (layer.dtype != DType::f32) std::memcpy(&data[2 * i], &half, 2);
  }
  return data;
}

void require(Status status, const std::string& what) {
  if (failed(status)) throw Error(what + ": " + std::string(describe(status)));
}

/// Buffers of a case's inputs, and views of them.
struct Inputs {
  std::vector<std::vector<std::byte>> data;
  std::vector<ConstTensorView> views;
  explicit Inputs(const FormatCase& c) {
    for (const CaseLayer& layer : c.layers) data.push_back(make_data(layer));
    for (std::size_t i = 0; i < data.size(); ++i)
      views.push_back({data[i].data(), c.layers[i].dtype, c.layers[i].shape});
  }
};

std::string layer_name(const FormatCase& c, std::size_t i) {
  return c.layers[i].name.empty() ? "layer" + std::to_string(i) : c.layers[i].name;
}

Compressor make_model(const FormatCase& c) {
  std::vector<LayerSpec> layers;
  std::vector<Policy::Rule> rules;
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    layers.push_back({layer_name(c, i), c.layers[i].shape, c.layers[i].dtype});
    rules.push_back({layer_name(c, i), Codec::parse(c.layers[i].spec)});
  }
  return Compressor(std::move(layers), Policy(std::move(rules)),
                    {.names_on_wire = c.names_on_wire});
}

/// Calls `write(payload)` with `capacity` bytes and cuts the result to its length.
template <typename Write>
std::vector<std::byte> written(const FormatCase& c, std::size_t capacity, Write write) {
  std::vector<std::byte> bytes(capacity);
  std::uint64_t length = 0;
  require(write(Payload{bytes.data(), bytes.size(), &length}), c.name);
  bytes.resize(length);
  return bytes;
}

std::vector<std::byte> encode_model(const FormatCase& c, const Inputs& inputs, const Key& key) {
  Compressor model = make_model(c);
  std::vector<std::byte> workspace(test::workspace_bytes(model));
  return written(c, model.max_encoded_bytes(), [&](const Payload& payload) {
    return model.encode(inputs.views, key, payload, {.workspace = workspace});
  });
}

std::vector<std::byte> encode_layers_and_join(const FormatCase& c, const Inputs& inputs) {
  Compressor model = make_model(c);
  require(model.begin_step(c.key, {.atoms = c.joining == Joining::low_price ? 0x1p-22f : 0}),
          c.name);
  std::vector<std::vector<std::byte>> parts;
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    std::vector<std::byte> workspace(test::workspace_bytes(model, i));
    parts.push_back(written(c, model.max_encoded_bytes(i), [&](const Payload& payload) {
      return model.encode_layer(i, inputs.views[i], payload, {.workspace = workspace});
    }));
  }
  require(model.end_step(), c.name);
  const std::vector<ConstBytes> views(parts.begin(), parts.end());
  return written(c, joined_bytes_bound(views),
                 [&](const Payload& payload) { return join(views, payload); });
}

std::vector<std::byte> add_messages(const FormatCase& c, const std::vector<ConstBytes>& messages) {
  std::vector<std::byte> workspace(add_workspace_bytes(messages.size()));
  return written(c, added_bytes_bound(messages),
                 [&](const Payload& payload) { return add(messages, workspace, payload); });
}

std::vector<std::byte> encode_workers_and_add(const FormatCase& c, const Inputs& inputs) {
  constexpr std::uint16_t kWorkers = 5;
  std::vector<std::vector<std::byte>> parts;
  for (std::uint16_t w = 0; w < kWorkers; ++w) {
    Key key = c.key;
    key.worker = static_cast<std::uint16_t>(key.worker + w);
    parts.push_back(encode_model(c, inputs, key));
  }
  auto sum = add_messages(c, {parts.begin(), parts.end()});
  for (unsigned i = 0; i < c.doublings; ++i) sum = add_messages(c, {sum, sum});
  return add_messages(c, {sum, parts[0], parts[1]});
}

FormatCase single(const std::string& prefix, const std::string& spec, const Shape& shape,
                  Content content = Content::mixed, DType dtype = DType::f32) {
  std::string name = prefix + "-";
  for (const char letter : spec)
    name += std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '_';
  return {name, {{spec, shape, content, dtype}}};
}

/// Sizes and contents at which something in a sketch or in the choice of a form changes.
void add_spectral_edges(std::vector<FormatCase>& cases) {
  const auto add = [&](const char* prefix, const char* spec, const Shape& shape,
                       Content content = Content::mixed) {
    cases.push_back(single(prefix, spec, shape, content));
  };
  for (const char* spec : {"atomo:bits=2,atoms=sketch", "atomo:price=0.00001,atoms=sketch,rank=2",
                           "atomo:bits=3,atoms=auto", "atomo:price=0.002,atoms=auto"}) {
    add("zero", spec, {40, 70}, Content::zero);
    add("nonfinite", spec, {40, 70}, Content::non_finite);
    add("tiny", spec, {40, 70}, Content::tiny);
    add("huge", spec, {40, 70}, Content::huge);
    add("largest", spec, {40, 70}, Content::largest);
    add("wide", spec, {20, 1100});
    add("tall", spec, {1101, 21});
    add("flat", spec, {33, 50}, Content::flat);
    add("outer", spec, {60, 90}, Content::outer);
    add("conv", spec, {24, 8, 3, 3});
    add("square", spec, {33, 33});
    add("small", spec, {2, 16});
    add("vector", spec, {700});
    add("slim", spec, {100, 8});
    add("empty", spec, {0, 5});
    add("scalar", spec, Shape{});
  }
  add("rank", "atomo:bits=2,atoms=sketch,rank=256", {300, 290});
  add("rank", "atomo:bits=1,atoms=sketch,rank=1", {30, 2100});
}

/// Sizes and contents at which something in a format changes.
void add_edges(std::vector<FormatCase>& cases) {
  const auto add = [&](const char* prefix, const char* spec, const Shape& shape,
                       Content content = Content::mixed) {
    cases.push_back(single(prefix, spec, shape, content));
  };
  for (const char* spec :
       {"atomo:bits=3,atoms=blocks", "atomo:bits=0.5,atoms=coordinate",
        "atomo:bits=3,atoms=coordinate", "qsgd:bits=3", "terngrad", "topk:keep=0.3"}) {
    add("one", spec, {1});
    add("scalar", spec, Shape{});
    add("rank8", spec, {2, 1, 3, 1, 2, 5, 1, 7});
    add("empty", spec, {0, 5});
    add("zero", spec, {9, 70}, Content::zero);
    add("nonfinite", spec, {9, 70}, Content::non_finite);
    add("tiny", spec, {9, 70}, Content::tiny);
    add("huge", spec, {9, 70}, Content::huge);
    add("largest", spec, {9, 70}, Content::largest);
    add("short", spec, {1283});
  }
  for (const char* spec : {"atomo:bits=2,atoms=svd", "atomo:atoms=svd,keep=3,values=f32",
                           "atomo:atoms=svd,keep=1,values=f32"}) {
    add("zero", spec, {40, 70}, Content::zero);
    add("nonfinite", spec, {40, 70}, Content::non_finite);
    add("tiny", spec, {40, 70}, Content::tiny);
    add("huge", spec, {40, 70}, Content::huge);
    add("wide", spec, {20, 1100});
    add("tall", spec, {1101, 21});
    add("conv", spec, {24, 8, 3, 3});
    add("square", spec, {33, 33});
    add("small", spec, {2, 16});
    add("vector", spec, {700});
    add("slim", spec, {100, 8});
  }
  for (const char* spec : {"atomo:bits=2,atoms=rows", "atomo:price=0.00001,atoms=rows"}) {
    add("odd", spec, {9, 37});
    add("group", spec, {9, 512});
    add("piece", spec, {5, 701});
    add("pieces", spec, {4, 2501});
    add("narrow", spec, {33, 16});
    add("tiny", spec, {9, 70}, Content::tiny);
    add("huge", spec, {9, 70}, Content::huge);
  }
  add("segments", "atomo:bits=0.2,atoms=rows", {9001, 16});
  add("segments", "atomo:bits=0.001,atoms=blocks", {1100000});
  add("flat", "atomo:bits=0.3,atoms=blocks", {70001}, Content::flat);
  add("raw", "atomo:bits=14,atoms=blocks", {1300});
  add("raw", "atomo:bits=9,atoms=blocks", {1300}, Content::flat);
  add("segments", "atomo:bits=0.2,atoms=coordinate", {100001});
  add("segments", "atomo:bits=3,atoms=coordinate", {70001});
  add("gaps", "atomo:atoms=coordinate,delta=500", {200001}, Content::flat);
  add("steep", "atomo:atoms=coordinate,delta=0.0000001", {3000});
  add("coarse", "atomo:atoms=coordinate,delta=1e38", {3000}, Content::huge);
  add("largest", "qsgd:bits=8,norm=l2", {1000}, Content::largest);
  add("bucket", "qsgd:bits=5,bucket=7", {1000});
  add("huge", "qsgd:bits=8,norm=l2", {1000}, Content::huge);
  add("tiny", "qsgd:bits=8,norm=l2", {1000}, Content::tiny);
  add("segments", "topk:keep=0.01", {20001});
  add("most", "randomk:keep=0.9", {1001});
  add("half", "randomk:keep=0.5", {1001});
  add("half", "randomk:keep=0.5", {1000});
  add("all", "randomk:keep=1000", {1000});
}

std::vector<CaseLayer> model_layers() {
  return {{"atomo:bits=1,atoms=rows", {30, 64}, Content::mixed, DType::f32, "embedding.weight"},
          {"atomo:bits=1,atoms=blocks", {700}, Content::mixed, DType::f32, "fc.weight"},
          {"atomo:bits=1,atoms=rows", {30, 64}, Content::flat, DType::f32, "größe"},
          {"identity", {10}, Content::mixed, DType::f32, "fc.bias"},
          {"atomo:bits=2,atoms=coordinate", {500}, Content::mixed, DType::f32, "grid"},
          {"qsgd:bits=4", {0}, Content::mixed, DType::f32, "nothing"},
          {"qsgd:bits=4", {77}, Content::non_finite, DType::f32, "broken"},
          {"topk:keep=0.1", {77}, Content::mixed, DType::bf16, "sparse"},
          {"randomk:keep=0.1", {771}, Content::mixed, DType::f16, "random"},
          {"identity", {10}, Content::mixed, DType::f32, "again"},
          {"sign:scale=mean", {101}, Content::mixed, DType::f32, "sign"}};
}

/// Sketches and chosen forms, at one price with other atoms.
std::vector<CaseLayer> spectral_layers() {
  return {{"atomo:bits=1,atoms=auto", {60, 64}, Content::mixed},
          {"atomo:bits=1,atoms=auto", {70}, Content::mixed},
          {"atomo:bits=1,atoms=sketch", {60, 64}, Content::flat},
          {"atomo:bits=1,atoms=rows", {30, 64}, Content::mixed},
          {"atomo:bits=1,atoms=auto", {60, 64}, Content::zero},
          {"atomo:bits=1,atoms=auto", {60, 64}, Content::non_finite},
          {"atomo:bits=1,atoms=sketch,rank=5", {16, 9, 3, 3}, Content::mixed, DType::bf16},
          {"atomo:bits=1,atoms=auto", {3, 1500}, Content::even, DType::f16},
          {"atomo:bits=1,atoms=auto", {80, 120}, Content::outer}};
}

std::vector<CaseLayer> capped_layers() {
  return {{"atomo:bits=1,cap=13,atoms=rows", {50, 50}, Content::even},
          {"atomo:bits=1,cap=13,atoms=rows", {15, 101}, Content::even},
          {"atomo:bits=1,cap=13,atoms=rows", {7, 1025}, Content::even},
          {"atomo:bits=1,cap=13,atoms=blocks", {4250}, Content::even},
          {"atomo:bits=1,atoms=blocks", {412}, Content::even}};
}

std::vector<CaseLayer> capped_spectral_layers() {
  return {{"atomo:bits=2,cap=9,atoms=sketch", {50, 50}, Content::even},
          {"atomo:bits=2,cap=9,atoms=auto", {60, 90}, Content::outer},
          {"atomo:bits=2,cap=9,atoms=auto", {4250}, Content::even},
          {"atomo:bits=2,cap=9,atoms=sketch", {30, 600}, Content::outer}};
}

/// Of one magnitude, so that bodies are longer than their budgets.
std::vector<CaseLayer> short_layers_above_their_caps() {
  std::vector<CaseLayer> layers;
  for (std::int64_t i = 0; i < 24; ++i)
    layers.push_back({"atomo:bits=3.5,cap=3.5,atoms=blocks", {150 + i}, Content::even});
  return layers;
}

/// Messages that draw more than their cap allows under these seeds, and leave atoms out.
void add_thinned(std::vector<FormatCase>& cases) {
  const auto add = [&](const char* name, const char* spec, const Shape& shape, std::uint64_t seed) {
    cases.push_back({name, {{spec, shape, Content::even}}});
    cases.back().key.seed = seed;
  };
  add("thinned-rows", "atomo:bits=2,cap=2,atoms=rows", {300, 64}, 1);
  add("thinned-sketch", "atomo:bits=2,cap=2,atoms=sketch", {150, 130}, 0);
  add("thinned-auto", "atomo:bits=2,cap=2,atoms=auto", {300, 64}, 34);
}

/// Content without draws as it was before it stood for centroids.
void add_uncentred(std::vector<FormatCase>& cases) {
  cases.push_back({"uncentred-rows", {{"atomo:bits=1,atoms=rows,content=nearest", {20, 33}}}});
  cases.push_back({"uncentred-automatic", {{"atomo:bits=0.5,content=nearest", {20, 33}}}});
  for (auto c = cases.end() - 2; c != cases.end(); ++c) c->of_older = true;
}

/// Pairs, alone and with rows, whose content stands for the centroids of its levels.
void add_centred(std::vector<FormatCase>& cases) {
  for (const std::string atoms : {"svd", "sketch"})
    cases.push_back({"centred-" + atoms,
                     {{"atomo:bits=2,content=nearest,atoms=" + atoms, {30, 130}, Content::even}}});
}

void add_models(std::vector<FormatCase>& cases) {
  cases.push_back({"model", model_layers(), Joining::model, false});
  cases.push_back({"model-names", model_layers(), Joining::model, true});
  cases.push_back({"model-own-prices", model_layers(), Joining::own_prices, false});
  cases.push_back({"model-spectral", spectral_layers(), Joining::model, false});
  cases.push_back({"model-spectral-own-prices", spectral_layers(), Joining::own_prices, false});
  cases.push_back({"model-raised-prices", capped_layers(), Joining::low_price, false});
  cases.push_back(
      {"model-raised-prices-spectral", capped_spectral_layers(), Joining::low_price, false});
  cases.push_back(
      {"model-layers-left-out", short_layers_above_their_caps(), Joining::model, false});
}

/// Levels from 1 to more than 2^50, alone, beside one another, and beside none.
FormatCase summed_levels(std::int64_t n) {
  const auto grid = [](const char* step) {
    return std::string("atomo:atoms=coordinate,delta=") + step;
  };
  return {"summed",
          {{grid("0.0001"), {9, 70}, Content::mixed, DType::f32, "fine"},
           {grid("1e-30"), {n}, Content::largest, DType::f32, "largest"},
           {grid("0.03"), {n}, Content::mixed, DType::bf16, "coarse"},
           {grid("1e-30"), {300}, Content::tiny, DType::f32, "tiny"},
           {grid("0.5"), {20}, Content::zero, DType::f16, "zero"},
           {grid("0.5"), {9, 70}, Content::non_finite, DType::f32, "broken"}},
          Joining::summed,
          true,
          20};
}
/// Short enough to be damaged in many places.
FormatCase summed_few() {
  return {"summed-few",
          {{"atomo:atoms=coordinate,delta=0.0001", {25}, Content::flat},
           {"atomo:atoms=coordinate,delta=1e-30", {20}, Content::largest},
           {"atomo:atoms=coordinate,delta=0.3", {90}, Content::flat}},
          Joining::summed,
          false,
          20};
}
FormatCase summed_ones(std::int64_t n) {
  return {"summed-ones",
          {{"atomo:atoms=coordinate,delta=0.3", {n}, Content::flat, DType::f32, "sparse"}},
          Joining::summed,
          false,
          35};
}

/// Sizes and contents of a codec that is not the library's.
void add_own(std::vector<FormatCase>& cases) {
  for (const char* spec : {"levels:levels=20", "levels:levels=3+blosc:codec=zstd"}) {
    cases.push_back(single("zero", spec, {9, 70}, Content::zero));
    cases.push_back(single("nonfinite", spec, {9, 70}, Content::non_finite));
    cases.push_back(single("scalar", spec, Shape{}));
    cases.push_back(single("empty", spec, {0, 5}));
  }
}

/// The codec that the cases send as the method own: among all specs from now on.
void register_levels() { static const Registered levels(levels_definition()); }

}  // namespace

std::vector<FormatCase> format_cases() {
  register_levels();
  std::vector<FormatCase> cases;
  for (const std::string& spec : all_specs()) {
    cases.push_back(single("rows", spec, {12, 40}));
    cases.push_back(single("odd", spec, {31, 67}));
    cases.push_back(single("f16", spec, {20, 33}, Content::flat, DType::f16));
    cases.push_back(single("bf16", spec, {20, 33}, Content::mixed, DType::bf16));
  }
  add_edges(cases);
  add_own(cases);
  add_spectral_edges(cases);
  add_models(cases);
  add_thinned(cases);
  add_centred(cases);
  cases.push_back(summed_levels(70001));
  cases.push_back(summed_ones(40001));
  cases.push_back(summed_few());
  return cases;
}

std::vector<FormatCase> golden_cases() {
  register_levels();
  std::vector<FormatCase> cases;
  for (const std::string& spec : all_specs()) cases.push_back(single("golden", spec, {20, 33}));
  // Its lossless stage is sure to make it shorter.
  cases.push_back(single("lossless", "qsgd:bits=8+blosc:codec=zstd", {20, 33}, Content::zero));
  add_models(cases);
  add_thinned(cases);
  add_centred(cases);
  add_uncentred(cases);
  cases.push_back(summed_levels(700));
  cases.push_back(summed_ones(1500));
  return cases;
}

bool bytes_are_fixed(const FormatCase& c) {
  static constexpr std::array kOfLibraries = {"svd", "sketch", "auto", "blosc"};
  return !c.of_older && std::none_of(c.layers.begin(), c.layers.end(), [](const CaseLayer& layer) {
    return std::any_of(kOfLibraries.begin(), kOfLibraries.end(), [&](const char* word) {
      return layer.spec.find(word) != std::string::npos;
    });
  });
}

std::vector<std::byte> encode_case(const FormatCase& c) {
  const Inputs inputs(c);
  if (c.joining == Joining::model) return encode_model(c, inputs, c.key);
  if (c.joining == Joining::own_prices || c.joining == Joining::low_price)
    return encode_layers_and_join(c, inputs);
  if (c.joining == Joining::summed) return encode_workers_and_add(c, inputs);
  const CaseLayer& layer = c.layers.at(0);
  const Codec codec = Codec::parse(layer.spec);
  std::vector<std::byte> workspace(codec.encode_workspace_bytes(layer.shape, layer.dtype));
  return written(c, codec.max_encoded_bytes(layer.shape, layer.dtype), [&](const Payload& payload) {
    return codec.encode(inputs.views[0], c.key, payload, {.workspace = workspace});
  });
}

namespace {

Status decode_into(const FormatCase& c, ConstBytes message, DType dtype,
                   std::vector<std::byte>& values) {
  std::size_t elements = 0, workspace_bytes = 0;
  for (const CaseLayer& layer : c.layers) {
    elements += layer.shape.elements();
    workspace_bytes = std::max(workspace_bytes, decode_workspace_bytes(layer.shape, dtype));
  }
  values.resize(elements * size_of(dtype));
  std::vector<std::byte> workspace(workspace_bytes);
  std::vector<TensorView> views;
  std::size_t at = 0;
  for (const CaseLayer& layer : c.layers) {
    views.push_back({values.data() + at, dtype, layer.shape});
    at += layer.shape.elements() * size_of(dtype);
  }
  return decode(message, views, {.workspace = workspace});
}

}  // namespace

std::vector<std::byte> decode_case(const FormatCase& c, ConstBytes message, DType dtype) {
  std::vector<std::byte> values;
  require(decode_into(c, message, dtype, values), c.name);
  return values;
}

bool decodes(const FormatCase& c, ConstBytes message, std::vector<std::byte>& values) {
  return !failed(decode_into(c, message, DType::f32, values));
}

}  // namespace atomo::test
