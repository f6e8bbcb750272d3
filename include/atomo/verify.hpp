// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Whether an encoder and its decoder keep what they claim: no bias, a bounded variance, a fixed size,
/// the same bytes for the same key, and more. Any two functions can be asked, of any library.
///
/// ```cpp
/// const auto codec = atomo::Codec::parse("qsgd:bits=4");
/// const atomo::verify::Report report =
///     atomo::verify::run(atomo::verify::subject_of(codec), atomo::verify::claims_of(codec));
/// bool kept = report.holds();
/// std::string text = report.to_text();
/// ```
///
/// All draws follow from `Options::seed`, so a report is the same on every run and on every machine on
/// which the subject is. These calls allocate and wait for nothing but the subject; docs/verify.md has
/// the mathematics and says which bounds are exact.

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atomo/codec.hpp"
#include "atomo/types.hpp"

namespace [[gnu::visibility("default")]] atomo {

/// Statistical checks of encoders and decoders.
namespace verify {

/// Makes a message of a tensor. What is random follows from the key; an exception refuses the tensor.
using Encode = std::function<std::vector<std::byte>(std::span<const float> x, const Shape& shape,
                                                    const Key& key)>;
/// Writes what a message says, an f32 an entry; an exception refuses the message.
using Decode = std::function<void(ConstBytes message, std::span<float> y, const Shape& shape)>;

/// What is verified.
struct Subject {
  std::string name;  ///< as reports call it
  Encode encode;     ///< a tensor to a message
  Decode decode;     ///< a message to a tensor of the same shape
  /// Not 0 where the steps 0 to `outcomes` - 1 of a key are all that can happen, each as likely as any
  /// other: then every outcome of every tensor is drawn once, and nothing has a band. At most
  /// `Options::draws`.
  std::uint64_t outcomes = 0;
};

/// What becomes of a tensor with an Inf or a NaN.
enum class NonFinite : std::uint8_t {
  any,         ///< nothing is claimed
  told,        ///< it is refused, or some decoded entry is not finite
  everywhere,  ///< it is refused, or every decoded entry is NaN
};

/// A tensor to verify with.
struct Input {
  std::string name;           ///< as reports call it
  Shape shape;                ///< of the tensor
  std::vector<float> values;  ///< row-major
};

/// What a subject claims. Only what is claimed is checked; that every finite tensor is taken and
/// decodes to finite numbers always is.
struct Claims {
  bool unbiased =
      false;  ///< E[decode(encode(x))] = x, and draws of different steps are independent
  /// What float rounding may add to an entry's mean, in units of its magnitude plus the largest
  /// decoded one.
  double bias_bound = 0x1p-20;
  std::optional<double> omega;        ///< E|decode - x|^2 <= omega |x|^2
  std::optional<double> contraction;  ///< E|decode - x|^2 <= (1 - contraction) |x|^2
  /// |decode_i| <= largest * max |x|, for every entry and draw. With it the bounds on a bias are exact.
  std::optional<double> largest;
  /// The step of a fixed grid, 0 where there is none: an entry of any tensor, however small, may decode to
  /// up to four of it. Then tensors far below the step show no bias.
  double step = 0;
  /// All claims are about tensors whose largest magnitude is not below this, or which are zero; others are
  /// not looked at.
  double smallest = 0;
  double highest = std::numeric_limits<double>::infinity();  ///< nor above this
  bool independent_workers = false;  ///< errors of workers are independent, so their mean errs less
  bool independent_entries = false;  ///< errors of different entries are uncorrelated
  bool fixed_size = false;           ///< a message's size follows from the shape alone
  std::function<std::size_t(const Shape&)> max_bytes;  ///< no message is longer; empty: not claimed
  /// The mean of a tensor's messages is at most this many bytes, a budget; infinite for a tensor of which
  /// nothing is claimed. Empty: not claimed.
  std::function<double(const Input&)> average_bytes;
  /// Whether tensors of a shape are taken, and the claims are about them; others are not looked at. Empty: all
  /// are.
  std::function<bool(const Shape&)> takes;
  bool deterministic = true;              ///< the same tensor and key give the same bytes
  bool order_free = true;                 ///< whatever was encoded or decoded in between
  NonFinite non_finite = NonFinite::any;  ///< of tensors with an Inf or a NaN
};

/// How much is drawn.
struct Options {
  std::uint64_t seed = 1;      ///< of all draws, and of the tensors that are made
  std::uint32_t draws = 4096;  ///< messages of a tensor
  std::uint64_t entries =
      1u << 23;  ///< at most so many entries of a tensor in all its draws; 64 draws at least
  double family_error = 1e-9;  ///< the chance that any check at all fails though all claims hold
  bool own_inputs = true;      ///< `generated_inputs` too, beside `inputs`
  std::vector<Input> inputs;   ///< the caller's tensors
  /// Told what is under way, now and then.
  std::function<void(const std::string&)> progress;
};

/// One claim, looked at in one way on one tensor; of several looks of a kind the worst.
struct Check {
  std::string claim;        ///< "unbiased", "omega", "fixed_size", ...
  std::string what;         ///< "bias along the gradient", ...
  std::string input;        ///< the tensor's name
  bool holds = true;        ///< false: the claim is not kept
  std::uint64_t looks = 1;  ///< how many of this kind there were
  double found = 0;         ///< the estimate that was furthest from what is allowed
  double allowed = 0;       ///< what the claim allows it to be
  double band = 0;          ///< how far the estimate may be from the truth
  std::string bound;  ///< where the band is from: "enumerated", "exact", "seen range", "compared"
  std::string note;   ///< what happened, where numbers do not say it
};

/// The bias of the entries of one octave of magnitude.
struct MagnitudeClass {
  std::string input;          ///< the tensor's name
  int octave = 0;             ///< magnitudes from 2^octave of the tensor's rms to twice that
  std::uint64_t entries = 0;  ///< of the class
  double bias = 0;  ///< of the sum of magnitudes, relative to it: -1 where nothing arrives
  double band = 0;  ///< how far `bias` may be from the truth
};

/// What was seen of one tensor.
struct InputReport {
  std::string name;         ///< of the tensor
  Shape shape;              ///< of the tensor
  std::uint64_t draws = 0;  ///< messages
  double bytes = 0;         ///< mean of a message
  double nmse = 0;          ///< mean |decode - x|^2 / |x|^2
  double degrees =
      0;            ///< of freedom of an error: its entries, where they are independent and alike
  double bias = 0;  ///< mean <decode - x, x> / |x|^2
  double band = 0;  ///< how far `bias` may be from the truth
  /// A bias along the tensor of this size, relative to it, would have been found but for the family's error.
  double missed = 0;
};

/// How the error of a mean over workers falls.
struct Growth {
  std::string input;          ///< the tensor's name
  std::uint32_t workers = 1;  ///< whose decoded tensors are averaged
  double ratio =
      1;  ///< squared error of the mean, times workers, over that of one: 1 if independent
};

/// What `run` found.
struct Report {
  std::string subject;                  ///< its name
  std::vector<std::string> claims;      ///< what was claimed, a line each
  double family_error = 0;              ///< of all looks together
  std::uint64_t looks = 0;              ///< bounds that shared it
  std::vector<Check> checks;            ///< in the order of the tensors
  std::vector<InputReport> inputs;      ///< a row a tensor
  std::vector<MagnitudeClass> classes;  ///< of tensors that a bias was looked for in
  std::vector<Growth> growth;           ///< where workers were looked at

