// SPDX-License-Identifier: Apache-2.0
/// \file
/// Rotated blocks at less than a bit an entry: of each group of D entries the largest is sent, as its place and sign. That is
/// the nearest vertex of a cross-polytope, of 2D vertices: Gandikota, Kane, Maity, Mazumdar, "vqSGD: Vector Quantized
/// Stochastic Gradient Descent", AISTATS 2021 (arXiv 1911.07971), section 4, here in a rotated basis and with EDEN's scale.
///
/// A code is the place, and D more where the entry is below 0. Codes are digits of base 2D, the first the lowest, in words of
/// 1 to 8 bytes: of the width at which a digit takes the fewest bits. The last word has fewer bytes where it has fewer digits.
#include <algorithm>

#include "catalogue/rotated_blocks.hpp"

namespace atomo::catalogue {
namespace {

constexpr std::size_t kMostEntries = 1024;  ///< of a group

/// How digits of one base are packed.
struct Digits {
  std::uint64_t base;
  std::size_t of_word = 0;  ///< digits
  std::size_t word = 0;     ///< bytes

  explicit Digits(std::uint64_t base_) : base(base_) {
    std::size_t digits = 0;
    for (std::uint64_t values = 1; values <= ~std::uint64_t{0} / base;) {
      values *= base;
      ++digits;
      if (word == 0 || bytes_of(digits) * of_word < word * digits) {
        of_word = digits;
        word = bytes_of(digits);
      }
    }
  }
  /// What so many digits of one word take.
  [[nodiscard]] std::size_t bytes_of(std::size_t digits) const noexcept {
    std::uint64_t most = 0;
    for (std::size_t k = 0; k < digits; ++k) most = most * base + (base - 1);
    return (static_cast<std::size_t>(std::bit_width(most)) + 7) / 8;
  }
  [[nodiscard]] std::size_t bytes(std::size_t digits) const noexcept {
    return digits / of_word * word + bytes_of(digits % of_word);
  }
  /// Calls f(first digit, digits, bytes) for each word.
  template <typename F>
  void for_each_word(std::size_t digits, F&& f) const {
    for (std::size_t k = 0; k < digits; k += of_word) {
      const std::size_t here = std::min(of_word, digits - k);
      f(k, here, here == of_word ? word : bytes_of(here));
    }
  }
};

class RotatedGroups final : public RotatedBlocks {
 public:
  RotatedGroups(std::size_t group, std::size_t block, unsigned rotations, RotatedForm form)
      : RotatedBlocks(block, rotations, form), group_(group), digits_(2 * group) {}

  Traits traits() const override {
    Traits t;
    t.fixed_size = t.bounded = true;
    const auto padded = static_cast<double>(codes_of(block()) * group_);
    if (form() == RotatedForm::unbiased) {
      claim_unbiased(t);
      // Each group is sent as long as the largest sum of magnitudes of a group is.
      t.omega = padded * 1.001;
    }
    // The largest entries of groups are at least 1 / sqrt(D) of the groups' norms.
    if (form() == RotatedForm::mse) t.contraction = 0.9 / padded;
    return t;
  }

 private:
  std::size_t codes_of(std::size_t length) const override { return (length + group_ - 1) / group_; }
  std::size_t code_bytes(std::size_t length) const override {
    return digits_.bytes(codes_of(length));
  }

  float choose(std::span<const float> v, double energy, Words& words,
               std::span<Code> codes) const override {
    if (form() == RotatedForm::unbiased) return choose_at_random(v, words, codes);
    double along = 0;
    for (std::size_t g = 0; g < codes.size(); ++g) {
      const auto group = group_at(v, g);
      std::size_t at = 0;
      for (std::size_t i = 1; i < group.size(); ++i)
        if (std::fabs(group[i]) > std::fabs(group[at])) at = i;
      along += std::fabs(double{group[at]});
      codes[g] = code_of(at, group[at] < 0);
    }
    return scale_of(along, static_cast<double>(codes.size()), energy, v.size());
  }

