// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The commands of the tool. Each prints its report and throws InputError or PayloadRefused when it
/// fails.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensors/tensor_io.hpp"

namespace atomo::cli {

struct CodecsOptions {
  bool json = false;
};

struct EncodeOptions {
  std::string codec;
  Key key;
  bool without_names = false;
  Device device = Device::cpu;
  unsigned threads = 1;
  bool json = false;
  std::vector<std::string> paths;  ///< the inputs, then the output
};

struct DecodeOptions {
  std::string input, output;
  std::optional<Format> format;  ///< by default the output's extension says it
  std::optional<DType> dtype;    ///< none: each layer's own
  Device device = Device::cpu;
  unsigned threads = 1;
  bool json = false;
};

struct InspectOptions {
  std::string input;
  bool json = false;
};

struct MeasureOptions {
  std::vector<std::string> codecs;
  std::uint64_t seed = 0;
  std::uint32_t draws = 20;
  bool without_names = false;
  bool fixed_ranks = false;
  Device device = Device::cpu;
  unsigned threads = 1;
  bool magnitudes = false;
  std::string plot;  ///< empty: none
  bool json = false;
  std::vector<std::string> inputs;
};

struct VerifyOptions {
  std::string codec, encode, decode;  ///< a spec, or two command lines
  std::vector<std::string> claims;    ///< empty: the codec's traits
  std::uint64_t seed = 1;
  std::optional<std::uint32_t> draws;
  std::uint32_t outcomes = 0;  ///< of the commands, 0: unknown
  double family_error = 1e-9;
  bool only_inputs = false;
  std::string plot;  ///< empty: none
  bool json = false;
  std::vector<std::string> inputs;
};

struct AddOptions {
  std::vector<std::string> inputs;
  std::string output;
  bool json = false;
};

struct DeltaOptions {
  std::string before, after, output;
  unsigned threads = 1;
  bool json = false;
};

struct ApplyOptions {
  std::string before, patch, output;
  unsigned threads = 1;
  bool json = false;
};

void run_codecs(const CodecsOptions& options);
void run_encode(const EncodeOptions& options);
void run_decode(const DecodeOptions& options);
void run_inspect(const InspectOptions& options);
void run_measure(const MeasureOptions& options);
void run_verify(const VerifyOptions& options);
void run_add(const AddOptions& options);
void run_delta(const DeltaOptions& options);
void run_apply(const ApplyOptions& options);

/// Whether a file's bytes begin as those of a patch do.
bool is_patch(ConstBytes file) noexcept;
/// What a patch says, as text with a row for each tensor or as JSON. `path` is where it is from, for
/// the report. \throws PayloadRefused when it is damaged.
std::string describe_patch(ConstBytes patch, const std::string& path, bool as_json);

}  // namespace atomo::cli
