// SPDX-License-Identifier: Apache-2.0
/// The coder of a device, which the host executor is, beside the CPU's: the same messages and values,
/// to the bit, and no more waiting than it promises.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "exchange/coder.hpp"
#include "hostexec/calls.hpp"
#include "support/device_memory.hpp"
#include "support/support.hpp"

namespace train {
namespace {

using Floats = std::vector<float>;
using Message = std::vector<std::byte>;

const std::vector<atomo::LayerSpec> kLayers{
    {"conv.weight", {16, 3, 5, 5}}, {"conv.bias", {16}}, {"fc.weight", {40, 64}}, {"fc.bias", {}}};

/// A coder and its compressor.
struct Place {
  Place(const std::string& text, bool on_device)
      : device(on_device),
        policy(atomo::Policy::parse(text)),
        compressor(kLayers, device ? policy.without_lossless() : policy,
                   {.device = device ? atomo::Device::cuda : atomo::Device::cpu}),
        coder(device ? make_device_coder(policy) : make_host_coder(threads)) {
    coder->prepare(compressor, Coder::Messages::whole);
    coder->prepare(compressor, Coder::Messages::layers);
    array = coder->make_array(compressor.elements());
  }

  template <class Encode>
  Message message(std::size_t most, const Encode& encode) {
    Message bytes(most);
    std::uint64_t length = 0;
    EXPECT_FALSE(atomo::failed(encode(atomo::Payload{bytes.data(), bytes.size(), &length})));
    bytes.resize(length);
    return bytes;
  }
  Message whole(std::span<const float> values, std::uint32_t step) {
    return message(compressor.max_encoded_bytes(), [&](const atomo::Payload& payload) {
      return coder->encode(compressor, values, {.seed = 5, .step = step}, payload, nullptr);
    });
  }
  /// A step's messages of all layers.
  std::vector<Message> layers(std::span<const float> values, std::uint32_t step) {
    EXPECT_EQ(compressor.begin_step({.seed = 6, .step = step}), atomo::Status::ok);
    std::vector<Message> all;
    for (std::size_t i = 0; i < kLayers.size(); ++i) {
      all.push_back(message(compressor.max_encoded_bytes(i), [&](const atomo::Payload& payload) {
        return coder->encode_layer(compressor, i, of_layer(values, i), payload, nullptr);
      }));
    }
    EXPECT_FALSE(atomo::failed(coder->end_step(compressor)));
    return all;
  }
  template <class Value>
  static std::span<Value> of_layer(std::span<Value> values, std::size_t layer) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < layer; ++i) at += kLayers[i].shape.elements();
    return values.subspan(at, kLayers[layer].shape.elements());
  }
  Floats fetched() {
    Floats values(array.size());
    coder->fetch(array, values);
    return values;
  }

  bool device;
  Threads threads{1};
  atomo::Policy policy;
  atomo::Compressor compressor;
  std::unique_ptr<Coder> coder;
  std::span<float> array;
};

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}
Floats gradient(std::uint32_t step) {
  std::size_t elements = 0;
  for (const auto& layer : kLayers) elements += layer.shape.elements();
  return atomo::test::heavy_tailed(elements, step + 1, 60);
}

class CoderTest : public testing::TestWithParam<const char*> {
 protected:
  Place host{GetParam(), false}, device{GetParam(), true};
};
INSTANTIATE_TEST_SUITE_P(
    Policies, CoderTest,
    testing::Values("* = atomo:bits=1,atoms=rows", "* = qsgd:bits=4",
                    "*.bias = identity; conv* = atomo:atoms=coordinate,bits=1; * = topk:keep=0.1",
                    "*.bias = identity; * = atomo:atoms=blocks,bits=2,cap=20",
                    "*.bias = sign; * = qsgd:bits=8+blosc"),
    [](const auto& made) { return std::to_string(made.index); });

