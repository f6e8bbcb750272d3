// SPDX-License-Identifier: Apache-2.0
/// The exchange of an all-gather on the device that the host executor is: the sums of the one in
/// host memory, to the bit.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "exchange/exchange.hpp"
#include "support/device_memory.hpp"
#include "support/support.hpp"

namespace train {
namespace {

constexpr std::size_t kWorkers = 3;

/// Layers whose payload changes its length from step to step and from worker to worker.
const std::vector<atomo::LayerSpec> kLayers{
    {"conv.weight", {16, 3, 5, 5}}, {"conv.bias", {16}}, {"fc.weight", {40, 64}}, {"fc.bias", {}}};

std::vector<float> gradient_of(std::size_t worker, std::uint32_t step, std::size_t elements) {
  auto x = atomo::test::heavy_tailed(elements, 1000 * step + worker, 60);
  for (float& v : x) v *= static_cast<float>(worker + 1);
  return x;
}

/// All workers of a job in one process; a copy stands for MPI.
class Job {
 public:
  enum class Where { host, device, device_and_aware_mpi };

  Job(const std::string& policy, Where where, bool votes = false) : where_(where) {
    const bool host = where == Where::host;
    for (std::size_t k = 0; k < kWorkers; ++k) {
      const auto full = atomo::Policy::parse(policy);
      compressors_.push_back(std::make_unique<atomo::Compressor>(
          kLayers, host ? full : full.without_lossless(),
          atomo::CompressorOptions{.device = host ? atomo::Device::cpu : atomo::Device::cuda}));
      exchanges_.push_back(host
                               ? make_host_exchange(*compressors_.back(), threads_, kWorkers, votes)
                               : make_device_exchange(*compressors_.back(), full, kWorkers,
                                                      where == Where::device_and_aware_mpi, votes));
    }
  }

  /// Gradients, payloads, all-gather; `damaged` sends a payload that must be refused.
  void share(std::uint32_t step, int damaged = -1) {
    bytes_.clear();
    for (std::size_t k = 0; k < kWorkers; ++k) {
      const auto worker = static_cast<std::uint16_t>(k);
      exchanges_[k]->begin({.seed = 7, .step = step, .worker = worker}, true);
      put(k, gradient_of(k, step, compressors_[k]->elements()));
      const auto encoded = exchanges_[k]->encode();
      ASSERT_FALSE(atomo::failed(encoded.status));
      bytes_.push_back(encoded.bytes);
      if (static_cast<int>(k) == damaged) exchanges_[k]->corrupt();
    }
    const std::size_t longest = *std::max_element(bytes_.begin(), bytes_.end());
    payloads_.assign(kWorkers, {});
    std::vector<std::byte> all;
    for (std::size_t k = 0; k < kWorkers; ++k) {
      payloads_[k] = read(exchanges_[k]->outgoing(longest));
      all.insert(all.end(), payloads_[k].begin(), payloads_[k].end());
    }
    for (const auto& exchange : exchanges_) write(exchange->incoming(longest), all);
  }

  /// What every worker's sum is.
  [[nodiscard]] std::vector<std::vector<float>> sums() {
    std::vector<std::vector<float>> all;
    for (const auto& exchange : exchanges_) {
      for (const auto status : exchange->add_all(bytes_)) EXPECT_FALSE(atomo::failed(status));
      all.emplace_back(exchange->sum().begin(), exchange->sum().end());
    }
    return all;
  }
  /// What every worker's own payload decodes to, told to it alone.
  [[nodiscard]] std::vector<std::vector<float>> own() {
    std::vector<std::vector<float>> all;
    for (std::size_t k = 0; k < kWorkers; ++k) {
      all.emplace_back(compressors_[k]->elements(), NAN);
      exchanges_[k]->decode_own(all.back());
    }
    return all;
  }
  [[nodiscard]] std::vector<atomo::Status> statuses() { return exchanges_[0]->add_all(bytes_); }

  [[nodiscard]] Exchange& exchange() { return *exchanges_[0]; }
  [[nodiscard]] const std::vector<std::uint64_t>& bytes() const { return bytes_; }
  [[nodiscard]] const std::vector<std::vector<std::byte>>& payloads() const { return payloads_; }

 private:
  void put(std::size_t worker, const std::vector<float>& gradient) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < kLayers.size(); ++i) {
      const std::size_t n = kLayers[i].shape.elements();
      const std::span<const float> layer(gradient.data() + at, n);
      at += n;
      if (where_ == Where::host) {
        exchanges_[worker]->put(i, layer);
        continue;
      }
      if (i == 1) {  // as an algorithm that computes on the host
        std::vector<float> values(layer.begin(), layer.end());
        exchanges_[worker]->put(i, values);
        std::fill(values.begin(), values.end(), -1.0f);
        continue;
      }
      // As in back-propagation: the memory has other values as soon as the call is over.
      const atomo::test::Memory memory(layer.size_bytes());
      memory.put(std::as_bytes(layer));
      exchanges_[worker]->put(i, {reinterpret_cast<const float*>(memory.data()), n});
      memory.fill(0xFF);
    }
  }
  [[nodiscard]] std::vector<std::byte> read(atomo::ConstBytes from) const {
    std::vector<std::byte> bytes(from.size());
    if (where_ == Where::device_and_aware_mpi) {
      EXPECT_EQ(cudaMemcpy(bytes.data(), from.data(), from.size(), cudaMemcpyDeviceToHost),
                cudaSuccess);
    } else {
      std::memcpy(bytes.data(), from.data(), from.size());
    }
    return bytes;
  }
  void write(atomo::Bytes to, const std::vector<std::byte>& from) const {
    ASSERT_EQ(to.size(), from.size());
    if (where_ == Where::device_and_aware_mpi) {
      EXPECT_EQ(cudaMemcpy(to.data(), from.data(), from.size(), cudaMemcpyHostToDevice),
                cudaSuccess);
    } else {
      std::memcpy(to.data(), from.data(), from.size());
    }
  }

