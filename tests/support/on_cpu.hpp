// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What the CPU makes of the tensors and messages that a device suite compares with.

#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "support/device_model.hpp"

namespace atomo::test {

static_assert(kDevice == Device::cuda, "these suites compare a device with the CPU");

/// How a test over specs is called.
inline std::string spec_name(const testing::TestParamInfo<std::string>& made) {
  std::string name;
  for (const char c : made.param)
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : c == '.' ? 'p' : '_';
  return name;
}

/// Matrices, long and short ones, halves, tensors that try coordinates, and an empty one; none
/// whose sketch a device finds by other sums than the CPU.
inline std::vector<LayerSpec> mixed_layers() {
  return {{"a.weight", {2, 1500}},
          {"a.bias", {24}},
          {"b.weight", {300, 9}},
          {"b.bias", {9000}},
          {"c.weight", {1, 1300}, DType::bf16},
          {"c.bias", {700}, DType::f16},
          {"d.weight", {0, 4}},
          {"e.weight", {40, 5, 3}}};
}

/// The specs whose messages have the CPU's bytes: sketches are the CPU's but for rounding
/// (test_device_forms.cpp), and layers that choose a form choose none of heavy_tailed().
inline std::vector<std::string> specs_with_the_cpus_bytes() {
  std::vector<std::string> specs = all_specs();
  std::erase_if(specs, [](const std::string& spec) {
    return spec.find("atoms=sketch") != std::string::npos;
  });
  return specs;
}

/// The specs that send sketches, or may: layers choose a form where no atoms are named.
inline std::vector<std::string> specs_with_sketches() {
  std::vector<std::string> specs = all_specs();
  std::erase_if(specs, [](const std::string& spec) {
    return !spec.starts_with("atomo:") || (spec.find("atoms=") != std::string::npos &&
                                           spec.find("atoms=sketch") == std::string::npos);
  });
  return specs;
}

/// The entries with one NaN for all: what payload a sum with a NaN has, the format leaves to the machine.
inline std::vector<std::byte> with_one_nan(std::vector<std::byte> entries, DType dtype) {
  const auto replace =
      [&]<typename Bits>(Bits above) {  // numbers that no sign makes larger than Inf's
        for (std::size_t at = 0; at + sizeof(Bits) <= entries.size(); at += sizeof(Bits)) {
          Bits bits;
          std::memcpy(&bits, entries.data() + at, sizeof bits);
          if ((bits & (static_cast<Bits>(~Bits{0}) >> 1)) <= above) continue;
          bits = static_cast<Bits>(above + 1);
          std::memcpy(entries.data() + at, &bits, sizeof bits);
        }
      };
  if (dtype == DType::f32) replace(std::uint32_t{0x7F800000});
  if (dtype == DType::f16) replace(std::uint16_t{0x7C00});
  if (dtype == DType::bf16) replace(std::uint16_t{0x7F80});
  return entries;
}

/// The values in `dtype`, rounded to nearest.
inline std::vector<std::byte> entries_of(const std::vector<float>& x, DType dtype = DType::f32) {
  std::vector<std::byte> bytes(x.size() * size_of(dtype));
  bool overflow = false;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint16_t half =
        dtype == DType::f16 ? to_f16(x[i], overflow) : to_bf16(x[i], overflow);
    if (dtype == DType::f32)
      std::memcpy(bytes.data() + 4 * i, &x[i], 4);
    else
      std::memcpy(bytes.data() + 2 * i, &half, 2);
  }
  return bytes;
}

inline Message encode_on_cpu(const Codec& codec, ConstBytes x, DType dtype, const Shape& shape,
                             const Key& key) {
  std::vector<std::byte> workspace(codec.encode_workspace_bytes(shape, dtype));
  Message m;
  m.bytes.resize(codec.max_encoded_bytes(shape, dtype));
  std::uint64_t bytes = 0;
  m.status = codec.encode({x.data(), dtype, shape}, key, {m.bytes.data(), m.bytes.size(), &bytes},
                          {.workspace = workspace});
  m.bytes.resize(failed(m.status) ? 0 : bytes);
  return m;
}
inline Message encode_on_cpu(const Codec& codec, const std::vector<float>& x, const Shape& shape,
                             const Key& key) {
  return encode_on_cpu(codec, std::as_bytes(std::span(x)), DType::f32, shape, key);
}

/// Decodes over `y`, or adds `alpha` times to it.
inline DecodedBytes decode_on_cpu(const Codec& codec, ConstBytes message, std::vector<std::byte> y,
                                  DType dtype, const Shape& shape, bool add = false,
                                  float alpha = 1) {
  std::vector<std::byte> workspace(codec.decode_workspace_bytes(shape, dtype));
  const TensorView view{y.data(), dtype, shape};
  const Context context{.workspace = workspace};
  const Status status =
      add ? codec.decode_add(message, alpha, view, context) : codec.decode(message, view, context);
  return {status, std::move(y)};
}

