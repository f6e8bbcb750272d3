// SPDX-License-Identifier: Apache-2.0
/// Refused messages among others that are added up on the device: the others arrive, and nothing that is not a
/// number does.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <set>
#include <vector>

#include "format/container_head.hpp"
#include "support/on_cpu.hpp"
#include "support/received.hpp"

namespace atomo::test {
namespace {

/// Views of a model's layers on both sides, filled alike.
struct Views {
  std::vector<std::vector<std::byte>> entries;
  std::vector<std::unique_ptr<Memory>> memory;
  std::vector<TensorView> here, there;

  Views(const std::vector<LayerSpec>& layers, std::uint64_t seed) {
    for (const LayerSpec& layer : layers) {
      entries.push_back(entries_of(heavy_tailed(layer.shape.elements(), seed, 20), layer.dtype));
      memory.push_back(std::make_unique<Memory>(entries.back().size(), 4));
      memory.back()->put(entries.back());
      there.push_back({memory.back()->data(), layer.dtype, layer.shape, kDevice});
    }
    for (std::size_t i = 0; i < layers.size(); ++i)
      here.push_back({entries[i].data(), layers[i].dtype, layers[i].shape});
  }
};

Sent sent_by(Compressor& host, std::size_t workers) {
  Sent sent;
  for (std::size_t worker = 0; worker < workers; ++worker) {
    const Views gradients(host.layers(), worker + 2);
    std::vector<ConstTensorView> views;
    for (const TensorView& view : gradients.here)
      views.push_back({view.data, view.dtype, view.shape});
    sent.push_back(
        encode_on_host(host, views, {.seed = 5, .worker = static_cast<std::uint16_t>(worker)})
            .bytes);
  }
  return sent;
}

/// The key of the first message that holds is the one that the sums are rounded under, wherever those stand that
/// do not hold.
TEST(DeviceRefused, HalvesReceiveTheOthers) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const std::vector<LayerSpec> layers{{"a", {1000}, dtype}, {"b", {40, 33}, dtype}};
    Compressor host(layers, Policy::parse("qsgd:bits=4")),
        device(layers, Policy::parse("qsgd:bits=4"), {.device = Device::cuda});
    const Sent sound = sent_by(host, 17);
    const auto compare = [&](std::size_t count, const std::set<std::size_t>& broken) {
      SCOPED_TRACE(std::to_string(count) + " messages, of which the first refused is " +
                   std::to_string(*broken.begin()));
      Sent sent(sound.begin(), sound.begin() + static_cast<std::ptrdiff_t>(count));
      for (const std::size_t m : broken) sent[m][sent[m].size() - 1] ^= std::byte{0x40};
      Views views(layers, 99);
      std::vector<std::byte> room(test::workspace_bytes(host));
      std::vector<Status> each(count);
      const std::vector<ConstBytes> messages(sent.begin(), sent.end());
      const Status expected = host.decode_add_all(messages, 0.25f, views.here,
                                                  {.workspace = room, .statuses = each.data()});
      const Received received(sent);
      const ModelBuffers buffers(device);
      Context context = buffers.context();
      context.statuses = received.statuses();
      ASSERT_EQ(device.decode_add_all(received.bytes, 0.25f, views.there, context), Status::ok);
      buffers.stream.wait();
      EXPECT_EQ(buffers.status.get(), expected);
      EXPECT_EQ(received.told(), each);
      for (std::size_t i = 0; i < layers.size(); ++i)
        EXPECT_TRUE(views.memory[i]->get(views.entries[i].size()) == views.entries[i]) << i;
    };
    compare(3, {0});
    compare(3, {0, 1, 2});
    compare(9, {0});
    compare(9, {8});
    compare(17, {16});
    compare(17, {0, 1, 2, 3, 4, 5, 6, 7, 8});
  }
}

/// A word of a body that is NaN, behind checksums that hold.
TEST(DeviceRefused, LeavesNothingThatIsNotANumber) {
  const Shape shape{33, 40};
  std::size_t refused = 0;
  for (const char* const spec :
       {"sign:scale=mean", "sign:scale=means", "identity:dtype=e4m3", "identity:dtype=e5m2",
        "minmax:bits=8", "minmax:bits=4", "atomo:atoms=svd,bits=2,values=f32", "topk:keep=0.1",
        "topk:chunk=64,k=5,values=4", "randomk:keep=0.1", "qsgd:bits=4", "terngrad", "natural",
        "atomo:bits=2,atoms=rows", "atomo:bits=2,atoms=sketch,rank=3"}) {
    const Codec codec = Codec::parse(spec);
    for (const bool front : {false, true}) {
      for (const std::size_t count : {2, 3}) {
        SCOPED_TRACE(std::string(spec) + (front ? ", first word" : ", last word"));
        Sent sent;
        for (std::uint16_t w = 0; w < count; ++w) {
          const auto x = heavy_tailed(shape.elements(), w + 1u, 40);
          sent.push_back(encode_on_cpu(codec, x, shape, {.seed = 9, .worker = w}).bytes);
        }
        ContainerInfo info;
        ASSERT_EQ(inspect(sent[1], info, true), Status::ok);
        const std::size_t body = static_cast<std::size_t>(info.layers[0].bytes);
        const std::uint32_t nan = 0x7FFFFFFFu;
        std::memcpy(sent[1].data() + info.head_bytes + (front ? 0 : body - 4), &nan, 4);
        format::write_checksums(sent[1], info.head_bytes);
        const Received received(sent);
        const StreamOwner stream;
        const Memory y(4 * shape.elements()),
            room(codec.decode_workspace_bytes(shape, DType::f32, Device::cuda));
        y.put(entries_of(heavy_tailed(shape.elements(), 77, 30)));
        const Word<Status> status(Status::ok);
        ASSERT_EQ(codec.decode_add_all(received.bytes, 0.5f, {y.data(), DType::f32, shape, kDevice},
                                       {.stream = stream.get(),
                                        .workspace = room.bytes(),
                                        .status = status.data(),
                                        .statuses = received.statuses()}),
                  Status::ok);
        stream.wait();
        if (!failed(received.told()[1])) continue;
        ++refused;
        std::vector<float> sum(shape.elements());
        std::memcpy(sum.data(), y.get(4 * sum.size()).data(), 4 * sum.size());
        EXPECT_TRUE(std::all_of(sum.begin(), sum.end(), [](float v) { return std::isfinite(v); }));
      }
    }
  }
  EXPECT_GE(refused, 20u);
}

TEST(DeviceRefused, OfNoMessageNothingIsRefused) {
  const std::vector<LayerSpec> layers{{"a", {10}}};
  Compressor device(layers, Policy::parse("qsgd:bits=4"), {.device = Device::cuda});
  const Views views(layers, 3);
  const ModelBuffers buffers(device);
  buffers.status.set(Status::bad_checksum);
  ASSERT_EQ(device.decode_add_all({}, 1, views.there, buffers.context()), Status::ok);
  buffers.stream.wait();
  EXPECT_EQ(buffers.status.get(), Status::ok);
  EXPECT_TRUE(views.memory[0]->get(40) == views.entries[0]);
}

}  // namespace
}  // namespace atomo::test
