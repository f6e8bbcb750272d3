// SPDX-License-Identifier: Apache-2.0
/// The launches of whole calls at the size of real models, as tools/gpu_model/launches.txt has them: the
/// model of the kernels' speed counts with that table. Calls are captured, so that no kernel runs and
/// no tensor has memory.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "../bench/models.hpp"
#include "../bench/specs.hpp"
#include "atomo/cuda.hpp"
#include "calls.hpp"
#include "support/device_model.hpp"

namespace atomo {
namespace {

constexpr std::size_t kWorkers = 8;
/// "kernel blocks x threads + dynamic shared bytes", the parts of a grid that has several behind its blocks,
/// without the namespaces that all of them share.
std::string text_of(const hostexec::LaunchRecord& launch) {
  std::string name = std::regex_replace(
      launch.kernel, std::regex(R"(atomo::cuda::|\(anonymous namespace\)::)"), "");
  name = std::regex_replace(name, std::regex(R"((\d)ul?\b)"), "$1");
  std::ostringstream text;
  text << name << ' ' << launch.grid.x;
  if (launch.grid.y != 1) text << 'x' << launch.grid.y;
  text << 'x' << launch.block.x;
  if (launch.shared_bytes != 0) text << '+' << launch.shared_bytes;
  return text.str();
}

/// A line for each of three calls, and of a vote where messages have one: the launches in their order, or those of one message where the
/// others' are the same. Nothing reads or writes at `nowhere`: what a captured call queues is thrown
/// away. An exact SVD is captured in a mode that takes the reserving of its libraries' memory; their own launches are no part of it.
std::string calls_of(const std::string& model_name, const std::vector<LayerSpec>& layers,
                     const std::string& spec, std::byte* nowhere) {
  Compressor model(layers, Policy(Codec::parse(spec)), {.device = Device::cuda});
  const bool svd = bench::is_svd(spec);
  const HandlesPtr handles = svd ? make_handles() : nullptr;
  const cudaStreamCaptureMode mode =
      svd ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeThreadLocal;
  std::vector<ConstTensorView> in;
  std::vector<TensorView> out;
  for (const LayerSpec& layer : layers) {
    in.push_back({nowhere, DType::f32, layer.shape, Device::cuda});
    out.push_back({nowhere, DType::f32, layer.shape, Device::cuda});
  }
  const test::StreamOwner stream;
  const std::size_t room = test::workspace_bytes(model);
  Context context;
  context.stream = stream.get();
  context.workspace = {nowhere, room};
  context.handles = handles.get();
  const std::size_t most = model.max_encoded_bytes();
  const ConstBytes message{nowhere, most};
  const std::vector<ConstBytes> messages(kWorkers, message);
  auto* const bytes = reinterpret_cast<std::uint64_t*>(nowhere);

  std::ostringstream lines;
  const auto add = [&](const char* operation, auto call) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream.get(), mode), cudaSuccess);
    hostexec::reset_calls();
    EXPECT_EQ(call(), Status::ok) << model_name << ' ' << spec << ' ' << operation;
    lines << model_name << ' ' << spec << ' ' << operation << ':';
    auto launches = hostexec::launches();
    const std::size_t part = launches.size() / kWorkers;
    std::size_t repeated = part;
    while (repeated < launches.size() &&
           text_of(launches[repeated]) == text_of(launches[repeated - part]))
      ++repeated;
    if (part > 1 && part * kWorkers == repeated) {
      lines << " 8 times";
      launches.resize(part);
    }
    for (const auto& launch : launches) lines << "  " << text_of(launch);
    lines << '\n';
    EXPECT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  };
  add("encode", [&] { return model.encode(in, {.seed = 1}, {nowhere, most, bytes}, context); });
  add("decode", [&] { return model.decode(message, out, context); });
  add("decode_add_8", [&] { return model.decode_add_all(messages, 0.125f, out, context); });
  if (Codec::parse(spec).traits().votes)
    add("vote_8", [&] { return model.vote(messages, out, context); });
  return lines.str();
}

TEST(LaunchTable, IsWhatCallsLaunch) {
  std::string made =
      "# SPDX-License-Identifier: Apache-2.0\n"
      "# MODEL CODEC CALL: the launches of one call in their order, \"kernel blocks x threads + "
      "shared bytes\",\n"
      "# or \"blocks x parts x threads\" of a grid that has a part a message;\n"
      "# \"8 times\" where those of a message come once for each of eight.\n"
      "# hostexec_cases --gtest_filter='LaunchTable.*' compares it and says how to renew it.\n";
  const std::pair<std::string, std::vector<LayerSpec>> models[] = {
      {"25M", {{"tensor", {5000, 5000}}}},
      {"resnet50", bench::resnet50()},
      {"gpt2", bench::gpt2_small()}};
  const test::Memory nowhere(4096);
  for (const auto& [name, layers] : models) {
    std::vector<std::string> specs = bench::specs_with(bench::kListedOnGpu, Device::cuda);
    // Of models alone, and choices of a codec that is listed with others.
    specs.insert(
        specs.end(),
        {"ef+topk:keep=0.01", "dgc+topk:keep=0.01", "topk:chunk=4096,k=64,values=2,select=drawn",
         "sign:scale=means", "sign:scale=means,bucket=512", "identity:dtype=e4m3",
         "identity:dtype=e5m2", "minmax:bits=4", "randomk:keep=0.01,block=64",
         "atomo:atoms=sketch,bits=0.5,rank=128", "atomo:atoms=sketch,bits=0.5,rank=256",
         "atomo:atoms=rows,bits=1,content=nearest", "atomo:atoms=blocks,bits=1,cap=1.1",
         "atomo:bits=0.5,cap=0.55"});
    for (const std::string& spec : specs) made += calls_of(name, layers, spec, nowhere.data());
  }
  const std::string path = ATOMO_TESTS_DIR "/../tools/gpu_model/launches.txt";
  std::ifstream file(path);
  std::stringstream committed;
  committed << file.rdbuf();
  if (committed.str() == made) return;

  const std::string other = testing::TempDir() + "launches.txt";
  std::ofstream(other) << made;
  std::istringstream before(committed.str()), now(made);
  std::string old_line, new_line;
  do {
    if (!std::getline(before, old_line)) old_line = "(nothing)";
    if (!std::getline(now, new_line)) new_line = "(nothing)";
  } while (old_line == new_line);
  FAIL() << "the launches are not what tools/gpu_model/launches.txt says:\n- " << old_line << "\n+ "
         << new_line << "\nto take them as they are: cp " << other
         << " tools/gpu_model/launches.txt, then\n"
         << "python3 tools/gpu_model/predict.py --write";
}

}  // namespace
}  // namespace atomo
