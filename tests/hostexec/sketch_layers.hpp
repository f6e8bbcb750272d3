// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Sketches of layers by the operation alone, without a codec.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "calls.hpp"
#include "core/half.hpp"
#include "cuda/container.cuh"
#include "cuda/sketch.cuh"
#include "support/device_memory.hpp"

namespace atomo::cuda {

using namespace model;

/// A layer to decompose; `values` are what it holds in its dtype.
struct Matrix {
  MatrixShape shape;
  std::uint32_t rank = 1;
  std::vector<float> values;
  DType dtype = DType::f32;
  unsigned iterations = 1;
  bool optional = false;  ///< it may look for no pairs

  [[nodiscard]] std::uint64_t m() const { return shape.shorter(); }
  [[nodiscard]] std::uint64_t n() const { return shape.longer(); }
  /// Entry (i, j) with i along the shorter side.
  template <typename T>
  [[nodiscard]] T at(const std::vector<T>& entries, std::uint64_t i, std::uint64_t j) const {
    return shape.rows <= shape.columns ? entries[i * shape.columns + j]
                                       : entries[j * shape.columns + i];
  }
};

struct Sketch {
  std::vector<float> shorter, longer, residual;
  std::vector<double> sigma;
  std::vector<double> row_rms;          ///< of the tensor
  std::vector<double> residual_rms;     ///< of what is left, or what is added to that
  std::vector<std::uint32_t> measured;  ///< 1: a row that was computed to be measured
  std::uint32_t flags = 0;
};
inline bool same_bits(const Sketch& a, const Sketch& b) {
  const auto same = [](const auto& x, const auto& y) {
    return std::memcmp(x.data(), y.data(), x.size() * sizeof(x[0])) == 0 && x.size() == y.size();
  };
  return same(a.shorter, b.shorter) && same(a.longer, b.longer) && same(a.residual, b.residual) &&
         same(a.sigma, b.sigma) && same(a.residual_rms, b.residual_rms) &&
         a.measured == b.measured && a.flags == b.flags;
}

/// What the caller of a sketch does before: the norms of rows, a lane a row of a layer.
__global__ inline void measure_tensors(Frame frame, SketchPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.measured);
  if (!at) return;
  const SketchJob& job = frame(plan.jobs)[at.job];
  const Entries x = frame.entries(job.layer);
  const std::uint64_t row = at.index * kLanes + lane();
  if (row >= job.rows) return;
  double sum = 0;
  for (std::uint64_t j = row * job.columns; j < (row + 1) * job.columns; ++j)
    sum = sum + (static_cast<double>(x(j)) * x(j));
  const double rms = sqrt(sum / static_cast<double>(job.columns));
  frame(job.places.row_rms)[row] = rms;
  if (rms < INFINITY) {
    note_row_rms(frame, plan, at.job, rms);
  } else {
    frame.mark_non_finite(job.layer);
  }
}

/// And after: all rows are kept.
__global__ inline void pick_all_rows(Frame frame, SketchPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.measured);
  if (!at) return;
  const std::uint64_t row = at.index * kLanes + lane();
  pick_rows(frame, plan, at.job, true, row < frame(plan.jobs)[at.job].rows, row);
}

