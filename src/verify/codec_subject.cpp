// SPDX-License-Identifier: Apache-2.0
/// Codecs of this library as subjects: their traits are what they claim.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>

#include "atomo/verify.hpp"

namespace atomo::verify {
namespace {

/// A codec and the memory of its calls, which grows with the tensors.
class Coder {
 public:
  explicit Coder(const Codec& codec) : codec_(codec) {}

  std::vector<std::byte> encode(std::span<const float> x, const Shape& shape, const Key& key) {
    grow(message_, codec_.max_encoded_bytes(shape));
    grow(workspace_, codec_.encode_workspace_bytes(shape));
    std::uint64_t bytes = 0;
    const Status status = codec_.encode({x.data(), DType::f32, shape}, key,
                                        {message_.data(), message_.size(), &bytes}, context());
    check(status, "encode");
    return {message_.begin(), message_.begin() + static_cast<std::ptrdiff_t>(bytes)};
  }
  void decode(ConstBytes message, std::span<float> y, const Shape& shape) {
    grow(workspace_, codec_.decode_workspace_bytes(shape));
    check(codec_.decode(message, {y.data(), DType::f32, shape}, context()), "decode");
  }

 private:
  static void grow(std::vector<std::byte>& room, std::size_t bytes) {
    if (room.size() < bytes) room.resize(bytes);
  }
  [[nodiscard]] Context context() {
    Context context;
    context.workspace = workspace_;
    return context;
  }
  void check(Status status, const char* what) const {
    if (failed(status))
      throw Error(codec_.to_string() + " could not " + what + ": " + std::string(describe(status)));
  }

  Codec codec_;
  std::vector<std::byte> message_, workspace_;
};

/// The number behind a key of a spec, 0 where it has none.
double number_of(const std::string& spec, const std::string& key) {
  const std::size_t found = spec.find(key + "=");
  return found == std::string::npos ? 0
                                    : std::strtod(spec.c_str() + found + key.size() + 1, nullptr);
}

/// What a spec says of the tensors that its traits are about: a fixed price is a fixed grid, halves have a
/// range, and powers of two have no half below the smallest normal number.
void narrow(Claims& claims, const std::string& spec) {
  claims.step = std::max(number_of(spec, "price"), number_of(spec, "delta"));
  if (spec.find("dtype=f16") != std::string::npos) {
    claims.step = 0x1p-24;
    claims.highest = 65504;
  }
  if (spec.find("dtype=bf16") != std::string::npos) {
    claims.smallest = 0x1p-126;
    claims.highest = 0x1.FEp127;
  }
  if (spec.starts_with("natural")) claims.smallest = 0x1p-126;
  // What is drawn arrives at the scale at which the shares of a chunk come to its k slots, a bf16; a level
  // that is seldom drawn would hide from the range that was seen.
  if (spec.find("select=drawn") != std::string::npos && spec.find("dct=") == std::string::npos)
    claims.largest = std::max(1.0, number_of(spec, "chunk") / number_of(spec, ",k")) * (1 + 0x1p-6);
}

}  // namespace

Subject subject_of(const Codec& codec) {
  if (codec.traits().memory)
    throw Error(codec.to_string() +
                " keeps what it has not sent, so a message alone has no claims; " +
                codec.without_memory().to_string() + " can be verified");
  const auto coder = std::make_shared<Coder>(codec);
  return {codec.to_string(),
          [coder](std::span<const float> x, const Shape& shape, const Key& key) {
            return coder->encode(x, shape, key);
          },
          [coder](ConstBytes message, std::span<float> y, const Shape& shape) {
            coder->decode(message, y, shape);
          },
          0};
}

Claims claims_of(const Codec& codec) {
  const Traits& traits = codec.traits();
  Claims claims;
  claims.unbiased = traits.unbiased;
  if (traits.unbiased) claims.bias_bound = std::max(traits.bias_bound, claims.bias_bound);
  claims.omega = traits.omega;
  claims.contraction = traits.contraction;
  claims.independent_workers = traits.unbiased && traits.averages_over_workers;
  claims.fixed_size = traits.fixed_size;
  claims.max_bytes = [codec](const Shape& shape) { return codec.max_encoded_bytes(shape); };
  claims.non_finite = NonFinite::everywhere;
  narrow(claims, codec.to_string());
  return claims;
}

}  // namespace atomo::verify
