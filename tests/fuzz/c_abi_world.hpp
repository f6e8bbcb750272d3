// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The objects, memory and numbers that calls of the C interface work on.
#include "atomo/atomo.h"
#include "fuzz/input.hpp"
#include "fuzz/room.hpp"

namespace atomo::fuzz {

inline constexpr const char* kSpecs[] = {"atomo:bits=1",
                                         "qsgd:bits=3",
                                         "topk:keep=0.2",
                                         "identity",
                                         "sign:scale=mean",
                                         "atomo:bits=1,atoms=coordinate",
                                         "qsgd:bits=2+blosc",
                                         "ef+topk:keep=0.1",
                                         "atomo:bits=2,cap=4",
                                         "terngrad",
                                         "atomo:bits=2,atoms=sketch",
                                         "nonsense:x",
                                         ""};
inline constexpr const char* kPolicies[] = {"*=atomo:bits=1",
                                            "qsgd:bits=2",
                                            "*b=identity;*=ef+sign:scale=mean",
                                            "a=sign",
                                            "*=atomo:bits=1,cap=4",
                                            "*=atomo:atoms=coordinate,delta=0.01",
                                            "=;",
                                            ""};
inline constexpr std::size_t kSlots = 3, kMostCalls = 48, kMostElements = 600;

/// What the calls work on. Objects are destroyed at the end, parts before what they are parts of.
struct World {
  atomo_codec* codecs[kSlots] = {};
  atomo_compressor* models[kSlots] = {};
  bool is_part[kSlots] = {};
  int whole_of[kSlots] = {-1, -1, -1};
  atomo_message* message = nullptr;
  atomo_threads* threads = nullptr;
  Buffer sent;  ///< the last message that was written
  /// What a message under way may still write to lives as long as the world.
  std::vector<std::unique_ptr<Room>> rooms;
  std::vector<std::unique_ptr<std::uint64_t>> words;
  std::uint64_t sight = 1;

  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() {
    for (std::size_t i = 0; i < kSlots; ++i) atomo_codec_destroy(codecs[i]);
    for (const bool parts : {true, false}) {
      for (std::size_t i = 0; i < kSlots; ++i)
        if (is_part[i] == parts) atomo_compressor_destroy(models[i]);
    }
    atomo_message_destroy(message);
    atomo_threads_destroy(threads);
  }
  Room& room(std::size_t bytes, int fill = 0x5A) {
    return *rooms.emplace_back(std::make_unique<Room>(bytes, fill));
  }
  std::uint64_t& word() { return *words.emplace_back(std::make_unique<std::uint64_t>(0)); }

  void destroy_model(std::size_t i) {
    for (std::size_t k = 0; k < kSlots; ++k) {
      if (k != i && models[k] != nullptr && is_part[k] && whole_of[k] == static_cast<int>(i)) {
        atomo_compressor_destroy(models[k]);
        models[k] = nullptr, is_part[k] = false;
      }
    }
    atomo_compressor_destroy(models[i]);
    models[i] = nullptr, is_part[i] = false;
  }
  atomo_status saw(std::uint64_t call, atomo_status status) {
    require(status >= 0 && atomo_status_text(status) != nullptr, "a call gives a status");
    require(status != ATOMO_INTERNAL, "no mistake of the library's own");
    if (atomo_failed(status)) require(std::strlen(atomo_last_error()) < 2048, "an error is a line");
    sight += seen(call, static_cast<std::uint64_t>(status)) % 1021;  // whatever the order
    return status;
  }
};

/// Extents, mostly of a small tensor, else anything.
struct Dims {
  std::int64_t extents[9] = {};
  std::int32_t rank = 0;
  std::size_t elements = 1;
  bool sound = true;

  explicit Dims(Input& in) {
    const auto choice = in.take<std::uint8_t>();
    if (choice >= 240) {
      sound = false;
      rank = static_cast<std::int32_t>(in.take<std::int8_t>() % 12);
      for (auto& d : extents)
        d = choice % 2 == 0 ? in.take<std::int64_t>() : in.take<std::int8_t>();
      if (rank > 9) rank = 9;
      return;
    }
    constexpr std::int64_t kShapes[][2] = {{12, 20}, {240, -1}, {1, 1},   {0, 7},
                                           {3, 5},   {30, 16},  {-1, -1}, {16, 32}};
    for (const std::int64_t d : kShapes[choice % 8]) {
      if (d < 0) break;
      extents[rank++] = d;
      elements *= static_cast<std::size_t>(d);
    }
  }
};

inline std::int32_t dtype_of(Input& in) {
  const auto choice = in.take<std::uint8_t>();
  return choice < 200 ? choice % 3 : static_cast<std::int32_t>(choice) - 220;
}
inline std::size_t bytes_of(std::int32_t dtype) { return dtype == ATOMO_F32 ? 4 : 2; }

inline atomo_key key_of(Input& in) {
  atomo_key key{};
  key.seed = in.take<std::uint8_t>();
  key.step = in.take<std::uint8_t>() % 4;
  const auto more = in.take<std::uint8_t>();
  if (more > 220) key.tensor = more;
  if (more > 250) key.reserved[0] = 1;
  return key;
}

}  // namespace atomo::fuzz
