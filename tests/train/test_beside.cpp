// SPDX-License-Identifier: Apache-2.0
/// Work beside back-propagation, and the payloads that are made of it: those that are made
/// afterwards.
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "exchange/background.hpp"
#include "exchange/exchange.hpp"
#include "support/support.hpp"

namespace train {
namespace {

void finish(Background& background) {
  while (!background.idle()) {
    background.wait_a_moment();
    while (background.take()) continue;
  }
}

TEST(Background, KeepsTheOrderOfItsPieces) {
  for (const bool own_thread : {false, true}) {
    Background background(own_thread);
    EXPECT_EQ(background.has_thread(), own_thread);
    std::vector<int> order;
    std::thread::id by;
    for (int i = 0; i < 100; ++i) {
      background.post([&, i] {
        order.push_back(i);
        by = std::this_thread::get_id();
      });
    }
    finish(background);
    ASSERT_EQ(order.size(), 100u);
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
    EXPECT_EQ(by != std::this_thread::get_id(), own_thread);
    EXPECT_FALSE(background.take());
    background.perform([&] { order.clear(); });
    EXPECT_TRUE(order.empty());
    EXPECT_TRUE(background.take());
    EXPECT_TRUE(background.idle());
  }
}

TEST(Background, ThrowsWhereAPieceIsTaken) {
  for (const bool own_thread : {false, true}) {
    Background background(own_thread);
    background.post([] { throw std::runtime_error("a layer cannot be encoded"); });
    background.post([] {});
    EXPECT_THROW(finish(background), std::runtime_error);
    finish(background);
  }
}

/// As when a gradient in the middle of back-propagation ends the run.
TEST(Background, LeavesOutWhatHasNotBegunWhenItEnds) {
  std::atomic<bool> begun = false, may_end = false;
  std::atomic<int> done = 0;
  std::thread opener;
  {
    Background background(true);
    background.post([&] {
      begun = true;
      while (!may_end) std::this_thread::yield();
      ++done;
    });
    for (int i = 0; i < 10; ++i) background.post([&] { ++done; });
    while (!begun) std::this_thread::yield();
    opener = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      may_end = true;
    });
  }
  opener.join();
  EXPECT_EQ(done, 1);
}

TEST(Background, CountsWhatHeldUpAndWhatDidNot) {
  const auto nap = [] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); };
  Background here(false), beside(true);
  for (Background* background : {&here, &beside}) {
    background->post(nap);
    nap();
    nap();
    finish(*background);
  }
  EXPECT_GE(here.held(), 30);
  EXPECT_LT(here.beside(), 1);
  EXPECT_GT(beside.beside(), 20);
  beside.begin();
  EXPECT_EQ(beside.held() + beside.beside(), 0);
}

const std::vector<atomo::LayerSpec> kLayers{
    {"conv.weight", {16, 3, 5, 5}}, {"conv.bias", {16}}, {"fc.weight", {80, 64}}, {"fc.bias", {}}};

struct Payload {
  std::vector<std::byte> bytes;
  std::vector<Exchange::OfLayer> layers;
  Background::Clock::time_point last;  ///< when the last layer came
};

/// The payload of a step; the memory of a layer's gradient has other values once it was put.
Payload payload_of(Exchange& exchange, std::uint32_t step, bool computing) {
  Payload payload;
  exchange.begin({.seed = 7, .step = step, .worker = 2}, computing);
  for (std::size_t i = kLayers.size(); i-- > 0;) {
    auto gradient = atomo::test::heavy_tailed(kLayers[i].shape.elements(), 10 * step + i, 60);
    if (i == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      payload.last = Background::Clock::now();
    }
    exchange.put(i, gradient);
    std::fill(gradient.begin(), gradient.end(), 1e9F);
  }
  auto encoded = exchange.encode();
  EXPECT_FALSE(atomo::failed(encoded.status));
  const auto bytes = exchange.outgoing(encoded.bytes);
  payload.bytes.assign(bytes.begin(), bytes.end());
  payload.layers = std::move(encoded.layers);
  return payload;
}

class PayloadsTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Policies, PayloadsTest,
                         testing::Values("* = atomo:bits=1", "* = atomo:bits=0.5,atoms=sketch",
                                         "* = qsgd:bits=4+blosc",
                                         "*.bias = identity; conv* = atomo:atoms=coordinate,"
                                         "bits=1; * = topk:keep=0.1"),
                         [](const auto& made) { return std::to_string(made.index); });

TEST_P(PayloadsTest, AreThoseMadeAfterwards) {
  Threads one(1);
  for (const unsigned count : {1U, 2U, 4U}) {
    Threads threads(count);
    atomo::Compressor beside(kLayers, atomo::Policy::parse(GetParam()));
    atomo::Compressor afterwards(kLayers, atomo::Policy::parse(GetParam()));
    const auto found = make_host_exchange(beside, threads, 1);
    const auto reference = make_host_exchange(afterwards, one, 1);
    int began_early = 0;
    for (std::uint32_t step = 0; step < 3; ++step) {
      const auto late = payload_of(*reference, step, false), early = payload_of(*found, step, true);
      EXPECT_TRUE(late.layers.empty());
      EXPECT_EQ(early.layers.empty(), count == 1);
      ASSERT_TRUE(early.bytes == late.bytes) << GetParam() << " " << count << " threads";
      if (count == 1) continue;
      ASSERT_EQ(early.layers.size(), kLayers.size());
      EXPECT_EQ(early.layers.front().layer, kLayers.size() - 1);
      began_early += early.layers.front().times.begin < early.last ? 1 : 0;
    }
    EXPECT_EQ(began_early > 0,
              count > 1);  // another thread begins when the machine has a core for it
  }
}

}  // namespace
}  // namespace train
