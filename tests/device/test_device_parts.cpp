// SPDX-License-Identifier: Apache-2.0
/// Parts of a model in streamed steps, on a device and on the CPU: the same messages, statuses and
/// controller over steps of changing gradients, and on the CPU the bytes of the layers' messages
/// joined.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "atomo/container.hpp"
#include "support/on_cpu.hpp"

namespace atomo {
namespace {

const std::vector<LayerSpec> kLayers = test::mixed_layers();
struct Range {
  std::size_t first, count;
};
constexpr Range kParts[] = {{0, 3}, {3, 3}, {6, 2}};

/// A bucket of layers on both sides.
struct Bucket {
  Bucket(Compressor& on_host, Compressor& on_device, Range r)
      : range(r),
        host(on_host.part(r.first, r.count)),
        device(on_device.part(r.first, r.count)),
        buffers(device),
        entries(r.count) {
    for (const auto& layer : host.layers())
      tensors.push_back(
          std::make_unique<test::Memory>(layer.shape.elements() * size_of(layer.dtype)));
  }
  void set(std::uint32_t step) {
    for (std::size_t i = 0; i < range.count; ++i) {
      const auto& layer = host.layers()[i];
      auto x = test::heavy_tailed(layer.shape.elements(), 50 * step + range.first + i, 60);
      const float scale = step < 4 ? 1.0f : 30.0f;
      for (float& v : x) v *= (step + range.first + i) % 7 == 5 ? 0.0f : scale;
      if ((step + range.first + i) % 9 == 8 && !x.empty())
        x[0] = std::numeric_limits<float>::quiet_NaN();
      entries[i] = test::entries_of(x, layer.dtype);
      tensors[i]->put(entries[i]);
    }
  }
  [[nodiscard]] ConstTensorView host_view(std::size_t i) const {
    const auto& layer = host.layers()[i];
    return {entries[i].data(), layer.dtype, layer.shape};
  }
  [[nodiscard]] std::vector<ConstTensorView> views(bool on_host) const {
    std::vector<ConstTensorView> all;
    for (std::size_t i = 0; i < range.count; ++i) {
      auto view = host_view(i);
      if (!on_host) {
        view.data = tensors[i]->data();
        view.device = Device::cuda;
      }
      all.push_back(view);
    }
    return all;
  }
  Status encode_on_device(const Key& key) {
    return device.encode(views(false), key, buffers.target(), buffers.context());
  }

  Range range;
  Compressor host, device;
  test::ModelBuffers buffers;
  std::vector<std::vector<std::byte>> entries;
  std::vector<std::unique_ptr<test::Memory>> tensors;
};

class DeviceParts : public testing::TestWithParam<const char*> {
 protected:
  Compressor on_host{kLayers, Policy::parse(GetParam())};
  Compressor on_device{kLayers, Policy::parse(GetParam()), {.device = Device::cuda}};
  Compressor by_layers{kLayers, Policy::parse(GetParam())};
  std::vector<std::unique_ptr<Bucket>> buckets;

