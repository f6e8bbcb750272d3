// SPDX-License-Identifier: Apache-2.0
/// Adds messages of coordinates without decoding them: the levels of the sum are the sums of the
/// levels, whatever the grouping (FORMAT.md, "Sums"). Counts the bits of signs as votes.
#include "atomo/arithmetic.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "codec/layer.hpp"
#include "core/status.hpp"
#include "cpu/coordinate.hpp"
#include "cpu/coordinate_add.hpp"
#include "cpu/sign.hpp"
#include "format/method_configs.hpp"

namespace atomo {

using namespace codec;
namespace {

/// The memory of a sum: one constructor carves and counts the workspace.
struct AddMemory {
  std::span<Head> heads;
  std::span<std::size_t> body_at;  ///< of the layer at hand, a message each
  std::span<cpu::AddedBody> bodies;
  cpu::CoordinateAdder adder;

  AddMemory(Carver& carver, std::size_t messages) noexcept
      : heads(carver.take<Head>(messages)),
        body_at(carver.take<std::size_t>(messages)),
        bodies(carver.take<cpu::AddedBody>(messages)),
        adder(carver) {}
};

/// The head's tables behind the rows: kinds, names, padding.
ConstBytes tables_of(const Head& head) noexcept {
  const std::size_t rows_end = kHeaderBytes + kRecordBytes * head.layers();
  return head.message().first(head.head_bytes()).subspan(rows_end);
}

bool same_layers(const Head& a, const Head& b) noexcept {
  if (a.layers() != b.layers() || a.header().kinds != b.header().kinds ||
      a.header().flags != b.header().flags || a.header().key.tensor != b.header().key.tensor) {
    return false;
  }
  for (std::size_t i = 0; i < a.layers(); ++i) {
    if (a.row(i).kind != b.row(i).kind) return false;
  }
  const ConstBytes one = tables_of(a), other = tables_of(b);
  return std::equal(one.begin(), one.end(), other.begin(), other.end());
}

class Addition {
 public:
  Addition(const AddMemory& memory, const Payload& sum) noexcept
      : memory_(memory), out_(sum.data, sum.capacity) {}

  Status run(std::span<const ConstBytes> messages, std::uint64_t& bytes) noexcept {
    if (const Status s = open(messages); failed(s)) return s;
    const Head& first = memory_.heads[0];
    at_ = first.head_bytes();
    if (at_ > out_.size()) return Status::buffer_too_small;
    std::memcpy(out_.data(), first.message().data(), at_);
    Status status = Status::ok, next = Status::ok;
    for (LayerCursor layer(first); layer.next(next);) {
      const Status s = add_layer(layer);
      if (failed(s)) return s;
      status |= s;
    }
    if (failed(next)) return next;
    Header header = first.header();
    header.minor = kFormatMinor;
    header.total_bytes = bytes = at_;
    header.price = 0;
    header.grid_step = grid_step_;
    store_header(out_.data(), header);
    write_checksums(out_.first(at_), first.head_bytes());
    return status;
  }

 private:
  Status open(std::span<const ConstBytes> messages) noexcept {
    std::uninitialized_default_construct(memory_.heads.begin(), memory_.heads.end());
    std::uninitialized_default_construct(memory_.bodies.begin(), memory_.bodies.end());
    for (std::size_t k = 0; k < messages.size(); ++k) {
      Head& head = memory_.heads[k];
      if (const Status s = Head::parse(messages[k], false, head); failed(s)) return s;
      if (!same_layers(memory_.heads[0], head)) return Status::shape_mismatch;
      memory_.body_at[k] = head.head_bytes();
      const float step = head.header().grid_step;
      if (step == 0) continue;
      if (grid_step_ != 0 && grid_step_ != step) return Status::price_mismatch;
      grid_step_ = step;
    }
    return Status::ok;
  }

