// SPDX-License-Identifier: Apache-2.0
/// Counts heap allocations of the hot path: none, but for the codecs whose traits say so.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "support/support.hpp"

namespace {
std::atomic<long> allocations{0};

void* counted(std::size_t bytes) {
  allocations.fetch_add(1);
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace atomo {
namespace {

TEST(Allocations, TheCounterCounts) {
  const long before = allocations;
  delete new int(3);
  EXPECT_EQ(allocations - before, 1);
}

TEST(Allocations, CodecsTakeNoMemoryWhileEncodingAndDecoding) {
  const Shape shape{64, 300};
  const auto x = test::heavy_tailed(shape.elements(), 3, 300);
  for (const auto& spec : test::all_specs()) {
    const Codec codec = Codec::parse(spec);
    if (codec.traits().allocates) continue;
    std::vector<std::byte> payload(codec.max_encoded_bytes(shape)),
        workspace(test::workspace_bytes(codec, shape));
    std::vector<float> y(x.size());
    std::uint64_t bytes = 0;
    const Context context{.workspace = workspace};
    const long before = allocations;
    const Status encoded = codec.encode({x.data(), DType::f32, shape}, {},
                                        {payload.data(), payload.size(), &bytes}, context);
    const long after_encode = allocations;
    const Status decoded =
        codec.decode({payload.data(), bytes}, {y.data(), DType::f32, shape}, context);
    const Status added =
        codec.decode_add({payload.data(), bytes}, 2, {y.data(), DType::f32, shape}, context);
    const long after = allocations;
    EXPECT_EQ(after_encode - before, 0) << spec << " encode";
    EXPECT_EQ(after - after_encode, 0) << spec << " decode";
    EXPECT_FALSE(failed(encoded) || failed(decoded) || failed(added)) << spec;
  }
}

TEST(Allocations, AddingMessagesTakesNoMemory) {
  const Shape shape{64, 900};
  const Codec codec = Codec::parse("atomo:atoms=coordinate,delta=0.001");
  const auto message = test::encode(codec, test::heavy_tailed(shape.elements(), 3, 300), shape);
  const std::vector<ConstBytes> messages(5, message.bytes);
  std::vector<std::byte> workspace(add_workspace_bytes(5)), sum(added_bytes_bound(messages));
  std::uint64_t bytes = 0;
  const long before = allocations;
  const Status status = add(messages, workspace, {sum.data(), sum.size(), &bytes});
  const std::uint64_t bound = added_bytes_bound(messages);
  EXPECT_EQ(allocations - before, 0);
  EXPECT_EQ(status, Status::ok);
  EXPECT_LE(bytes, bound);
}

void check_takes_no_memory(const char* policy) {
  Compressor model({{"a", {64, 300}}, {"b", {64}}, {"c", {10, 64, 3, 3}}}, Policy::parse(policy));
  std::vector<std::vector<float>> x, y;
  std::vector<ConstTensorView> views;
  std::vector<TensorView> outs;
  for (const auto& layer : model.layers()) {
    x.push_back(test::heavy_tailed(layer.shape.elements(), 3));
    y.push_back(x.back());
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    views.push_back({x[i].data(), DType::f32, model.layers()[i].shape});
    outs.push_back({y[i].data(), DType::f32, model.layers()[i].shape});
  }
  std::vector<std::byte> payload(model.max_encoded_bytes()),
      workspace(test::workspace_bytes(model));
  std::uint64_t bytes = 0;
  const Context context{.workspace = workspace};
  const Payload to{payload.data(), payload.size(), &bytes};
  const long before = allocations;
  Status worst = model.encode(views, {.seed = 1}, to, context);
  worst = std::max(worst, model.decode({payload.data(), bytes}, outs, context));
  worst = std::max(worst, model.decode_add({payload.data(), bytes}, 1, outs, context));
  worst = std::max(worst, model.begin_step({.seed = 1, .step = 1}));
  for (std::size_t i = 0; i < views.size(); ++i) {
    worst = std::max(worst, model.encode_layer(i, views[i], to, context));
    worst =
        std::max(worst, model.decode_layer_add(i, {payload.data(), bytes}, 1, outs[i], context));
  }
  worst = std::max(worst, model.end_step());
  const long after = allocations;
  EXPECT_EQ(after - before, 0);
  EXPECT_FALSE(failed(worst)) << describe(worst);
}

TEST(Allocations, ModelsTakeNoMemoryAfterSetUp) {
  check_takes_no_memory("b=qsgd:bits=4;*=atomo:bits=1");
  check_takes_no_memory("a=dgc+topk:keep=0.1;b=ef:memory=bf16+qsgd:bits=4;*=ef+atomo:bits=1");
  check_takes_no_memory("a=dgc:memory=bf16+topk:keep=0.1;*=dgc:memory=int8+topk:keep=0.1");
}

}  // namespace
}  // namespace atomo
