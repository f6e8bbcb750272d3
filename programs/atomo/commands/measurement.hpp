// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a codec does to a model: size, error, bias and speed over several draws.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "atomo/codec.hpp"
#include "commands/magnitudes.hpp"
#include "tensors/tensor_io.hpp"

namespace atomo::cli {

/// Times of a model's message, both ways.
struct Speed {
  double encode_ms = 0, decode_ms = 0;    ///< medians over the draws
  double encode_gbs = 0, decode_gbs = 0;  ///< 10^9 bytes of input a second
};

struct Measurement {
  double bytes = 0;  ///< mean over the draws of the whole container
  double bits_per_parameter = 0;
  std::optional<double> nmse;  ///< mean |decode - g|^2 / |g|^2; none when g is zero or not finite
  std::optional<double> nmse_stderr;   ///< none with one draw
  std::optional<double> bias_z;        ///< none with one draw; +-infinite for a bias without spread
  Speed speed;                         ///< of all threads, or on a device
  std::optional<Speed> of_one_thread;  ///< where there are more
  double memcpy_gbs = 0;               ///< 10^9 bytes of input a second, by one thread
  std::optional<Magnitudes> magnitudes;  ///< where they were asked for
};

using OnDraw = std::function<void(std::uint32_t draw, unsigned threads)>;

struct MeasureSettings {
  std::uint64_t seed = 0;  ///< draw d is step d of this seed
  std::uint32_t draws = 1;
  Device device = Device::cpu;
  unsigned threads = 1;
  bool names_on_wire = true;
  bool learns_ranks = true;  ///< see CompressorOptions
  bool magnitudes = false;   ///< measure large and small entries apart, too

  /// A device has no threads of the caller's.
  [[nodiscard]] bool several_threads() const { return device == Device::cpu && threads > 1; }
};

/// Encodes and decodes all tensors as one model, `draws` times after one that warms up; where there
/// are several threads, first as often by one of them. A copy of the input is timed in every draw
/// beside them. On a GPU its own time is taken, of tensors and a
/// message in its memory; copies between it and the host are left out. `on_draw` is told the number
/// of each draw and how many threads work on it. \throws InputError when a call fails.
[[nodiscard]] Measurement measure_codec(const std::vector<Tensor>& tensors, const Codec& codec,
                                        const MeasureSettings& settings, const OnDraw& on_draw);

/// Of several models, such as captures of a gradient, by one codec: means of sizes and errors, with the
/// error that the draws leave to them, and medians of times. Biases are added as independent ones.
[[nodiscard]] Measurement mean_of(const std::vector<Measurement>& measurements);

/// Mean of samples and its standard error; the error is exactly 0 when all samples are equal.
struct MeanAndError {
  double mean = 0;
  std::optional<double> standard_error;  ///< none for a single sample
};
[[nodiscard]] MeanAndError mean_and_error(const std::vector<double>& samples);

/// The mean over its standard error: 0 for a mean of exactly 0 without spread, +-infinite for
/// another without spread.
[[nodiscard]] std::optional<double> z_score(const MeanAndError& m);

}  // namespace atomo::cli
