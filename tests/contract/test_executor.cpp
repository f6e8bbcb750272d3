// SPDX-License-Identifier: Apache-2.0
/// Decoding a model hands its layers to the executor, and neither values nor statuses depend on it.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "atomo/thread_pool.hpp"
#include "format/container_head.hpp"
#include "support/support.hpp"

namespace atomo {

using namespace model;
namespace {

/// Runs the last task first and counts them.
class Counting final : public Executor {
 public:
  void run(std::size_t count, void (*task)(void* state, std::size_t i),
           void* state) noexcept override {
    most = std::max(most, count);
    for (std::size_t i = count; i > 0; --i) task(state, i - 1);
  }
  std::size_t most = 0;  ///< tasks of one run
};

using Tensors = std::vector<std::vector<std::byte>>;

/// A model of one codec: more layers than are decoded at once, of several shapes, one of them empty.
struct Model {
  explicit Model(const std::string& spec, DType type)
      : compressor(specs(type), Policy::parse("*=" + spec)), dtype(type) {
    for (const LayerSpec& layer : compressor.layers()) {
      const auto x = test::heavy_tailed(layer.shape.elements(), tensors.size() + 1, 40);
      std::vector<std::byte>& bytes = tensors.emplace_back(x.size() * size_of(dtype));
      bool overflow = false;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::uint16_t half =
            dtype == DType::f16 ? to_f16(x[i], 0, overflow) : to_bf16(x[i], 0, overflow);
        if (dtype == DType::f32) std::memcpy(&bytes[4 * i], &x[i], 4);
        if (dtype != DType::f32) std::memcpy(&bytes[2 * i], &half, 2);
      }
    }
    workspace.resize(test::workspace_bytes(compressor));
  }

  static std::vector<LayerSpec> specs(DType type) {
    std::vector<LayerSpec> layers;
    const Shape shapes[] = {{64, 40}, {40}, {3, 5, 7}, {0, 4}, {1}, {200, 33}};
    for (std::size_t i = 0; i < 70; ++i)
      layers.push_back({"layer" + std::to_string(i), shapes[i % std::size(shapes)], type});
    return layers;
  }

  std::vector<TensorView> views(Tensors& values) const {
    std::vector<TensorView> made;
    for (std::size_t i = 0; i < values.size(); ++i)
      made.push_back({values[i].data(), dtype, compressor.layers()[i].shape});
    return made;
  }

  std::vector<std::byte> message(std::uint16_t worker) {
    std::vector<ConstTensorView> from;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      from.push_back({tensors[i].data(), dtype, compressor.layers()[i].shape});
    std::vector<std::byte> bytes(compressor.max_encoded_bytes());
    std::uint64_t length = 0;
    const Status s =
        compressor.encode(from, {.seed = 7, .worker = worker},
                          {bytes.data(), bytes.size(), &length}, {.workspace = workspace});
    EXPECT_FALSE(failed(s));
    bytes.resize(length);
    return bytes;
  }

