// SPDX-License-Identifier: Apache-2.0
/// Codecs of this library as subjects: their traits are what they claim.
#include <algorithm>
#include <limits>
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
    status_ = codec_.encode({x.data(), DType::f32, shape}, key,
                            {message_.data(), message_.size(), &bytes}, context());
    check(status_, "encode");
    return {message_.begin(), message_.begin() + static_cast<std::ptrdiff_t>(bytes)};
  }
  /// Of the last tensor that was encoded.
  [[nodiscard]] Status status() const noexcept { return status_; }
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
  Status status_ = Status::ok;
};

/// A price is found from estimates of the bits of an atom, which tails are off from, and small tensors by
/// some bytes.
constexpr double kEstimate = 1 + 0x1p-5, kSmallBytes = 24;
/// Draws of which none may say that the budget pays for no message. A sketch, and so its price, is drawn.
constexpr std::uint32_t kAsked = 4;

/// The budget of a codec that has one. Those of a fixed size have a claim of their own.
std::function<double(const Input&)> budget_of(const Codec& codec) {
  const Shape any{1, 1};
  if (codec.traits().fixed_size || !codec.expected_bytes(any)) return {};
  const auto coder = std::make_shared<Coder>(codec);
  return [codec, coder](const Input& input) {
    for (std::uint32_t step = 0; step < kAsked; ++step) {
      coder->encode(input.values, input.shape, {.step = step});
      if (has(coder->status(), Status::overspent)) return std::numeric_limits<double>::infinity();
    }
    return kEstimate * static_cast<double>(codec.expected_bytes(input.shape).value_or(0)) +
           kSmallBytes;
  };
}

/// A `cap=` has no room for one run of a small tensor's atoms.
bool takes(const Codec& codec, const Shape& shape) {
  try {
    return codec.max_encoded_bytes(shape) > 0;
  } catch (const Error&) {
    return false;
  }
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
  claims.average_bytes = budget_of(codec);
  claims.takes = [codec](const Shape& shape) { return takes(codec, shape); };
  claims.non_finite = NonFinite::everywhere;
  claims.largest = traits.largest;
  claims.step = traits.step;
  claims.smallest = traits.smallest;
  claims.highest = traits.highest;
  return claims;
}

}  // namespace atomo::verify