  /// Takes message k's part of a layer of n entries: its body without its price.
  Status take(std::size_t k, const LayerCursor& layer, std::size_t n) noexcept {
    const Head& head = memory_.heads[k];
    const LayerRecord row = head.row(layer.index);
    ConstBytes body =
        head.message().subspan(memory_.body_at[k], static_cast<std::size_t>(row.bytes));
    memory_.body_at[k] += static_cast<std::size_t>(padded(row.bytes));
    memory_.bodies[k] = {};
    if (const Status s = check_record(row, MethodId::coordinate, n); failed(s)) return s;
    if ((row.flags & LayerRecord::kNonFinite) != 0) non_finite_ = true;
    if (n == 0 || (row.flags & LayerRecord::kNonFinite) != 0) return Status::ok;
    if ((row.flags & LayerRecord::kLossless) != 0) return Status::unsupported;
    float step = head.header().grid_step;
    if ((row.flags & LayerRecord::kOwnPrice) != 0) {
      if (body.size() <= kPriceBytes) return Status::corrupt;
      step = load_le<float>(body.data());
      if (!is_own_price(step)) return Status::corrupt;
      body = body.subspan(kPriceBytes);
    }
    if (body.empty()) return Status::ok;
    if (step == 0) return Status::corrupt;
    if (step_ != 0 && step_ != step) return Status::price_mismatch;
    step_ = step;
    memory_.bodies[k].body = body;
    return Status::ok;
  }

  Status add_layer(const LayerCursor& layer) noexcept {
    if (layer.kind.method != MethodId::coordinate) return Status::unsupported;
    const std::size_t n = layer.kind.shape.elements();
    step_ = 0;
    non_finite_ = false;
    for (std::size_t k = 0; k < memory_.heads.size(); ++k) {
      if (const Status s = take(k, layer, n); failed(s)) return s;
    }
    LayerRecord row{layer.row.kind, non_finite_ ? LayerRecord::kNonFinite : std::uint8_t{0}, 0};
    const Status status = non_finite_ ? check_bodies(n) : write_body(n, row);
    if (failed(status)) return status;
    write_record(out_.data(), layer.index, row);
    const std::size_t end = at_ + static_cast<std::size_t>(row.bytes);
    at_ += static_cast<std::size_t>(padded(row.bytes));
    if (at_ > out_.size()) return Status::buffer_too_small;
    std::fill(out_.begin() + static_cast<std::ptrdiff_t>(end),
              out_.begin() + static_cast<std::ptrdiff_t>(at_), std::byte{0});
    return status;
  }

  /// Of a layer whose sum has none: they are judged all the same.
  Status check_bodies(std::size_t n) noexcept {
    for (const cpu::AddedBody& one : memory_.bodies) {
      std::uint64_t kept = 0;
      if (const Status s = cpu::coordinate_count(one.body, n, kept); failed(s)) return s;
    }
    return Status::non_finite;
  }

  Status write_body(std::size_t n, LayerRecord& row) noexcept {
    if (step_ == 0) return Status::ok;
    Bytes out = out_.subspan(at_);
    const bool own = step_ != grid_step_;
    if (own) {
      if (out.size() < kPriceBytes) return Status::buffer_too_small;
      store_le(out.data(), step_);
      out = out.subspan(kPriceBytes);
    }
    std::uint64_t bytes = 0;
    if (const Status s = memory_.adder.add(memory_.bodies, n, out, bytes); failed(s)) return s;
    if (bytes == 0) return Status::ok;
    if (own) row.flags |= LayerRecord::kOwnPrice;
    row.bytes = bytes + (own ? kPriceBytes : 0);
    return row.bytes <= kMaxBodyBytes ? Status::ok : Status::too_large;
  }

  AddMemory memory_;
  Bytes out_;
  std::size_t at_ = 0;       ///< where the next body goes
  float grid_step_ = 0;      ///< of the sum's header
  float step_ = 0;           ///< of the layer at hand, 0 while no message sends something of it
  bool non_finite_ = false;  ///< the layer at hand, in some message
};

/// The memory of a vote.
struct VoteMemory {
  std::span<Head> heads;
  std::span<std::size_t> body_at;    ///< of the layer at hand, a message each
  std::span<const std::byte*> bits;  ///< likewise

  VoteMemory(Carver& carver, std::size_t messages) noexcept
      : heads(carver.take<Head>(messages)),
        body_at(carver.take<std::size_t>(messages)),
        bits(carver.take<const std::byte*>(messages)) {}
};

class Vote {
 public:
  Vote(const VoteMemory& memory, Executor* executor) noexcept
      : memory_(memory), executor_(executor) {}

