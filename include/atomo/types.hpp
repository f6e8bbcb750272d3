// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The types every level of atomo shares: tensors as views, keys, buffers, statuses, errors,
/// traits.
///
/// A view borrows memory; nothing in atomo owns a tensor or a payload. Tensors are dense and
/// row-major.
///
/// ```cpp
/// float g[6] = {1, 2, 3, 4, 5, 6};
/// atomo::ConstTensorView view{g, atomo::DType::f32, atomo::Shape{2, 3}};
/// ```

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

struct CUstream_st;

namespace [[gnu::visibility("default")]] atomo {

/// The same type as `cudaStream_t`, declared without a CUDA header. Null on the CPU.
using Stream = CUstream_st*;
using Bytes = std::span<std::byte>;             ///< memory to write
using ConstBytes = std::span<const std::byte>;  ///< memory to read

/// A set-up mistake: a bad spec, shape or policy. The message names the value, the rule it broke
/// and what would be accepted. The hot path (`encode`, `decode`) never throws; it returns a
/// `Status`.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What a call on the hot path came to: `ok`; one or more notices, which are flags; or one failure,
/// which stands alone. A call with notices did what was asked. `failed` and `has` tell them apart.
enum class [[nodiscard]] Status : std::int32_t{
    ok = 0,
    // Notices.
    non_finite = 1,  ///< a layer held an Inf or NaN, is flagged and decodes to NaN everywhere
    underspent = 2,  ///< the budget is above what the finest class can spend
    overflow = 4,    ///< a value too large for the half output became +-Inf
    overspent = 8,   ///< the budget does not pay for a message worth sending: it is exceeded

    // Failures.
    buffer_too_small = 256,  ///< the capacity is below `max_encoded_bytes`, or what else is written
    workspace_too_small,     ///< the workspace is below what the query of its size says
    truncated,               ///< the message ends before its header says
    bad_magic,               ///< not an atomo container
    bad_version,             ///< a major version or a must-understand flag this build does not know
    bad_checksum,            ///< bytes changed since they were written
    corrupt,                 ///< the checksums hold, the content breaks the format's rules
    shape_mismatch,          ///< other layers than the caller's tensors, or than come next
    codec_mismatch,    ///< the container was written by another codec than the one asked to decode
    unsupported,       ///< this dtype, device or size is not supported by this codec or call
    external,          ///< a library below (LAPACK, blosc, CUDA) reported failure
    price_mismatch,    ///< messages of other prices or grid steps do not add or join
    too_large,         ///< a sum is beyond what a message can hold
    invalid_argument,  ///< a pointer that is needed is null, a number is out of its range, or a
                       ///< call on CUDA has no stream
    wrong_stage,       ///< a call out of its order: a step is or is not under way
    codec_unknown,  ///< a layer's codec is not the library's, and not registered here: `codec_error`
                    ///< (atomo/own_codec.hpp) names it
    codec_failed,   ///< a registered codec threw or broke its promise: `codec_error` has the text
};

/// True when the call did not do what was asked.
[[nodiscard]] constexpr bool failed(Status s) noexcept {
  return static_cast<std::int32_t>(s) >= static_cast<std::int32_t>(Status::buffer_too_small);
}

/// True when `s` is no failure and holds this notice.
[[nodiscard]] constexpr bool has(Status s, Status notice) noexcept {
  return !failed(s) && (static_cast<std::int32_t>(s) & static_cast<std::int32_t>(notice)) != 0;
}

/// What two calls came to together: all notices of both, or the failure with the larger number.
[[nodiscard]] constexpr Status operator|(Status a, Status b) noexcept {
  if (failed(a) || failed(b)) return a < b ? b : a;
  return static_cast<Status>(static_cast<std::int32_t>(a) | static_cast<std::int32_t>(b));
}

/// `a` becomes `a | b`.
constexpr Status& operator|=(Status& a, Status b) noexcept { return a = a | b; }

/// One line for a person, e.g. "the checksum does not match: bytes were changed". Several notices
/// are told one after another. The text is of static storage and ends with a zero.
[[nodiscard]] std::string_view describe(Status s) noexcept;

/// Element types accepted at the boundary. Arithmetic is f32.
enum class DType : std::uint8_t { f32 = 0, f16 = 1, bf16 = 2 };

/// Bytes an element.
[[nodiscard]] constexpr std::size_t size_of(DType t) noexcept { return t == DType::f32 ? 4 : 2; }
/// "f32", "f16" or "bf16".
[[nodiscard]] std::string_view name_of(DType t) noexcept;

/// Where a tensor lives.
enum class Device : std::uint8_t { cpu = 0, cuda = 1 };

/// Up to 8 dimensions of at least 0; their product is at most 2^40 elements. A scalar has rank 0
/// and one element.
class Shape {
 public:
  static constexpr int kMaxRank = 8;  ///< dimensions
  static constexpr std::uint64_t kMaxElements = std::uint64_t{1}
                                                << 40;  ///< of all dimensions together
  static constexpr std::int64_t kMaxDimension = std::int64_t{1} << 62;  ///< beside one of 0

