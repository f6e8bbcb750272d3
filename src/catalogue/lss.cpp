// SPDX-License-Identifier: Apache-2.0
/// \file
/// LSS: entries are clustered, and every cluster gets a share of a table in which each cell is the mean of the entries that are hashed to it.
/// The codec of the project LSS_SGD (its codings/LSSSimplified.py and ClusterStaticNoThreshold.py): of each sign, the entries beyond a
/// percentile are a cluster whose centre is the percentile, k-means clusters the others; cells are shared in proportion to entropy times
/// |centre| times density; an entry's cluster is sent in a Huffman code. The entropy is that of a histogram of 5 bins between a
/// cluster's least and largest entry, three times that for the tail, and each sign's entropies and densities sum up to 1.
///
/// Differences: clusters follow from a sample of 8,192 entries; k-means begins at quantiles; cells are those of a hash with drawn
/// seeds that both ends have; zeros count as a sign of their own, which has no cells and decodes to zeros.
///
/// `form=unbiased` shares levels instead of cells: each cluster gets levels at its quantiles by the same rule, an entry is rounded to
/// one of the two neighbouring levels of its sign at random, and places are sent in a Huffman code.
///
/// Body, published: for each cluster u32 its cells, the cells, f32, and the clusters' numbers (huffman.hpp), 0 for zeros. Unbiased:
/// 2^bits levels, f32, ascending, and places (huffman.hpp).
#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "catalogue/codebook_levels.hpp"
#include "catalogue/definitions.hpp"
#include "catalogue/huffman.hpp"

namespace atomo::catalogue {
namespace {

constexpr std::uint64_t kSampleWords = std::uint64_t{1} << 41;

/// log2 by its series, the same on every machine.
double log2_of(double v) noexcept {
  int exponent = 0;
  const double t = std::frexp(v, &exponent), z = (t - 1) / (t + 1), square = z * z;
  double sum = 0, power = z;
  for (int k = 1; k < 60; k += 2, power *= square) sum += power / k;
  return exponent + 2 * sum / 0.693147180559945309;
}

/// A stretch of the sorted magnitudes of one sign.
struct Cluster {
  float centre = 0;
  double entropy = 0, density = 0;
  std::size_t first = 0, last = 0;  ///< in the sample
};

/// Bits of the entropy of a histogram of 5 bins.
double entropy_of(std::span<const float> sorted) {
  if (sorted.empty() || sorted.front() == sorted.back()) return 0;
  double entropy = 0;
  std::size_t below = 0;
  const double low = sorted.front(), width = (double{sorted.back()} - low) / 5;
  for (int bin = 1; bin <= 5; ++bin) {
    std::size_t until = sorted.size();
    if (bin < 5)
      until = static_cast<std::size_t>(std::ranges::lower_bound(sorted, low + bin * width, {},
                                                                [](float v) { return double{v}; }) -
                                       sorted.begin());
    const double share = static_cast<double>(until - below) / static_cast<double>(sorted.size());
    if (share > 0) entropy -= share * log2_of(share);
    below = until;
  }
  return entropy;
}

/// `count` clusters of ascending magnitudes; the last is the tail.
std::vector<Cluster> clusters_of(std::span<const float> sorted, std::size_t count,
                                 double percentile) {
  std::vector<Cluster> clusters(count);
  if (sorted.empty()) return clusters;
  const auto size = static_cast<double>(sorted.size());
  const auto tail = std::min(static_cast<std::size_t>(percentile / 100 * size), sorted.size() - 1);
  std::vector<float> centres;
  if (tail > 0) centres = lloyd_levels(sorted.first(tail), count - 1);
  std::size_t first = 0;
  double entropies = 0;
  for (std::size_t c = 0; c < count; ++c) {
    Cluster& cluster = clusters[c];
    cluster.first = first;
    cluster.last = sorted.size();
    if (c + 2 < count && tail > 0) {
      const double border = (double{centres[c]} + centres[c + 1]) / 2;
      cluster.last = static_cast<std::size_t>(
          std::ranges::lower_bound(sorted, border, {}, [](float v) { return double{v}; }) -
          sorted.begin());
      cluster.last = std::clamp(cluster.last, first, tail);
    } else if (c + 1 < count) {
      cluster.last = tail;
    }
    const auto entries = sorted.subspan(cluster.first, cluster.last - cluster.first);
    cluster.centre = c + 1 == count ? sorted[tail] : tail > 0 ? centres[c] : 0;
    cluster.entropy = entropy_of(entries) * (c + 1 == count ? 3 : 1);
    cluster.density = static_cast<double>(entries.size()) / size;
    entropies += cluster.entropy;
    first = cluster.last;
  }
  for (Cluster& cluster : clusters) cluster.entropy /= entropies > 0 ? entropies : 1;
  return clusters;
}

/// Shares `total` in proportion to entropy |centre| density, at least `least` for each that has entries.
std::vector<std::size_t> shares_of(std::span<const Cluster> clusters, std::size_t total,
                                   std::size_t least) {
  std::vector<double> weights;
  double sum = 0, largest = 0;
  for (const Cluster& c : clusters) largest = std::max(largest, double{c.centre});
  for (const Cluster& c : clusters) {
    weights.push_back(largest > 0 ? c.entropy * (c.centre / largest) * c.density : 0);
    sum += weights.back();
  }
  std::vector<std::size_t> shares;
  for (std::size_t c = 0; c < clusters.size(); ++c) {
    const auto share =
        static_cast<std::size_t>(sum > 0 ? static_cast<double>(total) * (weights[c] / sum) : 0);
    shares.push_back(clusters[c].first == clusters[c].last ? 0 : std::max(share, least));
  }
  return shares;
}

class Lss final : public OwnCodec {
 public:
  Lss(std::size_t clusters, double percentile, double cells)
      : clusters_(clusters), percentile_(percentile), cells_(cells) {}
  Lss(std::size_t clusters, double percentile, unsigned bits)
      : clusters_(clusters), percentile_(percentile), bits_(bits) {}

