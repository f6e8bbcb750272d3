// SPDX-License-Identifier: Apache-2.0
/// \file
/// The exchange for training on the CPU keeps the gradient, the payloads and their sum in vectors
/// and calls the compressor on them directly. What encoding can do for a layer alone, it does when
/// the layer comes, on a thread beside back-propagation where the process has one to spare. Each worker's payload is decoded by a call of its
/// own, so that the worker whose payload is refused can be named.

#include <algorithm>
#include <atomo/arithmetic.hpp>
#include <atomo/own_codec.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/workspace.hpp"
#include "exchange/exchange.hpp"

namespace train {
namespace {

class HostExchange final : public Exchange {
 public:
  HostExchange(atomo::Compressor& compressor, Threads& threads, std::size_t workers, bool votes)
      : compressor_(compressor),
        threads_(threads),
        workers_(workers),
        own_(compressor.elements()),
        sum_(compressor.elements()),
        payload_(compressor.max_encoded_bytes()),
        workspace_(atomo::programs::workspace_bytes(compressor)),
        votes_(votes ? atomo::vote_workspace_bytes(workers) : 0),
        background_(threads.count() > 1) {
    std::size_t at = 0;
    for (const auto& layer : compressor.layers()) {
      own_views_.push_back({own_.data() + at, atomo::DType::f32, layer.shape});
      sum_views_.push_back({sum_.data() + at, atomo::DType::f32, layer.shape});
      offsets_.push_back(at);
      at += layer.shape.elements();
    }
  }

  void begin(const atomo::Key& key, bool computing) override {
    key_ = key;
    // Nothing leaves before the whole is there, so one thread gains nothing by turning to layers.
    computing_ = computing && background_.has_thread();
    background_.begin();
    begun_ = {};
    timed_ = 0;
    if (computing_) begun_.status = compressor_.begin_message(key_, payload(), context());
  }

  void put(std::size_t layer, std::span<const float> gradient) override {
    std::copy(gradient.begin(), gradient.end(),
              own_.begin() + static_cast<std::ptrdiff_t>(offsets_[layer]));
    if (!computing_) return;
    begun_.layers.push_back({layer, {}});
    background_.post([this, layer] {
      // What became of it, the message's end tells.
      (void)compressor_.add_layer(layer, own_views_[layer], {.executor = threads_.beside()});
    });
    take_times();
  }

  Encoded encode() override {
    if (!computing_) {
      const auto status = compressor_.encode(own_views_, key_, payload(), context());
      return {.status = status, .bytes = bytes_};
    }
    while (!background_.idle()) {
      background_.wait_a_moment();
      take_times();
    }
    auto done = std::move(begun_);
    done.beside = background_.beside();
    if (!atomo::failed(done.status)) done.status = compressor_.end_message(context());
    done.bytes = bytes_;
    return done;
  }

  void decode_own(std::span<float> out) override {
    std::vector<atomo::TensorView> views;
    for (std::size_t i = 0; i < offsets_.size(); ++i)
      views.push_back({out.data() + offsets_[i], atomo::DType::f32, own_views_[i].shape});
    const auto status = compressor_.decode(std::span(payload_).first(bytes_), views, context());
    if (atomo::failed(status))
      throw std::runtime_error("cannot decode what was encoded: " + atomo::explain(status));
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
    std::vector<atomo::ConstBytes> messages;
    for (std::size_t k = 0; k < workers_; ++k)
      messages.push_back(atomo::ConstBytes(payloads_).subspan(k * longest_, bytes[k]));
    // What the call itself is refused for, every worker's payload is.
    std::vector<atomo::Status> statuses(workers_, kUnread);
    auto with_statuses = context();
    with_statuses.statuses = statuses.data();
    if (!votes_.empty()) {
      const atomo::Status voted =
          atomo::vote(messages, sum_views_, {.workspace = votes_, .executor = threads_.all()});
      if (!atomo::failed(voted)) return std::vector<atomo::Status>(workers_, voted);
      std::fill(sum_.begin(), sum_.end(), 0.0F);  // whose payload it is, decoding tells
    }
    const atomo::Status status = compressor_.decode_add_all(
        messages, 1.0F / static_cast<float>(workers_), sum_views_, with_statuses);
    std::ranges::replace(statuses, kUnread, status);
    return statuses;
  }

  std::span<float> sum() override { return sum_; }

 private:
  /// No message comes to this.
  static constexpr auto kUnread = atomo::Status::wrong_stage;

  void take_times() {
    while (const auto times = background_.take()) begun_.layers[timed_++].times = *times;
  }
  [[nodiscard]] atomo::Payload payload() noexcept {
    return {payload_.data(), payload_.size(), &bytes_};
  }
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
  std::vector<std::byte> votes_;  ///< workspace of votes; empty where means are taken
  std::uint64_t bytes_ = 0;       ///< of the payload
  std::size_t longest_ = 0;       ///< bytes a worker in `payloads_`
  atomo::Key key_;
  bool computing_ = false;
  Encoded begun_;          ///< the payload under way
  std::size_t timed_ = 0;  ///< of its layers
  Background background_;  ///< last: what it works on outlives it
};

}  // namespace

std::unique_ptr<Exchange> make_host_exchange(atomo::Compressor& compressor, Threads& threads,
                                             std::size_t workers, bool votes) {
  return std::make_unique<HostExchange>(compressor, threads, workers, votes);
}

}  // namespace train
