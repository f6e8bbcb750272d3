// SPDX-License-Identifier: Apache-2.0
/// The floating-point modes of an executor's threads do not reach bytes or values.
#include <gtest/gtest.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "atomo/thread_pool.hpp"
#include "support/support.hpp"

namespace atomo {
namespace {

#if defined(__SSE__)

constexpr unsigned kPlain = 0x1f80, kFlush = kPlain | 0x8040, kUpward = kPlain | 0x4000,
                   kFlushUpward = kFlush | kUpward;

/// This thread's modes until the end of the scope.
class Modes {
 public:
  explicit Modes(unsigned modes) : saved_(_mm_getcsr()) { _mm_setcsr(modes); }
  ~Modes() { _mm_setcsr(saved_); }
  Modes(const Modes&) = delete;
  Modes& operator=(const Modes&) = delete;

 private:
  unsigned saved_;
};

/// Runs every task on the calling thread, under modes of its own.
class ModesExecutor final : public Executor {
 public:
  explicit ModesExecutor(unsigned modes) : modes_(modes) {}
  void run(std::size_t count, void (*task)(void* state, std::size_t i),
           void* state) noexcept override {
    const Modes modes(modes_);
    for (std::size_t i = 0; i < count; ++i) task(state, i);
    changed_ = changed_ || (_mm_getcsr() & 0xE040u) != (modes_ & 0xE040u);
    runs_ += count > 1 ? 1 : 0;
  }
  [[nodiscard]] bool changed() const { return changed_; }
  [[nodiscard]] std::size_t runs() const { return runs_; }

 private:
  unsigned modes_;
  std::size_t runs_ = 0;
  bool changed_ = false;
};

/// More rows and entries than one task of any codec has.
const Shape kShape{130, 1100};

/// A third are subnormal, the others small; a few whole rows are zero.
std::vector<float> entries(std::uint64_t seed) {
  auto x = test::heavy_tailed(kShape.elements(), seed, 1100);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(x[i], i % 3 == 0 ? -127 : -100);
  return x;
}

/// A message, what it decodes to, and what it adds to other entries.
struct Results {
  std::vector<std::byte> message;
  std::vector<float> decoded, added;

  Results(const Codec& codec, Executor* executor) : decoded(kShape.elements()), added(entries(2)) {
    message = test::encode(codec, entries(1), kShape, {.seed = 3, .step = 4}, executor).bytes;
    std::vector<std::byte> workspace(test::workspace_bytes(codec, kShape));
    const Context context{.workspace = workspace, .executor = executor};
    const TensorView to{decoded.data(), DType::f32, kShape}, onto{added.data(), DType::f32, kShape};
    EXPECT_FALSE(failed(codec.decode(message, to, context)));
    EXPECT_FALSE(failed(codec.decode_add(message, 0.3f, onto, context)));
  }
  friend bool operator==(const Results& a, const Results& b) {
    return a.message == b.message && same_bits(a.decoded, b.decoded) && same_bits(a.added, b.added);
  }

 private:
  static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
};

class FpModes : public testing::TestWithParam<std::string> {
 protected:
  const Codec codec = Codec::parse(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Specs, FpModes, testing::ValuesIn(test::all_specs()),
                         [](const auto& spec) {
                           std::string name;
                           for (const char c : spec.param)
                             name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name + "_" + std::to_string(spec.index);
                         });

TEST_P(FpModes, OfAnExecutorDoNotMatter) {
  const Results alone(codec, nullptr);
  ASSERT_FALSE(alone.message.empty());
  for (const unsigned modes : {kFlush, kUpward, kFlushUpward}) {
    ModesExecutor executor(modes);
    EXPECT_TRUE(Results(codec, &executor) == alone) << std::hex << modes;
    EXPECT_FALSE(executor.changed()) << "a task left other modes behind";
  }
}

TEST_P(FpModes, OfAPoolsThreadsDoNotMatter) {
  std::unique_ptr<ThreadPool> pool;
  {
    const Modes modes(kFlushUpward);
    pool = std::make_unique<ThreadPool>(3);
  }
  EXPECT_TRUE(Results(codec, pool.get()) == Results(codec, nullptr));
}

TEST(FpModesExecutor, HasTasks) {
  ModesExecutor executor(kFlush);
  const Results results(Codec::parse("terngrad"), &executor);
  EXPECT_GE(executor.runs(), 3u);
}

#endif

}  // namespace
}  // namespace atomo
