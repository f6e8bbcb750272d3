// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What workers tell each other of single entries' squares, beside the means of second_moment.hpp.
///
/// Each worker keeps the running mean v of g^2 of every entry of a matrix, as Adam would of its own
/// gradients. Of entry (i, j) it tells log(v_ij mean(v) / (row mean i of v x column mean j of v)): the
/// logarithm of how many times larger the square is than its row and its column say. One worker tells an
/// entry for all of them, and `parts` messages go over all entries, so that such a message has one of
/// parts x workers entries. It is a container of one layer, coded by dithered blocks without draws
/// (`content=nearest`): what is left out is 0, which is what the means alone say.

#include <atomo/atomo.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "learning/second_moment.hpp"

namespace train {

struct EntrySquaresSettings {
  std::size_t worker = 0, workers = 1;
  std::size_t parts = 5;  ///< messages until each entry was told
  double bits = 1;        ///< of a message, for each entry that is in it
  double beta2 = 0.999;   ///< of the running means
};

class EntrySquares {
 public:
  EntrySquares(std::vector<FactoredLayer> layers, EntrySquaresSettings settings);

  /// Takes the squares of layer `number` of the model, in units of `scale`^2; at every step.
  void add(std::size_t number, std::span<const float> gradient, double scale);
  /// This worker's message number `message` about entries, valid until the next call.
  [[nodiscard]] atomo::ConstBytes encode(const atomo::Key& key, std::size_t message);
  [[nodiscard]] std::size_t max_bytes() const noexcept { return message_.size(); }

  /// Reads the message of that number of `worker` and gives `see` the logarithms in it, of entries that
  /// begin at `at` among the model's weights, once for each layer that it has entries of.
  using See = std::function<void(std::size_t at, std::span<const float> logarithms)>;
  [[nodiscard]] atomo::Status decode(atomo::ConstBytes bytes, std::size_t message,
                                     std::size_t worker, const See& see);

  /// The running means, of all layers one behind the other: this worker's own state.
  [[nodiscard]] std::vector<float>& squares() noexcept { return squares_; }

 private:
  /// Calls `each(layer, first, count, at)` for the entries of a part, a layer at a time: `count` of it from
  /// entry `first` on, which are at `at` in the message.
  template <class Each>
  void for_each_layer_of(std::size_t message, std::size_t worker, Each each) const;

  std::vector<FactoredLayer> layers_;
  std::vector<std::size_t>
      begin_;  ///< of each layer among all entries; behind the last, their number
  EntrySquaresSettings settings_;
  std::size_t chunk_ = 0;       ///< entries of a message
  std::vector<float> squares_;  ///< running means, from 0
  std::vector<float> values_;   ///< of a message
  std::unique_ptr<atomo::Compressor> compressor_;
  std::vector<std::byte> message_, workspace_;
};

}  // namespace train