  Traits traits() const override {
    Traits t;
    if (bits_ != 0) claim_unbiased(t);
    return t;
  }

  std::size_t max_bytes(const Shape& shape) const override {
    const std::size_t n = shape.elements();
    if (bits_ > 0) return (std::size_t{4} << bits_) + symbols_bound(n, bits_);
    return 8 * clusters_ + 4 * (total_cells(n) + 2 * clusters_ * kLeastCells) +
           symbols_bound(n, number_bits());
  }

  std::size_t encode(std::span<const float> x, const OwnLayer& layer, Bytes body) const override {
    Words sample_words(layer.draws, kSampleWords);
    const std::vector<float> sorted = sorted_sample(x, sample_words);
    const auto negative =
        static_cast<std::size_t>(std::ranges::lower_bound(sorted, 0.0f) - sorted.begin());
    const auto positive =
        static_cast<std::size_t>(std::ranges::upper_bound(sorted, 0.0f) - sorted.begin());
    std::array<std::vector<float>, 2> magnitudes{
        std::vector<float>(sorted.begin() + static_cast<std::ptrdiff_t>(positive), sorted.end()),
        std::vector<float>(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(negative))};
    for (float& v : magnitudes[1]) v = -v;
    std::ranges::reverse(magnitudes[1]);
    std::vector<Cluster> clusters;
    for (const auto& of_sign : magnitudes) {
      const auto clusters_of_sign = clusters_of(of_sign, clusters_, percentile_);
      clusters.insert(clusters.end(), clusters_of_sign.begin(), clusters_of_sign.end());
    }
    Writer out(body);
    if (bits_ > 0)
      put_levels(out, x, magnitudes, clusters, layer.draws);
    else
      put_cells(out, x, clusters, layer.draws);
    return out.bytes();
  }

  void decode(ConstBytes body, const OwnLayer& layer, std::span<float> y) const override {
    Reader in(body);
    std::vector<std::uint8_t> numbers(y.size());
    if (bits_ > 0) {
      std::vector<float> levels(std::size_t{1} << bits_);
      in.get_all(levels);
      get_symbols(in, numbers, bits_);
      in.end();
      for (std::size_t i = 0; i < y.size(); ++i) y[i] = levels[numbers[i]];
      return;
    }
    std::vector<std::size_t> shares(2 * clusters_);
    std::size_t total = 0;
    for (std::size_t& share : shares) total += share = in.get<std::uint32_t>();
    require(total <= in.rest().size() / 4, "there are too many cells");
    std::vector<float> cells(total);
    in.get_all(cells);
    get_symbols(in, numbers, number_bits());
    in.end();
    const auto firsts = firsts_of(shares);
    const std::uint64_t seed = seed_of(layer.draws);
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (numbers[i] == 0) continue;
      const std::size_t c = numbers[i] - 1u;
      require(c < shares.size() && shares[c] > 0, "a cluster has no cells");
      y[i] = cells[firsts[c] + cell_of(seed, i, shares[c])];
    }
  }

 private:
  static constexpr std::size_t kLeastCells = 10;

  std::size_t total_cells(std::size_t n) const noexcept {
    return static_cast<std::size_t>(std::ceil(cells_ * static_cast<double>(n)));
  }
  unsigned number_bits() const noexcept {
    return static_cast<unsigned>(std::bit_width(2 * clusters_));
  }