  Shape() = default;
  /// The same check for dimensions written out.
  Shape(std::initializer_list<std::int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  /// \throws Error for more than 8 dimensions, one below 0 or above 2^62, or more than 2^40 elements.
  explicit Shape(std::span<const std::int64_t> dims);

  /// Dimensions, 0 for a scalar.
  [[nodiscard]] int rank() const noexcept { return rank_; }
  /// Extent of dimension `i`, which must be below `rank()`.
  [[nodiscard]] std::int64_t operator[](int i) const noexcept {
    return dims_[static_cast<std::size_t>(i)];
  }
  /// Product of the dimensions, 1 for a scalar.
  [[nodiscard]] std::size_t elements() const noexcept { return elements_; }
  /// All extents, outermost first.
  [[nodiscard]] std::span<const std::int64_t> dims() const noexcept {
    return {dims_.data(), static_cast<std::size_t>(rank_)};
  }
  [[nodiscard]] std::string to_string() const;  ///< "[64, 3, 7, 7]"

  /// Same rank, same extents.
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
  std::size_t elements_ = 1;
};

/// A tensor to read. `data` needs only the alignment of its element type.
struct ConstTensorView {
  const void* data = nullptr;   ///< the first element; may be null when there are none
  DType dtype = DType::f32;     ///< of every element
  Shape shape;                  ///< dense, row-major
  Device device = Device::cpu;  ///< where `data` points
};

/// A tensor to write. `data` needs only the alignment of its element type.
struct TensorView {
  void* data = nullptr;         ///< the first element; may be null when there are none
  DType dtype = DType::f32;     ///< of every element
  Shape shape;                  ///< dense, row-major
  Device device = Device::cpu;  ///< where `data` points
};

/// What every random draw of a message is a function of (FORMAT.md, "Randomness"). Two messages
/// must not share a key: give each worker its number, each step its number; `channel` separates
/// directions and re-encodes.
struct Key {
  std::uint64_t seed = 0;     ///< of the run
  std::uint32_t step = 0;     ///< of the training
  std::uint16_t tensor = 0;   ///< the layer's number in its model
  std::uint16_t worker = 0;   ///< the sender's rank
  std::uint16_t channel = 0;  ///< direction, or how often this was encoded again on its way

  /// Every field the same: the same draws.
  friend bool operator==(const Key&, const Key&) = default;
};

/// The prices of a message or a step, each 0 where there is none (FORMAT.md, "Header").
struct Prices {
  float atoms = 0;  ///< the amplitude `a` of an atom that is only just certain to be sent
  float grid = 0;   ///< the step of the grid of coordinates

