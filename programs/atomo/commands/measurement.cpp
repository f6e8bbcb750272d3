// SPDX-License-Identifier: Apache-2.0
/// \file
/// A `Bench` holds a model and all the memory that a draw needs; one kind works on the CPU and one
/// on a GPU. Each draw encodes with another key, decodes into f32 and compares the result with the
/// input in double precision. The draws are then summarised: errors as a mean with its standard
/// error, times as a median.
#include "commands/measurement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>

#include "atomo/own_codec.hpp"
#include "device/device.hpp"
#include "tensors/model.hpp"
#include "terminal/failure.hpp"
#include "terminal/table.hpp"

namespace atomo::cli {
namespace {

using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

template <typename Work>
double seconds_of(Work&& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The error of one draw against the input, over the whole model.
struct Difference {
  double squared = 0;  ///< |d - g|^2
  double along = 0;    ///< <d - g, g>
  double energy = 0;   ///< |g|^2
};

Difference compare(const std::vector<Tensor>& input, const std::vector<Tensor>& decoded) {
  Difference total;
  for (std::size_t t = 0; t < input.size(); ++t) {
    const auto* g = reinterpret_cast<const float*>(input[t].data.get());
    const auto* d = reinterpret_cast<const float*>(decoded[t].data.get());
    Difference layer;
    for (std::size_t i = 0; i < input[t].shape.elements(); ++i) {
      const auto x = static_cast<double>(g[i]);
      const double error = static_cast<double>(d[i]) - x;
      layer.squared += error * error;
      layer.along += error * x;
      layer.energy += x * x;
    }
    total.squared += layer.squared;
    total.along += layer.along;
    total.energy += layer.energy;
  }
  return total;
}

std::vector<Tensor> tensors_like(const std::vector<Tensor>& tensors, std::optional<DType> dtype) {
  std::vector<Tensor> out;
  for (const Tensor& t : tensors) {
    out.push_back({t.name, dtype.value_or(t.dtype), t.shape, {}});
    out.back().data = Buffer(out.back().bytes()).data;
  }
  return out;
}

std::size_t bytes_of(const std::vector<Tensor>& tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), std::size_t{0},
                         [](std::size_t sum, const Tensor& t) { return sum + t.bytes(); });
}

/// One model, one codec and all the memory a draw needs.
class Bench {
 public:
  Bench(const std::vector<Tensor>& tensors, const Codec& codec, std::uint64_t seed)
      : tensors_(tensors),
        name_(codec.to_string()),
        seed_(seed),
        decoded_(tensors_like(tensors, DType::f32)) {
    for (const Tensor& t : tensors) {
      reference_.push_back(to_f32(t));
    }
  }
  virtual ~Bench() = default;
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  /// Seconds.
  virtual double encode(std::uint32_t draw) = 0;
  virtual double decode() = 0;
  virtual double copy() = 0;
  [[nodiscard]] virtual Difference difference() { return compare(reference_, decoded_); }

  /// Of the input and of what the last call of `difference` compared it with.
  void add_input(Magnitudes& magnitudes) const { magnitudes.add_input(reference_); }
  void add_draw(Magnitudes& magnitudes, double part) const {
    magnitudes.add_draw(reference_, decoded_, part);
  }

  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 protected:
  [[nodiscard]] Key key(std::uint32_t draw) const { return {.seed = seed_, .step = draw}; }
  void check(Status status, const char* what) const {
    if (failed(status)) {
      throw InputError(fmt::format("{} could not {} this: {}", name_, what, explain(status)));
    }
  }

  const std::vector<Tensor>& tensors_;
  const std::string name_;
  const std::uint64_t seed_;
  std::vector<Tensor> decoded_, reference_;
  std::uint64_t bytes_ = 0;  ///< of the last message
};

class HostBench final : public Bench {
 public:
  HostBench(const std::vector<Tensor>& tensors, const Codec& codec, const MeasureSettings& settings)
      : Bench(tensors, codec, settings.seed),
        model_(layer_specs(tensors), Policy(codec),
               {.names_on_wire = settings.names_on_wire, .learns_ranks = settings.learns_ranks}),
        scratch_(workspace_of(), settings.threads, codec),
        message_(model_.max_encoded_bytes()),
        copies_(tensors_like(tensors, std::nullopt)),
        inputs_(views_of(tensors)),
        outputs_(writable_views_of(decoded_)) {}

  double encode(std::uint32_t draw) override {
    Status status = Status::ok;
    const double seconds = seconds_of([&] {
      status = model_.encode(inputs_, key(draw), {message_.data.get(), message_.bytes, &bytes_},
                             scratch_.context());
    });
    check(status, "encode");
    return seconds;
  }

