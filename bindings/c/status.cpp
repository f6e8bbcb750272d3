// SPDX-License-Identifier: Apache-2.0
// Statuses, the last error of each thread, versions.
#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string_view>

#include "boundary.hpp"

namespace atomo::c {
namespace {

// An array: it needs no memory when there is none, and outlives whatever else the thread destroys.
thread_local char last_error[2048] = "";

void remember(std::string_view text) noexcept {
  std::size_t bytes = std::min(text.size(), sizeof last_error - 1);
  // Not through the middle of a character of UTF-8.
  while (bytes < text.size() && bytes > 0 && (text[bytes] & 0xC0) == 0x80) --bytes;
  std::memcpy(last_error, text.data(), bytes);
  last_error[bytes] = '\0';
}

atomo_status failure(atomo_status status, std::string_view text) noexcept {
  remember(text);
  return status;
}

static_assert(static_cast<int>(Status::overflow) == ATOMO_OVERFLOW);
static_assert(static_cast<int>(Status::overspent) == ATOMO_OVERSPENT);
static_assert(static_cast<int>(Status::buffer_too_small) == ATOMO_BUFFER_TOO_SMALL);
static_assert(static_cast<int>(Status::wrong_stage) == ATOMO_WRONG_STAGE);
static_assert(static_cast<int>(Status::codec_failed) == ATOMO_CODEC_FAILED);

}  // namespace

atomo_status to_c(Status status) noexcept {
  if (status == Status::codec_failed || status == Status::codec_unknown) {
    try {
      remember(explain(status));
    } catch (...) {  // out of memory
      remember(describe(status));
    }
  } else if (failed(status)) {
    remember(describe(status));
  }
  return static_cast<atomo_status>(status);
}

atomo_status refused() noexcept {
  try {
    throw;
  } catch (const Error& e) {
    return failure(ATOMO_INVALID_ARGUMENT, e.what());
  } catch (const std::bad_alloc&) {
    return failure(ATOMO_OUT_OF_MEMORY, atomo_status_text(ATOMO_OUT_OF_MEMORY));
  } catch (const std::length_error&) {
    return failure(ATOMO_OUT_OF_MEMORY, atomo_status_text(ATOMO_OUT_OF_MEMORY));
  } catch (const std::exception& e) {
    return failure(ATOMO_INTERNAL, e.what());
  } catch (...) {
    return failure(ATOMO_INTERNAL, atomo_status_text(ATOMO_INTERNAL));
  }
}

}  // namespace atomo::c

const char* atomo_status_text(atomo_status status) {
  switch (status) {
    case ATOMO_OUT_OF_MEMORY:
      return "there is not enough memory";
    case ATOMO_INTERNAL:
      return "a mistake inside the library";
    default:  // the library's texts are literals; of a number that is none of its own it says so
      return atomo::describe(static_cast<atomo::Status>(status)).data();
  }
}

const char* atomo_last_error(void) { return atomo::c::last_error; }

uint32_t atomo_abi_version(void) { return ATOMO_ABI_VERSION; }

const char* atomo_version(void) { return atomo::kVersion; }

atomo_status atomo_format_version(int32_t* major_out, int32_t* minor_out) {
  return atomo::c::guarded([&] {
    auto& minor_format = atomo::c::given(minor_out, "minor_out");
    atomo::c::given(major_out, "major_out") = atomo::kFormatMajor;
    minor_format = atomo::kFormatMinor;
  });
}