  Status run(std::span<const ConstBytes> messages, std::span<const TensorView> views) noexcept {
    std::uninitialized_default_construct(memory_.heads.begin(), memory_.heads.end());
    for (std::size_t k = 0; k < messages.size(); ++k) {
      Head& head = memory_.heads[k];
      if (const Status s = Head::parse(messages[k], false, head, executor_); failed(s)) return s;
      if (!same_layers(memory_.heads[0], head)) return Status::shape_mismatch;
      memory_.body_at[k] = head.head_bytes();
    }
    if (memory_.heads[0].layers() != views.size()) return Status::shape_mismatch;
    Status status = Status::ok, next = Status::ok;
    for (LayerCursor layer(memory_.heads[0]); layer.next(next);) {
      const Status s = count(layer, views[layer.index]);
      if (failed(s)) return s;
      status |= s;
    }
    return failed(next) ? next : status;
  }

 private:
  Status count(const LayerCursor& layer, const TensorView& view) noexcept {
    if (layer.kind.method != MethodId::sign) return Status::unsupported;
    if (view.device != Device::cpu || view.dtype != DType::f32) return Status::unsupported;
    if (view.shape != layer.kind.shape) return Status::shape_mismatch;
    const std::size_t n = layer.kind.shape.elements();
    if (n > 0 && view.data == nullptr) return Status::invalid_argument;
    const SignConfig config = sign_config(layer.kind.params);
    bool finite = true;
    for (std::size_t k = 0; k < memory_.heads.size(); ++k) {
      const LayerRecord row = memory_.heads[k].row(layer.index);
      const ConstBytes body = memory_.heads[k].message().subspan(
          memory_.body_at[k], static_cast<std::size_t>(row.bytes));
      memory_.body_at[k] += static_cast<std::size_t>(padded(row.bytes));
      if (const Status s = check_record(row, MethodId::sign, n); failed(s)) return s;
      if ((row.flags & LayerRecord::kLossless) != 0) return Status::unsupported;
      if ((row.flags & LayerRecord::kNonFinite) != 0) {
        finite = false;
      } else if (n > 0) {
        const Status s = cpu::sign_bits(config, body, n, memory_.bits[k]);
        if (failed(s)) return s;
      }
    }
    auto* const y = static_cast<float*>(view.data);
    if (finite) {
      cpu::count_votes(memory_.bits, y, n, executor_);
      return Status::ok;
    }
    std::fill_n(y, n, std::numeric_limits<float>::quiet_NaN());
    return Status::non_finite;
  }

  VoteMemory memory_;
  Executor* executor_;
};

}  // namespace

std::size_t add_workspace_bytes(std::size_t messages) noexcept {
  Carver carver;
  AddMemory(carver, messages);
  return carver.bytes();
}

std::uint64_t added_bytes_bound(std::span<const ConstBytes> messages) noexcept {
  Head head;
  if (messages.empty() || failed(Head::parse(messages[0], false, head))) return 0;
  std::uint64_t bytes = head.head_bytes();
  Status status = Status::ok;
  for (LayerCursor layer(head); layer.next(status);) {
    if (layer.kind.method != MethodId::coordinate) return 0;
    bytes += padded(kPriceBytes + max_wide_body_bytes(layer.kind.shape.elements()));
  }
  return failed(status) ? 0 : bytes;
}

std::size_t vote_workspace_bytes(std::size_t messages) noexcept {
  Carver carver;
  VoteMemory(carver, messages);
  return carver.bytes();
}

Status vote(std::span<const ConstBytes> messages, std::span<const TensorView> layers,
            const Context& context) noexcept {
  constexpr std::size_t kMost = std::size_t{1} << 31;
  if (messages.empty() || messages.size() > kMost) return report(context, Status::invalid_argument);
  Carver carver(context.workspace);
  const VoteMemory memory(carver, messages.size());
  if (!carver.fits()) return report(context, Status::workspace_too_small);
  return report(context, Vote(memory, context.executor).run(messages, layers));
}

Status add(std::span<const ConstBytes> messages, Bytes workspace, const Payload& sum) noexcept {
  if (messages.empty() || sum.data == nullptr || sum.bytes == nullptr)
    return Status::invalid_argument;
  Carver carver(workspace);
  const AddMemory memory(carver, messages.size());
  if (!carver.fits()) return Status::workspace_too_small;
  return Addition(memory, sum).run(messages, *sum.bytes);
}

}  // namespace atomo
