// SPDX-License-Identifier: Apache-2.0
/// \file
/// The text of --split is parsed here, and each kind of split has a function that computes the
/// share of one worker. Every worker repeats the same draws from the seed of the run, so the shares
/// fit together without any messages.

#include "learning/split.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string_view>

#include "learning/data_order.hpp"

namespace train {
namespace {

using Kind = SplitSpec::Kind;
using Numbers = std::vector<std::uint32_t>;
using ByClass = std::vector<Numbers>;
constexpr std::uint32_t kMostClasses = 65536;  // a label has 16 bits

struct Grammar {
  std::string_view name;
  Kind kind;
  std::string_view keys;  ///< that it takes besides samples
};
constexpr Grammar kGrammar[] = {{"iid", Kind::iid, ""},
                                {"classes", Kind::classes, "k, shift, "},
                                {"dirichlet", Kind::dirichlet, "alpha, "},
                                {"blocks", Kind::blocks, "r, "},
                                {"duplicate", Kind::duplicate, "r, "}};

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw std::runtime_error("--split '" + text + "': " + why);
}

template <class T>
void read_value(const std::string& text, std::string_view key, std::string_view value, T least,
                T most, T& out) {
  T read{};
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), read);
  if (error == std::errc{} && end == value.data() + value.size() && read >= least && read <= most) {
    out = read;
    return;
  }
  std::string range = "a number above 0";
  if constexpr (std::is_integral_v<T>)
    range = "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  refuse(text, std::string(key) + " is '" + std::string(value) + "', it has to be " + range);
}

void read_key(const std::string& text, const Grammar& grammar, std::string_view item,
              SplitSpec& split) {
  constexpr std::uint32_t kMany = 1'000'000'000;
  const auto equals = item.find('=');
  const auto key = item.substr(0, equals);
  const auto value = equals == item.npos ? std::string_view() : item.substr(equals + 1);
  const std::string keys = std::string(grammar.keys) + "samples";
  std::string listed = " ", wanted = " ";
  listed += keys;
  listed += ',';
  wanted += key;
  wanted += ',';
  if (key.empty() || listed.find(wanted) == std::string::npos) {
    refuse(text, "there is no key '" + std::string(key) + "'; " + std::string(grammar.name) +
                     " takes " + keys);
  }
  if (key == "k") read_value<std::uint32_t>(text, key, value, 1, kMostClasses, split.classes);
  if (key == "shift") read_value<std::uint32_t>(text, key, value, 0, kMostClasses - 1, split.shift);
  if (key == "alpha") read_value(text, key, value, 1e-9, 1e9, split.alpha);
  if (key == "r") read_value<std::uint32_t>(text, key, value, 1, 65535, split.r);
  if (key == "samples") read_value<std::uint32_t>(text, key, value, 1, kMany, split.samples);
}

Numbers all_of(std::size_t count) {
  Numbers numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0U);
  return numbers;
}

/// Of the splits' own draws, whatever the epochs' are.
std::mt19937_64 random_of(std::uint64_t seed) {
  constexpr std::uint32_t kOfSplits = 0x73706c69;
  std::seed_seq seeds{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                      kOfSplits};
  return std::mt19937_64(seeds);
}

/// The samples of each class, in an order that the seed gives.
ByClass by_class(const Samples& samples, const char* split, std::mt19937_64& random) {
  if (samples.labels.size() != samples.count) {
    throw std::runtime_error(std::string("--split ") + split +
                             " needs samples with labels, such as images; this data has none: take "
                             "iid, blocks or duplicate");
  }
  ByClass of(samples.classes);
  for (std::uint32_t k = 0; k < samples.count; ++k) of[samples.labels[k]].push_back(k);
  for (auto& numbers : of) shuffle(numbers, random);
  return of;
}

/// Part `k` of `total` in `parts` that differ by one at most.
std::size_t part_of(std::size_t total, std::size_t k, std::size_t parts) {
  return total / parts + (k < total % parts ? 1 : 0);
}

Share iid(const SplitSpec& split, const Samples& samples, std::size_t worker, std::size_t workers,
          std::uint64_t seed) {
  Share share{all_of(samples.count), 0, worker, workers};
  if (split.samples == 0) return share;
  const std::size_t wanted = split.samples * workers;
  if (wanted > samples.count) {
    throw std::runtime_error("--split iid:samples=" + std::to_string(split.samples) + " of " +
                             std::to_string(workers) + " workers needs " + std::to_string(wanted) +
                             " samples, the training set has " + std::to_string(samples.count));
  }
  auto random = random_of(seed);
  shuffle(share.samples, random);
  share.samples.resize(wanted);
  return share;
}

