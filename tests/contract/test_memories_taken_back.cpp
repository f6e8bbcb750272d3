// SPDX-License-Identifier: Apache-2.0
/// Memories are taken back by the last step alone, and once.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "support/memory_models.hpp"

namespace atomo {
namespace {

using test::gradients_of;
using test::MemoryModel;
using Values = std::vector<std::vector<float>>;

/// A message that nobody used: once, and not one that moved nothing.
TEST(MemoriesTakenBack, AreThoseBeforeTheMessage) {
  const auto layers = test::memory_layers();
  for (const std::string spec :
       {"ef+topk:keep=0.1", "dgc+topk:keep=0.1", "ef:memory=bf16+sign",
        "ef:memory=int8+topk:keep=0.1", "dgc:memory=int8+topk:keep=0.1", "ef21+topk:keep=0.1"}) {
    SCOPED_TRACE(spec);
    Compressor model(layers, Policy::parse(spec), {.takes_back = true});
    MemoryModel plain(layers, spec), views(layers, spec);
    std::vector<std::byte> work(model.encode_workspace_bytes()), bytes(model.max_encoded_bytes());
    const auto encode = [&](const Values& g, std::uint32_t step) {
      std::uint64_t length = 0;
      EXPECT_FALSE(
          failed(model.encode(views.views_of(g, layers), {.seed = 3, .step = step},
                              {bytes.data(), bytes.size(), &length}, {.workspace = work})));
    };
    for (const std::uint32_t step : {0u, 1u, 3u}) {
      encode(gradients_of(layers, step), step);
      (void)plain.encode(gradients_of(layers, step), step);
      EXPECT_EQ(model.save(), plain.model.save()) << step;
      encode(gradients_of(layers, 50), step + 1);  // and nobody used it
      for (const Status said :
           {Status::ok, Status::overspent, Status::non_finite, Status::non_finite})
        EXPECT_EQ(model.take_memory_back({}, &said), Status::ok);
      EXPECT_EQ(model.save(Saved::memories), plain.model.save(Saved::memories)) << step;
    }
    encode(gradients_of(layers, 4), 4);
    Values g = gradients_of(layers, 5);
    g[1][2] = std::numeric_limits<float>::infinity();
    const auto moved = model.save(Saved::memories);
    encode(g, 5);
    EXPECT_EQ(model.take_memory_back(), Status::ok);
    EXPECT_EQ(model.save(Saved::memories), moved) << "the last message moved nothing";
    EXPECT_EQ(model.memory_bytes(), 2 * plain.model.memory_bytes());
    EXPECT_EQ(plain.model.take_memory_back(), Status::unsupported);
    EXPECT_EQ(model.part(0, 1).take_memory_back(), Status::wrong_stage);
    ASSERT_EQ(model.begin_step({}), Status::ok);
    EXPECT_EQ(model.take_memory_back(), Status::wrong_stage);
  }
}

/// A message that was used stays used: the step that is taken back is the last one that began, whatever it had.
TEST(MemoriesTakenBack, OnlyByTheLastStep) {
  const auto layers = test::memory_layers();
  const Values g = gradients_of(layers, 0);
  const auto options = CompressorOptions{.takes_back = true};
  Compressor model(layers, Policy::parse("ef+topk:keep=0.1"), options);
  MemoryModel views(layers, "ef+topk:keep=0.1");
  std::vector<std::byte> work(model.encode_workspace_bytes()), bytes(model.max_encoded_bytes());
  std::uint64_t length = 0;
  const auto encode = [&](std::size_t capacity) {
    return model.encode(views.views_of(g, layers), {.seed = 3}, {bytes.data(), capacity, &length},
                        {.workspace = work});
  };
  ASSERT_EQ(encode(bytes.size()), Status::ok);
  const auto used = model.save(Saved::memories);
  ASSERT_EQ(encode(1), Status::buffer_too_small);
  EXPECT_EQ(model.take_memory_back(), Status::ok);
  EXPECT_EQ(model.save(Saved::memories), used) << "the call failed";

  ASSERT_EQ(encode(bytes.size()), Status::ok);
  const std::vector<float> first = model.memory(0), second = model.memory(1);
  ASSERT_EQ(model.begin_step({.seed = 3, .step = 1}), Status::ok);
  ASSERT_FALSE(
      failed(model.encode_layer(0, views.views_of(g, layers)[0],
                                {bytes.data(), bytes.size(), &length}, {.workspace = work})));
  ASSERT_FALSE(failed(model.end_step()));
  EXPECT_NE(model.memory(0), first);
  EXPECT_EQ(model.take_memory_back(), Status::ok);
  EXPECT_EQ(model.memory(0), first);
  EXPECT_EQ(model.memory(1), second) << "the step did not have this layer";
}

}  // namespace
}  // namespace atomo