  double decode() override {
    Status status = Status::ok;
    const ConstBytes sent = message_.view().first(bytes_);
    const double seconds =
        seconds_of([&] { status = atomo::decode(sent, outputs_, scratch_.context()); });
    check(status, "decode");
    return seconds;
  }

  double copy() override {
    return seconds_of([&] {
      for (std::size_t t = 0; t < tensors_.size(); ++t) {
        std::memcpy(copies_[t].data.get(), tensors_[t].data.get(), tensors_[t].bytes());
        // The compiler must not see that nobody reads the copy.
        asm volatile("" : : "r"(copies_[t].data.get()) : "memory");
      }
    });
  }

 private:
  [[nodiscard]] std::size_t workspace_of() const {
    std::size_t bytes = model_.encode_workspace_bytes();
    for (const LayerSpec& layer : model_.layers()) {
      bytes = std::max(bytes, decode_workspace_bytes(layer.shape, DType::f32));
    }
    return bytes;
  }

  Compressor model_;
  Scratch scratch_;
  Buffer message_;
  std::vector<Tensor> copies_;
  std::vector<ConstTensorView> inputs_;
  std::vector<TensorView> outputs_;
};

/// Messages stay on the device; half tensors are decoded into f32 there, as on the host.
class DeviceBench final : public Bench {
 public:
  DeviceBench(const std::vector<Tensor>& tensors, const Codec& codec,
              const MeasureSettings& settings)
      : Bench(tensors, codec, settings.seed),
        encoder_(make_device_model(layer_specs(tensors), Policy(codec), settings.names_on_wire)),
        decoder_(make_device_model(layer_specs(decoded_), Policy(codec), settings.names_on_wire)) {
    encoder_->upload(tensors);
  }

  double encode(std::uint32_t draw) override {
    const DeviceRun run = encoder_->encode(key(draw));
    check(run.status, "encode");
    bytes_ = run.bytes;
    return run.seconds;
  }
  double decode() override {
    const DeviceRun run = decoder_->decode(encoder_->message(bytes_));
    check(run.status, "decode");
    return run.seconds;
  }
  double copy() override { return encoder_->copy(); }
  Difference difference() override {
    decoder_->download(decoded_);
    return Bench::difference();
  }

 private:
  std::unique_ptr<DeviceModel> encoder_, decoder_;
};

std::unique_ptr<Bench> make_bench(const std::vector<Tensor>& tensors, const Codec& codec,
                                  const MeasureSettings& settings) {
  if (settings.device == Device::cuda) {
    return std::make_unique<DeviceBench>(tensors, codec, settings);
  }
  return std::make_unique<HostBench>(tensors, codec, settings);
}

/// 10^9 bytes a second; 0 for no bytes.
double rate(std::size_t bytes, double seconds) {
  return bytes == 0 || seconds <= 0 ? 0 : static_cast<double>(bytes) / seconds * 1e-9;
}

/// All draws of a codec by a number of threads.
class Draws {
 public:
  Draws(const std::vector<Tensor>& tensors, const Codec& codec, const MeasureSettings& settings,
        const OnDraw& on_draw, bool compares)
      : elements_(elements_of(tensors)), input_bytes_(bytes_of(tensors)) {
    const std::unique_ptr<Bench> bench = make_bench(tensors, codec, settings);
    on_draw(0, settings.threads);
    (void)bench->encode(0);
    (void)bench->decode();
    (void)bench->copy();
    if (compares && settings.magnitudes) {
      magnitudes_.emplace();
      bench->add_input(*magnitudes_);
    }
    for (std::uint32_t draw = 0; draw < settings.draws; ++draw) {
      on_draw(draw, settings.threads);
      encode_s_.push_back(bench->encode(draw));
      decode_s_.push_back(bench->decode());
      copy_s_.push_back(bench->copy());
      bytes_.push_back(static_cast<double>(bench->bytes()));
      if (!compares) {
        continue;
      }
      const Difference d = bench->difference();
      energy_ = d.energy;
      nmse_.push_back(d.squared / d.energy);
      bias_.push_back(d.along / d.energy);
      if (magnitudes_) {
        bench->add_draw(*magnitudes_, 1.0 / settings.draws);
      }
    }
  }

  [[nodiscard]] Speed speed() const {
    const double encode = median(encode_s_), decode = median(decode_s_);
    return {1e3 * encode, 1e3 * decode, rate(input_bytes_, encode), rate(input_bytes_, decode)};
  }

