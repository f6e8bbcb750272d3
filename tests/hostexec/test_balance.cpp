// SPDX-License-Identifier: Apache-2.0
/// Work is split by segments: no block of a grid does more than four times what the mean block
/// does; six times where layers choose their form, and of some nearly everything is kept, of others
/// nearly nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <numeric>
#include <vector>

#include "support/device_model.hpp"
#include "work.hpp"

namespace atomo {
namespace {

/// Of a message's work: a grid below this share is not worth splitting.
constexpr double kSmallShare = 0.02;
/// Grids are as large as the longest message could need, so that the host need not know its length:
/// blocks that find nothing there return at once, and say nothing about the others. So do blocks of
/// forms that were not chosen. The dearest is a block of `check_messages`: a fourteenth of one that
/// hashes.
constexpr double kIdle = 1.0 / 10;

/// What a block takes that finds nothing, if a quarter of them do.
double idle_work(std::vector<std::uint64_t> blocks) {
  const auto quarter = blocks.begin() + static_cast<std::ptrdiff_t>(blocks.size() / 4);
  std::nth_element(blocks.begin(), quarter, blocks.end());
  return static_cast<double>(*quarter);
}

void expect_balance(const std::string& policy, const std::string& what, double bound) {
  const auto grids = hostexec::work();
  double all = 0;
  for (const auto& grid : grids)
    all += std::accumulate(grid.blocks.begin(), grid.blocks.end(), 0.0);
  ASSERT_GT(all, 0);
  for (const auto& grid : grids) {
    const auto most =
        static_cast<double>(*std::max_element(grid.blocks.begin(), grid.blocks.end()));
    const double least = idle_work(grid.blocks);
    double sum = 0;
    int count = 0;
    for (const std::uint64_t block : grid.blocks) {
      const bool idle = least < kIdle * most && static_cast<double>(block) < 2 * least;
      sum += idle ? 0 : static_cast<double>(block);
      count += idle ? 0 : 1;
    }
    const double mean = sum / count;
    std::cout << policy << ", " << what << ": " << grid.kernel << ": " << count << " of "
              << grid.blocks.size() << " blocks, the busiest " << most / mean << " times the mean, "
              << 100 * sum / all << " % of the work\n";
    if (sum < kSmallShare * all) continue;
    EXPECT_LE(most, bound * mean) << policy << ", " << what << ": " << grid.kernel;
  }
}

class Balance : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Policies, Balance,
                         testing::Values("*=atomo:bits=1", "*=atomo:bits=1,atoms=rows",
                                         "*=atomo:bits=0.25,atoms=blocks",
                                         "*=atomo:bits=1,atoms=coordinate",
                                         "*=atomo:bits=1,atoms=sketch", "*=qsgd:bits=4",
                                         "*=terngrad", "*=sign:scale=mean", "*=topk:keep=0.05",
                                         "*=randomk:keep=0.1", "*=identity"),
                         [](const auto& info) { return std::to_string(info.index); });

TEST_P(Balance, OfAResNet50) {
  const auto specs = test::resnet50(4);
  const double bound = std::string(GetParam()) == "*=atomo:bits=1" ? 6 : 4;
  Compressor model(specs, Policy::parse(GetParam()), {.device = Device::cuda});
  const test::Gradients gradients(specs);
  const test::ModelBuffers buffers(model);
  hostexec::reset_work();
  ASSERT_EQ(model.encode(gradients.views(), {.seed = 1}, buffers.target(), buffers.context()),
            Status::ok);
  buffers.stream.wait();
  expect_balance(GetParam(), "encode", bound);
  hostexec::reset_work();
  ASSERT_EQ(model.decode(buffers.payload.bytes(), gradients.targets(), buffers.context()),
            Status::ok);
  buffers.stream.wait();
  expect_balance(GetParam(), "decode", bound);
}

}  // namespace
}  // namespace atomo
