// SPDX-License-Identifier: Apache-2.0
/// Two backends, one format: the kernels, on the host executor, against the CPU. The first byte says
/// which of two things is done with the rest: floats are encoded by both to the same bytes, or a
/// message, damaged mostly, is judged by both alike and decoded to the same values.
#include "atomo/atomo.hpp"
#include "fuzz/input.hpp"
#include "fuzz/mutations.hpp"
#include "support/on_cpu.hpp"

namespace atomo::fuzz {
namespace {

const Shape kShape{12, 40};
constexpr std::size_t kMostElements = 1200;

/// Those that need no library of the caller's.
const std::vector<Codec>& codecs() {
  static const std::vector<Codec> all = [] {
    std::vector<Codec> made;
    for (const CodecHelp& help : list_codecs()) {
      for (const std::string& spec : help.specs) {
        const Codec codec = Codec::parse(spec);
        if (codec.traits().cuda && spec.find("svd") == std::string::npos) made.push_back(codec);
      }
    }
    return made;
  }();
  return all;
}

/// Sketches are the CPU's but for rounding.
bool has_the_cpus_bytes(const Codec& codec) {
  const std::string spec = codec.to_string();
  return spec.find("atoms=sketch") == std::string::npos &&
         spec.find("atoms=auto") == std::string::npos;
}

/// Ends the process, with what both said, where that differs.
void require_alike(Status there, Status here, const Codec& codec, const Shape& shape) {
  if (there == here) return;
  std::fprintf(stderr, "%s, %s: the kernels say '%s', the CPU '%s'\n", codec.to_string().c_str(),
               shape.to_string().c_str(), describe(there).data(), describe(here).data());
  require(false, "both backends judge alike");
}

std::uint64_t compare_encoding(Input in) {
  const Codec& codec = codecs()[in.below(codecs().size())];
  const Key key{.seed = in.take<std::uint8_t>(),
                .step = in.take<std::uint8_t>(),
                .tensor = in.take<std::uint8_t>()};
  const auto choice = in.take<std::uint8_t>();
  const DType dtype = choice % 8 == 1 ? DType::f16 : choice % 8 == 2 ? DType::bf16 : DType::f32;
  const std::size_t shift = choice / 8 % 4;
  const Shape shape = in.take_shape(kMostElements);
  Buffer entries(shape.elements() * size_of(dtype));
  const ConstBytes rest = in.rest();
  for (std::size_t i = 0; !rest.empty() && i < entries.size(); ++i)
    entries[i] = rest[i % rest.size()];
  if (!has_the_cpus_bytes(codec)) return 0;
  const test::Message there = test::encode_bytes(codec, entries, dtype, shape, key, nullptr, shift);
  const test::Message here = test::encode_on_cpu(codec, entries, dtype, shape, key);
  require_alike(there.status, here.status, codec, shape);
  require(there.bytes == here.bytes, "both backends write the same bytes");
  return seen(seen(1, static_cast<std::uint64_t>(here.status)),
              static_cast<std::uint64_t>(&codec - codecs().data()));
}

std::uint64_t compare_decoding(Input in) {
  const Codec* codec = &codecs()[in.below(codecs().size())];
  const auto choice = in.take<std::uint8_t>();
  const DType dtype = choice % 8 == 1 ? DType::f16 : choice % 8 == 2 ? DType::bf16 : DType::f32;
  const bool add = dtype == DType::f32 && choice >= 128;
  const std::size_t n = kShape.elements();
  std::vector<std::byte> before(n * size_of(dtype), std::byte{0x3C});
  const auto here = test::decode_on_cpu(*codec, in.rest(), before, dtype, kShape, add, -0.7f);
  const auto there =
      test::decode_bytes(*codec, in.rest(), before, dtype, kShape, add, -0.7f, choice / 8 % 4);
  require_alike(there.status, here.status, *codec, kShape);
  require(failed(here.status) || here.values == there.values,
          "both backends decode to the same values");
  return seen(seen(2, static_cast<std::uint64_t>(here.status)),
              static_cast<std::uint64_t>(codec - codecs().data()));
}

std::uint64_t run(ConstBytes input) {
  Input in(input);
  return in.take<std::uint8_t>() % 2 == 0 ? compare_encoding(in) : compare_decoding(in);
}

constexpr std::size_t kChoices = 3;  ///< bytes before a message

void mutate(Buffer& input, const AnyMutation& any, Draw& draw) {
  const bool is_message = input.size() > kChoices && std::to_integer<unsigned>(input[0]) % 2 == 1;
  if (!is_message) return any(input, kTarget.most);
  Buffer front(input.begin(), input.begin() + kChoices);
  Buffer message(input.begin() + kChoices, input.end());
  if (draw() % 8 == 0) front[2] = static_cast<std::byte>(draw());
  mutate_container(message, kTarget.most - kChoices, any, draw);
  input = front;
  input.insert(input.end(), message.begin(), message.end());
}

std::vector<Buffer> seeds() {
  std::vector<Buffer> all;
  Draw draw(5);
  for (std::size_t i = 0; i < codecs().size(); ++i) {
    Buffer floats(16 + draw() % 200);
    for (std::byte& b : floats) b = static_cast<std::byte>(draw());
    floats[0] = std::byte{0}, floats[1] = static_cast<std::byte>(i), floats[5] = std::byte{0};
    floats[6] = std::byte{2};  // rank
    floats[7] = static_cast<std::byte>(1 + draw() % 20), floats[8] = std::byte{0};
    floats[9] = static_cast<std::byte>(1 + draw() % 50), floats[10] = std::byte{0};
    all.push_back(floats);
    Buffer message{std::byte{1}, static_cast<std::byte>(i), static_cast<std::byte>(draw())};
    const std::string spec = codecs()[i].to_string();
    const Buffer sent = test::encode_case({spec, {{spec, kShape, test::Content::flat}}});
    message.insert(message.end(), sent.begin(), sent.end());
    all.push_back(message);
  }
  return all;
}

}  // namespace

const Target kTarget{1 << 13, run, seeds, mutate, nullptr};

}  // namespace atomo::fuzz
