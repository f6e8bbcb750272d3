// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// All draws of one tensor.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "verify/bias.hpp"
#include "verify/findings.hpp"

namespace atomo::verify {

/// Sends one tensor through a subject. A subject that throws, or decodes to what is not finite, is a
/// finding of `send`, which then returns false.
class Channel {
 public:
  Channel(const Subject& subject, const Input& input, Findings& findings);

  /// Encodes and decodes; afterwards `message` and `decoded` hold the two.
  bool send(const Key& key);
  [[nodiscard]] std::vector<std::byte> encode(const Key& key) const;
  [[nodiscard]] std::vector<float> decode(ConstBytes message) const;
  [[nodiscard]] const std::vector<std::byte>& message() const noexcept { return message_; }
  [[nodiscard]] const std::vector<float>& decoded() const noexcept { return decoded_; }
  /// Decoded less sent.
  void error_into(std::vector<double>& error) const;

 private:
  const Subject& subject_;
  const Input& input_;
  Findings& findings_;
  std::vector<std::byte> message_;
  std::vector<float> decoded_;
};

class Trial {
 public:
  /// `finite`: of all entries. `keys`: look at how draws of different keys go together.
  Trial(const Subject& subject, const Claims& claims, const Options& options, const Input& input,
        bool keys, Findings& findings);

  void run();
  /// Once every tensor had its draws: are first messages what they were?
  void look_again();
  /// After all looks were judged.
  void report(Report& report) const;

 private:
  [[nodiscard]] Key key(std::uint32_t step, std::uint16_t worker = 0,
                        std::uint16_t tensor = 0) const;
  [[nodiscard]] Place place(const char* claim, const char* what) const;
  [[nodiscard]] bool is_outside() const;
  [[nodiscard]] bool enumerated() const noexcept { return subject_.outcomes != 0; }
  void draw_all();
  void take(std::uint32_t step);
  void look_at_repeats();
  void look_at_non_finite();
  void look_at_sizes();
  /// Numbers of a draw each, of at least 0, whose mean may be `allowed` at most.
  void look_at_mean(const Place& where, const std::vector<double>& numbers, double allowed);
  void look_at_squares();
  void look_at_layers();
  void look_at_workers();
  void look_at_zero();
  void add_products(std::uint32_t step);
  void add_lags(std::uint32_t step);
  void look_at_products();
  /// A mean that is 0 where errors are unbiased and independent, of what can be `most` in magnitude.
  void look_at_zero_mean(Place place, const Statistic& numbers, double most);

  const Subject& subject_;
  const Claims& claims_;
  const Options& options_;
  const Input& input_;
  Findings& findings_;
  Channel channel_;
  BiasLooks bias_;
  bool keys_ = false, finite_ = true, failed_ = false;
  std::uint32_t draws_ = 0;
  Statistic bytes_, squares_;
  std::vector<double> draws_of_squares_, draws_of_bytes_;
  std::vector<std::vector<std::byte>> first_messages_;
  std::vector<double> error_, sum_;  ///< of the draw; of the draws of a block
  double block_squares_ = 0;
  Statistic products_, blocks_;            ///< squared, of neighbours in time; of blocks of draws
  std::vector<std::vector<double>> ring_;  ///< errors of the last draws
  std::vector<Statistic> lags_, neighbours_;
  std::vector<Growth> growth_;
};

}  // namespace atomo::verify