  Compressor compressor;
  DType dtype;
  Tensors tensors;
  std::vector<std::byte> workspace;
};

struct Outcome {
  Status status;
  Tensors values;
  bool operator==(const Outcome&) const = default;
};

Outcome decoded(Model& model, ConstBytes message, Executor* executor) {
  Outcome outcome{Status::ok, model.tensors};
  outcome.status = model.compressor.decode(message, model.views(outcome.values),
                                           {.workspace = model.workspace, .executor = executor});
  return outcome;
}

Outcome added(Model& model, std::span<const ConstBytes> messages, Executor* executor) {
  Outcome outcome{Status::ok, model.tensors};
  outcome.status =
      model.compressor.decode_add_all(messages, 0.5f, model.views(outcome.values),
                                      {.workspace = model.workspace, .executor = executor});
  return outcome;
}

class EveryModel : public testing::TestWithParam<std::string> {};

/// Under a sanitizer on three threads and on the executor that runs the last task first; on a commit
/// dtypes take turns there.
TEST_P(EveryModel, DecodesAlikeOnAnyThreads) {
  ThreadPool two(2), three(3), seven(7);
  Counting counting;
  const std::array dtypes{DType::f32, DType::f16, DType::bf16};
  for (const DType dtype : dtypes) {
    if (test::in_turns() && dtype != dtypes[GetParam().size() % dtypes.size()]) continue;
    Model model(GetParam(), dtype);
    const auto a = model.message(0), b = model.message(1);
    const ConstBytes messages[] = {a, b, a};
    const Outcome one = decoded(model, a, nullptr), sum = added(model, messages, nullptr);
    ASSERT_FALSE(failed(one.status) || failed(sum.status));
    std::vector<Executor*> executors{&three, &counting};
    if (!test::kSanitized) executors.insert(executors.end(), {&two, &seven});
    for (Executor* executor : executors) {
      ASSERT_TRUE(decoded(model, a, executor) == one);
      ASSERT_TRUE(added(model, messages, executor) == sum);
    }
    counting.most = 0;
    static_cast<void>(decoded(model, a, &counting));
    EXPECT_GE(counting.most, 8u) << "layers were not handed out for decode";
    counting.most = 0;
    static_cast<void>(added(model, messages, &counting));
    EXPECT_GE(counting.most, 8u) << "layers were not handed out for decode_add";
  }
}

/// Of layers that are damaged the first one says what is wrong.
TEST_P(EveryModel, RefusesAlikeOnAnyThreads) {
  Counting counting;
  ThreadPool three(3);
  Model model(GetParam(), DType::f32);
  const auto message = model.message(0);
  format::Head parsed;
  ASSERT_EQ(format::Head::parse(message, true, parsed), Status::ok);
  const std::size_t head = parsed.head_bytes();
  ASSERT_LT(head, message.size());
  std::mt19937_64 generator(11);
  int refused = 0;
  for (int trial = 0; trial < (test::kSanitized ? 15 : 60); ++trial) {
    auto damaged = message;
    for (int k = 0; k < 3; ++k)
      damaged[head + generator() % (damaged.size() - head)] ^=
          static_cast<std::byte>(1 + generator() % 255);
    format::write_checksums(damaged, head);
    const Outcome one = decoded(model, damaged, nullptr);
    refused += failed(one.status) ? 1 : 0;
    EXPECT_EQ(decoded(model, damaged, &counting).status, one.status) << trial;
    EXPECT_EQ(decoded(model, damaged, &three).status, one.status) << trial;
  }
  const bool has_structure = GetParam().find("atoms=") != std::string::npos;
  EXPECT_TRUE(refused > 0 || !has_structure);
}

/// One layer that is written and read in stretches: the bytes and the values are those of one thread,
/// and so is what is said of damaged messages.
TEST(LargeLayer, IsTheSameOnAnyThreads) {
  ThreadPool three(3);
  Counting counting;
  std::mt19937_64 generator(5);
  for (const Shape& shape : {Shape{600, 700}, Shape{5000, 70}, Shape{40, 9000}, Shape{300001}}) {
    const auto x = test::heavy_tailed(shape.elements(), 3, 60);
    for (const char* spec : {"atomo:bits=1", "atomo:bits=0.25", "atomo:bits=4,atoms=rows",
                             "atomo:bits=0.25,atoms=rows", "atomo:bits=1,atoms=blocks",
                             "atomo:bits=2,atoms=sketch,rank=8", "atomo:bits=1,cap=1.05",
                             "atomo:bits=1,atoms=coordinate"}) {
      const Codec codec = Codec::parse(spec);
      std::vector<std::byte> work(codec.encode_workspace_bytes(shape)),
          room(codec.decode_workspace_bytes(shape)), bytes(codec.max_encoded_bytes(shape));
      const auto encoded = [&](Executor* executor) {
        std::fill(bytes.begin(), bytes.end(), std::byte{0xA5});
        std::uint64_t used = 0;
        EXPECT_FALSE(failed(codec.encode({.data = x.data(), .shape = shape}, {.seed = 4},
                                         {bytes.data(), bytes.size(), &used},
                                         {.workspace = work, .executor = executor})));
        return std::vector<std::byte>(bytes.begin(),
                                      bytes.begin() + static_cast<std::ptrdiff_t>(used));
      };
      const auto decoded = [&](ConstBytes message, Executor* executor) {
        std::vector<float> y(x.size(), 7.0f);
        const Status s = codec.decode(message, {.data = y.data(), .shape = shape},
                                      {.workspace = room, .executor = executor});
        return std::pair{s, failed(s) ? std::vector<float>() : y};
      };
      const auto one = encoded(nullptr);
      counting.most = 0;
      ASSERT_EQ(encoded(&counting), one) << spec << " " << shape.to_string();
      EXPECT_GE(counting.most, 2u) << spec << " " << shape.to_string();
      ASSERT_EQ(encoded(&three), one) << spec << " " << shape.to_string();
      counting.most = 0;
      const auto values = decoded(one, nullptr);
      ASSERT_EQ(decoded(one, &counting), values) << spec << " " << shape.to_string();
      EXPECT_GE(counting.most, 2u) << spec << " " << shape.to_string();
      ASSERT_EQ(decoded(one, &three), values) << spec << " " << shape.to_string();
      format::Head parsed;
      ASSERT_EQ(format::Head::parse(one, true, parsed), Status::ok);
      for (int trial = 0; trial < (test::kSanitized ? 3 : 12); ++trial) {
        auto damaged = one;
        damaged[parsed.head_bytes() + generator() % (one.size() - parsed.head_bytes())] ^=
            static_cast<std::byte>(1 + generator() % 255);
        format::write_checksums(damaged, parsed.head_bytes());
        const auto said = decoded(damaged, nullptr);
        ASSERT_EQ(decoded(damaged, &counting), said) << spec << " " << trial;
        ASSERT_EQ(decoded(damaged, &three), said) << spec << " " << trial;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, EveryModel, testing::ValuesIn(test::all_specs()));

}  // namespace
}  // namespace atomo