  /// No check failed.
  [[nodiscard]] bool holds() const noexcept;
  /// Largest bias along a tensor that could have been missed, over tensors that are not zero; 0 where no
  /// bias was looked for.
  [[nodiscard]] double missed() const noexcept;
  /// For a person: the verdict, what failed, what could have been missed. Ends with a newline.
  [[nodiscard]] std::string to_text() const;
  /// All of it as one JSON object, which plots are drawn from.
  [[nodiscard]] std::string to_json() const;
};

/// Tensors that codecs go wrong on: heavy tails, low rank, spikes, constants, zeros, subnormal, tiny and
/// huge entries, odd shapes, more than 65,536 entries, Inf and NaN.
[[nodiscard]] std::vector<Input> generated_inputs(std::uint64_t seed);

/// A codec of this library on the CPU, with memory of its own: not for several threads at once. \throws
/// Error for one with a memory, which encodes in a `Compressor` alone.
[[nodiscard]] Subject subject_of(const Codec& codec);
/// What its traits promise, about shapes that it takes; no message longer than `max_encoded_bytes`, which a
/// `cap=` bounds; and with a budget (`bits=`, `ratio=`) messages of `expected_bytes` on average, up to 1/32 and
/// 24 bytes more, since a price is found from estimates, of tensors of which `encode` does not say
/// `Status::overspent`.
[[nodiscard]] Claims claims_of(const Codec& codec);

/// Draws messages of every tensor and looks at each claim. \throws Error for a subject without both
/// functions, fewer than 64 draws or than outcomes, a family error outside (0, 1), a claim that is no number of its kind,
/// or no tensor to look at.
[[nodiscard]] Report run(const Subject& subject, const Claims& claims, const Options& options = {});

}  // namespace verify
}  // namespace atomo