/// Adds `sent` to the gradients on the device in one call, and to a copy of them on the CPU: the
/// same sums. Messages are padded, as an all-gather pads them to the longest.
inline void expect_the_cpus_sums(Compressor& on_host, Compressor& on_device,
                                 const std::vector<std::vector<std::byte>>& sent,
                                 Gradients& gradients, const ModelBuffers& buffers) {
  std::vector<std::vector<float>> sums = gradients.values();
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < sums.size(); ++i)
    views.push_back({sums[i].data(), DType::f32, gradients.targets()[i].shape});
  const std::vector<ConstBytes> messages(sent.begin(), sent.end());
  std::vector<std::byte> workspace(test::workspace_bytes(on_host));
  ASSERT_FALSE(failed(on_host.decode_add_all(messages, 0.25f, views, {.workspace = workspace})));

  std::vector<std::unique_ptr<Memory>> received;
  std::vector<ConstBytes> device_bytes;
  for (const auto& message : sent) {
    received.push_back(std::make_unique<Memory>(message.size() + 100, received.size()));
    received.back()->fill(0xEE);
    received.back()->put(message);
    device_bytes.push_back(received.back()->bytes());
  }
  ASSERT_EQ(on_device.decode_add_all(device_bytes, 0.25f, gradients.targets(), buffers.context()),
            Status::ok);
  buffers.stream.wait();
  EXPECT_EQ(buffers.status.get(), Status::ok);
  const auto all = gradients.download();
  std::size_t at = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    ASSERT_EQ(std::memcmp(all.data() + at, sums[i].data(), 4 * sums[i].size()), 0) << "layer " << i;
    at += 4 * sums[i].size();
  }
}

/// Messages of so many steps are the CPU's.
inline void expect_the_cpus_messages(Compressor& on_host, Compressor& on_device,
                                     const Gradients& gradients, const ModelBuffers& buffers,
                                     std::uint32_t steps) {
  for (std::uint32_t step = 0; step < steps; ++step) {
    const Key key{.seed = 9, .step = step, .worker = 2};
    const auto expected = encode_on_host(on_host, gradients.on_host(), key);
    ASSERT_EQ(on_device.encode(gradients.views(), key, buffers.target(), buffers.context()),
              Status::ok);
    const auto m = buffers.message();
    ASSERT_EQ(m.status, expected.status);
    ASSERT_TRUE(m.bytes == expected.bytes) << m.bytes.size() << " " << expected.bytes.size();
  }
}

/// The device makes of a message what the CPU makes of it: written and added, the status too.
inline void expect_the_cpus_values(const Codec& codec, ConstBytes message, const Shape& shape,
                                   DType dtype = DType::f32, std::size_t shift = 0) {
  const auto before = entries_of(heavy_tailed(shape.elements(), 9, 20), dtype);
  for (const bool add : {false, true}) {
    const float alpha = add ? -0.7f : 1.0f;
    const auto on_cpu = decode_on_cpu(codec, message, before, dtype, shape, add, alpha);
    const auto d = decode_bytes(codec, message, before, dtype, shape, add, alpha, shift);
    ASSERT_EQ(d.status, on_cpu.status) << describe(d.status) << ", CPU " << describe(on_cpu.status);
    if (!failed(d.status)) {
      ASSERT_TRUE(with_one_nan(d.values, dtype) == with_one_nan(on_cpu.values, dtype))
          << (add ? "added" : "written");
    }
  }
}

/// What `work(stream)` queues, captured once under the mode Global, as PyTorch captures: until the
/// capture ends, nothing may wait for the device or allocate.
class Captured {
 public:
  template <typename Work>
  explicit Captured(const Work& work) {
    const StreamOwner stream;
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), cudaSuccess);
    work(stream.get());
    EXPECT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&replay_, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  ~Captured() { EXPECT_EQ(cudaGraphExecDestroy(replay_), cudaSuccess); }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  void replay(const StreamOwner& on) const {
    EXPECT_EQ(cudaGraphLaunch(replay_, on.get()), cudaSuccess);
  }

 private:
  cudaGraphExec_t replay_ = nullptr;
};

/// Captures the encoding of a model under seed 4, and replays it with steps that it reads from
/// device memory; calls check(step) after each.
template <typename Check>
void replay_encoding(Compressor& on_device, const Gradients& gradients, const ModelBuffers& buffers,
                     Check check) {
  const Word<std::uint32_t> step(0);
  const Captured captured([&](Stream stream) {
    Context context = buffers.context();
    context.step = step.data();
    context.stream = stream;
    EXPECT_EQ(on_device.encode(gradients.views(), {.seed = 4}, buffers.target(), context),
              Status::ok);
  });
  for (const std::uint32_t now : {3u, 11u}) {
    step.set(now);
    captured.replay(buffers.stream);
    check(now);
  }
}

/// Each replay is the CPU's message of that step.
inline void expect_replays_are_the_cpus(Compressor& on_host, Compressor& on_device,
                                        const Gradients& gradients, const ModelBuffers& buffers) {
  replay_encoding(on_device, gradients, buffers, [&](std::uint32_t step) {
    const auto m = buffers.message();
    const auto expected = encode_on_host(on_host, gradients.on_host(), {.seed = 4, .step = step});
    EXPECT_TRUE(m.bytes == expected.bytes) << "step " << step;
  });
}

}  // namespace atomo::test
