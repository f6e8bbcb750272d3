// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What the benchmarks of codecs measure.

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atomo/codec.hpp"
#include "atomo/own_codec.hpp"

namespace atomo::bench {

/// Every codec and its choices; one tensor is measured under all of them.
inline constexpr const char* kListed[] = {
    "identity",
    "identity:dtype=f16",
    "identity:dtype=bf16",
    "atomo:bits=1",
    "atomo:bits=0.5",
    "atomo:bits=0.25",
    "atomo:atoms=sketch,bits=0.5,rank=4",
    "atomo:atoms=sketch,bits=0.5,rank=8",
    "atomo:atoms=sketch,bits=0.5,rank=16",
    "atomo:atoms=sketch,bits=0.5,rank=32",
    "atomo:atoms=sketch,bits=0.5,rank=64",
    "atomo:atoms=blocks,bits=1",
    "atomo:atoms=blocks,bits=0.25",
    "atomo:atoms=rows,bits=1",
    "atomo:atoms=rows,bits=0.25",
    "atomo:atoms=coordinate,bits=1",
    "atomo:atoms=coordinate,bits=0.25",
    "atomo:atoms=svd,bits=1",
    "atomo:atoms=svd,keep=3,values=f32",
    "qsgd:bits=1",
    "qsgd:bits=2",
    "qsgd:bits=4",
    "qsgd:bits=8",
    "qsgd:bits=4,norm=l2",
    "terngrad",
    "terngrad:clip=2.5",
    "sign",
    "sign:scale=mean",
    "topk:keep=0.01",
    "topk:chunk=4096,k=64,values=2",
    "topk:chunk=4096,k=64,values=2,select=drawn",
    "topk:chunk=4096,k=64,values=2,dct=64,select=drawn",
    "randomk:keep=0.01",
    "identity+blosc:codec=lz4,shuffle=byte",
    "qsgd:bits=4+blosc:codec=zstd,level=1",
};

/// Those that whole models, and two threads, are measured under.
inline constexpr const char* kMain[] = {
    "identity",
    "identity:dtype=bf16",
    "atomo:bits=1",
    "atomo:bits=0.5",
    "atomo:bits=0.25",
    "atomo:atoms=sketch,bits=0.5,rank=4",
    "atomo:atoms=sketch,bits=0.5,rank=8",
    "atomo:atoms=sketch,bits=0.5,rank=16",
    "atomo:atoms=sketch,bits=0.5,rank=64",
    "atomo:atoms=blocks,bits=0.25",
    "atomo:atoms=rows,bits=0.25",
    "atomo:atoms=coordinate,bits=0.25",
    "atomo:atoms=svd,bits=1",
    "qsgd:bits=4",
    "terngrad",
    "sign:scale=mean",
    "topk:keep=0.01",
    "randomk:keep=0.01",
};

/// Those that are measured on GPUs, and whose speed there is predicted (tools/gpu_model).
// The exact SVD comes last: it takes longest.
inline constexpr const char* kListedOnGpu[] = {"sign",
                                               "identity:dtype=f16",
                                               "qsgd:bits=2",
                                               "qsgd:bits=4",
                                               "qsgd:bits=8",
                                               "terngrad",
                                               "topk:keep=0.01",
                                               "topk:chunk=4096,k=64,values=2",
                                               "randomk:keep=0.01",
                                               "atomo:atoms=blocks,bits=1",
                                               "atomo:atoms=blocks,bits=0.25",
                                               "atomo:atoms=rows,bits=1",
                                               "atomo:atoms=rows,bits=0.25",
                                               "atomo:atoms=coordinate,bits=1",
                                               "atomo:atoms=coordinate,bits=0.25",
                                               "atomo:atoms=sketch,bits=0.5,rank=4",
                                               "atomo:atoms=sketch,bits=0.5,rank=8",
                                               "atomo:atoms=sketch,bits=0.5,rank=32",
                                               "atomo:atoms=sketch,bits=0.5,rank=64",
                                               "atomo:bits=0.5",
                                               "identity",
                                               "identity:dtype=bf16",
                                               "sign:scale=mean",
                                               "atomo:atoms=svd,bits=0.5"};

[[nodiscard]] inline bool is_svd(std::string_view spec) {
  return spec.find("atoms=svd") != spec.npos;
}

/// `listed`, and the example of every codec that it has no spec of and that runs on `device`: a new
/// codec is measured without a line here.
[[nodiscard]] inline std::vector<std::string> specs_with(std::span<const char* const> listed,
                                                         Device device) {
  std::vector<std::string> specs(listed.begin(), listed.end());
  for (const CodecHelp& codec : list_codecs()) {
    const bool is_stage = codec.name.starts_with('+');
    const bool measured = std::any_of(listed.begin(), listed.end(), [&](std::string_view spec) {
      return is_stage ? spec.find(codec.name) != spec.npos
                      : spec.substr(0, spec.find_first_of(":+")) == codec.name;
    });
    const bool runs = device == Device::cpu || Codec::parse(codec.example).traits().cuda;
    if (!measured && runs) specs.push_back(codec.example);
  }
  return specs;
}

/// The examples of codecs that are registered and not the library's.
[[nodiscard]] inline std::vector<std::string> own_specs() {
  std::vector<std::string> specs;
  const std::vector<std::string> names = registered_codecs();
  for (const CodecHelp& codec : list_codecs()) {
    if (std::find(names.begin(), names.end(), codec.name) != names.end())
      specs.push_back(codec.example);
  }
  return specs;
}

}  // namespace atomo::bench
