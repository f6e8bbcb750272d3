// SPDX-License-Identifier: Apache-2.0
/// \file
/// The quadratics are read from a JSON file here, and a file with missing numbers, wrong sizes or
/// no optimum is refused with a message that says what is expected. The measure of this task is the
/// root mean square of the distance to the optimum.

#include "learning/quadratic.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace train {
namespace {

/// f(x) = 1/2 sum a x^2 - sum c x
struct Quadratic {
  std::vector<double> curvature, pull;
};

double rms_distance(const Score& score) {
  return std::sqrt(score.squared_distance / static_cast<double>(score.predictions));
}
std::string scientific(double distance) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3e", distance);
  return text.data();
}
constexpr Measure kDistance{"distance", "distance", rms_distance, scientific};

/// `what` is an array of `n` finite numbers.
std::vector<double> numbers_of(const nlohmann::json& what, const std::string& name, std::size_t n) {
  std::vector<double> numbers;
  if (what.is_array()) {
    for (const auto& number : what) {
      if (number.is_number()) numbers.push_back(number.get<double>());
    }
  }
  if (!what.is_array() || what.size() != n || numbers.size() != n) {
    throw std::runtime_error(
        "'" + name + "' has to be an array of rows x columns = " + std::to_string(n) + " numbers");
  }
  return numbers;
}

std::int64_t size_of(const nlohmann::json& file, const char* name) {
  constexpr std::int64_t kMost = 1 << 20;
  const auto size = file.value(name, nlohmann::json());
  if (!size.is_number_integer() || size < 1 || size > kMost) {
    throw std::runtime_error("'" + std::string(name) + "' is " + size.dump() +
                             ", it has to be a whole number from 1 to " + std::to_string(kMost));
  }
  return size.get<std::int64_t>();
}

/// Never more than one message about a file, whatever is wrong with it.
nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("it cannot be opened");
  auto json = nlohmann::json::parse(file);
  if (!json.is_object() || !json.value("samples", nlohmann::json()).is_array() ||
      json["samples"].empty()) {
    throw std::runtime_error(
        R"(it has to be {"rows": R, "columns": C, "samples": [{"curvature": [...], "pull": [...]}, ...]})");
  }
  return json;
}

class QuadraticTask final : public Task {
 public:
  explicit QuadraticTask(const nlohmann::json& file) {
    shape_.rows = size_of(file, "rows");
    shape_.columns = size_of(file, "columns");
    const auto n = static_cast<std::size_t>(shape_.rows * shape_.columns);
    read_start(file.value("start", nlohmann::json(1)), n);
    for (std::size_t k = 0; k < file["samples"].size(); ++k) {
      const auto& sample = file["samples"][k];
      if (!sample.is_object())
        throw std::runtime_error("samples[" + std::to_string(k) + "] is no object");
      const auto part = [&](const char* name) {
        return numbers_of(sample.value(name, nlohmann::json()),
                          "samples[" + std::to_string(k) + "]." + name, n);
      };
      samples_.push_back({part("curvature"), part("pull")});
    }
    take_mean(n);
  }

  [[nodiscard]] InputShape input() const override { return shape_; }
  [[nodiscard]] const Measure& measure() const override { return kDistance; }
  [[nodiscard]] std::size_t samples(Split split) const override {
    return split == Split::train ? samples_.size() : 1;
  }
  void gather(Split split, std::span<const std::uint32_t> which, Batch& batch) const override {
    batch.curvatures.clear();
    batch.pulls.clear();
    for (const auto number : which) {
      const auto& f = split == Split::train ? samples_[number] : mean_;
      batch.curvatures.insert(batch.curvatures.end(), f.curvature.begin(), f.curvature.end());
      batch.pulls.insert(batch.pulls.end(), f.pull.begin(), f.pull.end());
    }
  }

 private:
  void read_start(const nlohmann::json& start, std::size_t n) {
    const auto point = start.is_number() ? std::vector<double>(n, start.get<double>())
                                         : numbers_of(start, "start", n);
    shape_.start.assign(point.begin(), point.end());
  }

  void take_mean(std::size_t n) {
    mean_ = {std::vector<double>(n), std::vector<double>(n)};
    for (const auto& f : samples_) {
      for (std::size_t i = 0; i < n; ++i) {
        mean_.curvature[i] += f.curvature[i] / static_cast<double>(samples_.size());
        mean_.pull[i] += f.pull[i] / static_cast<double>(samples_.size());
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      if (mean_.curvature[i] > 0) continue;
      throw std::runtime_error("there is no optimum: the curvatures of element " +
                               std::to_string(i) + " add up to " +
                               std::to_string(mean_.curvature[i]) + ", not to more than 0");
    }
  }

  QuadraticShape shape_;
  std::vector<Quadratic> samples_;
  Quadratic mean_;
};

}  // namespace

std::unique_ptr<Task> make_quadratic_task(const std::string& path) {
  try {
    return std::make_unique<QuadraticTask>(read_json(path));
  } catch (const std::exception& e) {
    throw std::runtime_error("cannot take quadratics from '" + path + "': " + e.what());
  }
}

}  // namespace train