TEST_P(CoderTest, WholeMessagesAndValuesAreTheHosts) {
  for (std::uint32_t step = 0; step < 3; ++step) {
    const Floats x = gradient(step), old = gradient(step + 10);
    std::vector<Floats> sums, added, decoded;
    Message sent;
    for (Place* const place : {&host, &device}) {
      place->coder->put(x, place->array);
      const Message message = place->whole(place->array, step);
      if (place == &host) sent = message;
      ASSERT_EQ(message, sent);
      ASSERT_EQ(place->whole(x, step).size(), sent.size());  // from memory of the caller's
      place->coder->clear(place->array);
      std::vector<atomo::Status> statuses(3, atomo::Status::corrupt);
      for (auto& status : statuses)
        place->coder->add_later(place->compressor, sent, 0.25F, place->array, status);
      sums.push_back(place->fetched());
      for (const auto status : statuses) EXPECT_EQ(status, atomo::Status::ok);
      added.push_back(old);
      EXPECT_EQ(place->coder->decode_add(place->compressor, sent, 0.5F, added.back()),
                atomo::Status::ok);
      decoded.emplace_back(x.size());
      EXPECT_EQ(place->coder->decode(place->compressor, sent, decoded.back()), atomo::Status::ok);
    }
    EXPECT_TRUE(same_bits(sums[1], sums[0]));
    EXPECT_TRUE(same_bits(added[1], added[0]));
    EXPECT_TRUE(same_bits(decoded[1], decoded[0]));
    EXPECT_GT(*std::ranges::max_element(sums[0]), 0);
  }
}

TEST_P(CoderTest, LayersOfStepsAreTheHosts) {
  for (std::uint32_t step = 0; step < 3; ++step) {
    const Floats x = gradient(step);
    std::vector<Floats> sums, added;
    std::vector<Message> sent;
    for (Place* const place : {&host, &device}) {
      place->coder->put(x, place->array);
      const auto messages = place->layers(step == 1 ? std::span(x) : place->array, step);
      if (place == &host) sent = messages;
      ASSERT_EQ(messages, sent);
      place->coder->clear(place->array);
      added.push_back(x);
      std::vector<atomo::Status> statuses(kLayers.size(), atomo::Status::corrupt);
      for (std::size_t i = 0; i < kLayers.size(); ++i) {
        place->coder->add_layer_later(place->compressor, i, sent[i], 0.5F,
                                      Place::of_layer(place->array, i), statuses[i]);
        EXPECT_EQ(place->coder->decode_layer_add(place->compressor, i, sent[i], 2.0F,
                                                 Place::of_layer(std::span(added.back()), i)),
                  atomo::Status::ok);
      }
      sums.push_back(place->fetched());
      for (const auto status : statuses) EXPECT_EQ(status, atomo::Status::ok);
    }
    EXPECT_TRUE(same_bits(sums[1], sums[0]));
    EXPECT_TRUE(same_bits(added[1], added[0]));
  }
}

TEST_P(CoderTest, ARefusedMessageIsToldAtTheNextWait) {
  Message sent = host.whole(gradient(0), 0);
  const Message sound = sent;
  sent[sent.size() / 2] ^= std::byte{1};
  for (Place* const place : {&host, &device}) {
    auto first = atomo::Status::corrupt, second = first;
    place->coder->add_later(place->compressor, sent, 1, place->array, first);
    place->coder->add_later(place->compressor, sound, 1, place->array, second);
    (void)place->fetched();
    EXPECT_EQ(first, atomo::Status::bad_checksum) << place->device;
    EXPECT_EQ(second, atomo::Status::ok) << place->device;
    EXPECT_EQ(place->coder->decode_add(place->compressor, sent, 1, place->array),
              atomo::Status::bad_checksum);
    EXPECT_EQ(place->coder->decode_add(place->compressor, {}, 1, place->array),
              atomo::Status::truncated);
  }
}

std::size_t waits() {
  std::size_t count = 0;
  for (const auto& call : hostexec::calls())
    count += call.name.ends_with("Synchronize") ? call.count : 0;
  return count;
}

TEST_P(CoderTest, AMessageIsWaitedForOnce) {
  const Floats x = gradient(0);
  device.coder->put(x, device.array);
  const Message sent = device.whole(device.array, 0);
  const bool bounded = device.compressor.wire_bytes().has_value();
  hostexec::reset_calls();
  (void)device.whole(device.array, 1);
  // The next message may be longer by more than an eighth.
  EXPECT_LE(waits(), bounded ? 1U : 2U);
  hostexec::reset_calls();
  std::vector<atomo::Status> statuses(300);  // more than are told at once
  for (auto& status : statuses)
    device.coder->add_later(device.compressor, sent, 0.01F, device.array, status);
  EXPECT_EQ(waits(), 1U);
  (void)device.fetched();
  EXPECT_EQ(waits(), 2U);
}

TEST(Coder, ComputedValuesComeToTheHost) {
  const Floats x = gradient(3);
  const atomo::test::Memory memory(4 * x.size());
  memory.put(std::as_bytes(std::span(x)));
  Floats from_device(x.size()), from_host(x.size());
  device_to_host({reinterpret_cast<const float*>(memory.data()), x.size()}, from_device);
  device_to_host(x, from_host);
  EXPECT_EQ(from_device, x);
  EXPECT_EQ(from_host, x);
}

}  // namespace
}  // namespace train