inline std::vector<std::byte> to_bytes(const Matrix& matrix) {
  bool overflow = false;
  const auto convert = [&](auto from) {
    std::vector<std::uint16_t> halves(matrix.values.size());
    std::transform(matrix.values.begin(), matrix.values.end(), halves.begin(), from);
    const auto bytes = std::as_bytes(std::span(halves));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  if (matrix.dtype == DType::f16) return convert([&](float v) { return to_f16(v, overflow); });
  if (matrix.dtype == DType::bf16) return convert([&](float v) { return to_bf16(v, overflow); });
  const auto bytes = std::as_bytes(std::span(matrix.values));
  return {bytes.begin(), bytes.end()};
}

/// Matrices as the layers of one message, their tensors at addresses that are multiples of their
/// entries alone.
class SketchLayers {
 public:
  explicit SketchLayers(const std::vector<Matrix>& matrices)
      : matrices_(matrices), layers_(matrices.size()) {
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      const Matrix& matrix = matrices[i];
      layers_[i].kind.dtype = matrix.dtype;
      layers_[i].kind.shape = Shape{static_cast<std::int64_t>(matrix.shape.rows),
                                    static_cast<std::int64_t>(matrix.shape.columns)};
      layers_[i].n = matrix.values.size();
      kind_of_.push_back(static_cast<std::uint16_t>(i));
      const std::vector<std::byte> bytes = to_bytes(matrix);
      const std::size_t of_entry = bytes.size() / matrix.values.size();
      tensors_.push_back(std::make_unique<test::Memory>(bytes.size(), of_entry * (i % 5)));
      tensors_.back()->put(bytes);
      views_.push_back(
          {tensors_.back()->data(), matrix.dtype, layers_[i].kind.shape, Device::cuda});
    }
  }
  SketchLayers(const SketchLayers&) = delete;
  SketchLayers& operator=(const SketchLayers&) = delete;

  /// Of `decompose` alone.
  [[nodiscard]] std::size_t launches() const { return launches_; }

  /// Layer i draws under the key's tensor + i. `captured`: by a graph that is launched twice.
  /// `ranks`: what layers have learnt, or none.
  [[nodiscard]] std::vector<Sketch> decompose(const Key& key, bool captured = false,
                                              std::span<const price::RankState> ranks = {}) {
    const test::Memory learnt(ranks.size_bytes());
    if (!ranks.empty()) learnt.put(std::as_bytes(ranks));
    ranks_ = ranks.empty() ? nullptr : reinterpret_cast<const price::RankState*>(learnt.data());
    Layout counted;
    plan(counted);
    std::vector<std::byte> tables(counted.table_bytes());
    Layout placed(tables, counted);
    plan(placed);
    const test::Memory device_tables(tables.size()), workspace(placed.workspace_bytes());
    device_tables.put(tables);
    workspace.fill(0xFF);  // NaNs
    frame_.tables = device_tables.data();
    frame_.work = workspace.data();
    const test::StreamOwner stream;
    if (captured) {
      EXPECT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
                cudaSuccess);
    }
    launch(key, stream.get());
    if (captured) replay(stream.get());
    stream.wait();
    return read(workspace.get(workspace.bytes().size()));
  }

 private:
  void launch(const Key& key, cudaStream_t stream) {
    Queue queue(stream);
    MessageCall call;
    call.key = key;
    call.ranks.now = ranks_;
    begin(frame_, {}, call, views_, {}, queue);
    queue.launch_warps(measure_tensors, plan_.measured.units, frame_, plan_);
    hostexec::reset_calls();
    cuda::decompose(frame_, plan_, queue);
    launches_ = hostexec::launch_count();
    queue.launch_warps(pick_all_rows, plan_.measured.units, frame_, plan_);
    subtract_from_kept(frame_, plan_, queue);
    EXPECT_EQ(queue.error(), cudaSuccess);
    EXPECT_EQ(hostexec::forbidden_calls(), std::vector<std::string>{});
  }
  static void replay(cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&ready, graph, 0), cudaSuccess);
    for (int time = 0; time < 2; ++time) EXPECT_EQ(cudaGraphLaunch(ready, stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(cudaGraphExecDestroy(ready), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  void plan(Layout& layout) {
    plan_frame(layers_, kind_of_, static_cast<std::uint32_t>(layers_.size()), {}, layout,
               frame_.plan);
    jobs_.clear();
    SketchPlanner planner(layout, matrices_.size());
    for (std::uint32_t i = 0; i < matrices_.size(); ++i) {
      const Matrix& matrix = matrices_[i];
      const SketchPlaces places{layout.scratch<double>(matrix.shape.rows),
                                layout.scratch<double>(matrix.shape.rows),
                                layout.scratch<double>(matrix.rank), 1, matrix.optional};
      jobs_.push_back(planner.add(matrix.shape, {matrix.rank, matrix.iterations}, i, places));
    }
    plan_ = planner.finish();
    frame_.plan.zeroed_bytes = layout.zeroed_bytes();
  }
  [[nodiscard]] std::vector<Sketch> read(const std::vector<std::byte>& workspace) const {
    const auto values = [&]<typename T, template <typename> typename Place>(Place<T> place,
                                                                            std::uint64_t count) {
      std::vector<T> found(count);
      std::memcpy(found.data(), workspace.data() + place.at, count * sizeof(T));
      return found;
    };
    const std::vector<LayerState> states = values(frame_.plan.layers, matrices_.size());
    std::vector<Sketch> sketches;
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      const Matrix& matrix = matrices_[i];
      sketches.push_back({values(jobs_[i].shorter, matrix.m() * matrix.rank),
                          values(jobs_[i].longer, matrix.n() * matrix.rank),
                          values(jobs_[i].entries, matrix.values.size()),
                          values(jobs_[i].places.sigma, matrix.rank),
                          values(jobs_[i].places.row_rms, matrix.shape.rows),
                          values(jobs_[i].places.residual_rms, matrix.shape.rows),
                          values(jobs_[i].measured, matrix.shape.rows), states[i].flags});
    }
    return sketches;
  }

  const std::vector<Matrix>& matrices_;
  std::vector<LayerPlan> layers_;
  std::vector<std::uint16_t> kind_of_;
  std::vector<std::unique_ptr<test::Memory>> tensors_;
  std::vector<ConstTensorView> views_;
  Frame frame_;
  SketchPlan plan_;
  std::vector<SketchJob> jobs_;
  std::size_t launches_ = 0;
  const price::RankState* ranks_ = nullptr;
};

inline std::vector<Sketch> decompose_all(const std::vector<Matrix>& matrices,
                                         const Key& key = {.seed = 7}) {
  return SketchLayers(matrices).decompose(key);
}
/// The same of one matrix, its bases found by these products.
inline Sketch decompose_with(TensorVectors taken, const Matrix& matrix,
                             const Key& key = {.seed = 7}) {
  const TensorVectors usual = std::exchange(basis_vectors, taken);
  Sketch sketch = decompose_all({matrix}, key)[0];
  basis_vectors = usual;
  return sketch;
}

}  // namespace atomo::cuda
