// SPDX-License-Identifier: Apache-2.0
// Bandwidths of memory on one thread, as JSON: reading, writing, copying and updating 128 MiB that no
// cache holds, with plain and with non-temporal stores. A byte read and a byte written count once each.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bandwidth.cpp"
#include <hwy/aligned_allocator.h>
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "codec_case.hpp"
#include "target.hpp"

HWY_BEFORE_NAMESPACE();
namespace atomo::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<std::uint32_t>;

/// Adds all words, so that none may be left out.
std::uint32_t read(const std::uint32_t* x, std::size_t n) {
  const D d;
  const std::size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (std::size_t i = 0; i < n; i += 4 * lanes) {
    a = hn::Add(a, hn::Load(d, x + i));
    b = hn::Add(b, hn::Load(d, x + i + lanes));
    c = hn::Add(c, hn::Load(d, x + i + 2 * lanes));
    e = hn::Add(e, hn::Load(d, x + i + 3 * lanes));
  }
  return hn::GetLane(hn::Add(hn::Add(a, b), hn::Add(c, e)));
}

void write(std::uint32_t* y, std::size_t n, bool past_caches) {
  const D d;
  const auto value = hn::Set(d, 7);
  if (past_caches) {
    for (std::size_t i = 0; i < n; i += hn::Lanes(d)) hn::Stream(value, d, y + i);
    hwy::FlushStream();
  } else {
    for (std::size_t i = 0; i < n; i += hn::Lanes(d)) hn::Store(value, d, y + i);
  }
}

void copy(const std::uint32_t* x, std::uint32_t* y, std::size_t n, bool past_caches) {
  const D d;
  if (past_caches) {
    for (std::size_t i = 0; i < n; i += hn::Lanes(d)) hn::Stream(hn::Load(d, x + i), d, y + i);
    hwy::FlushStream();
  } else {
    for (std::size_t i = 0; i < n; i += hn::Lanes(d)) hn::Store(hn::Load(d, x + i), d, y + i);
  }
}

void update(std::uint32_t* y, std::size_t n, bool past_caches) {
  const D d;
  const auto value = hn::Set(d, 7);
  if (past_caches) {
    for (std::size_t i = 0; i < n; i += hn::Lanes(d))
      hn::Stream(hn::Add(hn::Load(d, y + i), value), d, y + i);
    hwy::FlushStream();
  } else {
    for (std::size_t i = 0; i < n; i += hn::Lanes(d))
      hn::Store(hn::Add(hn::Load(d, y + i), value), d, y + i);
  }
}

}  // namespace atomo::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::bench {
namespace {

HWY_EXPORT(read);
HWY_EXPORT(write);
HWY_EXPORT(copy);
HWY_EXPORT(update);

constexpr std::size_t kBytes = std::size_t{1} << 27;
constexpr std::size_t kWords = kBytes / sizeof(std::uint32_t);

/// Prints the speeds of one way as a member of the JSON; `moved` counts the bytes of a pass.
template <typename Pass>
void print_speeds(const char* name, const char* stores, int repetitions, double moved, Pass pass,
                  std::uint32_t* x, std::uint32_t* y, const char* end) {
  const Clock clock(1);
  std::printf("  {\"name\": \"%s\", \"stores\": \"%s\", \"gbs\": [", name, stores);
  for (int i = 0; i < repetitions; ++i) {
    flush(x, kBytes);
    flush(y, kBytes);
    const double start = clock.now();
    pass();
    asm volatile("" : : : "memory");
    const double seconds = clock.now() - start;
    std::printf("%s%.4f", i == 0 ? "" : ", ", moved / seconds * 1e-9);
  }
  std::printf("]}%s\n", end);
}

void print_all(int repetitions) {
  const hwy::AlignedFreeUniquePtr<std::uint32_t[]> from =
      hwy::AllocateAligned<std::uint32_t>(kWords);
  const hwy::AlignedFreeUniquePtr<std::uint32_t[]> to = hwy::AllocateAligned<std::uint32_t>(kWords);
  std::uint32_t* const x = from.get();
  std::uint32_t* const y = to.get();
  if (x == nullptr || y == nullptr) throw std::runtime_error("256 MiB of memory are wanted");
  std::memset(x, 1, kBytes);
  std::memset(y, 2, kBytes);
  const double once = static_cast<double>(kBytes), twice = 2 * once;
  const auto measure = [&](const char* name, const char* stores, double moved, auto pass,
                           const char* end = ",") {
    print_speeds(name, stores, repetitions, moved, pass, x, y, end);
  };
  std::printf("{\"bytes\": %zu, \"bandwidths\": [\n", kBytes);
  measure("read", "none", once, [&] {
    const std::uint32_t sum = HWY_DYNAMIC_DISPATCH(read)(x, kWords);
    asm volatile("" : : "r"(sum));
  });
  measure("write", "plain", once, [&] { HWY_DYNAMIC_DISPATCH(write)(y, kWords, false); });
  measure("write", "non-temporal", once, [&] { HWY_DYNAMIC_DISPATCH(write)(y, kWords, true); });
  measure("copy", "plain", twice, [&] { HWY_DYNAMIC_DISPATCH(copy)(x, y, kWords, false); });
  measure("copy", "non-temporal", twice, [&] { HWY_DYNAMIC_DISPATCH(copy)(x, y, kWords, true); });
  measure("copy", "memcpy", twice, [&] { std::memcpy(y, x, kBytes); });
  measure("update", "plain", twice, [&] { HWY_DYNAMIC_DISPATCH(update)(y, kWords, false); });
  const auto last = [&] { HWY_DYNAMIC_DISPATCH(update)(y, kWords, true); };
  measure("update", "non-temporal", twice, last, "");
  std::printf("]}\n");
}

}  // namespace
}  // namespace atomo::bench

int main(int argc, char** argv) {
  int repetitions = 11;
  std::string target = "best";
  try {
    for (int i = 1; i < argc; ++i) {
      const std::string_view word = argv[i];
      const std::string value(word.substr(word.find('=') + 1));
      if (word.starts_with("--repetitions=")) {
        const auto [end, error] =
            std::from_chars(value.data(), value.data() + value.size(), repetitions);
        if (error != std::errc() || end != value.data() + value.size() || repetitions < 1)
          throw std::runtime_error("--repetitions is '" + value + "'; 1 or more are wanted");
      } else if (word.starts_with("--target=")) {
        target = value;
      } else {
        throw std::runtime_error("unknown option '" + std::string(word) + "'");
      }
    }
    atomo::bench::force_target(target);
    atomo::bench::print_all(repetitions);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_bandwidth: %s\n", error.what());
    return 1;
  }
  return 0;
}
#endif  // HWY_ONCE
