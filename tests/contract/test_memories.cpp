// SPDX-License-Identifier: Apache-2.0
/// Memories in front of codecs: a message is that of the codec behind, of the gradient with what was
/// kept, and what it left out is kept.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "atomo/container.hpp"
#include "support/memory_models.hpp"

namespace atomo {
namespace {

using test::gradients_of;
using test::MemoryModel;
using test::sum_of;
using Values = std::vector<std::vector<float>>;

/// The message is the one that the codec writes of g + e, and e <- x - c to the bit. Returns how many
/// messages were thinned to keep a cap.
int keeps_what_messages_leave_out(const std::vector<LayerSpec>& layers, const std::string& spec) {
  const testing::ScopedTrace trace(__FILE__, __LINE__, spec);
  MemoryModel with(layers, "ef+" + spec), plain(layers, spec);
  int thinned = 0;
  for (std::uint32_t step = 0; step < 4; ++step) {
    const Values x = sum_of(gradients_of(layers, step), with.memories());
    const auto message = with.encode(gradients_of(layers, step), step);
    EXPECT_EQ(message, plain.encode(x, step));
    const Values c = plain.decode(message);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const std::vector<float> kept = with.model.memory(i);
      EXPECT_EQ(kept.size(), x[i].size());
      std::size_t wrong = 0;
      for (std::size_t k = 0; k < kept.size(); ++k) wrong += kept[k] != x[i][k] + (-1 * c[i][k]);
      EXPECT_EQ(wrong, 0) << "step " << step << ", layer " << i;
    }
    ContainerInfo info;
    EXPECT_FALSE(failed(inspect(message, info)));
    for (const LayerInfo& layer : info.layers) thinned += layer.thinned ? 1 : 0;
  }
  return thinned;
}

TEST(Memories, KeepWhatAMessageLeavesOut) {
  for (const std::string& spec : test::all_specs())
    (void)keeps_what_messages_leave_out(test::memory_layers(), spec);
}

TEST(Memories, KeepWhatACapLeavesOut) {
  const std::vector<LayerSpec> layers{{"a", {256, 100}}, {"b", {96, 200}}};
  EXPECT_GT(keeps_what_messages_leave_out(layers, "atomo:bits=2,cap=2,atoms=rows"), 0);
  EXPECT_GT(keeps_what_messages_leave_out(layers, "atomo:bits=2,cap=2,atoms=rows+blosc"), 0);
}

TEST(Memories, StreamedLayersAndPartsKeepThemToo) {
  const auto layers = test::memory_layers();
  for (const std::string spec : {"topk:keep=0.1", "atomo:bits=1,atoms=blocks", "qsgd:bits=2"}) {
    SCOPED_TRACE(spec);
    MemoryModel with(layers, "ef:decay=0.5+" + spec), plain(layers, spec);
    Compressor part = with.model.part(0, 2), plain_part = plain.model.part(0, 2);
    for (std::uint32_t step = 0; step < 3; ++step) {
      Values x = with.memories();
      const Values g = gradients_of(layers, step);
      for (std::size_t i = 0; i < x.size(); ++i) {
        for (std::size_t k = 0; k < x[i].size(); ++k) x[i][k] = g[i][k] + 0.5f * x[i][k];
      }
      ASSERT_EQ(with.model.begin_step({.seed = 3, .step = step}), Status::ok);
      ASSERT_EQ(plain.model.begin_step({.seed = 3, .step = step}), Status::ok);
      const auto of_part = with.encode_part(part, g, step);
      EXPECT_EQ(of_part, plain.encode_part(plain_part, x, step));
      Values c = plain.decode_part(plain_part, of_part);
      for (std::size_t i = 2; i < layers.size(); ++i) {
        const auto message = with.encode_layer(i, g[i]);
        EXPECT_EQ(message, plain.encode_layer(i, x[i]));
        c.push_back(plain.decode_layer(i, message));
      }
      EXPECT_EQ(with.status_of_part(part, g, step), Status::wrong_stage) << "sent before";
      EXPECT_EQ(with.status_of_layer(3, g[3]), Status::wrong_stage) << "sent before";
      ASSERT_FALSE(failed(with.model.end_step()));
      ASSERT_FALSE(failed(plain.model.end_step()));
      for (std::size_t i = 0; i < layers.size(); ++i) {
        for (std::size_t k = 0; k < x[i].size(); ++k)
          ASSERT_EQ(with.model.memory(i)[k], x[i][k] - c[i][k]);
      }
    }
  }
}

/// Layers that come one by one, one of them twice: the message and the memory are those of `encode`.
TEST(Memories, OfALayerAddedAgainTheLastCounts) {
  const auto layers = test::memory_layers();
  for (const std::string spec : {"ef+topk:keep=0.1", "ef+atomo:bits=1"}) {
    MemoryModel whole(layers, spec), parts(layers, spec);
    const Values other = gradients_of(layers, 77);
    for (std::uint32_t step = 0; step < 3; ++step) {
      const Values g = gradients_of(layers, step);
      EXPECT_EQ(whole.encode(g, step), parts.encode_one_by_one(g, other, step));
      EXPECT_EQ(whole.memories(), parts.memories());
    }
  }
}

TEST(Memories, HalvesAndThreadsChangeNothing) {
  std::vector<LayerSpec> layers = test::memory_layers();
  ThreadPool threads(3);
  MemoryModel wide(layers, "ef+topk:keep=0.1"), threaded(layers, "ef+topk:keep=0.1");
  for (LayerSpec& layer : layers) layer.dtype = DType::bf16;
  MemoryModel half(layers, "ef+topk:keep=0.1");
  for (std::uint32_t step = 0; step < 3; ++step) {
    Values g = gradients_of(layers, step);
    for (auto& x : g) {  // values that bf16 has
      for (float& v : x) v = std::bit_cast<float>(std::bit_cast<std::uint32_t>(v) & 0xFFFF0000u);
    }
    const auto message = wide.encode(g, step);
    EXPECT_EQ(message, threaded.encode(g, step, &threads));
    EXPECT_EQ(wide.decode(message), half.decode(half.encode(g, step)));
    EXPECT_EQ(wide.memories(), half.memories());
    EXPECT_EQ(wide.memories(), threaded.memories());
  }
}

TEST(Memories, ANonFiniteMessageMovesNone) {
  const auto layers = test::memory_layers();
  for (const std::string spec :
       {"ef+topk:keep=0.1", "ef+qsgd:bits=4", "dgc+topk:keep=0.1", "ef21+topk:keep=0.1"}) {
    MemoryModel model(layers, spec);
    (void)model.encode(gradients_of(layers, 0), 0);
    const Values before = model.memories();
    const auto saved = model.model.save();
    Values g = gradients_of(layers, 1);
    g[1][2] = std::numeric_limits<float>::infinity();
    const auto message = model.encode(g, 1, nullptr, Status::non_finite);
    EXPECT_TRUE(std::isnan(model.decode(message, Status::non_finite)[1][0]));
    EXPECT_EQ(model.memories(), before) << spec;
    EXPECT_EQ(model.model.save(), saved) << spec;

    // A layer alone: the others move.
    ASSERT_EQ(model.model.begin_step({.step = 2}), Status::ok);
    EXPECT_EQ(model.status_of_layer(1, g[1]), Status::non_finite);
    EXPECT_EQ(model.status_of_layer(0, g[0]), Status::ok);
    EXPECT_EQ(model.status_of_layer(1, gradients_of(layers, 1)[1]), Status::ok)
        << "it was not sent";
    ASSERT_FALSE(failed(model.model.end_step()));
    EXPECT_NE(model.model.memory(0), before[0]);
  }
}

TEST(Memories, AFailedCallMovesNone) {
  const auto layers = test::memory_layers();
  MemoryModel model(layers, "ef+topk:keep=0.1");
  (void)model.encode(gradients_of(layers, 0), 0);
  const Values before = model.memories();
  const Values g = gradients_of(layers, 1);
  EXPECT_EQ(model.status_with(g, model.model.max_encoded_bytes() - 1, 1 << 20),
            Status::buffer_too_small);
  EXPECT_EQ(model.status_with(g, 1 << 20, model.model.encode_workspace_bytes() / 2),
            Status::workspace_too_small);
  std::vector<LayerSpec> others = layers;
  others[0].shape = Shape{3};
  Values wrong = g;
  wrong[0].resize(3);
  EXPECT_EQ(model.status_with(wrong, 1 << 20, 1 << 20, others), Status::shape_mismatch);
  EXPECT_EQ(model.memories(), before);
  std::vector<std::byte> exact(model.model.encode_workspace_bytes());
  EXPECT_EQ(model.status_with(g, model.model.max_encoded_bytes(), exact.size()), Status::ok);
}

TEST(Memories, ComeBackFromASavedState) {
  const auto layers = test::memory_layers();
  for (const CodecHelp& memory : list_memories()) {
    for (const std::string& spec : memory.specs) {
      SCOPED_TRACE(spec);
      MemoryModel ran(layers, spec), resumed(layers, spec);
      for (std::uint32_t step = 0; step < 3; ++step)
        (void)ran.encode(gradients_of(layers, step), step);
      (void)resumed.encode(gradients_of(layers, 9), 9);
      resumed.model.load(ran.model.save());
      EXPECT_EQ(ran.model.save(), resumed.model.save());
      for (std::uint32_t step = 3; step < 5; ++step) {
        EXPECT_EQ(ran.encode(gradients_of(layers, step), step),
                  resumed.encode(gradients_of(layers, step), step));
      }
      EXPECT_EQ(ran.memories(), resumed.memories());
      ran.model.reset_memory();
      for (const auto& kept : ran.memories())
        EXPECT_EQ(kept, std::vector<float>(kept.size())) << "after a reset";
      MemoryModel fresh(layers, spec);
      EXPECT_EQ(ran.encode(gradients_of(layers, 5), 5).size(),
                fresh.encode(gradients_of(layers, 5), 5).size());
    }
  }
}

/// What was learnt of prices and the memories may go their own ways.
TEST(Memories, AreSavedApart) {
  const auto layers = test::memory_layers();
  MemoryModel from(layers, "ef+atomo:bits=2,atoms=blocks"),
      to(layers, "ef+atomo:bits=2,atoms=blocks");
  for (std::uint32_t step = 0; step < 3; ++step)
    (void)from.encode(gradients_of(layers, step), step);
  (void)to.encode(gradients_of(layers, 8), 8);
  const Values before = to.memories();
  const auto fresh = MemoryModel(layers, "ef+atomo:bits=2,atoms=blocks").model.save(Saved::learnt);
  EXPECT_LT(fresh.size(), 200);
  to.model.load(from.model.save(Saved::learnt));
  EXPECT_EQ(to.memories(), before);
  EXPECT_EQ(to.model.predicted_prices(), from.model.predicted_prices());
  to.model.load(fresh);
  to.model.load(from.model.save(Saved::memories));
  EXPECT_EQ(to.memories(), from.memories());
  EXPECT_EQ(to.model.predicted_prices(), Prices{});
}

TEST(Memories, AreFoundAgainByNameAndShape) {
  const auto layers = test::memory_layers();
  MemoryModel from(layers, "ef+topk:keep=0.1");
  (void)from.encode(gradients_of(layers, 0), 0);
  std::vector<LayerSpec> changed{
      layers[3], layers[0], layers[1], {"new", {5}}, {"other bias", {7}}};
  changed[1].shape = Shape{30, 41};
  MemoryModel to(changed, "new=identity; *=ef:decay=0.5+topk:keep=0.1");
  (void)to.encode(gradients_of(changed, 1), 1);
  to.model.load(from.model.save());
  EXPECT_EQ(to.model.memory(0), from.model.memory(3));
  EXPECT_EQ(to.model.memory(1), std::vector<float>(30 * 41)) << "another shape";
  EXPECT_EQ(to.model.memory(2), from.model.memory(1));
  EXPECT_TRUE(to.model.memory(3).empty()) << "without a memory";
  EXPECT_EQ(to.model.memory(4), std::vector<float>(7)) << "another name";
  MemoryModel rule(layers, "dgc+topk:keep=0.1");
  rule.model.load(from.model.save());
  EXPECT_EQ(rule.model.memory(0), std::vector<float>(layers[0].shape.elements())) << "another rule";

  auto state = from.model.save();
  const auto shorter = std::span(state).first(state.size() - 8);
  EXPECT_THROW(to.model.load(shorter), Error);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(state.data() + state.size() - 8, &nan, sizeof nan);
  const Values before = to.memories();
  EXPECT_THROW(to.model.load(state), Error);
  EXPECT_EQ(to.memories(), before);
}

/// u <- m u + g, v <- v + u; what is sent leaves both.
TEST(Memories, DgcCorrectsTheMomentum) {
  constexpr std::size_t kEntries = 30;
  const std::vector<LayerSpec> layers{{"x", {kEntries}}};
  MemoryModel model(layers, "dgc:momentum=0.5+topk:keep=3"), plain(layers, "topk:keep=3");
  std::vector<float> u(kEntries), v(kEntries);
  for (std::uint32_t step = 0; step < 20; ++step) {
    const std::vector<float> g = test::heavy_tailed(kEntries, step + 1, 10);
    for (std::size_t k = 0; k < kEntries; ++k) {
      u[k] = g[k] + 0.5f * u[k];
      v[k] = v[k] + u[k];
    }
    const auto message = model.encode({g}, step);
    ASSERT_EQ(message, plain.encode({v}, step)) << step;
    const auto c = plain.decode(message)[0];
    for (std::size_t k = 0; k < kEntries; ++k) {
      if (c[k] != 0) u[k] = v[k] = 0;
    }
    ASSERT_EQ(model.model.memory(0), v);
  }
}

TEST(Memories, MomentumIsErrorFeedbackThatForgets) {
  const auto layers = test::memory_layers();
  MemoryModel momentum(layers, "momentum:beta=0.9+topk:keep=0.1"),
      feedback(layers, "ef:decay=0.9+topk:keep=0.1");
  for (std::uint32_t step = 0; step < 3; ++step)
    EXPECT_EQ(momentum.encode(gradients_of(layers, step), step),
              feedback.encode(gradients_of(layers, step), step));
  EXPECT_EQ(momentum.memories(), feedback.memories());
}

/// scale=contract encodes x / (1 + omega), and keeps what that leaves of x.
TEST(Memories, AnUnbiasedCodecContractsWhereAsked) {
  const auto layers = test::memory_layers();
  MemoryModel with(layers, "ef:scale=contract+natural"), plain(layers, "natural");
  const float scale = static_cast<float>(1 / 1.125);
  for (std::uint32_t step = 0; step < 3; ++step) {
    const Values x = sum_of(gradients_of(layers, step), with.memories());
    Values scaled = x;
    for (auto& of : scaled) {
      for (float& v : of) v = scale * v;
    }
    const auto message = with.encode(gradients_of(layers, step), step);
    EXPECT_EQ(message, plain.encode(scaled, step));
    const Values c = plain.decode(message);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      for (std::size_t k = 0; k < x[i].size(); ++k)
        ASSERT_EQ(with.model.memory(i)[k], x[i][k] - c[i][k]);
    }
  }
}

