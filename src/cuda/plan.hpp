// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What a message needs on the device: tables, which do not change from message to message, and a
/// workspace.
///
/// A plan is made on the host from the kinds of the layers, by each operation for the layers that
/// are its own, in two runs of the same code over a `Layout`: the first counts, the second fills
/// the tables and says where everything in the workspace will be. A plan of one layer is made at
/// every call, on the stack, and its tables travel as an argument of the first launch; a model
/// makes its plan once and keeps the tables on the device. Kernels take the plan of their operation
/// by value, and a `Frame` that turns its places into pointers.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/layer_plan.hpp"

namespace atomo::cuda {

using backend::LayerPlan;
using format::Kind;
using format::MethodId;

/// `count` values of T in the tables.
template <typename T>
struct Table {
  std::uint64_t at = 0;  ///< bytes from the start of the tables
};

/// Values of T in the workspace, of each message for itself where several are decoded together.
template <typename T>
struct Scratch {
  std::uint64_t at = 0;  ///< bytes from the start of the message's part
};

/// Values of T in the workspace that all messages of a call share.
template <typename T>
struct CallScratch {
  std::uint64_t at = 0;  ///< bytes from the start of the call's part
};

/// Counts tables and workspace, then fills and places them. Everything is aligned to 64 bytes.
class Layout {
 public:
  Layout() = default;  ///< counts
  /// Fills `tables`; `counted` is a layout that went through the same calls.
  Layout(std::span<std::byte> tables, const Layout& counted) noexcept
      : tables_(tables), zeroed_total_(counted.zeroed_), fills_(true) {}

  template <typename T>
  struct NewTable {
    Table<T> place;
    std::span<T> values;  ///< to fill; empty while counting
  };
  template <typename T>
  [[nodiscard]] NewTable<T> table(std::size_t count) noexcept {
    const std::uint64_t at = grow(table_bytes_, count * sizeof(T));
    if (!fills_) return {{at}, {}};
    return {{at}, {reinterpret_cast<T*>(tables_.data() + at), count}};
  }
  /// Room in a message's part of the workspace whose contents are undefined when it begins.
  template <typename T>
  [[nodiscard]] Scratch<T> scratch(std::size_t count) noexcept {
    return {zeroed_total_ + grow(scratch_, count * sizeof(T))};
  }
  /// The same in the call's part.
  template <typename T>
  [[nodiscard]] CallScratch<T> call_scratch(std::size_t count) noexcept {
    return {grow(call_, count * sizeof(T))};
  }
  /// Room in a message's part that is zero when it begins.
  template <typename T>
  [[nodiscard]] Scratch<T> zeroed(std::size_t count) noexcept {
    return {grow(zeroed_, count * sizeof(T))};
  }

  [[nodiscard]] std::uint64_t table_bytes() const noexcept { return table_bytes_; }
  [[nodiscard]] std::uint64_t zeroed_bytes() const noexcept { return zeroed_; }
  /// Of one message's part of the workspace.
  [[nodiscard]] std::uint64_t message_bytes() const noexcept { return zeroed_ + scratch_; }
  /// The parts of so many messages, then the call's.
  [[nodiscard]] std::uint64_t workspace_bytes(std::uint32_t messages = 1) const noexcept {
    return messages * message_bytes() + call_;
  }

 private:
  static std::uint64_t grow(std::uint64_t& used, std::uint64_t bytes) noexcept {
    const std::uint64_t at = used;
    used += (bytes + 63) / 64 * 64;
    return at;
  }
  std::span<std::byte> tables_;
  std::uint64_t table_bytes_ = 0, zeroed_ = 0, scratch_ = 0, call_ = 0, zeroed_total_ = 0;
  bool fills_ = false;
};

/// Makes a table: `add` once an entry, in order, in both runs.
template <typename T>
class TableMaker {
 public:
  TableMaker(Layout& layout, std::size_t count) noexcept : table_(layout.table<T>(count)) {}
  /// Returns the entry's number.
  std::uint32_t add(const T& entry) noexcept {
    if (!table_.values.empty()) table_.values[count_] = entry;
    return count_++;
  }
  /// Entries so far.
  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
  /// All `count` entries, to fill or to sort at once; none while counting.
  [[nodiscard]] std::span<T> entries() const noexcept { return table_.values; }
  [[nodiscard]] Table<T> table() const noexcept { return table_.place; }

 private:
  Layout::NewTable<T> table_;
  std::uint32_t count_ = 0;
};

/// Work over jobs, cut into units: unit u belongs to the last job j with begin[j] <= u, begin
/// having jobs + 1 ascending values, 0 first, `units` last.
struct Split {
  Table<std::uint64_t> begin;
  std::uint32_t jobs = 0;
  std::uint64_t units = 0;
};

/// Makes a split: `add` once a job, in order, in both runs.
class SplitMaker {
 public:
  SplitMaker(Layout& layout, std::size_t jobs) noexcept
      : begin_(layout.table<std::uint64_t>(jobs + 1)) {
    if (!begin_.values.empty()) begin_.values[0] = 0;
  }
  void add(std::uint64_t units) noexcept {
    units_ += units;
    ++jobs_;
    if (!begin_.values.empty()) begin_.values[jobs_] = units_;
  }
  [[nodiscard]] Split split() const noexcept { return {begin_.place, jobs_, units_}; }

 private:
  Layout::NewTable<std::uint64_t> begin_;
  std::uint64_t units_ = 0;
  std::uint32_t jobs_ = 0;
};

/// The stages of encoding (frame.cuh) that an operation takes part in: `kStages` of its plan. The
/// backend refuses an operation that has other functions than it declares.
struct Stages {
  bool analyse = false, price = false, size = false, write = false;
  bool handles = false;  ///< it may call the caller's libraries: `needs_handles(plan)`
};

/// The jobs of an operation, a layer each, and the units that warps take.
template <typename Job>
struct Jobs {
  Table<Job> table;
  Split units;
  [[nodiscard]] bool empty() const noexcept { return units.jobs == 0; }
};

/// Makes them: `add` once a job, in order, in both runs.
template <typename Job>
class JobMaker {
 public:
  JobMaker(Layout& layout, std::size_t jobs) noexcept
      : table_(layout, jobs), units_(layout, jobs) {}
  /// Returns the job's number.
  std::uint32_t add(const Job& job, std::uint64_t units) noexcept {
    units_.add(units);
    return table_.add(job);
  }
  [[nodiscard]] std::uint32_t count() const noexcept { return table_.count(); }
  [[nodiscard]] Jobs<Job> jobs() const noexcept { return {table_.table(), units_.split()}; }

 private:
  TableMaker<Job> table_;
  SplitMaker units_;
};

/// Whether a layer is encoded by a method, and has entries.
template <MethodId id>
[[nodiscard]] bool is_of(const LayerPlan& layer) noexcept {
  return layer.kind.method == id && layer.n > 0;
}
template <MethodId id>
[[nodiscard]] std::size_t count_of_method(std::span<const LayerPlan> layers) noexcept {
  return static_cast<std::size_t>(std::count_if(layers.begin(), layers.end(), is_of<id>));
}
/// Calls `visit(number, layer)` for the layers of a method.
template <MethodId id, typename Visit>
void for_each_of_method(std::span<const LayerPlan> layers, Visit visit) {
  for (std::uint32_t i = 0; i < layers.size(); ++i) {
    if (is_of<id>(layers[i])) visit(i, layers[i]);
  }
}

[[nodiscard]] constexpr std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) noexcept {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace atomo::cuda