  Where where_;
  Threads threads_{2};
  std::vector<std::unique_ptr<atomo::Compressor>> compressors_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  std::vector<std::uint64_t> bytes_;
  std::vector<std::vector<std::byte>> payloads_;
};

class ExchangeTest : public testing::TestWithParam<std::tuple<const char*, Job::Where>> {
 protected:
  Job on_host{std::get<0>(GetParam()), Job::Where::host};
  Job on_device{std::get<0>(GetParam()), std::get<1>(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(
    Policies, ExchangeTest,
    testing::Combine(testing::Values("* = atomo:bits=1,atoms=rows", "* = qsgd:bits=4",
                                     "*.bias = identity; conv* = atomo:atoms=coordinate,bits=1; "
                                     "* = topk:keep=0.1",
                                     "*.bias = identity; conv* = dgc+topk:keep=0.1; "
                                     "* = ef+atomo:atoms=rows,bits=1"),
                     testing::Values(Job::Where::device, Job::Where::device_and_aware_mpi)),
    [](const auto& made) { return std::to_string(made.index); });
INSTANTIATE_TEST_SUITE_P(
    Lossless, ExchangeTest,
    testing::Combine(testing::Values("* = qsgd:bits=8+blosc", "* = ef+topk:keep=0.1+blosc",
                                     "*.bias = identity; conv* = terngrad+blosc:codec=zstd; "
                                     "* = topk:keep=0.01+blosc"),
                     testing::Values(Job::Where::device)),
    [](const auto& made) { return std::to_string(made.index); });

TEST_P(ExchangeTest, PayloadsAndSumsAreTheHosts) {
  for (std::uint32_t step = 0; step < 3; ++step) {
    ASSERT_NO_FATAL_FAILURE(on_host.share(step));
    ASSERT_NO_FATAL_FAILURE(on_device.share(step));
    EXPECT_EQ(on_device.bytes(), on_host.bytes());
    EXPECT_EQ(on_device.payloads(), on_host.payloads());
    const auto expected_own = on_host.own(), found_own = on_device.own();
    for (std::size_t k = 0; k < kWorkers; ++k) {
      const auto& mine = expected_own[k];
      EXPECT_EQ(std::memcmp(found_own[k].data(), mine.data(), 4 * mine.size()), 0) << k;
    }
    EXPECT_NE(expected_own[0], expected_own[1]);
    const auto expected = on_host.sums(), found = on_device.sums();
    for (std::size_t k = 0; k < kWorkers; ++k) {
      ASSERT_EQ(found[k].size(), expected[0].size());
      EXPECT_EQ(std::memcmp(found[k].data(), expected[0].data(), 4 * expected[0].size()), 0) << k;
    }
    EXPECT_GT(*std::max_element(expected[0].begin(), expected[0].end()), 0);
  }
}

TEST_P(ExchangeTest, ARefusalNamesItsSender) {
  for (Job* job : {&on_host, &on_device}) {
    ASSERT_NO_FATAL_FAILURE(job->share(0, 1));
    const auto statuses = job->statuses();
    ASSERT_EQ(statuses.size(), kWorkers);
    for (std::size_t k = 0; k < kWorkers; ++k) EXPECT_EQ(atomo::failed(statuses[k]), k == 1) << k;
    EXPECT_EQ(statuses[1], atomo::Status::bad_checksum);
  }
}

TEST(Exchange, VotesAreTheHosts) {
  constexpr const char* kSigns = "*.bias = sign:scale=mean; * = sign";
  Job on_host(kSigns, Job::Where::host, true);
  for (const auto where : {Job::Where::device, Job::Where::device_and_aware_mpi}) {
    Job on_device(kSigns, where, true);
    for (std::uint32_t step = 0; step < 2; ++step) {
      ASSERT_NO_FATAL_FAILURE(on_host.share(step));
      ASSERT_NO_FATAL_FAILURE(on_device.share(step));
      const auto expected = on_host.sums(), found = on_device.sums();
      for (std::size_t k = 0; k < kWorkers; ++k) EXPECT_EQ(found[k], expected[0]) << k;
      for (const float v : expected[0]) ASSERT_EQ(std::abs(v), 1);  // of three
    }
    ASSERT_NO_FATAL_FAILURE(on_device.share(2, 1));
    const auto statuses = on_device.statuses();
    for (std::size_t k = 0; k < kWorkers; ++k) EXPECT_EQ(atomo::failed(statuses[k]), k == 1) << k;
  }
}

TEST(Device, IsThere) {
  EXPECT_EQ(device_objection(), "");
  EXPECT_EQ(choose_gpu(), 0);
}

}  // namespace
}  // namespace train