  /// Of draws that were compared with the input.
  [[nodiscard]] Measurement measurement() const {
    Measurement m;
    m.bytes = mean_and_error(bytes_).mean;
    m.bits_per_parameter = bits_per_parameter(m.bytes, elements_);
    if (std::isfinite(energy_) && energy_ > 0) {
      const MeanAndError error = mean_and_error(nmse_);
      m.nmse = error.mean;
      m.nmse_stderr = error.standard_error;
      m.bias_z = z_score(mean_and_error(bias_));
    }
    m.speed = speed();
    m.memcpy_gbs = rate(input_bytes_, median(copy_s_));
    m.magnitudes = magnitudes_;
    return m;
  }

 private:
  std::uint64_t elements_;
  std::size_t input_bytes_;
  std::vector<double> bytes_, nmse_, bias_, encode_s_, decode_s_, copy_s_;
  double energy_ = 0;
  std::optional<Magnitudes> magnitudes_;
};

/// Medians of times; speeds are those of the median.
Speed median_of(const std::vector<Measurement>& all, const Speed& (*speed)(const Measurement&)) {
  const auto of = [&](double Speed::*member) {
    std::vector<double> values;
    for (const Measurement& m : all) {
      values.push_back(speed(m).*member);
    }
    return median(std::move(values));
  };
  return {of(&Speed::encode_ms), of(&Speed::decode_ms), of(&Speed::encode_gbs),
          of(&Speed::decode_gbs)};
}

}  // namespace

MeanAndError mean_and_error(const std::vector<double>& samples) {
  const auto n = static_cast<double>(samples.size());
  if (std::all_of(samples.begin(), samples.end(), [&](double s) { return s == samples.front(); })) {
    return {samples.front(), samples.size() > 1 ? std::optional<double>(0) : std::nullopt};
  }
  const double mean = std::accumulate(samples.begin(), samples.end(), 0.0) / n;
  double squares = 0;
  for (const double s : samples) {
    squares += (s - mean) * (s - mean);
  }
  return {mean, std::sqrt(squares / (n - 1) / n)};
}

std::optional<double> z_score(const MeanAndError& m) {
  if (!m.standard_error) {
    return std::nullopt;
  }
  if (*m.standard_error == 0) {
    return m.mean == 0 ? 0 : std::copysign(std::numeric_limits<double>::infinity(), m.mean);
  }
  return m.mean / *m.standard_error;
}

Measurement measure_codec(const std::vector<Tensor>& tensors, const Codec& codec,
                          const MeasureSettings& settings, const OnDraw& on_draw) {
  std::optional<Speed> of_one_thread;
  if (settings.several_threads()) {
    MeasureSettings one = settings;
    one.threads = 1;
    of_one_thread = Draws(tensors, codec, one, on_draw, false).speed();
  }
  Draws draws(tensors, codec, settings, on_draw, true);
  Measurement m = draws.measurement();
  m.of_one_thread = of_one_thread;
  return m;
}

Measurement mean_of(const std::vector<Measurement>& measurements) {
  Measurement mean = measurements.front();
  const auto count = static_cast<double>(measurements.size());
  if (measurements.size() == 1) {
    return mean;
  }
  mean.bytes = mean.bits_per_parameter = mean.memcpy_gbs = 0;
  double nmse = 0, variance = 0, bias = 0;
  bool has_error = true, has_spread = true;
  for (const Measurement& m : measurements) {
    mean.bytes += m.bytes / count;
    mean.bits_per_parameter += m.bits_per_parameter / count;
    mean.memcpy_gbs += m.memcpy_gbs / count;
    has_error = has_error && m.nmse;
    has_spread = has_spread && m.nmse_stderr && m.bias_z;
    nmse += m.nmse.value_or(0) / count;
    variance += m.nmse_stderr.value_or(0) * m.nmse_stderr.value_or(0);
    bias += m.bias_z.value_or(0);
    if (&m != &measurements.front() && mean.magnitudes && m.magnitudes) {
      *mean.magnitudes += *m.magnitudes;
    }
  }
  mean.nmse = has_error ? std::optional(nmse) : std::nullopt;
  mean.nmse_stderr = has_spread ? std::optional(std::sqrt(variance) / count) : std::nullopt;
  mean.bias_z = has_spread ? std::optional(bias / std::sqrt(count)) : std::nullopt;
  mean.speed =
      median_of(measurements, [](const Measurement& m) -> const Speed& { return m.speed; });
  if (mean.of_one_thread) {
    mean.of_one_thread = median_of(
        measurements, [](const Measurement& m) -> const Speed& { return *m.of_one_thread; });
  }
  return mean;
}

}  // namespace atomo::cli
