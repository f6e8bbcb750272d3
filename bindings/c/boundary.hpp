// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The boundary between C and C++: what stands behind the handles, arguments checked and turned into
/// the library's types, and exceptions turned into statuses. Arguments are refused by throwing
/// `Error`, which `guarded` catches.

#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "atomo/atomo.h"
#include "atomo/atomo.hpp"
#include "atomo/cuda.hpp"

struct atomo_codec {
  atomo::Codec codec;
};
struct atomo_threads {
  std::unique_ptr<atomo::Executor> executor;
};
struct atomo_handles {
  atomo::HandlesPtr handles;
};
struct atomo_compressor {
  atomo::Compressor model;
};
struct atomo_message {
  atomo::ContainerInfo info;
};
struct atomo_patch {
  std::vector<std::byte> bytes;
  atomo::PatchInfo info;
};

namespace atomo::c {

/// The status of C; a failure's description becomes this thread's last error.
atomo_status to_c(Status status) noexcept;
/// Of the exception being handled, whose message becomes this thread's last error.
atomo_status refused() noexcept;

/// Runs `body`, which returns a Status or nothing, and lets no exception out.
template <typename Body>
atomo_status guarded(Body body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return ATOMO_OK;
    } else {
      return to_c(body());
    }
  } catch (...) {
    return refused();
  }
}

/// \throws Error with the argument's name when it is NULL.
void check_given(const void* pointer, const char* name);
/// What `pointer` points to, checked.
template <typename T>
T& given(T* pointer, const char* name) {
  check_given(pointer, name);
  return *pointer;
}

/// \throws Error unless the reserved fields of a caller's struct are zero.
template <typename... Numbers>
void check_zero(const char* owner, Numbers... numbers) {
  if (((numbers != 0) || ...)) {
    throw Error(std::string("`reserved` of ") + owner +
                " is not zero: begin with `= {0}` and fill in what is named");
  }
}

/// Hands a new handle out. `*out` is null unless `make` comes back.
template <typename Handle, typename Make>
atomo_status handed_out(Handle** out, Make make) noexcept {
  return guarded([&] {
    given(out, "the pointer that receives the handle") = nullptr;
    *out = new Handle{make()};
  });
}

/// \throws Error unless `i` is below `count`; `what` names them, "layers".
void check_index(std::size_t i, std::size_t count, const char* what);
/// \throws Error when `alpha` is NaN, which would leave nothing of the tensor.
float checked_alpha(float alpha);

Shape shape_of(const std::int64_t* dims, std::int32_t rank);
DType dtype_of(atomo_dtype dtype);
Device device_of(atomo_device device);
Key key_of(const atomo_key* key);
/// A null one is of all defaults.
Context context_of(const atomo_context* context);
Payload payload_of(void* data, std::size_t capacity, std::uint64_t* bytes);
ConstBytes message_of(const void* message, std::size_t bytes);
ConstTensorView view_of(const atomo_const_tensor* tensor);
TensorView view_of(const atomo_tensor* tensor);

/// The items of one call, in memory that the thread lends it and takes back, so that later calls do not
/// allocate. A call made within this one, by an executor's `run` or a codec of the caller's, finds that
/// memory lent and takes its own.
template <typename Item>
class Lent {
 public:
  Lent() noexcept : items_(std::exchange(of_thread(), {})) { items_.clear(); }
  Lent(Lent&& other) noexcept = default;
  Lent& operator=(Lent&&) = delete;
  ~Lent() {
    if (items_.capacity() > of_thread().capacity()) of_thread() = std::move(items_);
  }
  [[nodiscard]] std::vector<Item>& items() noexcept { return items_; }
  operator std::span<const Item>() const noexcept { return items_; }

 private:
  static std::vector<Item>& of_thread() noexcept {
    thread_local std::vector<Item> kept;
    return kept;
  }
  std::vector<Item> items_;
};

Lent<ConstTensorView> views_of(const atomo_const_tensor* tensors, std::size_t count);
Lent<TensorView> views_of(const atomo_tensor* tensors, std::size_t count);
Lent<ConstBytes> messages_of(const atomo_bytes* messages, std::size_t count);

/// Copies bytes out by the rules of `atomo_codec_spec`.
Status copied_out(ConstBytes bytes, void* out, std::size_t capacity, std::size_t* needed);
/// The same with a terminating zero.
Status copied_out(const std::string& text, char* out, std::size_t capacity, std::size_t* needed);

}  // namespace atomo::c
