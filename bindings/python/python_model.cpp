// SPDX-License-Identifier: Apache-2.0
/// \file
/// The trainer calls these classes without the GIL. They take it, call the model's object of
/// atomo/train/_model.py with numbers and flat arrays, and give it back while a gradient is encoded and
/// sent. What the trainer throws in there is kept until Python's code has returned, so that it keeps its
/// type.

#include "python_model.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace atomo::python {
namespace {

using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstFloats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// An object that is given up under the GIL.
class Held {
 public:
  explicit Held(nb::object object) : object_(std::move(object)) {}
  Held(Held&& other) noexcept : object_(std::move(other.object_)) {}
  Held& operator=(Held&&) = delete;
  ~Held() {
    const nb::gil_scoped_acquire gil;
    object_.reset();
  }
  [[nodiscard]] nb::handle operator*() const noexcept { return object_; }

 private:
  nb::object object_;
};

std::string text_of(const nb::python_error& error) {
  const auto lines = nb::module_::import_("traceback")
                         .attr("format_exception")(error.type(), error.value(), error.traceback());
  std::string text = "\n";
  return text += nb::cast<std::string>(nb::str("").attr("join")(lines));
}

/// Runs Python code under the GIL; what it raises becomes std::runtime_error.
template <typename Call>
auto in_python(const Call& call) {
  const nb::gil_scoped_acquire gil;
  try {
    return call();
  } catch (nb::python_error& e) {
    throw std::runtime_error(text_of(e));
  } catch (const nb::cast_error&) {
    throw std::runtime_error("what Python's code returned is of another type than it should be");
  }
}

/// The memory itself, as an array that must not outlive it.
template <typename T>
nb::object borrowed(std::span<T> values) {
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(values.data(), {values.size()}),
                  nb::rv_policy::reference);
}

nb::object numbers_of(const train::Batch& batch) {
  auto& numbers = const_cast<std::vector<std::uint32_t>&>(batch.numbers);  // NumPy's are writable
  return borrowed(std::span(numbers));
}

double loss_of(const train::Score& score) {
  return score.loss / static_cast<double>(score.predictions);
}
double accuracy_of(const train::Score& score) {
  return static_cast<double>(score.correct) / static_cast<double>(score.predictions);
}
std::string text_of_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", value);
  return text;
}
std::string text_of_share(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %%", 100 * value);
  return text;
}

constexpr train::Measure kAccuracy{"accuracy", "accuracy", accuracy_of, text_of_share, true};
constexpr train::Measure kLoss{"test_loss", "loss", loss_of, text_of_number};

class PythonTask final : public train::Task {
 public:
  explicit PythonTask(const Held& model) {
    in_python([&] {
      train_ = nb::cast<std::size_t>((*model).attr("samples")(false));
      test_ = nb::cast<std::size_t>((*model).attr("samples")(true));
      accuracy_ = nb::cast<bool>((*model).attr("predicts_classes")());
      const auto labels = nb::cast<nb::bytes>((*model).attr("labels")());
      const auto* const bytes = reinterpret_cast<const std::uint16_t*>(labels.c_str());
      labels_.assign(bytes, bytes + labels.size() / sizeof *bytes);
      for (const std::uint16_t label : labels_)
        classes_ = std::max<std::size_t>(classes_, label + 1U);
    });
  }
  train::InputShape input() const override { return train::OwnShape{}; }
  const train::Measure& measure() const override { return accuracy_ ? kAccuracy : kLoss; }
  std::size_t samples(train::Split split) const override {
    return split == train::Split::train ? train_ : test_;
  }
  std::span<const std::uint16_t> labels() const override { return labels_; }
  std::size_t classes() const override { return classes_; }
  void gather(train::Split split, std::span<const std::uint32_t> which,
              train::Batch& batch) const override {
    batch.split = split;
    batch.numbers.assign(which.begin(), which.end());
  }

 private:
  std::size_t train_ = 0, test_ = 0, classes_ = 0;
  bool accuracy_ = false;
  std::vector<std::uint16_t> labels_;
};

/// What a model's back-propagation calls, as long as Python has it.
struct Calls {
  const train::Replica::OnGradient* on_gradient = nullptr;  ///< null: between two steps
  std::exception_ptr failure;                               ///< of a gradient's encoding or sending
  std::chrono::steady_clock::time_point began;
};

class PythonReplica final : public train::Replica {
 public:
  PythonReplica(const Held& model, std::uint64_t seed)
      : network_(in_python([&] { return nb::object((*model).attr("network")(seed)); })) {
    in_python([&] {
      using Rows = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;
      for (const auto& [name, dims] : nb::cast<Rows>((*network_).attr("layers"))) {
        offsets_.push_back(elements_);
        layers_.push_back({name, Shape(std::span(dims))});
        elements_ += layers_.back().shape.elements();
      }
      const auto weights = nb::cast<Floats>((*network_).attr("weights"));
      if (weights.size() != elements_) throw std::logic_error("weights of another length");
      weights_ = {weights.data(), elements_};  // the network keeps the memory
      began_ =
          nb::cpp_function([calls = calls_] { calls->began = std::chrono::steady_clock::now(); });
      on_gradient_ = nb::cpp_function([this, calls = calls_](std::size_t layer, ConstFloats g) {
        take_gradient(*calls, layer, {g.data(), g.size()});
      });
    });
  }
  ~PythonReplica() override {
    const nb::gil_scoped_acquire gil;
    began_.reset();
    on_gradient_.reset();
  }

