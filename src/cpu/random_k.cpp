// SPDX-License-Identifier: Apache-2.0
/// One Philox block a draw, into a bit map of n bits; then the marked entries are gathered or
/// scattered. Time grows with min(k, n - k) draws, a random access into the map each, and n / 64
/// words.

#include "cpu/random_k.hpp"

#include <algorithm>
#include <cstring>

#include "core/philox.hpp"
#include "cpu/kept_entries.hpp"
#include "math/subset_sampling.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/random_k.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/philox_tile-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace tile = atomo::cpu::HWY_NAMESPACE;

/// Draws m of n entries; draw d is block d: words 0 and 1 are the low, 2 and 3 the high half of its
/// 128 bits.
void draw_marks(const Philox& draws, std::uint64_t n, std::uint64_t m, KeptSet* marks) {
  KeptSet set = *marks;  // a copy of the pointers, which no store into the map can change
  const tile::PhiloxTiles tiles(draws);
  alignas(64) std::uint32_t words[tile::kPhiloxTileWords];
  math::draw_subset(n, m, set, [&](std::uint64_t j, std::uint64_t d) {
    const std::size_t l = d % tile::kPhiloxTile;
    if (l == 0) tiles(d, words);
    const auto half = [&](std::size_t w) {
      return std::uint64_t{words[4 * l + w]} | (std::uint64_t{words[4 * l + w + 1]} << 32);
    };
    return math::scale_draw(half(0), half(2), j);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(draw_marks);

namespace {

/// The kept entries of a layer; false when the workspace is too small.
bool draw_kept(const RandomKConfig& config, std::size_t n, Key key, Bytes workspace,
               KeptSet& set) noexcept {
  core::Carver carver(workspace);
  set = KeptSet::carve(carver, n);
  if (!carver.fits()) return false;
  key.worker = 0;
  const Philox draws(key, Purpose::random_k);
  const bool complement = config.keep > n / 2;
  set.clear();
  HWY_DYNAMIC_DISPATCH(draw_marks)(draws, n, complement ? n - config.keep : config.keep, &set);
  if (complement) set.invert(n);
  set.count();
  return true;
}

Status scatter(const RandomKConfig& config, ConstBytes body, bool add, float alpha, float* y,
               std::size_t n, const Key& key, Bytes workspace, Executor* executor) noexcept {
  const std::size_t want = max_encoded_bytes(config, n);
  if (body.size() != want) return body.size() < want ? Status::truncated : Status::corrupt;
  if (n == 0) return Status::ok;
  const auto scale = static_cast<float>(static_cast<double>(n) / static_cast<double>(config.keep));
  const Status status = check_values(body.data(), config.keep, scale);
  if (failed(status)) return status;
  KeptSet set;
  if (!draw_kept(config, n, key, workspace, set)) return Status::workspace_too_small;
  scatter_kept(body.data(), set, scale, add, alpha, y, n, executor);
  return status;
}

}  // namespace

std::size_t max_encoded_bytes(const RandomKConfig& config, std::size_t n) noexcept {
  return n == 0 ? 0 : 4 * config.keep;
}

std::size_t workspace_bytes(const RandomKConfig&, std::size_t n) noexcept {
  core::Carver carver;
  (void)KeptSet::carve(carver, n);
  return carver.bytes();
}

Status encode(const RandomKConfig& config, const float* x, std::size_t n, const Key& key,
              Bytes workspace, Executor* executor, Bytes body, std::size_t& bytes) noexcept {
  bytes = max_encoded_bytes(config, n);
  if (body.size() < bytes) return Status::buffer_too_small;
  if (n == 0) return Status::ok;
  KeptSet set;
  if (!draw_kept(config, n, key, workspace, set)) return Status::workspace_too_small;
  gather_kept(x, n, set, executor, body.data());
  return Status::ok;
}

Status decode(const RandomKConfig& config, ConstBytes body, float* y, std::size_t n, const Key& key,
              Bytes workspace, Executor* executor) noexcept {
  return scatter(config, body, false, 1, y, n, key, workspace, executor);
}

Status decode_add(const RandomKConfig& config, ConstBytes body, float alpha, float* y,
                  std::size_t n, const Key& key, Bytes workspace, Executor* executor) noexcept {
  return scatter(config, body, true, alpha, y, n, key, workspace, executor);
}

}  // namespace atomo::cpu
#endif
