// SPDX-License-Identifier: Apache-2.0
// Patches of weights: atomo/patch.hpp.
#include <string>
#include <vector>

#include "boundary.hpp"

using atomo::Error;
using atomo::c::check_given;
using atomo::c::given;
using atomo::c::guarded;
using atomo::c::handed_out;

namespace {

atomo::PatchTensor tensor_of(const atomo_patch_tensor& tensor) {
  atomo::c::check_zero("a tensor", tensor.reserved[0], tensor.reserved[1]);
  check_given(tensor.name, "name");
  check_given(tensor.type, "type");
  if (tensor.rank < 0) {
    throw Error("rank is " + std::to_string(tensor.rank) + ": expected 0 to 255 dimensions");
  }
  if (tensor.rank > 0) check_given(tensor.shape, "shape");
  if (tensor.floating > 1) {
    throw Error("floating is " + std::to_string(tensor.floating) + ": expected 0 or 1");
  }
  if (tensor.bytes > 0) check_given(tensor.data, "data");
  return {tensor.name,
          tensor.type,
          {tensor.shape, tensor.shape + tensor.rank},
          tensor.element_bytes,
          tensor.floating == 1,
          {static_cast<const std::byte*>(tensor.data), tensor.bytes}};
}

std::vector<atomo::PatchTensor> state_of(const atomo_patch_tensor* tensors, std::size_t count,
                                         const char* name) {
  if (count > 0) check_given(tensors, name);
  std::vector<atomo::PatchTensor> state;
  for (std::size_t i = 0; i < count; ++i) {
    try {
      state.push_back(tensor_of(tensors[i]));
    } catch (const Error& e) {
      throw Error(std::string(name) + "[" + std::to_string(i) + "]: " + e.what());
    }
  }
  return state;
}

atomo::Executor* executor_of(const atomo_threads* threads) {
  return threads == nullptr ? nullptr : threads->executor.get();
}

}  // namespace

atomo_status atomo_patch_make(const atomo_patch_tensor* before, size_t before_count,
                              const atomo_patch_tensor* after, size_t after_count, const void* note,
                              size_t note_bytes, atomo_threads* threads, atomo_patch** patch) {
  return handed_out(patch, [&] {
    const auto old_state = state_of(before, before_count, "before");
    const auto new_state = state_of(after, after_count, "after");
    if (note_bytes > 0) check_given(note, "note");
    atomo_patch made{
        atomo::make_patch(old_state, new_state, {static_cast<const char*>(note), note_bytes},
                          executor_of(threads)),
        {}};
    made.info = atomo::inspect_patch(made.bytes);
    return made;
  });
}

atomo_status atomo_patch_read(const void* data, size_t bytes, atomo_patch** patch) {
  return handed_out(patch, [&] {
    const atomo::ConstBytes from = atomo::c::message_of(data, bytes);
    atomo::PatchInfo info = atomo::inspect_patch(from);
    return atomo_patch{{from.begin(), from.end()}, std::move(info)};
  });
}

void atomo_patch_destroy(atomo_patch* patch) { delete patch; }

atomo_status atomo_patch_about(const atomo_patch* patch, atomo_patch_info* info) {
  return guarded([&] {
    const atomo_patch& from = given(patch, "patch");
    atomo_patch_info& out = given(info, "info");
    out = {};
    out.data = from.bytes.data();
    out.bytes = from.bytes.size();
    out.note = from.info.note.data();
    out.note_bytes = from.info.note.size();
    out.tensors = from.info.tensors.size();
  });
}

atomo_status atomo_patch_entry_at(const atomo_patch* patch, size_t i, atomo_patch_entry* entry) {
  return guarded([&] {
    const auto& tensors = given(patch, "patch").info.tensors;
    atomo_patch_entry& out = given(entry, "entry");
    atomo::c::check_index(i, tensors.size(), "tensors");
    const atomo::PatchEntry& from = tensors[i];
    out = {};
    out.name = from.name.c_str();
    out.type = from.type.c_str();
    out.shape = from.shape.data();
    out.rank = static_cast<std::int32_t>(from.shape.size());
    out.form = static_cast<std::int32_t>(from.form);
    out.element_bytes = from.element_bytes;
    out.floating = from.floating;
    out.bytes = from.bytes;
    out.changed = from.changed;
    out.sent = from.sent;
    out.checksum = from.checksum;
  });
}

atomo_status atomo_patch_apply(const atomo_patch* patch, const atomo_patch_tensor* before,
                               size_t before_count, void* const* out, const uint64_t* out_bytes,
                               size_t count, atomo_threads* threads) {
  return guarded([&] {
    const atomo_patch& from = given(patch, "patch");
    const auto old_state = state_of(before, before_count, "before");
    if (count > 0) {
      check_given(out, "out");
      check_given(out_bytes, "out_bytes");
    }
    std::vector<atomo::Bytes> rooms;
    for (std::size_t i = 0; i < count; ++i) {
      if (out_bytes[i] > 0) check_given(out[i], ("out[" + std::to_string(i) + "]").c_str());
      rooms.emplace_back(static_cast<std::byte*>(out[i]), out_bytes[i]);
    }
    atomo::apply_patch(from.bytes, old_state, rooms, executor_of(threads));
  });
}