  /// Both the same.
  friend bool operator==(const Prices&, const Prices&) = default;
};

/// Where a message goes. `bytes` receives its length: a host word on the CPU, a device word on
/// CUDA.
struct Payload {
  std::byte* data = nullptr;       ///< any alignment
  std::size_t capacity = 0;        ///< bytes that may be written at `data`
  std::uint64_t* bytes = nullptr;  ///< receives the message's length
};

/// Runs the independent parts of one call on several threads. The bytes never depend on it.
class Executor {
 public:
  virtual ~Executor() = default;
  /// Calls `task(state, i)` once for every i in [0, count), in any order, on any thread; returns
  /// when all are done. The floating-point modes of those threads do not matter: the library's
  /// tasks set what they need and restore what they found.
  virtual void run(std::size_t count, void (*task)(void* state, std::size_t i),
                   void* state) noexcept = 0;
  /// How many tasks run at once, 0 where that is not known. It steers how work is cut, never a byte.
  [[nodiscard]] virtual std::size_t threads() const noexcept { return 0; }
};

// Library handles of a CUDA caller (cuBLAS, cuSOLVER): atomo/cuda.hpp.
struct Handles;

/// What a call may use. Everything is optional but the workspace, whose size
/// `encode_workspace_bytes` and `decode_workspace_bytes` state, and on CUDA the stream.
struct Context {
  /// Unused on the CPU. Calls on CUDA tensors refuse null (Status::invalid_argument), because it
  /// would mean the legacy default stream in silence: `legacy_stream()` (atomo/cuda.hpp) names it.
  Stream stream = nullptr;
  Bytes workspace{};  ///< scratch of the call, any alignment, not shared by two calls at once
  /// Null: the calling thread alone. Encoding and decoding a model hand it whole layers, a call on
  /// one layer hands it ranges of entries where the codec can work on several at once (`identity`,
  /// `qsgd`, `sign`, `terngrad`, `topk`, `randomk`, coordinates, decoding of singular pairs). The
  /// bytes and the values are the same.
  Executor* executor = nullptr;
  Handles* handles = nullptr;  ///< for encoding singular pairs on CUDA; unused on the CPU
  Status* status = nullptr;    ///< receives the call's status too (a device word on CUDA)
  /// Null, or room for a status of each message that the call decodes (device words on CUDA): which
  /// of several was refused. Left alone where the call as a whole is refused.
  Status* statuses = nullptr;
  const std::uint32_t* step =
      nullptr;  ///< overrides `Key::step` when not null (a device word on CUDA)
  /// Overrides the key of `Codec::encode` and `Compressor::encode` when not null (in device memory on
  /// CUDA), and `step` overrides its step. `tensor` must be 0 for a model.
  const Key* key = nullptr;
};

/// What a codec promises.
struct Traits {
  bool unbiased = false;  ///< E[decode(encode(g))] = g for every finite g, up to `bias_bound`
  /// |E[decode] - x| <= bias_bound * (|x| + step) for each entry, `step` being the quantisation
  /// step at that entry; for singular pairs the norm of the entry's line along the matrix's shorter
  /// side, for a sketch that of its row. It covers float rounding alone. Infinite for a biased codec.
  double bias_bound = 0;
  /// E||decode - g||^2 <= omega ||g||^2, where a bound is known without g.
  std::optional<double> omega;
  std::optional<double>
      contraction;  ///< E||decode - g||^2 <= (1 - contraction) ||g||^2, where known
  /// No decoded entry is above `largest` times the largest magnitude of g, in any draw; where known.
  std::optional<double> largest;
  /// The step of a fixed grid, such as a fixed price or the least f16: an entry of a tensor far below it may
  /// decode to a few steps, once in many draws. 0 where the grid follows the tensor.
  double step = 0;
  /// `unbiased`, `omega`, `contraction` and `largest` are about tensors whose largest magnitude is not below
  /// this, and about zeros: 2^-126 where a subnormal number has fewer bits to round to.
  double smallest = 0;
  /// Nor above this: the largest magnitude that a message can hold.
  double highest = std::numeric_limits<double>::infinity();
  bool linear = false;  ///< payloads add without decoding (of coordinates: arithmetic.hpp)
  bool votes = false;   ///< of signs, which are counted without decoding (`vote`, arithmetic.hpp)
  bool averages_over_workers =
      false;  ///< workers' errors are independent, so the mean's variance falls with 1/W
  bool fixed_size = false;  ///< the size depends on the shape alone
  bool bounded = false;     ///< a fixed size or a `cap=`: `wire_bytes` are enough for every message
  bool allocates = false;   ///< encode or decode takes heap memory
  bool synchronises = false;  ///< encode or decode waits for the device
  bool capturable = true;     ///< can be captured into a CUDA graph
  bool cpu = true;            ///< has a CPU twin
  bool cuda = false;          ///< has a CUDA twin
  bool memory =
      false;  ///< keeps what it has not sent: biased a step, and a `Compressor` alone encodes
  /// Of `ef21`: a message is a difference, and what it decodes to belongs to the sum of what earlier ones
  /// did, which the receiver keeps.
  bool differences = false;
};

}  // namespace atomo
