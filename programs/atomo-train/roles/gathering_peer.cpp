// SPDX-License-Identifier: Apache-2.0
/// \file
/// Each function is one phase of a step: it calls the exchange, in host memory or on the device,
/// and records its time for the log and the timeline. The lengths of payloads travel with the
/// reports, and then every rank pads its payload to the longest. A payload that is refused ends the
/// run with the name of its sender.

#include "roles/gathering_peer.hpp"

#include <algorithm>
#include <atomo/atomo.hpp>
#include <stdexcept>
#include <vector>

namespace train {
namespace {

/// Of the draws of messages about squares.
constexpr std::uint16_t kSquaresChannel = 1;
/// In the state of a checkpoint.
constexpr const char* kSums = "sums of differences";

}  // namespace

GatheringPeer::GatheringPeer(Run& run, MakeOptimiser make, bool gathers) : Peer(run, make) {
  if (run.options.has_squares()) squares_.emplace(learner_.replica().layers(), workers_);
  if (!gathers) return;
  make_exchange(0);
  const auto rules = atomo::Policy::parse(run.options.policy).rules();
  remembers_ = std::ranges::any_of(rules, [](const auto& r) { return r.codec.traits().memory; });
  if (std::ranges::any_of(rules, [](const auto& r) { return r.codec.traits().differences; }))
    sums_.resize(learner_.compressor().elements());
  if (second_moment_of(run.options.second_moment) == SecondMoment::exact)
    exact_.resize(learner_.compressor().elements());
  if (run.options.precondition) units_.resize(learner_.compressor().elements());
}

void GatheringPeer::make_exchange(std::uint32_t step) {
  const Options& options = run_.options;
  exchange_.reset();  // its memory is free before the next one's is taken
  exchange_ = options.on_device()
                  ? make_device_exchange(learner_.compressor(),
                                         atomo::Policy::parse(options.policy_at(step)), workers_,
                                         options.cuda_aware_mpi, options.vote)
                  : make_host_exchange(learner_.compressor(), run_.threads, workers_, options.vote);
}

WorkerState GatheringPeer::own_state() {
  auto state = Peer::own_state();
  if (!sums_.empty()) state.arrays[kSums] = sums_;
  return state;
}

void GatheringPeer::restore_own(const WorkerState& state) {
  const std::uint32_t last = done() == 0 ? 0 : done() - 1;
  if (learner_.take_policy(last)) make_exchange(last);
  Peer::restore_own(state);
  if (!sums_.empty()) sums_ = state.arrays.at(kSums);
}

void GatheringPeer::begin_payload(std::uint32_t step, bool computing) {
  if (learner_.take_policy(step)) make_exchange(step);
  learner_.take_share(step);
  exchange_->begin(learner_.key(step), computing);
  begin_squares(step);
  if (!units_.empty()) optimiser_->find_units(step, units_);
  divisor_ = computing && remembers_ ? static_cast<float>(scale_) : 1.0F;
  rate_ = static_cast<float>(run_.options.rate_in_memory_at(step));
}

void GatheringPeer::put(std::size_t layer, std::span<const float> values) {
  const auto begin = Clock::now();
  if (tells_squares_ || !exact_.empty() || divisor_ != 1 || rate_ != 1 || !units_.empty()) {
    on_host_.resize(learner_.compressor().elements());
    const auto part_of = [&](std::vector<float>& all) {
      return std::span(all).subspan(learner_.replica().offset(layer), values.size());
    };
    const auto own = part_of(on_host_);
    learner_.to_host(values, own);
    add_squares(layer, own);
    if (!exact_.empty()) std::ranges::copy(own, part_of(exact_).begin());
    if (prepare(layer, own)) values = own;
  }
  exchange_->put(layer, values);
  report_.encode += milliseconds(Clock::now() - begin);
}

bool GatheringPeer::prepare(std::size_t layer, std::span<float> values) {
  if (divisor_ == 1 && rate_ == 1 && units_.empty()) return false;
  if (divisor_ != 1) {
    for (float& v : values) v /= divisor_;
  }
  if (!units_.empty()) {
    const float* const unit = units_.data() + learner_.replica().offset(layer);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] /= unit[i];
  }
  if (rate_ != 1) {
    for (float& v : values) v *= rate_;
  }
  return true;
}

void GatheringPeer::encode(std::uint32_t step, bool corrupt) {
  const auto begin = Clock::now();
  const auto encoded = exchange_->encode();
  check_encoded(encoded.status, step);
  report_.payload_bytes = encoded.bytes;
  report_.beside = encoded.beside;
  if (corrupt) exchange_->corrupt();
  const auto end = Clock::now();
  report_.encode += milliseconds(end - begin);
  for (const auto& [layer, times] : encoded.layers) {
    timeline_.span("encode", learner_.replica().layers()[layer].name, times.begin, times.end, true);
  }
  timeline_.span("encode", "", begin, end);
}