TEST(Memories, ACodecHasNone) {
  const Codec codec = Codec::parse("ef+topk:keep=0.1");
  EXPECT_EQ(codec.to_string(), "ef:decay=1,scale=none,memory=f32+topk:keep=0.1");
  EXPECT_EQ(codec.without_memory(), Codec::parse("topk:keep=0.1"));
  EXPECT_EQ(Codec::parse("ef+topk:keep=0.1+blosc").without_lossless(), codec);
  EXPECT_TRUE(codec.traits().memory);
  EXPECT_FALSE(Codec::parse("ef:scale=contract+qsgd").traits().unbiased);
  const Shape shape{50};
  EXPECT_EQ(codec.max_encoded_bytes(shape), codec.without_memory().max_encoded_bytes(shape));
  try {
    (void)codec.encode_workspace_bytes(shape);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("Compressor"), std::string::npos) << error.what();
  }
  const std::vector<float> x(50, 1.0f);
  std::vector<std::byte> bytes(10000), work(100000);
  std::uint64_t length = 0;
  EXPECT_EQ(codec.encode({x.data(), DType::f32, shape}, {}, {bytes.data(), bytes.size(), &length},
                         {.workspace = work}),
            Status::unsupported);
  ASSERT_EQ(
      codec.without_memory().encode({x.data(), DType::f32, shape}, {},
                                    {bytes.data(), bytes.size(), &length}, {.workspace = work}),
      Status::ok);
  std::vector<float> y(50);
  EXPECT_EQ(codec.decode(ConstBytes(bytes).first(length), {y.data(), DType::f32, shape},
                         {.workspace = work}),
            Status::ok);
  EXPECT_EQ(std::ranges::count(y, 1.0f), 5);
}

