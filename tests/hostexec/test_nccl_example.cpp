// SPDX-License-Identifier: Apache-2.0
/// examples/02_nccl_allgather.cpp as it stands, with collectives in which all ranks send what this
/// one does: its steps wait for nothing, take no memory, and leave the mean that the CPU finds.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "calls.hpp"

#define main nccl_example_main
#include "../../examples/02_nccl_allgather.cpp"
#undef main

namespace {

std::vector<std::size_t> gathered, broadcasted;  // bytes of each call

cudaError_t copy(const void* from, void* to, std::size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

}  // namespace

struct ncclComm {
  int ranks;
};

extern "C" {

const char* ncclGetErrorString(ncclResult_t) { return "an error of the test's NCCL"; }
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int*) {
  for (int k = 0; k < count; ++k) comms[k] = new ncclComm{count};
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = type == ncclUint64 ? 8 * count : count;
  if (type == ncclUint8) gathered.push_back(bytes);
  for (int k = 0; k < comm->ranks; ++k) {
    if (copy(from, static_cast<char*>(to) + bytes * static_cast<std::size_t>(k), bytes, stream) !=
        cudaSuccess)
      return ncclUnhandledCudaError;
  }
  return ncclSuccess;
}
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t, int,
                           ncclComm_t, cudaStream_t stream) {
  broadcasted.push_back(count);
  return copy(from, to, count, stream) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

}  // extern "C"

namespace {

constexpr int kRank = 1, kRanks = 3;

std::size_t times_called(const std::string& name) {
  std::size_t times = 0;
  for (const hostexec::Call& call : hostexec::calls()) times += call.name == name ? call.count : 0;
  return times;
}

/// The mean that a step ends with, on the CPU, and the messages' lengths.
std::vector<float> mean_on_cpu(const atomo::Codec& codec, std::uint32_t step,
                               std::vector<std::size_t>& lengths) {
  std::vector<float> all;
  for (std::uint16_t b = 0; b < kBuckets.size(); ++b) {
    atomo::Compressor model(kBuckets[b], atomo::Policy(codec));
    std::vector<float> gradient(model.elements()), mean(model.elements());
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = gradient_entry(kRank, step, i);
    std::vector<atomo::ConstTensorView> inputs;
    std::vector<atomo::TensorView> outputs;
    for (std::size_t at = 0; const auto& layer : kBuckets[b]) {
      inputs.push_back({gradient.data() + at, atomo::DType::f32, layer.shape});
      outputs.push_back({mean.data() + at, atomo::DType::f32, layer.shape});
      at += layer.shape.elements();
    }
    std::vector<std::byte> message(model.max_encoded_bytes());
    std::vector<std::byte> workspace(
        std::max(model.encode_workspace_bytes(), model.decode_workspace_bytes()));
    std::uint64_t bytes = 0;
    EXPECT_FALSE(
        failed(model.encode(inputs, {.seed = 1, .step = step, .worker = kRank, .channel = b},
                            {message.data(), message.size(), &bytes}, {.workspace = workspace})));
    lengths.push_back(bytes);
    const std::vector<atomo::ConstBytes> sent(
        kRanks, atomo::ConstBytes(message).first(static_cast<std::size_t>(bytes)));
    EXPECT_FALSE(
        failed(model.decode_add_all(sent, 1.0F / kRanks, outputs, {.workspace = workspace})));
    all.insert(all.end(), mean.begin(), mean.end());
  }
  return all;
}

class NcclExample : public testing::Test {
 protected:
  void SetUp() override {
    gathered.clear();
    broadcasted.clear();
  }
  ncclComm comm_{kRanks};
};

/// Queued, captured, replayed: the same calls, none of which waits or takes memory.
TEST_F(NcclExample, StepsOfBoundedMessagesNeverWait) {
  for (const char* spec : {"atomo:bits=0.5,cap=0.55,atoms=rows", "qsgd:bits=4"}) {
    SCOPED_TRACE(spec);
    const auto codec = atomo::Codec::parse(spec);
    gathered.clear();
    Trainer trainer(codec, {kRank, kRanks, &comm_});
    hostexec::reset_calls();
    trainer.step(0);
    EXPECT_EQ(hostexec::forbidden_calls(), std::vector<std::string>{});
    EXPECT_GT(hostexec::launch_count(), 0U);
    trainer.step(1);
    ASSERT_EQ(times_called("cudaStreamBeginCapture"), 1U);
    hostexec::reset_calls();
    trainer.step(2);
    EXPECT_EQ(hostexec::forbidden_calls(), std::vector<std::string>{});
    EXPECT_EQ(hostexec::launch_count(), 0U);
    EXPECT_EQ(times_called("cudaGraphLaunch"), 1U);
    // The batch of either bucket, and the step's number.
    EXPECT_EQ(times_called("cudaMemcpyAsync"), kBuckets.size() + 1);

    std::vector<std::size_t> lengths, capacities;
    EXPECT_TRUE(trainer.finish() == mean_on_cpu(codec, 2, lengths));
    for (const auto& layers : kBuckets) {
      capacities.push_back(
          atomo::Compressor(layers, atomo::Policy(codec)).wire_bytes().value_or(0));
    }
    // Queued once, captured once.
    EXPECT_EQ(gathered, (std::vector{capacities[0], capacities[1], capacities[0], capacities[1]}));
    EXPECT_TRUE(broadcasted.empty());
  }
}

TEST_F(NcclExample, MessagesWithoutABoundGoByTheirLengths) {
  const auto codec = atomo::Codec::parse("atomo:bits=0.5,atoms=rows");
  Trainer trainer(codec, {kRank, kRanks, &comm_});
  trainer.step(0);
  broadcasted.clear();
  hostexec::reset_calls();
  trainer.step(1);
  EXPECT_EQ(times_called("cudaStreamSynchronize"), kBuckets.size());
  EXPECT_EQ(times_called("cudaMalloc"), 0U);
  std::vector<std::size_t> lengths;
  EXPECT_TRUE(trainer.finish() == mean_on_cpu(codec, 1, lengths));
  ASSERT_EQ(broadcasted.size(), kRanks * kBuckets.size());
  for (std::size_t i = 0; i < broadcasted.size(); ++i)
    EXPECT_EQ(broadcasted[i], lengths[i / kRanks]);
  EXPECT_TRUE(gathered.empty());
}

/// The program, of one GPU.
TEST_F(NcclExample, Runs) {
  std::array<char, 8> name{"example"};
  std::array<char, 5> codec{"sign"};
  std::array<char*, 2> arguments{name.data(), codec.data()};
  EXPECT_EQ(nccl_example_main(2, arguments.data()), 0);
}

}  // namespace