void GatheringPeer::exchange_squares(std::uint32_t step) {
  if (!tells_squares_) return;
  const auto begin = Clock::now();
  std::vector<float> decoded(learner_.compressor().elements());
  exchange_->decode_own(decoded);
  restore(decoded);
  report_.encode += milliseconds(Clock::now() - begin);
  tell_squares(step, decoded, scale_ / divisor_);
}

void GatheringPeer::begin_squares(std::uint32_t step) {
  tells_squares_ = squares_ && run_.options.tells_squares(step);
  scale_ = run_.options.gradient_scale(step);
}

void GatheringPeer::add_squares(std::size_t layer, std::span<const float> gradient) {
  if (tells_squares_) squares_->add(layer, gradient, scale_);
}

void GatheringPeer::tell_squares(std::uint32_t step, std::span<const float> decoded, double scale) {
  if (!tells_squares_) return;
  const auto begin = Clock::now();
  auto key = learner_.key(step);
  key.channel = kSquaresChannel;
  const auto message = squares_->encode(key, decoded, scale);
  const auto encoded = Clock::now();
  report_.encode += milliseconds(encoded - begin);
  std::vector<std::byte> all(message.size() * workers_);
  auto transfer = transport_.all_gather(message, all);
  transport_.wait(transfer);
  report_.squares_bytes = message.size();
  report_.sent += message.size() * (workers_ - 1);
  report_.received += message.size() * (workers_ - 1);
  const auto end = Clock::now();
  wire_ += milliseconds(end - encoded);
  timeline_.span("all-gather", "squares", encoded, end);
  const auto statuses = squares_->decode(all);
  for (std::size_t k = 0; k < workers_; ++k) check_payload(statuses[k], static_cast<int>(k), step);
}

void GatheringPeer::exchange_exact() {
  if (exact_.empty()) return;
  std::vector<float> all(exact_.size() * workers_);
  auto transfer = transport_.all_gather(std::as_bytes(std::span(exact_)),
                                        std::as_writable_bytes(std::span(all)));
  transport_.wait(transfer);
  const auto over = static_cast<float>(1 / (scale_ * static_cast<double>(workers_)));
  std::vector<float> average(exact_.size());
  for (std::size_t i = 0; i < all.size(); ++i) average[i % average.size()] += over * all[i];
  optimiser_->see_exact(average);
}

void GatheringPeer::see_squares(std::span<const float> average) {
  if (!tells_squares_) return;
  for (std::size_t i = 0; i < squares_->layers().size(); ++i)
    optimiser_->see_squares(i, squares_->squares(i, average, scale_));
}

void GatheringPeer::gather_lengths() {
  const auto begin = Clock::now();
  exchange_reports();
  const auto end = Clock::now();
  wire_ += milliseconds(end - begin);
  timeline_.span("all-gather", "lengths", begin, end);
}

void GatheringPeer::gather_payloads() {
  const auto begin = Clock::now();
  std::size_t longest = 0;
  for (const auto& report : reports_)
    longest = std::max<std::size_t>(longest, report.payload_bytes);
  if (longest > learner_.compressor().max_encoded_bytes())
    throw std::runtime_error("a payload is longer than this model's can be");
  auto transfer = transport_.all_gather(exchange_->outgoing(longest), exchange_->incoming(longest));
  transport_.wait(transfer);
  for (auto& report : reports_) {
    const std::uint64_t copies = longest * (workers_ - 1);
    report.sent += copies;
    report.received += copies;
  }
  const auto end = Clock::now();
  wire_ += milliseconds(end - begin);
  timeline_.span("all-gather", "", begin, end);
}

std::span<float> GatheringPeer::decode_mean(std::uint32_t step) {
  const auto begin = Clock::now();
  std::vector<std::uint64_t> bytes;
  for (const auto& report : reports_) bytes.push_back(report.payload_bytes);
  const auto statuses = exchange_->add_all(bytes);
  for (std::size_t k = 0; k < workers_; ++k) check_payload(statuses[k], static_cast<int>(k), step);
  const std::span<float> mean = exchange_->sum();
  add_up(mean);
  restore(mean);
  if (divisor_ != 1) {
    for (float& v : mean) v *= divisor_;
  }
  const auto end = Clock::now();
  decode_ = milliseconds(end - begin);
  timeline_.span("decode", "", begin, end);
  return mean;
}

void GatheringPeer::add_up(std::span<float> values) {
  if (sums_.empty()) return;
  const auto& layers = learner_.compressor().layers();
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    if (!learner_.compressor().codec(layer).traits().differences) continue;
    const std::size_t first = learner_.replica().offset(layer), n = layers[layer].shape.elements();
    for (std::size_t i = first; i < first + n; ++i) values[i] = sums_[i] += values[i];
  }
}

void GatheringPeer::restore(std::span<float> values) const {
  if (rate_ != 1) {
    for (float& v : values) v /= rate_;
  }
  if (units_.empty()) return;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= units_[i];
}

}  // namespace train