  DeviceParts() {
    for (const Range range : kParts)
      buckets.push_back(std::make_unique<Bucket>(on_host, on_device, range));
  }
  /// The bucket's layers, each in a message of its own, joined.
  std::vector<std::byte> joined(const Bucket& bucket) {
    std::vector<std::vector<std::byte>> parts;
    for (std::size_t i = 0; i < bucket.range.count; ++i) {
      const std::size_t layer = bucket.range.first + i;
      std::vector<std::byte> workspace(by_layers.encode_workspace_bytes(layer));
      auto& bytes = parts.emplace_back(by_layers.max_encoded_bytes(layer));
      std::uint64_t length = 0;
      EXPECT_FALSE(failed(by_layers.encode_layer(layer, bucket.host_view(i),
                                                 {bytes.data(), bytes.size(), &length},
                                                 {.workspace = workspace})));
      bytes.resize(length);
    }
    const std::vector<ConstBytes> spans(parts.begin(), parts.end());
    std::vector<std::byte> all(joined_bytes_bound(spans));
    std::uint64_t bytes = 0;
    EXPECT_EQ(join(spans, {all.data(), all.size(), &bytes}), Status::ok);
    all.resize(bytes);
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(
    Policies, DeviceParts,
    testing::Values("*=atomo:bits=1,atoms=rows", "*=atomo:bits=0.5,atoms=blocks",
                    "?.weight=identity; *=atomo:bits=1,atoms=coordinate",
                    "a.weight=qsgd:bits=3; a.bias=atomo:bits=4,atoms=coordinate; "
                    "b.weight=atomo:price=0.01,atoms=rows; b.bias=atomo:bits=1,atoms=blocks; "
                    "c.weight=topk:keep=0.1; c.bias=atomo:bits=2,atoms=coordinate; "
                    "d.weight=atomo:bits=1,atoms=rows; *=atomo:bits=0.7,atoms=auto",
                    "a.weight=atomo:bits=16,cap=24,atoms=rows; "
                    "b.weight=atomo:bits=14,cap=22,atoms=blocks; *=atomo:bits=16,atoms=rows",
                    "*.bias=sign:scale=mean; a.weight=randomk:keep=0.1; *=terngrad"),
    [](const auto& made) { return std::to_string(made.index); });

TEST_P(DeviceParts, MessagesAndControllerAreTheCpus) {
  const bool capped = std::string(GetParam()).find("cap=") != std::string::npos;
  for (std::uint32_t step = 0; step < 8; ++step) {
    const Key key{.seed = 5, .step = step, .worker = 1};
    const Prices given{step == 6 ? 0.0625f : 0, step == 6 ? 0.125f : 0};
    for (Compressor* model : {&on_host, &on_device})
      ASSERT_EQ(step == 6 ? model->begin_step(key, given) : model->begin_step(key), Status::ok);
    const Prices prices = on_host.prices();
    ASSERT_EQ(by_layers.begin_step(key, prices), Status::ok);
    for (std::size_t b = std::size(kParts); b-- > 0;) {
      Bucket& bucket = *buckets[b];
      bucket.set(step);
      if (step == 3 && b == 1) continue;  // layers that do not come
      const auto expected = test::encode_on_host(bucket.host, bucket.views(true), key);
      ASSERT_EQ(bucket.encode_on_device(key), Status::ok);
      const auto found = bucket.buffers.message();
      ASSERT_EQ(found.status, expected.status) << step << ", " << b;
      ASSERT_TRUE(found.bytes == expected.bytes) << step << ", " << b;
      if (step > 0 && !capped) {
        ASSERT_TRUE(joined(bucket) == expected.bytes) << step << ", " << b;
      }
    }
    const Status ended = on_host.end_step();
    ASSERT_FALSE(failed(by_layers.end_step()));
    test::Word<Status> status;
    test::StreamOwner stream;
    ASSERT_EQ(on_device.end_step({.stream = stream.get(), .status = status.data()}), Status::ok);
    ASSERT_TRUE(on_device.save() == on_host.save()) << step;
    EXPECT_EQ(status.get(), ended) << step;
    EXPECT_EQ(on_device.prices(), on_host.prices());
  }
}

/// A device finds sketches by other sums than the CPU, so these are compared with its own layers'.
TEST(DevicePartsOfSketches, AreTheLayersJoined) {
  const std::vector<LayerSpec> specs{
      {"a", {64, 300}}, {"b", {64}}, {"c", {200, 60}}, {"d", {500, 40}}, {"e", {32, 32}}};
  const auto policy = Policy::parse("*=atomo:bits=1,atoms=sketch");
  Compressor model(specs, policy, {.device = Device::cuda});
  Compressor by_layers(specs, policy, {.device = Device::cuda});
  Compressor first = model.part(0, 2), second = model.part(2, 3);
  const test::ModelBuffers of_first(first), of_second(second), of_layers(by_layers);
  const Context end{.stream = of_layers.stream.get()};
  test::Gradients gradients(specs);
  // Some layers have a use for pairs, the others for none.
  for (const std::size_t layer : {2u, 4u}) {
    auto& x = gradients.values()[layer];
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = 0.02f * x[i] + static_cast<float>(i % 20) * static_cast<float>(i / 60 % 9) * 0.05f;
  }
  gradients.upload();
  const std::span views(gradients.views());
  for (std::uint32_t step = 0; step < 5; ++step) {
    const Key key{.seed = 2, .step = step};
    ASSERT_EQ(model.begin_step(key), Status::ok);
    ASSERT_EQ(second.encode(views.subspan(2), key, of_second.target(), of_second.context()),
              Status::ok);
    ASSERT_EQ(first.encode(views.first(2), key, of_first.target(), of_first.context()), Status::ok);
    std::vector<std::vector<std::byte>> whole{of_first.message().bytes, of_second.message().bytes};
    ASSERT_EQ(model.end_step(end), Status::ok);
    if (step == 0) {  // layers have no price in common
      by_layers.load(model.save());
      continue;
    }
    ASSERT_EQ(by_layers.begin_step(key), Status::ok);
    for (const auto& [begin, count, part] : {std::tuple{0u, 2u, 0u}, {2u, 3u, 1u}}) {
      std::vector<std::vector<std::byte>> parts;
      for (std::size_t i = begin; i < begin + count; ++i) {
        const test::Memory workspace(by_layers.encode_workspace_bytes(i));
        Context context = of_layers.context();
        context.workspace = workspace.bytes();
        ASSERT_EQ(by_layers.encode_layer(i, views[i], of_layers.target(), context), Status::ok);
        parts.push_back(of_layers.message().bytes);
      }
      const std::vector<ConstBytes> spans(parts.begin(), parts.end());
      std::vector<std::byte> joined(joined_bytes_bound(spans));
      std::uint64_t bytes = 0;
      ASSERT_EQ(join(spans, {joined.data(), joined.size(), &bytes}), Status::ok);
      joined.resize(bytes);
      EXPECT_TRUE(joined == whole[part]) << step << ", " << part;
    }
    ASSERT_EQ(by_layers.end_step(end), Status::ok);
    EXPECT_TRUE(by_layers.save() == model.save()) << step;
  }
}

}  // namespace
}  // namespace atomo
