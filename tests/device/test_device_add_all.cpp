// SPDX-License-Identifier: Apache-2.0
/// Several messages added by one call on the device: the CPU's sums, and a status for each message.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "cuda/tuning.hpp"
#include "format/container_rules.hpp"
#include "support/mutated_messages.hpp"
#include "support/on_cpu.hpp"
#include "support/received.hpp"

namespace atomo::test {
namespace {

struct Outcome {
  Status status = Status::ok;
  std::vector<Status> each;
  std::vector<std::byte> y;
};

Outcome on_cpu(const Codec& codec, const Sent& sent, const Shape& shape, std::vector<std::byte> y,
               float alpha = -0.7f) {
  std::vector<std::byte> room(codec.decode_workspace_bytes(shape));
  Outcome outcome{Status::ok, std::vector<Status>(sent.size()), std::move(y)};
  const std::vector<ConstBytes> messages(sent.begin(), sent.end());
  outcome.status = codec.decode_add_all(messages, alpha, {.data = outcome.y.data(), .shape = shape},
                                        {.workspace = room, .statuses = outcome.each.data()});
  return outcome;
}

/// `graph`: the call is captured, and what it launches is run from a graph.
Outcome on_device(const Codec& codec, const Sent& sent, const Shape& shape,
                  const std::vector<std::byte>& y, std::size_t shift, bool graph = false,
                  float alpha = -0.7f) {
  const StreamOwner stream;
  const Received received(sent);
  const Memory out(y.size(), 4 * shift),
      room(codec.decode_workspace_bytes(shape, DType::f32, Device::cuda), shift);
  out.put(y);
  const Word<Status> status(Status::ok);
  Context context;
  context.workspace = room.bytes();
  context.status = status.data();
  context.statuses = received.statuses();
  const auto add = [&](Stream on) {
    context.stream = on;
    EXPECT_EQ(codec.decode_add_all(received.bytes, alpha, {out.data(), DType::f32, shape, kDevice},
                                   context),
              Status::ok);
  };
  if (graph) {
    const Captured captured(add);
    EXPECT_TRUE(out.get(y.size()) == y);  // nothing ran yet
    captured.replay(stream);
  } else {
    add(stream.get());
  }
  stream.wait();
  return {status.get(), received.told(), out.get(y.size())};
}

Sent messages_of(const Codec& codec, const Shape& shape, std::size_t workers) {
  Sent sent;
  for (std::size_t w = 0; w < workers; ++w)
    sent.push_back(encode_on_cpu(codec, heavy_tailed(shape.elements(), w + 1, 40), shape,
                                 {.seed = 9, .worker = static_cast<std::uint16_t>(w)})
                       .bytes);
  return sent;
}

void expect_alike(const Outcome& found, const Outcome& expected) {
  EXPECT_EQ(found.status, expected.status);
  EXPECT_EQ(found.each, expected.each);
  if (!failed(expected.status)) {
    EXPECT_TRUE(found.y == expected.y);
  }
}

class DeviceAddAll : public testing::TestWithParam<std::string> {
 protected:
  void TearDown() override { cuda::warps_per_block = 4; }
  const Codec codec = Codec::parse(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Specs, DeviceAddAll, testing::ValuesIn(all_specs()), spec_name);

TEST_P(DeviceAddAll, SumsAreTheCpus) {
  for (const Shape& shape : {Shape{1}, Shape{33, 40}, Shape{67, 131}}) {
    const Sent all = messages_of(codec, shape, 9);
    const auto y = entries_of(heavy_tailed(shape.elements(), 77, 30));
    std::size_t shift = 0;
    for (const std::size_t count : {1, 2, 3, 8, 9}) {
      SCOPED_TRACE(shape.to_string() + ", " + std::to_string(count) + " messages");
      cuda::warps_per_block = count % 2 == 0 ? 8 : 4;
      const Sent sent(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
      const Outcome expected = on_cpu(codec, sent, shape, y);
      ASSERT_EQ(expected.status, Status::ok);
      expect_alike(on_device(codec, sent, shape, y, shift++ % 4), expected);
    }
  }
}

/// Messages of few entries, added to -0: `x(i, m)` is entry i of message m.
void expect_sums_of_few(const Codec& codec, const Shape& shape, std::size_t messages, float alpha,
                        auto x) {
  const auto y = entries_of(std::vector<float>(shape.elements(), -0.0f));
  for (std::size_t m = 0; m < 2 * messages; ++m) {  // each alone, and with all behind it
    Sent sent;
    for (std::size_t k = m / 2; k < (m % 2 == 0 ? m / 2 + 1 : messages); ++k) {
      std::vector<float> own(shape.elements());
      for (std::size_t i = 0; i < own.size(); ++i) own[i] = x(i, k);
      sent.push_back(encode_on_cpu(codec, own, shape, {.seed = 9}).bytes);
    }
    SCOPED_TRACE(codec.to_string() + ", " + shape.to_string());
    const Outcome expected = on_cpu(codec, sent, shape, y, alpha);
    expect_alike(on_device(codec, sent, shape, y, 0, false, alpha), expected);
  }
}

/// An entry whose values become -0 stays -0 where all messages keep it; where one does not, 0 is added.
TEST(DeviceAddAllOfFewEntries, SignsOfZerosAreTheCpus) {
  const auto x = [](auto i, auto m) { return i % (7 * m + 7) == 0 ? -0x1p-149f : 0.0f; };
  for (const float alpha : {0.5f, -0.5f, 1.0f})
    for (const char* const spec : {"topk:keep=0.25", "topk:chunk=64,k=16,values=f32,tile=32",
                                   "topk:chunk=64,k=16,values=f32", "demo"})
      expect_sums_of_few(Codec::parse(spec), {67, 131}, 3, alpha, x);
}

/// Sums of a transform are rounded to zeros of either sign, before and behind a usual message.
TEST(DeviceAddAllOfFewEntries, SmallTransformsAreTheCpus) {
  constexpr float kHeights[] = {0x1p-130f, -0x1p-131f, 1.0f, 0x1p-132f, -0x1.9p-129f};
  const auto x = [&](auto i, auto m) { return i % 1111 == 11 * m ? kHeights[m] : 0.0f; };
  for (const Shape& shape : {Shape{64, 128}, Shape{50, 64}, Shape{320}})
    for (const char* const spec : {"demo", "topk:chunk=64,k=16,values=f32,dct=32"})
      expect_sums_of_few(Codec::parse(spec), shape, 5, 1.0f, x);
}

/// A message that fails its checksum is left out, and no other.
TEST_P(DeviceAddAll, NamesTheMessageThatIsRefused) {
  const Shape shape{33, 40};
  const auto y = entries_of(heavy_tailed(shape.elements(), 77, 30));
  const Sent sound = messages_of(codec, shape, 4);
  for (std::size_t broken = 0; broken < sound.size(); ++broken) {
    Sent sent = sound, others = sound;
    sent[broken][sent[broken].size() - 1] ^= std::byte{0x40};
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(broken));
    const Outcome found = on_device(codec, sent, shape, y, 0);
    EXPECT_TRUE(failed(found.status));
    for (std::size_t m = 0; m < sent.size(); ++m)
      EXPECT_EQ(found.each[m], m == broken ? found.status : Status::ok);
    EXPECT_TRUE(found.y == on_cpu(codec, others, shape, y).y);
  }
}

/// Damage that passes the checksums.
TEST_P(DeviceAddAll, JudgesDamagedMessagesAsTheCpu) {
  const Shape shape{33, 40};
  const auto y = entries_of(heavy_tailed(shape.elements(), 77, 30));
  const Sent sound = messages_of(codec, shape, 3);
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Sent sent = sound;
    sent[seed % 3] = mutated_message(sent[seed % 3], seed);
    // The device takes messages of its own codec alone, the CPU those of any dtype and stage of it.
    const Outcome expected = on_cpu(codec, sent, shape, y);
    if (expected.status == Status::workspace_too_small) continue;
    expect_alike(on_device(codec, sent, shape, y, 0), expected);
  }
}

/// What codes of blocks and rows have most of: entries and atoms far above the others, atoms of one
/// tile and of several groups, atoms and tensors without anything to send.
std::vector<float> uneven(std::size_t n, std::size_t row, std::uint64_t seed) {
  std::vector<float> x = heavy_tailed(n, seed, 40);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t of = i / row;
    if (of % 7 == seed % 7) x[i] = 0;
    if (of % 5 == seed % 5) x[i] *= 3e3f;       // numbers have raw bits
    if ((i + seed) % 61 == 0) x[i] *= 40;       // escapes, some tiles with several
    if (of % 11 == 3 && i % 2 == 0) x[i] *= 9;  // the same in all messages
  }
  return x;
}

TEST(DeviceAddAllOfAtoms, SumsAreTheCpusWhateverTheCodesAre) {
  for (const char* const spec :
       {"atomo:bits=1,atoms=rows", "atomo:bits=3,atoms=blocks", "atomo:price=0.05,atoms=rows",
        "atomo:price=3,atoms=blocks", "atomo:bits=2,atoms=sketch", "atomo:bits=1",
        "atomo:bits=1,atoms=coordinate", "atomo:bits=3,atoms=coordinate", "topk:keep=0.03"}) {
    const Codec codec = Codec::parse(spec);
    for (const Shape& shape :
         {Shape{300, 33}, Shape{9, 1100}, Shape{700, 7}, Shape{40, 256}, Shape{90, 49}}) {
      const std::size_t n = shape.elements(), row = n / static_cast<std::size_t>(shape[0]);
      Sent all;
      for (std::uint16_t w = 0; w < 17; ++w) {
        const auto x = w == 5 ? std::vector<float>(n, 0.0f) : uneven(n, row, w);
        all.push_back(encode_on_cpu(codec, x, shape, {.seed = 9, .worker = w}).bytes);
      }
      const auto y = entries_of(heavy_tailed(n, 77, 30));
      for (const std::size_t count : {2, 5, 8, 17}) {
        SCOPED_TRACE(spec + (" " + shape.to_string()) + ", " + std::to_string(count) + " messages");
        const Sent sent(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
        const Outcome expected = on_cpu(codec, sent, shape, y);
        ASSERT_EQ(expected.status, Status::ok);
        expect_alike(on_device(codec, sent, shape, y, count % 4, count == 8), expected);
      }
    }
  }
}

/// A refused message among others: what its body holds is not looked at.
TEST(DeviceAddAllOfAtoms, LeavesARefusedMessageOut) {
  const Codec codec = Codec::parse("atomo:bits=1,atoms=rows");
  const Shape shape{300, 64};
  Sent sent;
  for (std::uint16_t w = 0; w < 17; ++w)
    sent.push_back(
        encode_on_cpu(codec, uneven(shape.elements(), 64, w), shape, {.seed = 9, .worker = w})
            .bytes);
  const auto y = entries_of(heavy_tailed(shape.elements(), 77, 30));
  Sent others = sent;
  others.erase(others.begin() + 10);
  others.erase(others.begin() + 2);
  sent[2].resize(sent[2].size() / 2);
  sent[10][sent[10].size() - 1] ^= std::byte{1};
  const Outcome found = on_device(codec, sent, shape, y, 0);
  EXPECT_EQ(found.each[2], Status::truncated);
  EXPECT_EQ(found.each[10], Status::bad_checksum);
  EXPECT_TRUE(found.y == on_cpu(codec, others, shape, y).y);
}

/// Messages that choose different forms for a layer are added in their order all the same: of matrices with
/// and without rows of whole vectors, and of a tensor that is none.
TEST(DeviceAddAllOfForms, SumsAreTheCpusWhereMessagesDiffer) {
  const Codec codec = Codec::parse("atomo:bits=0.5");
  std::size_t shift = 0;
  for (const Shape& shape : {Shape{96, 128}, Shape{100, 131}, Shape{9001}}) {
    SCOPED_TRACE(shape.to_string());
    const bool matrix = shape.rank() == 2;
    const std::size_t n = shape.elements(),
                      columns = matrix ? static_cast<std::size_t>(shape[1]) : 128;
    Sent sent;
    std::set<unsigned> forms;
    for (std::uint16_t w = 0; w < 9; ++w) {
      std::vector<float> x = heavy_tailed(n, w + 1, 30);
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t row = i / columns, column = i % columns;
        if (w % 4 == 0)
          x[i] = std::sin(0.1f * static_cast<float>(row)) * static_cast<float>(column);
        if (w % 4 == 1) x[i] *= row % 16 == 0 ? 50.0f : 0.001f;
        if (w % 4 == 2) x[i] = i % 97 == 0 ? x[i] : 0.0f;
      }
      sent.push_back(encode_on_cpu(codec, x, shape, {.seed = 9, .worker = w}).bytes);
      forms.insert(format::read_record(sent.back().data(), 0).form());
    }
    EXPECT_GE(forms.size(), matrix ? 3u : 2u);
    const auto y = entries_of(heavy_tailed(n, 77, 30));
    for (const std::size_t count : {1, 8, 9}) {
      const Sent some(sent.begin(), sent.begin() + static_cast<std::ptrdiff_t>(count));
      expect_alike(on_device(codec, some, shape, y, shift++ % 2), on_cpu(codec, some, shape, y));
    }
  }
}

const char* const kPolicy =
    "a*=atomo:bits=1; k*=atomo:bits=1,atoms=blocks; l*=atomo:bits=2,atoms=rows; b*=qsgd:bits=4; "
    "c*=sign; d*=topk:keep=0.1; e*=atomo:bits=1,atoms=coordinate; "
    "g*=randomk:keep=0.3; h*=terngrad; i*=natural; *=identity:dtype=bf16";

std::vector<LayerSpec> layers_of(DType dtype) {
  return {{"a", {40, 33}, dtype}, {"b", {1001}, dtype},   {"c", {7, 9}, dtype},
          {"d", {500}, dtype},    {"e", {50, 20}, dtype}, {"f", {0, 3}, dtype},
          {"g", {300}, dtype},    {"h", {1300}, dtype},   {"i", {77}, dtype},
          {"j", {17}, dtype},     {"k", {3000}, dtype},   {"l", {70, 45}, dtype}};
}

/// Models, also of halves, with layers that are not finite in one message.
TEST(DeviceAddAllOfAModel, SumsAreTheCpus) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Compressor host(layers_of(dtype), Policy::parse(kPolicy)),
        device(layers_of(dtype), Policy::parse(kPolicy), {.device = Device::cuda});
    Sent sent;
    for (std::uint16_t worker = 0; worker < 17; ++worker) {
      std::vector<std::vector<std::byte>> x;
      std::vector<ConstTensorView> views;
      for (const LayerSpec& layer : host.layers()) {
        auto values = heavy_tailed(layer.shape.elements(), worker + 2, 30);
        const bool broken = worker == 4 && (layer.name == "c" || layer.name == "d");
        if (broken) values[5] = std::numeric_limits<float>::quiet_NaN();
        x.push_back(entries_of(values, dtype));
        views.push_back({x.back().data(), dtype, layer.shape});
      }
      sent.push_back(encode_on_host(host, views, {.seed = 5, .worker = worker}).bytes);
    }
    for (const std::size_t count :
         {std::size_t{1}, std::size_t{3}, std::size_t{9}, std::size_t{17}}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + ", " + std::to_string(count) + " messages");
      const Sent some(sent.begin(), sent.begin() + static_cast<std::ptrdiff_t>(count));
      std::vector<std::vector<std::byte>> y;
      std::vector<std::unique_ptr<Memory>> memory;
      std::vector<TensorView> there, here;
      for (const LayerSpec& layer : host.layers()) {
        y.push_back(entries_of(heavy_tailed(layer.shape.elements(), 99, 20), dtype));
        memory.push_back(std::make_unique<Memory>(y.back().size(), 4 * (memory.size() % 3)));
        memory.back()->put(y.back());
        there.push_back({memory.back()->data(), dtype, layer.shape, kDevice});
        here.push_back({y.back().data(), dtype, layer.shape});
      }
      std::vector<std::byte> room(test::workspace_bytes(host));
      std::vector<Status> each(count);
      const std::vector<ConstBytes> messages(some.begin(), some.end());
      const Status expected =
          host.decode_add_all(messages, 0.25f, here, {.workspace = room, .statuses = each.data()});
      ASSERT_FALSE(failed(expected));
      const Received received(some);
      const ModelBuffers buffers(device);
      Context context = buffers.context();
      context.statuses = received.statuses();
      ASSERT_EQ(device.decode_add_all(received.bytes, 0.25f, there, context), Status::ok);
      buffers.stream.wait();
      EXPECT_EQ(buffers.status.get(), expected);
      EXPECT_EQ(received.told(), each);
      for (std::size_t i = 0; i < y.size(); ++i)
        EXPECT_TRUE(with_one_nan(memory[i]->get(y[i].size()), dtype) == with_one_nan(y[i], dtype))
            << host.layers()[i].name;
    }
  }
}