/// A class's samples form a circle on which the workers that have it begin at equal distances: with
/// more samples than lie between two of them, they overlap.
Share classes(const SplitSpec& split, const Samples& samples, std::size_t worker,
              std::size_t workers, std::uint64_t seed) {
  auto random = random_of(seed);
  const auto of = by_class(samples, "classes", random);
  const std::size_t all_classes = of.size();
  if (split.classes > all_classes || split.shift >= all_classes) {
    throw std::runtime_error("--split classes:k=" + std::to_string(split.classes) +
                             ",shift=" + std::to_string(split.shift) + ": the data have " +
                             std::to_string(all_classes) +
                             " classes; k is at most that, and shift below it");
  }
  const auto has = [&](std::size_t i, std::size_t c) {
    return (c + all_classes - i * split.shift % all_classes) % all_classes < split.classes;
  };
  Share share{{}, static_cast<std::uint32_t>(worker)};
  for (std::size_t j = 0; j < split.classes; ++j) {
    const std::size_t c = (worker * split.shift + j) % all_classes;
    std::size_t before = 0, holders = 0;
    for (std::size_t i = 0; i < workers; ++i) {
      before += i < worker && has(i, c) ? 1 : 0;
      holders += has(i, c) ? 1 : 0;
    }
    const std::size_t all = of[c].size(), first = all * before / holders;
    const std::size_t count = split.samples == 0 ? all * (before + 1) / holders - first
                                                 : part_of(split.samples, j, split.classes);
    if (count > all) {
      throw std::runtime_error("--split classes with samples=" + std::to_string(split.samples) +
                               " needs " + std::to_string(count) + " of class " +
                               std::to_string(c) + ", the training set has " + std::to_string(all));
    }
    for (std::size_t at = first; at < first + count; ++at) share.samples.push_back(of[c][at % all]);
  }
  return share;
}

double uniform(std::mt19937_64& random) {  // in (0, 1)
  return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
}

/// The logarithm of a draw from the gamma distribution of this shape (Marsaglia and Tsang 2000);
/// small shapes draw numbers too small to hold.
double log_gamma_draw(double shape, std::mt19937_64& random) {
  const double boost = shape < 1 ? std::log(uniform(random)) / shape : 0;
  const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double radius = std::sqrt(-2 * std::log(uniform(random)));
    const double normal = radius * std::cos(2 * std::numbers::pi * uniform(random));
    const double v = std::pow(1 + c * normal, 3);
    if (1 + c * normal <= 0) continue;
    if (std::log(uniform(random)) < normal * normal / 2 + d - d * v + d * std::log(v))
      return boost + std::log(d * v);
  }
}

/// Worker after worker draws a class for each of its samples, of those that are left.
Share dirichlet(const SplitSpec& split, const Samples& samples, std::size_t worker,
                std::size_t workers, std::uint64_t seed) {
  auto random = random_of(seed);
  auto left = by_class(samples, "dirichlet", random);
  const std::size_t each = split.samples == 0 ? samples.count / workers : split.samples;
  if (each * workers > samples.count) {
    throw std::runtime_error("--split dirichlet with samples=" + std::to_string(each) + " for " +
                             std::to_string(workers) + " workers needs " +
                             std::to_string(each * workers) + " samples, the training set has " +
                             std::to_string(samples.count));
  }
  Share share{{}, static_cast<std::uint32_t>(worker)};
  for (std::size_t i = 0; i <= worker; ++i) {
    std::vector<double> share_of_class(left.size());
    for (auto& logarithm : share_of_class) logarithm = log_gamma_draw(split.alpha, random);
    for (std::size_t k = 0; k < each; ++k) {
      double most = -INFINITY;  // of the classes that are left: the exponentials cannot all vanish
      for (std::size_t c = 0; c < left.size(); ++c)
        if (!left[c].empty()) most = std::max(most, share_of_class[c]);
      std::vector<double> up_to(left.size());
      double total = 0;
      for (std::size_t c = 0; c < left.size(); ++c)
        up_to[c] = total += left[c].empty() ? 0 : std::exp(share_of_class[c] - most);
      const double drawn = total * uniform(random);
      std::size_t c = 0;
      while (left[c].empty() || (up_to[c] <= drawn && up_to[c] < total)) ++c;
      if (i == worker) share.samples.push_back(left[c].back());
      left[c].pop_back();
    }
  }
  return share;
}

