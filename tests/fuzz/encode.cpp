// SPDX-License-Identifier: Apache-2.0
/// Any floats under any spec: what is promised of encoding holds, and the message decodes.
#include <cmath>
#include <limits>

#include "atomo/atomo.hpp"
#include "codec/stages.hpp"
#include "fuzz/contracts.hpp"
#include "fuzz/input.hpp"
#include "fuzz/room.hpp"

namespace atomo::fuzz {
namespace {

constexpr std::size_t kMostElements = 3000;

const std::vector<Codec>& codecs() {
  static const std::vector<Codec> all = [] {
    std::vector<Codec> made;
    for (const CodecHelp& help : list_codecs())
      for (const std::string& spec : help.specs) made.push_back(Codec::parse(spec));
    for (const char* spec :
         {"atomo:bits=1,cap=1.5", "atomo:bits=1,cap=1.01,atoms=blocks",
          "atomo:bits=4,cap=4.5,atoms=rows", "atomo:bits=0.02", "atomo:bits=30", "atomo:price=1e30",
          "atomo:price=1e-30", "qsgd:bits=2+blosc:codec=zstd",
          "atomo:bits=1+blosc:codec=lz4,shuffle=bit", "atomo:bits=2,atoms=svd+blosc",
          "topk:keep=0.3+blosc:codec=blosclz", "qsgd:bits=3,bucket=7,norm=l2",
          "atomo:atoms=coordinate,delta=1e-20"})
      made.push_back(Codec::parse(spec));
    return made;
  }();
  return all;
}

struct Case {
  const Codec* codec = nullptr;
  Shape shape;
  DType dtype = DType::f32;
  Key key;
  Buffer entries;  ///< of `dtype`
};

/// The entries are the input's bytes again and again, or normal draws of a scale with some of those
/// bytes among them.
Case case_of(ConstBytes bytes) {
  Input input(bytes);
  Case c;
  c.codec = &codecs()[input.below(codecs().size())];
  const auto choice = input.take<std::uint8_t>();
  c.dtype = choice % 8 == 1 ? DType::f16 : choice % 8 == 2 ? DType::bf16 : DType::f32;
  c.key.seed = input.take<std::uint16_t>();
  c.key.step = input.take<std::uint8_t>();
  c.key.tensor = input.take<std::uint8_t>();
  const auto scale = static_cast<int>(input.take<std::int8_t>());
  c.shape = input.take_shape(kMostElements);
  const std::size_t n = c.shape.elements(), each = size_of(c.dtype);
  c.entries.resize(n * each);
  Draw draw(c.key.seed);
  if (choice >= 128 && c.dtype == DType::f32) {
    for (std::size_t i = 0; i < n; ++i) {
      const double unit = static_cast<double>(static_cast<std::int64_t>(draw())) * 0x1p-63;
      const auto value = static_cast<float>(std::ldexp(unit * unit * unit, scale));
      std::memcpy(c.entries.data() + 4 * i, &value, 4);
    }
    for (std::size_t i = 0; !input.empty() && i < n; ++i) {
      const auto value = input.take<float>();
      std::memcpy(c.entries.data() + 4 * (draw() % n), &value, 4);
    }
  } else if (const ConstBytes rest = input.rest(); !rest.empty()) {
    for (std::size_t i = 0; i < c.entries.size(); ++i) c.entries[i] = rest[i % rest.size()];
  }
  return c;
}

struct Message {
  Status status = Status::ok;
  Buffer bytes;
};

Message encoded(const Case& c, std::size_t capacity, int fill, Executor* executor) {
  const Room payload(capacity, fill), entries(c.entries.size()),
      workspace(c.codec->encode_workspace_bytes(c.shape, c.dtype), fill);
  if (!c.entries.empty()) std::memcpy(entries.bytes().data(), c.entries.data(), c.entries.size());
  std::uint64_t bytes = 0;
  Message message;
  message.status = c.codec->encode({entries.bytes().data(), c.dtype, c.shape}, c.key,
                                   {payload.bytes().data(), capacity, &bytes},
                                   {.workspace = workspace.bytes(), .executor = executor});
  if (failed(message.status)) return message;
  require(bytes <= capacity, "a message keeps to its bound");
  message.bytes.assign(payload.bytes().begin(),
                       payload.bytes().begin() + static_cast<std::ptrdiff_t>(bytes));
  return message;
}

struct Values {
  Status status = Status::ok;
  std::vector<float> y;
};

Values decoded(const Case& c, ConstBytes bytes, bool by_codec) {
  const std::size_t n = c.shape.elements();
  const Room message(bytes.size()), out(4 * n),
      workspace(by_codec ? c.codec->decode_workspace_bytes(c.shape)
                         : decode_workspace_bytes(c.shape));
  if (!bytes.empty()) std::memcpy(message.bytes().data(), bytes.data(), bytes.size());
  const TensorView view{out.bytes().data(), DType::f32, c.shape};
  const Context context{.workspace = workspace.bytes()};
  Values values{by_codec ? c.codec->decode(message.bytes(), view, context)
                         : decode(message.bytes(), {&view, 1}, context),
                std::vector<float>(n)};
  if (n > 0) std::memcpy(values.y.data(), out.bytes().data(), 4 * n);
  return values;
}

bool is_finite(const Case& c) {
  const std::size_t n = c.shape.elements();
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, c.entries.data() + i * size_of(c.dtype), size_of(c.dtype));
    const std::uint32_t exponent = c.dtype == DType::f32   ? 0x7F800000u
                                   : c.dtype == DType::f16 ? 0x7C00u
                                                           : 0x7F80u;
    if ((bits & exponent) == exponent) return false;
  }
  return true;
}

