// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A codec on a size, with all that a call of it needs.

#include <time.h>

#include <algorithm>
#include <array>
#include <atomo/atomo.hpp>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sizes.hpp"
#include "specs.hpp"

namespace atomo::bench {

/// Reads the clock in seconds. One thread is timed by the processor time of the program, which other
/// programs do not lengthen. Several are timed by the time of day.
class Clock {
 public:
  explicit Clock(unsigned threads)
      : clock_(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC) {}
  [[nodiscard]] double now() const {
    timespec time{};
    clock_gettime(clock_, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

 private:
  clockid_t clock_;
};

enum class Operation { first, encode, decode, decode_add, decode_add_8 };

/// Messages that `decode_add_8` adds in one call: the same one, again and again.
inline constexpr std::size_t kAdded = 8;

/// The gradients of the size that was asked for last.
inline const std::vector<float>& gradients_of(const Size& size) {
  static std::vector<float> values;
  static std::vector<LayerSpec> made_for;
  static float low_rank = 0;
  const auto same = [](const LayerSpec& a, const LayerSpec& b) { return a.shape == b.shape; };
  if (low_rank != size.low_rank ||
      !std::equal(made_for.begin(), made_for.end(), size.layers.begin(), size.layers.end(), same)) {
    values = {};  // never two big ones at once
    values = make_gradients(size.layers, size.low_rank);
    made_for = size.layers;
    low_rank = size.low_rank;
  }
  return values;
}

/// A model under one codec, its message and its buffers. One tensor is a model of a layer.
class CodecCase {
 public:
  /// \throws Error when the codec refuses the tensors.
  CodecCase(std::string spec, const Size& size, Executor* executor)
      : spec_(std::move(spec)),
        size_(size),
        executor_(executor),
        gradients_(gradients_of(size)),
        decoded_(gradients_.size()) {
    begin();
    message_.resize(model_->max_encoded_bytes());
    workspace_.resize(std::max(model_->encode_workspace_bytes(), model_->decode_workspace_bytes()));
    std::size_t at = 0;
    for (const auto& layer : model_->layers()) {
      in_.push_back({gradients_.data() + at, DType::f32, layer.shape});
      out_.push_back({decoded_.data() + at, DType::f32, layer.shape});
      at += layer.shape.elements();
    }
    prepare(Operation::encode);
  }

  /// Brings everything to where one call of the operation starts from, as often as there are calls.
  void prepare(Operation operation) {
    if (operation == Operation::first) {
      begin();
    } else {
      learn();
    }
    const bool reads = operation == Operation::first || operation == Operation::encode;
    if (!is_cold(operation)) return;
    if (reads) {
      flush(gradients_.data(), tensor_bytes());
    } else {
      flush(decoded_.data(), tensor_bytes());
    }
    flush(message_.data(), static_cast<std::size_t>(bytes_));
  }

  [[nodiscard]] Status run(Operation operation) {
    const Context context{.workspace = workspace_, .executor = executor_};
    const ConstBytes sent(message_.data(), static_cast<std::size_t>(bytes_));
    switch (operation) {
      case Operation::decode:
        return model_->decode(sent, out_, context);
      case Operation::decode_add:
        return model_->decode_add(sent, 0.25f, out_, context);
      case Operation::decode_add_8:
        return model_->decode_add_all(
            std::array<ConstBytes, kAdded>{sent, sent, sent, sent, sent, sent, sent, sent}, 0.25f,
            out_, context);
      default:
        ++messages_;
        return model_->encode(in_, {.seed = 1}, {message_.data(), message_.size(), &bytes_},
                              context);
    }
  }

  /// Each call needs `prepare`, which takes time of its own.
  [[nodiscard]] bool is_prepared_each(Operation operation) const {
    return operation == Operation::first || is_cold(operation);
  }

  /// Bytes a second of a memcpy of the tensor, a byte copied counted once: the median of some copies.
  [[nodiscard]] double memcpy_speed(const Clock& clock) {
    const std::size_t copies =
        size_.is_cold ? 5 : std::max<std::size_t>(5, (std::size_t{1} << 26) / (tensor_bytes() + 1));
    std::vector<double> seconds;
    std::memcpy(decoded_.data(), gradients_.data(), tensor_bytes());
    for (std::size_t i = 0; i < copies; ++i) {
      if (size_.is_cold) {
        flush(gradients_.data(), tensor_bytes());
        flush(decoded_.data(), tensor_bytes());
      }
      const double start = clock.now();
      std::memcpy(decoded_.data(), gradients_.data(), tensor_bytes());
      asm volatile("" : : : "memory");
      seconds.push_back(clock.now() - start);
    }
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(copies / 2);
    std::nth_element(seconds.begin(), middle, seconds.end());
    std::fill(decoded_.begin(), decoded_.end(), 0.0f);
    return static_cast<double>(tensor_bytes()) / *middle;
  }

  [[nodiscard]] const std::string& spec() const { return spec_; }
  [[nodiscard]] const Size& size() const { return size_; }
  [[nodiscard]] std::size_t tensor_bytes() const { return gradients_.size() * sizeof(float); }
  [[nodiscard]] double bits_per_parameter() const {
    return 8.0 * static_cast<double>(bytes_) / static_cast<double>(gradients_.size());
  }

 private:
  /// A model that has learnt nothing.
  void begin() {
    model_.emplace(size_.layers, Policy(Codec::parse(spec_)));
    messages_ = 0;
  }

  /// Encodes until the ranks of sketches and the prices are learnt.
  void learn() {
    const bool has_state = spec_.starts_with("atomo") && !is_svd(spec_);
    while (messages_ < (has_state ? 3 : 1)) {
      const Status status = run(Operation::encode);
      if (failed(status)) throw Error(spec_ + ": " + std::string(describe(status)));
    }
  }

  [[nodiscard]] bool is_cold(Operation operation) const {
    return size_.is_cold || operation == Operation::first;
  }

  std::string spec_;
  Size size_;
  Executor* executor_;
  const std::vector<float>& gradients_;
  std::vector<float> decoded_;
  std::optional<Compressor> model_;
  int messages_ = 0;  // of this model so far
  std::vector<std::byte> message_, workspace_;
  std::vector<ConstTensorView> in_;
  std::vector<TensorView> out_;
  std::uint64_t bytes_ = 0;
};

}  // namespace atomo::bench
