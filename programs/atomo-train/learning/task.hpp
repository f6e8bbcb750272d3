// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a network learns: its samples, what goes in and is predicted, and how a test is told.
/// Classes of images, the next character of a text, or the optimum of quadratics.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace train {

struct ImageShape {
  std::int64_t channels = 1, height = 28, width = 28;
  std::int64_t classes = 10;  ///< that images are of; targets are below
  [[nodiscard]] std::size_t pixels() const noexcept {
    return static_cast<std::size_t>(channels * height * width);
  }
};
struct TextShape {
  std::int64_t characters = 0;  ///< that a network sees at once
};
/// Quadratics of a rows x columns matrix.
struct QuadraticShape {
  std::int64_t rows = 1, columns = 1;
  std::vector<float> start;  ///< the first weights, rows x columns
};
/// A model of the program's own knows what goes into it.
struct OwnShape {};
/// What goes into a network.
using InputShape = std::variant<ImageShape, TextShape, QuadraticShape, OwnShape>;

inline constexpr std::int64_t kCharacters = 256;  ///< a character is a byte

enum class Split { train, test };

/// Samples ready for a network. A task fills what its networks read.
struct Batch {
  std::vector<float> pixels;             ///< normalised, samples x channels x height x width
  std::vector<std::int64_t> characters;  ///< samples x characters
  std::vector<std::int64_t> targets;     ///< a class a sample, or what follows each character
  double smoothing =
      0;  ///< share of each target that is spread evenly over all classes, in training
  std::vector<std::uint32_t> numbers;     ///< of the samples, for models of the program's own
  Split split = Split::train;             ///< that they are of
  std::uint32_t step = 0, worker = 0;     ///< of training: dropout draws by them
  std::vector<double> curvatures, pulls;  ///< of quadratics, samples x rows x columns
};

inline constexpr std::int64_t kTop = 5;

/// Sums over the predictions of a test, or of a training step.
struct Score {
  std::uint64_t correct = 0, predictions = 0;
  std::uint64_t top5 = 0;        ///< targets among the five that are held most likely
  double loss = 0;               ///< cross-entropy (natural logarithm), or a quadratic's value
  double squared_distance = 0;   ///< to a quadratic's optimum
  std::uint64_t broken_off = 0;  ///< not 0 when not all samples were tried
};

/// Of a sample in a test.
struct Prediction {
  std::int64_t target = 0, predicted = 0;  ///< classes
  float score = 0;                         ///< probability that the network gives what it predicts
};

/// How a test is told.
struct Measure {
  const char* key;   ///< in JSON
  const char* name;  ///< in front of a figure
  double (*of)(const Score&);
  std::string (*text)(double);  ///< with its unit
  bool is_accuracy = false;     ///< the share of predictions that are right
};

/// Adds up what several processes, or several batches, found.
Score& operator+=(Score& total, const Score& part) noexcept;

class Task {
 public:
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  [[nodiscard]] virtual InputShape input() const = 0;
  [[nodiscard]] virtual const Measure& measure() const = 0;
  [[nodiscard]] virtual std::size_t samples(Split split) const = 0;
  /// The class of every training sample, below `classes()`; empty where samples have none.
  [[nodiscard]] virtual std::span<const std::uint16_t> labels() const { return {}; }
  /// Of the samples; 0 where they have none.
  [[nodiscard]] virtual std::size_t classes() const { return 0; }
  /// A black pixel of each channel as networks see it; empty where samples are no images.
  [[nodiscard]] virtual std::span<const float> black() const { return {}; }
  /// The samples with the numbers `which` into `batch`.
  virtual void gather(Split split, std::span<const std::uint32_t> which, Batch& batch) const = 0;

 protected:
  Task() = default;
};

/// The task that `model` is for, over the data at `path`. `pixels` and `image_size`: as the options
/// have them.
/// \throws std::runtime_error naming the file that is missing or wrong, and what would be right.
[[nodiscard]] std::unique_ptr<Task> make_task(const std::string& model, const std::string& path,
                                              const std::string& pixels, std::uint32_t image_size);
/// Where a distribution keeps data for `model`; empty when nobody but the user can have it.
[[nodiscard]] std::string default_data(const std::string& model);

}  // namespace train