/// Layers of signs of every scale: of long and short rows, without entries, of one entry.
std::vector<LayerSpec> sign_layers() {
  return {{"a", {3, 700}}, {"m", {2, 517}}, {"empty", {0, 3}}, {"s", {1030}}, {"one", {1}}};
}
const char* const kSigns = "m=sign:scale=means,bucket=128;s=sign:scale=mean;*=sign";

struct Votes {
  Status status = Status::ok;
  std::vector<std::vector<std::byte>> y;
  std::vector<Status> each;  ///< of the device alone
};

Votes votes_on_host(const Compressor& host, const Sent& sent) {
  Votes votes;
  std::vector<TensorView> views;
  for (const LayerSpec& layer : host.layers()) votes.y.emplace_back(4 * layer.shape.elements());
  for (std::size_t i = 0; i < votes.y.size(); ++i)
    views.push_back({votes.y[i].data(), DType::f32, host.layers()[i].shape});
  std::vector<std::byte> room(host.vote_workspace_bytes(sent.size()));
  votes.status =
      host.vote({std::vector<ConstBytes>(sent.begin(), sent.end())}, views, {.workspace = room});
  return votes;
}

/// `shift`: of tensors, in entries.
Votes votes_on_device(const Compressor& device, const Sent& sent, std::size_t shift) {
  Votes votes;
  std::vector<std::unique_ptr<Memory>> memory;
  std::vector<TensorView> views;
  for (const LayerSpec& layer : device.layers()) {
    const std::size_t bytes = 4 * layer.shape.elements();
    memory.push_back(std::make_unique<Memory>(bytes, 4 * shift));
    memory.back()->fill(0x7E);  // what was there counts for nothing
    views.push_back({memory.back()->data(), DType::f32, layer.shape, kDevice});
  }
  const Received received(sent);
  const ModelBuffers buffers(device);
  Context context = buffers.context();
  context.statuses = received.statuses();
  EXPECT_EQ(device.vote(received.bytes, views, context), Status::ok);
  buffers.stream.wait();
  votes.status = buffers.status.get();
  votes.each = received.told();
  for (std::size_t i = 0; i < memory.size(); ++i)
    votes.y.push_back(memory[i]->get(4 * device.layers()[i].shape.elements()));
  return votes;
}