  static std::uint64_t seed_of(const Draws& draws) noexcept {
    std::uint32_t words[2];
    draws.fill(0, words);
    return words[0] | std::uint64_t{words[1]} << 32;
  }
  static std::vector<std::size_t> firsts_of(std::span<const std::size_t> shares) {
    std::vector<std::size_t> firsts(shares.size());
    std::exclusive_scan(shares.begin(), shares.end(), firsts.begin(), std::size_t{0});
    return firsts;
  }

  void put_cells(Writer& out, std::span<const float> x, std::span<const Cluster> clusters,
                 const Draws& draws) const {
    auto shares = shares_of(clusters, total_cells(x.size()), kLeastCells);
    // The nearest centre of the entry's sign.
    std::array<std::vector<float>, 2> centres;
    std::array<std::vector<std::size_t>, 2> names;
    for (std::size_t c = 0; c < clusters.size(); ++c) {
      if (shares[c] == 0) continue;
      centres[c / clusters_].push_back(clusters[c].centre);
      names[c / clusters_].push_back(c);
    }
    for (std::size_t s = 0; s < 2; ++s) {
      if (!centres[s].empty()) continue;  // none in the sample: the first cluster takes what comes
      centres[s].push_back(0);
      names[s].push_back(s * clusters_);
      shares[s * clusters_] = kLeastCells;
    }
    const std::array<Nearest, 2> nearest{Nearest(centres[0]), Nearest(centres[1])};
    const auto firsts = firsts_of(shares);
    const std::size_t total = firsts.back() + shares.back();
    std::vector<double> sums(total);
    std::vector<std::uint32_t> counts(total);
    std::vector<std::uint8_t> numbers(x.size());
    const std::uint64_t seed = seed_of(draws);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (x[i] == 0) continue;
      const std::size_t s = x[i] < 0 ? 1 : 0, c = names[s][nearest[s](std::fabs(x[i]))];
      const std::size_t cell = firsts[c] + cell_of(seed, i, shares[c]);
      numbers[i] = static_cast<std::uint8_t>(c + 1);
      sums[cell] += x[i];
      ++counts[cell];
    }
    for (const std::size_t share : shares) out.put(static_cast<std::uint32_t>(share));
    for (std::size_t k = 0; k < total; ++k)
      out.put(finite(counts[k] > 0 ? sums[k] / counts[k] : 0));
    put_symbols(out, numbers, number_bits());
  }

  void put_levels(Writer& out, std::span<const float> x,
                  const std::array<std::vector<float>, 2>& magnitudes,
                  std::span<const Cluster> clusters, const Draws& draws) const {
    // 0 and both ends stand for themselves; an entry that is not in the sample lies between.
    const std::size_t count = std::size_t{1} << bits_;
    const auto [least, largest] = std::ranges::minmax(x);
    std::vector<float> levels{0, std::min(least, 0.0f), std::max(largest, 0.0f)};
    const auto shares = shares_of(clusters, count - 3 - 2 * clusters_, 1);
    for (std::size_t c = 0; c < clusters.size(); ++c) {
      const auto& of_sign = magnitudes[c / clusters_];
      const Cluster& cluster = clusters[c];
      for (std::size_t j = 0; j < shares[c]; ++j) {
        const std::size_t at =
            cluster.first + (2 * j + 1) * (cluster.last - cluster.first) / (2 * shares[c]);
        levels.push_back(c < clusters_ ? of_sign[at] : -of_sign[at]);
      }
    }
    levels.resize(count, levels[2]);
    std::ranges::sort(levels);
    const RoundedAtRandom rounded(levels);
    Words words(draws, 0);
    std::vector<std::uint8_t> places(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) places[i] = rounded(x[i], words);
    out.put_all(levels);
    put_symbols(out, places, bits_);
  }

  std::size_t clusters_;
  double percentile_, cells_ = 0;
  unsigned bits_ = 0;  ///< 0: published
};

}  // namespace

CodecDefinition lss_definition() {
  return {
      .name = "lss",
      .keys = "clusters=2..16, percentile=50..99.99, cells=F, bits=5..8, form=published|unbiased",
      .summary = "clusters that share a table by entropy, centre and density (LSS), biased",
      .example = "lss:clusters=4",
      .make = [](SpecKeys& keys) -> std::shared_ptr<const OwnCodec> {
        const bool unbiased = keys.choice("form", {"published", "unbiased"}, 0) == 1;
        const auto clusters =
            static_cast<std::size_t>(keys.integer("clusters", 2, unbiased ? 8 : 16, 4));
        const double percentile = keys.number("percentile", 50, 99.99, 95);
        if (unbiased)
          return std::make_shared<Lss>(clusters, percentile,
                                       static_cast<unsigned>(keys.integer("bits", 5, 8, 5)));
        return std::make_shared<Lss>(clusters, percentile, keys.number("cells", 1e-4, 0.5, 0.01));
      }};
}

}  // namespace atomo::catalogue
