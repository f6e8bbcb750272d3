// SPDX-License-Identifier: Apache-2.0
/// \file
/// The exchange for training on the CPU keeps the gradient, the payloads and their sum in vectors
/// and calls the compressor on them directly. Each worker's payload is decoded by a call of its
/// own, so that the worker whose payload is refused can be named.

#include <algorithm>

#include "common/workspace.hpp"
#include "exchange/exchange.hpp"

namespace train {
namespace {

class HostExchange final : public Exchange {
 public:
  HostExchange(atomo::Compressor& compressor, Threads& threads, std::size_t workers)
      : compressor_(compressor),
        threads_(threads),
        workers_(workers),
        own_(compressor.elements()),
        sum_(compressor.elements()),
        payload_(compressor.max_encoded_bytes()),
        workspace_(atomo::programs::workspace_bytes(compressor)) {
    std::size_t at = 0;
    for (const auto& layer : compressor.layers()) {
      own_views_.push_back({own_.data() + at, atomo::DType::f32, layer.shape});
      sum_views_.push_back({sum_.data() + at, atomo::DType::f32, layer.shape});
      offsets_.push_back(at);
      at += layer.shape.elements();
    }
  }

  void put(std::size_t layer, std::span<const float> gradient) override {
    std::copy(gradient.begin(), gradient.end(),
              own_.begin() + static_cast<std::ptrdiff_t>(offsets_[layer]));
  }

  Encoded encode(const atomo::Key& key) override {
    const auto status =
        compressor_.encode(own_views_, key, {payload_.data(), payload_.size(), &bytes_}, context());
    return {status, bytes_};
  }

  void corrupt() override { payload_[bytes_ / 2] ^= std::byte{1}; }

  atomo::ConstBytes outgoing(std::size_t longest) override {
    std::fill(payload_.begin() + static_cast<std::ptrdiff_t>(bytes_),
              payload_.begin() + static_cast<std::ptrdiff_t>(longest), std::byte{0});
    return std::span(payload_).first(longest);
  }

  atomo::Bytes incoming(std::size_t longest) override {
    longest_ = longest;
    payloads_.resize(std::max(payloads_.size(), longest * workers_));
    return std::span(payloads_).first(longest * workers_);
  }

  std::vector<atomo::Status> add_all(std::span<const std::uint64_t> bytes) override {
    std::fill(sum_.begin(), sum_.end(), 0.0F);
    std::vector<atomo::Status> statuses;
    for (std::size_t k = 0; k < workers_; ++k) {
      // One call a worker, so that a refusal can name it; the sum is that of a single call.
      const auto message = atomo::ConstBytes(payloads_).subspan(k * longest_, bytes[k]);
      statuses.push_back(compressor_.decode_add(message, 1.0F / static_cast<float>(workers_),
                                                sum_views_, context()));
    }
    return statuses;
  }

  std::span<float> sum() override { return sum_; }

 private:
  [[nodiscard]] atomo::Context context() noexcept {
    return {.workspace = workspace_, .executor = threads_.all()};
  }

  atomo::Compressor& compressor_;
  Threads& threads_;
  std::size_t workers_;
  std::vector<float> own_, sum_;
  std::vector<std::size_t> offsets_;  ///< of the layers in both
  std::vector<atomo::ConstTensorView> own_views_;
  std::vector<atomo::TensorView> sum_views_;
  std::vector<std::byte> payload_, payloads_, workspace_;
  std::uint64_t bytes_ = 0;  ///< of the payload
  std::size_t longest_ = 0;  ///< bytes a worker in `payloads_`
};

}  // namespace

std::unique_ptr<Exchange> make_host_exchange(atomo::Compressor& compressor, Threads& threads,
                                             std::size_t workers) {
  return std::make_unique<HostExchange>(compressor, threads, workers);
}

}  // namespace train