void check_values(const Case& c, const Message& message, bool finite) {
  const Values values = decoded(c, message.bytes, true), any = decoded(c, message.bytes, false);
  require(!failed(values.status), "a codec decodes what it encodes");
  require(any.status == values.status, "any decoder judges alike");
  const bool announces =
      announces_infinity(codec::Access::stages(*c.codec).body->kind(c.shape, c.dtype));
  for (std::size_t i = 0; i < values.y.size(); ++i) {
    const float v = values.y[i];
    require(std::memcmp(&v, &any.y[i], 4) == 0, "any decoder gives the same values");
    require(finite != std::isnan(v), "finite layers have no NaN, others nothing else");
    require(!std::isinf(v) || !announces || has(values.status | message.status, Status::overflow),
            "infinity is announced");
  }
  if (finite && c.codec->to_string() == "identity:dtype=f32" && c.dtype == DType::f32 &&
      !values.y.empty())
    require(std::memcmp(values.y.data(), c.entries.data(), c.entries.size()) == 0,
            "identity is exact");
}

std::uint64_t run(ConstBytes input) {
  const Case c = case_of(input);
  std::size_t most = 0;
  try {
    most = c.codec->max_encoded_bytes(c.shape, c.dtype);
  } catch (const Error&) {
    return seen(2, 0);  // a cap that leaves no room for this shape
  }
  const Message message = encoded(c, most, 0x5A, nullptr);
  const bool finite = is_finite(c);
  require(!failed(message.status), "any floats can be encoded");
  require(has(message.status, Status::non_finite) == (!finite && c.shape.elements() > 0),
          "a layer is flagged where an entry is not finite");
  const Message again = encoded(c, most, 0xC3, &pool());
  require(again.status == message.status && again.bytes == message.bytes,
          "same input, same key, same bytes, on any threads");
  if (const auto wire = c.codec->wire_bytes(c.shape, c.dtype))
    require(message.bytes.size() <= *wire, "a bounded message keeps to its wire bytes");
  if (c.codec->traits().fixed_size && finite)
    require(message.bytes.size() == most, "a fixed size is exact");
  ContainerInfo info;
  require(!failed(inspect(message.bytes, info, true)), "a message can be inspected");
  require(
      info.layers.size() == 1 && info.layers[0].shape == c.shape && info.layers[0].dtype == c.dtype,
      "a message tells what was encoded");
  check_values(c, message, finite || c.shape.elements() == 0);
  std::uint64_t sight = seen(1, static_cast<std::uint64_t>(message.status));
  sight = seen(sight, static_cast<std::uint64_t>(c.codec - codecs().data()));
  return seen(sight, message.bytes.size() / 64);
}

std::vector<Buffer> seeds() {
  std::vector<Buffer> all;
  Draw draw(7);
  for (std::size_t spec = 0; spec < codecs().size(); ++spec) {
    for (const unsigned choice : {128u, 0u}) {
      Buffer seed(24);
      for (std::byte& b : seed) b = static_cast<std::byte>(draw());
      seed[0] = static_cast<std::byte>(spec);
      seed[1] = static_cast<std::byte>(choice);
      seed[7] = std::byte{2};  // rank
      seed[8] = static_cast<std::byte>(draw() % 48), seed[9] = std::byte{0};
      seed[10] = static_cast<std::byte>(draw() % 60), seed[11] = std::byte{0};
      all.push_back(seed);
    }
  }
  return all;
}

}  // namespace

const Target kTarget{2048, run, seeds, mutate_plainly, nullptr};

}  // namespace atomo::fuzz