TEST(Memories, AreRefusedWhereTheyMakeNoSense) {
  const auto refusal = [](const char* spec) {
    try {
      (void)Codec::parse(spec);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("taken");
  };
  const std::vector<std::pair<const char*, const char*>> wrong{
      {"ef", "needs a codec behind it"},
      {"topk:keep=0.1+ef", "must be first"},
      {"ef+ef+sign", "must be first"},
      {"ef:decay=1.5+sign", "from 0 to 1"},
      {"ef:scale=contract+atomo:bits=1", "no omega is known"},
      {"ef:scale=contract+topk:keep=0.1", "is biased"},
      {"dgc:memory=f16+topk:keep=0.1", "f32, bf16 or int8"},
      {"momentum:decay=0.9+topk:keep=0.1", "unknown key 'decay'"},
      {"dcg+topk:keep=0.1", "the nearest is dgc"}};
  for (const auto& [spec, says] : wrong)
    EXPECT_NE(refusal(spec).find(says), std::string::npos) << spec << ": " << refusal(spec);
  for (const CodecHelp& memory : list_memories()) {
    EXPECT_EQ(refusal(memory.example.c_str()), "taken");
    for (const std::string& spec : memory.specs) {
      const std::string canonical = Codec::parse(spec).to_string();
      EXPECT_EQ(Codec::parse(canonical).to_string(), canonical) << spec;
    }
  }
  MemoryModel model(test::memory_layers(), "ef+topk:keep=0.1");
  Compressor part = model.model.part(0, 1);
  EXPECT_THROW(part.reset_memory(), Error);
  EXPECT_THROW((void)part.memory(0), Error);
}

}  // namespace
}  // namespace atomo