  const std::vector<LayerSpec>& layers() const noexcept override { return layers_; }
  std::size_t offset(std::size_t layer) const noexcept override { return offsets_[layer]; }
  std::span<float> weights() noexcept override { return weights_; }
  void weights_changed() override {
    in_python([&] { (*network_).attr("weights_changed")(); });
  }
  std::vector<float> buffers() const override {
    return in_python([&] {
      const auto values = nb::cast<ConstFloats>((*network_).attr("buffers")());
      return std::vector<float>(values.data(), values.data() + values.size());
    });
  }
  void set_buffers(std::span<const float> values) override {
    in_python([&] {
      const std::span<float> writable(const_cast<float*>(values.data()), values.size());
      (*network_).attr("set_buffers")(borrowed(writable));
    });
  }
  double backward(const train::Batch& batch, double scale, const OnGradient& on_gradient) override {
    calls_->on_gradient = &on_gradient;
    const auto end = [&] { calls_->on_gradient = nullptr; };
    double loss = 0;
    try {
      in_python([&] {
        using Told = std::tuple<double, std::uint64_t, std::uint64_t>;
        const auto told = nb::cast<Told>((*network_).attr("backward")(
            numbers_of(batch), batch.step, batch.worker, scale, began_, on_gradient_));
        loss = std::get<0>(told);
        trained_ = {.correct = std::get<1>(told), .predictions = std::get<2>(told)};
      });
    } catch (...) {
      end();
      throw;
    }
    end();
    if (calls_->failure) std::rethrow_exception(std::exchange(calls_->failure, nullptr));
    return loss;
  }
  std::chrono::steady_clock::time_point backward_began() const noexcept override {
    return calls_->began;
  }
  train::Score trained() const noexcept override { return trained_; }
  train::Score evaluate(const train::Batch& batch, std::vector<train::Prediction>*) override {
    return in_python([&] {
      using Told = std::tuple<double, std::uint64_t, std::uint64_t, std::uint64_t>;
      const auto [loss, correct, top5, predictions] = nb::cast<Told>(
          (*network_).attr("evaluate")(batch.split == train::Split::test, numbers_of(batch)));
      return train::Score{
          .correct = correct, .predictions = predictions, .top5 = top5, .loss = loss};
    });
  }

 private:
  void take_gradient(Calls& calls, std::size_t layer, std::span<const float> gradient) const {
    if (calls.on_gradient == nullptr || calls.failure) return;
    if (gradient.size() != layers_.at(layer).shape.elements())
      throw std::logic_error("a gradient of another length than its layer");
    const nb::gil_scoped_release released;  // codecs and other threads may want it
    try {
      (*calls.on_gradient)(layer, gradient);
    } catch (...) {
      calls.failure = std::current_exception();
    }
  }

  Held network_;
  std::vector<LayerSpec> layers_;
  std::vector<std::size_t> offsets_;
  std::size_t elements_ = 0;
  std::span<float> weights_;
  std::shared_ptr<Calls> calls_ = std::make_shared<Calls>();
  nb::object began_, on_gradient_;
  train::Score trained_;
};

class PythonOptimiser final : public train::Optimiser {
 public:
  PythonOptimiser(Held optimiser, std::size_t moments, train::OptimiserSettings settings, double lr,
                  std::size_t elements)
      : Optimiser(std::move(settings), moments, elements),
        optimiser_(std::move(optimiser)),
        lr_(lr) {}

 private:
  void step(std::span<float> weights, std::span<const float> gradient, double lr,
            std::uint32_t step) override {
    in_python([&] {
      nb::list moments;
      for (auto& moment : moments_) moments.append(borrowed(std::span(moment)));
      const std::span<float> writable(const_cast<float*>(gradient.data()), gradient.size());
      (*optimiser_).attr("step")(borrowed(weights), borrowed(writable), moments, lr / lr_, step);
    });
  }

  Held optimiser_;
  double lr_;  ///< the run's, which the optimiser's own stand for
};

}  // namespace

train::OwnModel own_model_of(nb::object model) {
  train::OwnModel own;
  own.name = nb::cast<std::string>(model.attr("name"));
  own.data = nb::cast<std::string>(model.attr("data_name"));
  own.optimiser = nb::cast<std::string>(model.attr("optimiser_name"));
  const auto held = std::make_shared<const Held>(std::move(model));
  own.make_task = [held] { return std::make_unique<PythonTask>(*held); };
  own.make_replica = [held](std::uint64_t seed) {
    return std::make_unique<PythonReplica>(*held, seed);
  };
  if (own.optimiser.empty()) return own;
  own.make_optimiser = [held](train::OptimiserSettings settings, double lr,
                              std::span<const LayerSpec> layers) {
    std::size_t moments = 0;
    Held optimiser(in_python([&] {
      nb::list shapes;
      for (const auto& layer : layers) {
        nb::list dims;
        for (const std::int64_t dim : layer.shape.dims()) dims.append(dim);
        shapes.append(nb::tuple(dims));
      }
      nb::object made = (**held).attr("optimiser")(shapes);
      moments = nb::cast<std::size_t>(made.attr("moments"));
      return made;
    }));
    return std::make_unique<PythonOptimiser>(std::move(optimiser), moments, std::move(settings), lr,
                                             train::elements_of(layers));
  };
  return own;
}

}  // namespace atomo::python