/// The samples of the blocks with the numbers `mine`, of `blocks` of the same length.
Numbers of_blocks(const SplitSpec& split, const Samples& samples,
                  const std::vector<std::size_t>& mine, std::size_t blocks) {
  const std::size_t each = samples.count / blocks;
  Numbers numbers;
  for (std::size_t k = 0; k < mine.size(); ++k) {
    const std::size_t wanted = split.samples == 0 ? each : part_of(split.samples, k, mine.size());
    if (wanted > each || each == 0) {
      throw std::runtime_error("--split makes " + std::to_string(blocks) + " blocks of " +
                               std::to_string(each) + " samples, a worker wants " +
                               std::to_string(std::max<std::size_t>(wanted, 1)) +
                               " of each of its " + std::to_string(mine.size()));
    }
    for (std::size_t j = 0; j < wanted; ++j)
      numbers.push_back(static_cast<std::uint32_t>(mine[k] + j * blocks));
  }
  return numbers;
}

Share blocks(const SplitSpec& split, const Samples& samples, std::size_t worker,
             std::size_t workers) {
  if (split.r > workers) {
    throw std::runtime_error("--split blocks:r=" + std::to_string(split.r) + " has sets of " +
                             std::to_string(split.r) + " workers, there are " +
                             std::to_string(workers));
  }
  // The sets of r workers in the order of their masks.
  std::vector<bool> set(workers);
  std::fill(set.begin(), set.begin() + split.r, true);
  std::vector<std::size_t> mine;
  std::size_t count = 0;
  do {
    if (set[worker]) mine.push_back(count);
    if (++count > samples.count) {
      throw std::runtime_error("--split blocks:r=" + std::to_string(split.r) + " of " +
                               std::to_string(workers) + " workers makes more blocks than the " +
                               std::to_string(samples.count) + " samples");
    }
  } while (std::prev_permutation(set.begin(), set.end()));
  return {of_blocks(split, samples, mine, count), static_cast<std::uint32_t>(worker)};
}

Share duplicate(const SplitSpec& split, const Samples& samples, std::size_t worker,
                std::size_t workers) {
  if (workers % split.r != 0) {
    throw std::runtime_error("--split duplicate:r=" + std::to_string(split.r) +
                             " needs a multiple of " + std::to_string(split.r) +
                             " workers, there are " + std::to_string(workers));
  }
  const std::size_t block = worker / split.r;
  return {of_blocks(split, samples, {block}, workers / split.r), static_cast<std::uint32_t>(block)};
}

}  // namespace

SplitSpec SplitSpec::parse(const std::string& text) {
  const auto name_end = text.find_first_of(":,");
  const auto name = std::string_view(text).substr(0, name_end);
  const auto* grammar = std::find_if(std::begin(kGrammar), std::end(kGrammar),
                                     [&](const Grammar& known) { return known.name == name; });
  if (grammar == std::end(kGrammar)) {
    std::string names;
    for (const auto& known : kGrammar)
      names += (names.empty() ? "" : ", ") + std::string(known.name);
    refuse(text, "there is no split '" + std::string(name) + "'; there are " + names +
                     ", with keys as in classes:k=8,shift=4,samples=1000");
  }
  SplitSpec split;
  split.kind = grammar->kind;
  if (name_end == std::string::npos) return split;
  std::string_view rest = std::string_view(text).substr(name_end + 1);
  for (;;) {
    const auto comma = rest.find(',');
    read_key(text, *grammar, rest.substr(0, comma), split);
    if (comma == rest.npos) return split;
    rest.remove_prefix(comma + 1);
  }
}

Share share_of(const SplitSpec& split, const Samples& samples, std::size_t worker,
               std::size_t workers, std::uint64_t seed) {
  switch (split.kind) {
    case Kind::classes:
      return classes(split, samples, worker, workers, seed);
    case Kind::dirichlet:
      return dirichlet(split, samples, worker, workers, seed);
    case Kind::blocks:
      return blocks(split, samples, worker, workers);
    case Kind::duplicate:
      return duplicate(split, samples, worker, workers);
    case Kind::iid:
      break;
  }
  return iid(split, samples, worker, workers, seed);
}

}  // namespace train
