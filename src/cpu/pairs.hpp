// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Writes and reads bodies of singular pairs with dithered factors (format/pair_body.hpp), in the
/// loops that rows and blocks have too (atoms_encode.cpp, atoms_decode.cpp).

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/workspace.hpp"
#include "cpu/decode_mode.hpp"
#include "cpu/svd.hpp"
#include "format/pair_body.hpp"
#include "math/selection.hpp"

namespace atomo::cpu {

/// Where the factors of kept pairs are decoded to, one behind the other in the order of pairs.
struct PairFactors {
  std::span<float> shorter;  ///< room for PairLayer::count rows of shorter() entries
  std::span<float> longer;   ///< the same of longer() entries
  std::size_t kept = 0;
  double scale = 1;  ///< what products are multiplied by, a power of two

  PairFactors(const PairLayer& layer, Carver& carver) noexcept
      : shorter(carver.take<float>(layer.count * layer.view.shorter())),
        longer(carver.take<float>(layer.count * layer.view.longer())) {}
};
/// Any bytes at all give `ok` or `corrupt`. `how.gain` multiplies the steps of the second factors; what
/// it says of an output is not meant.
Status decode_pair_factors(ConstBytes body, const PairLayer& layer, float price, DecodeMode how,
                           const Key& key, Executor* executor, PairFactors& factors) noexcept;
/// Walks the index of a body: how many pairs it holds.
Status inspect_pairs(ConstBytes body, const PairLayer& layer, std::uint64_t& kept) noexcept;

/// `amplitudes` are sigma times `pair_amplitude`; `price` is at least the price of `min_price_code`
/// (`unsupported` otherwise). `workspace` has `encode_workspace_bytes` of the pairs. `bytes` is 0 when
/// no pair was kept.
Status encode_pairs(const SingularPairs& pairs, const PairLayer& layer,
                    std::span<const double> amplitudes, float price, const Key& key,
                    Executor* executor, Bytes body, Bytes workspace, std::size_t& bytes,
                    Selection selection = Selection::drawn) noexcept;

}  // namespace atomo::cpu