  /// A group's entry i with a chance in proportion to its magnitude; what is left of the chances, where other groups have
  /// larger sums, goes to all vertices alike, whose mean is 0.
  float choose_at_random(std::span<const float> v, Words& words, std::span<Code> codes) const {
    double most = 0;
    for (std::size_t g = 0; g < codes.size(); ++g) most = std::max(most, sum_of(group_at(v, g)));
    const auto length = static_cast<double>(v.size());
    const float scale = rounded_up(most / length);
    for (std::size_t g = 0; g < codes.size(); ++g) {
      const auto group = group_at(v, g);
      double left = words.next() * 0x1p-32 * (double{scale} * length);
      std::size_t at = 0;
      while (at < group.size() && left >= std::fabs(group[at])) left -= std::fabs(group[at++]);
      if (at < group.size()) {
        codes[g] = code_of(at, group[at] < 0);
        continue;
      }
      const double chance = std::max(double{scale} * length - sum_of(group), 1e-300);
      const auto vertices = 2 * group.size();
      const auto vertex = std::min(
          static_cast<std::size_t>(left / chance * static_cast<double>(vertices)), vertices - 1);
      codes[g] = code_of(vertex / 2, vertex % 2 == 1);
    }
    return scale;
  }

  void put(Writer& out, std::span<const Code> codes) const override {
    digits_.for_each_word(codes.size(),
                          [&](std::size_t first, std::size_t count, std::size_t bytes) {
                            std::uint64_t word = 0;
                            for (std::size_t k = count; k-- > 0;)
                              word = word * digits_.base + codes[first + k];
                            for (std::size_t b = 0; b < bytes; ++b)
                              out.put(static_cast<std::uint8_t>(word >> 8 * b));
                          });
  }
  void get(Reader& in, std::span<Code> codes, std::size_t length) const override {
    digits_.for_each_word(codes.size(),
                          [&](std::size_t first, std::size_t count, std::size_t bytes) {
                            std::uint64_t word = 0;
                            for (std::size_t b = 0; b < bytes; ++b)
                              word |= std::uint64_t{in.get<std::uint8_t>()} << 8 * b;
                            for (std::size_t k = 0; k < count; ++k, word /= digits_.base)
                              codes[first + k] = static_cast<Code>(word % digits_.base);
                            require(word == 0, "a word of codes is too large");
                          });
    const std::size_t last = length - (codes.size() - 1) * group_;
    require(codes.back() % group_ < last, "a code is of an entry beyond the block");
  }
  void expand(std::span<const Code> codes, std::span<float> q) const noexcept override {
    for (std::size_t g = 0; g < codes.size(); ++g)
      q[g * group_ + codes[g] % group_] = codes[g] < group_ ? 1.0f : -1.0f;
  }

  std::span<const float> group_at(std::span<const float> v, std::size_t g) const noexcept {
    return v.subspan(g * group_, std::min(group_, v.size() - g * group_));
  }
  Code code_of(std::size_t place, bool negative) const noexcept {
    return static_cast<Code>(place + (negative ? group_ : 0));
  }
  static double sum_of(std::span<const float> group) noexcept {
    double sum = 0;
    for (const float x : group) sum += std::fabs(x);
    return sum;
  }

  std::size_t group_;
  Digits digits_;
};

}  // namespace

std::size_t group_of(double bits) {
  for (std::size_t group = 2; group < kMostEntries; ++group) {
    const Digits digits(2 * group);
    if (static_cast<double>(8 * digits.word) <= bits * static_cast<double>(digits.of_word * group))
      return group;
  }
  return kMostEntries;
}

std::shared_ptr<const OwnCodec> read_rotated_groups(double bits, SpecKeys& keys) {
  const std::size_t group = group_of(bits);
  const auto block = static_cast<std::size_t>(keys.integer("block", 64, 65536, 16384));
  const auto rotations = static_cast<unsigned>(keys.integer("rotations", 1, 3, 1));
  const auto form = keys.choice("form", {"published", "mse", "unbiased"}, 0);
  return std::make_shared<RotatedGroups>(group, block, rotations, static_cast<RotatedForm>(form));
}

}  // namespace atomo::catalogue
