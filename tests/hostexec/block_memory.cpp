// SPDX-License-Identifier: Apache-2.0
// Built without sanitizers (see fiber.hpp): what it writes is no access of the kernel.
#include "block_memory.hpp"

#include <algorithm>
#include <cstdlib>

#include "executor.hpp"
#include "fiber.hpp"

namespace hostexec {

namespace {

constexpr std::size_t kMaxObjects = 64, kMaxAlign = 256;

struct Object {
  const void* key;
  char* bytes;
  std::size_t size;
};

struct Place {
  Object objects[kMaxObjects], dynamic_object;
  std::size_t object_count;
};
Place places[kMaxGroup], *place = places;
std::uint64_t garbage;

// TSan has no red zones to offer, and blocks of a group must not share memory: theirs comes from
// here.
[[maybe_unused]] std::size_t arena_used;

char* take(std::size_t size, std::size_t align) {
  if constexpr (kTsan) {
    constexpr std::size_t kBlock = kMaxSharedBytes + kMaxObjects * kMaxAlign;
    alignas(kMaxAlign) static char arena[kTsan ? kMaxGroup * kBlock : 1];
    char* const bytes = arena + arena_used;
    arena_used += (size + kMaxAlign - 1) / kMaxAlign * kMaxAlign;
    return bytes;
  }
  // A heap block of its own: ASan sees the first byte past the end.
  void* bytes = nullptr;
  if (posix_memalign(&bytes, std::max<std::size_t>(align, 16), size) != 0) std::abort();
  return static_cast<char*>(bytes);
}

void give_back(char* bytes) {
  if constexpr (!kTsan) std::free(bytes);
}

// Volatile, so that no library function, which a sanitizer may replace, does it.
void fill(const Object& object) {
  std::size_t i = 0;
  for (; i + 8 <= object.size; i += 8)
    *reinterpret_cast<volatile std::uint64_t*>(object.bytes + i) = garbage;
  for (; i < object.size; ++i)
    *reinterpret_cast<volatile char*>(object.bytes + i) = static_cast<char>(garbage);
}

Object make(const void* key, std::size_t size, std::size_t align) {
  const Object object{key, take(size, align), size};
  fill(object);
  return object;
}

}  // namespace

void use_block_memory(std::size_t number) { place = &places[number]; }

void begin_block_memory(std::size_t dynamic_bytes, Settings& settings) {
  // NaN, -1 and the largest unsigned value; other bytes where draws are to be had.
  garbage = ~std::uint64_t{0};
  if (settings.order == Order::random) garbage = 0x0101010101010101u * (settings.draw() & 255);
  if (kTsan) {
    place->object_count = 0;
    place->dynamic_object.bytes = nullptr;
  }
  for (std::size_t i = 0; i < place->object_count; ++i) fill(place->objects[i]);
  if (place->dynamic_object.bytes == nullptr)
    place->dynamic_object = make(nullptr, dynamic_bytes, 16);
  else
    fill(place->dynamic_object);
}

void begin_group_memory() { arena_used = 0; }

void end_grid_memory() {
  for (Place& each : places) {
    for (std::size_t i = 0; i < each.object_count; ++i) give_back(each.objects[i].bytes);
    each.object_count = 0;
    give_back(each.dynamic_object.bytes);
    each.dynamic_object.bytes = nullptr;
  }
}

void* shared_object(const void* key, std::size_t size, std::size_t align) {
  std::size_t total = place->dynamic_object.size + size;
  for (std::size_t i = 0; i < place->object_count; ++i) {
    if (place->objects[i].key == key) return place->objects[i].bytes;
    total += place->objects[i].size;
  }
  if (total > kMaxSharedBytes || place->object_count == kMaxObjects || align > kMaxAlign)
    fail("a block asks for more shared memory than there is", Location::current());
  place->objects[place->object_count] = make(key, size, align);
  return place->objects[place->object_count++].bytes;
}

void* dynamic_shared() { return place->dynamic_object.bytes; }

}  // namespace hostexec
