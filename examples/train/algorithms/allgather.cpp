// SPDX-License-Identifier: Apache-2.0
/// \file
/// All-gather of payloads: no server, every rank holds the same weights and takes the same step.
///
///   every rank, every step
///   ----------------------
///   g_k <- back-propagation over this rank's samples
///   payload <- encode(g_k), the whole model at one price
///   lengths <- all-gather(length of payload)
///   payloads <- all-gather(payload, padded to the longest)
///   g <- sum over ranks, in rank order, of decode(payload) / W
///   w <- optimiser(w, g)

#include <algorithm>
#include <atomo/atomo.hpp>
#include <stdexcept>

#include "algorithms/algorithms.hpp"
#include "exchange/exchange.hpp"
#include "roles/peer.hpp"

namespace train {
namespace {

class Gatherer final : public Peer {
 public:
  explicit Gatherer(Run& run)
      : Peer(run),
        exchange_(run.options.on_device()
                      ? make_device_exchange(learner_.compressor(),
                                             atomo::Policy::parse(run.options.policy), workers_,
                                             run.options.cuda_aware_mpi)
                      : make_host_exchange(learner_.compressor(), workers_)) {
    begin();
  }

  [[nodiscard]] bool train(std::uint32_t step) {
    back_propagate(step, [this](std::size_t layer, std::span<const float> gradient) {
      exchange_->put(layer, gradient);
    });
    encode(step);
    gather_payloads();
    decode_add_all(step);
    return step_along(exchange_->sum(), step);
  }

 private:
  void encode(std::uint32_t step) {
    const auto begin = Clock::now();
    const auto [status, bytes] = exchange_->encode(learner_.key(step));
    check_encoded(status, step);
    report_.payload_bytes = bytes;
    if (first() && run_.options.corrupt_payload_at == step) exchange_->corrupt();
    const auto end = Clock::now();
    report_.encode = milliseconds(end - begin);
    timeline_.span("encode", "", begin, end);
  }

  /// Lengths first, with the rest of the report; then payloads, padded to the longest.
  void gather_payloads() {
    const auto begin = Clock::now();
    exchange_reports();
    std::size_t longest = 0;
    for (const auto& report : reports_)
      longest = std::max<std::size_t>(longest, report.payload_bytes);
    if (longest > learner_.compressor().max_encoded_bytes())
      throw std::runtime_error("a payload is longer than this model's can be");
    auto transfer =
        transport_.all_gather(exchange_->outgoing(longest), exchange_->incoming(longest));
    transport_.wait(transfer);
    for (auto& report : reports_) report.sent = report.received = longest * (workers_ - 1);
    const auto end = Clock::now();
    wire_ = milliseconds(end - begin);
    timeline_.span("all-gather", "", begin, end);
  }

  void decode_add_all(std::uint32_t step) {
    const auto begin = Clock::now();
    std::vector<std::uint64_t> bytes;
    for (const auto& report : reports_) bytes.push_back(report.payload_bytes);
    const auto statuses = exchange_->add_all(bytes);
    for (std::size_t k = 0; k < workers_; ++k)
      check_payload(statuses[k], static_cast<int>(k), step);
    const auto end = Clock::now();
    decode_ = milliseconds(end - begin);
    timeline_.span("decode", "", begin, end);
  }

  std::unique_ptr<Exchange> exchange_;
};

}  // namespace

Outcome all_gather(Run& run) { return run_peer<Gatherer>(run); }

}  // namespace train