Sent voters(Compressor& host, std::size_t count, bool broken) {
  Sent sent;
  for (std::size_t worker = 0; worker < count; ++worker) {
    std::vector<std::vector<float>> x;
    std::vector<ConstTensorView> views;
    for (const LayerSpec& layer : host.layers()) {
      x.push_back(heavy_tailed(layer.shape.elements(), worker + 2, 30));
      for (std::size_t i = 0; i < x.back().size(); i += 7) x.back()[i] = 0;
      if (broken && worker == 4 && layer.name == "s")
        x.back()[5] = std::numeric_limits<float>::infinity();
    }
    for (std::size_t i = 0; i < x.size(); ++i)
      views.push_back({x[i].data(), DType::f32, host.layers()[i].shape});
    sent.push_back(
        encode_on_host(host, views, {.seed = 5, .worker = static_cast<std::uint16_t>(worker)})
            .bytes);
  }
  return sent;
}

TEST(DeviceVotes, AreTheCpus) {
  Compressor host(sign_layers(), Policy::parse(kSigns)),
      device(sign_layers(), Policy::parse(kSigns), {.device = Device::cuda});
  EXPECT_TRUE(host.codec(0).traits().votes);
  for (const bool broken : {false, true}) {
    const Sent all = voters(host, 19, broken);
    for (const std::size_t count : {1u, 2u, 7u, 8u, 9u, 16u, 19u}) {
      SCOPED_TRACE(count);
      const Sent sent(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
      const Votes expected = votes_on_host(host, sent);
      ASSERT_EQ(expected.status, broken && count > 4 ? Status::non_finite : Status::ok);
      const Votes found = votes_on_device(device, sent, count % 4);
      EXPECT_EQ(found.status, expected.status);
      for (std::size_t i = 0; i < found.y.size(); ++i)
        EXPECT_TRUE(with_one_nan(found.y[i], DType::f32) == with_one_nan(expected.y[i], DType::f32))
            << device.layers()[i].name;
    }
  }
}

/// Damage with and without sound checksums, in each of ten messages. Where a message is of other layers, the
/// CPU, which compares messages with one another, has another reason.
TEST(DeviceVotes, TellWhichMessageIsRefused) {
  Compressor host(sign_layers(), Policy::parse(kSigns)),
      device(sign_layers(), Policy::parse(kSigns), {.device = Device::cuda});
  const Sent sound = voters(host, 10, false);
  for (std::size_t broken = 0; broken < sound.size(); ++broken) {
    Sent sent = sound;
    if (broken % 2 == 0) {
      sent[broken][sent[broken].size() - 1] ^= std::byte{0x40};
    } else {
      sent[broken] = mutated_message(sent[broken], broken);
    }
    const Votes expected = votes_on_host(host, sent);
    const Votes found = votes_on_device(device, sent, 0);
    EXPECT_EQ(failed(found.status), failed(expected.status)) << broken;
    if (broken % 2 == 0) {
      EXPECT_EQ(found.status, Status::bad_checksum) << broken;
    }
    if (!failed(found.status)) {
      EXPECT_TRUE(found.y == expected.y) << broken;
    }
    for (std::size_t m = 0; m < sent.size(); ++m)
      EXPECT_EQ(found.each[m], m == broken ? found.status : Status::ok) << broken;
  }
}

TEST(DeviceVotes, NeedSignsInF32) {
  const std::vector<LayerSpec> layers{{"a", {9}}, {"b", {9}}};
  const StreamOwner stream;
  for (const char* const policy : {"a=sign;*=qsgd:bits=2", "*=sign"}) {
    Compressor device(layers, Policy::parse(policy), {.device = Device::cuda});
    const ModelBuffers buffers(device);
    const Memory y(36);
    const TensorView view{y.data(), DType::f32, {9}, kDevice};
    const std::vector<TensorView> views{view, view};
    const ConstBytes message(y.bytes());
    const bool signs = policy[0] == '*';
    EXPECT_EQ(device.vote({{message}}, views, buffers.context()),
              signs ? Status::ok : Status::unsupported);
    if (!signs) continue;
    EXPECT_EQ(device.vote({}, views, buffers.context()), Status::invalid_argument);
    EXPECT_EQ(device.vote({{message}}, {&view, 1}, buffers.context()), Status::shape_mismatch);
    Context context = buffers.context();
    context.workspace = context.workspace.first(device.vote_workspace_bytes(1) - 1);
    EXPECT_EQ(device.vote({{message}}, views, context), Status::workspace_too_small);
    stream.wait();
  }
}

}  // namespace
}  // namespace atomo::test
