// SPDX-License-Identifier: Apache-2.0
// Sends a tensor through a codec and a refusal across the library's border.
#include <atomo/atomo.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

bool round_trip(const std::string& spec, bool exact) {
  const atomo::Shape shape{32, 48};
  std::vector<float> gradient(shape.elements());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>(i % 7) - 3.0f;
  }
  std::vector<float> decoded(gradient.size());
  const auto codec = atomo::Codec::parse(spec);
  std::vector<std::byte> message(codec.max_encoded_bytes(shape));
  std::vector<std::byte> workspace(
      std::max(codec.encode_workspace_bytes(shape), codec.decode_workspace_bytes(shape)));
  const atomo::Context context{.workspace = workspace};
  std::uint64_t bytes = 0;
  auto status = codec.encode({gradient.data(), atomo::DType::f32, shape}, {.seed = 1},
                             {message.data(), message.size(), &bytes}, context);
  if (atomo::failed(status)) return false;
  status = codec.decode({message.data(), static_cast<std::size_t>(bytes)},
                        {decoded.data(), atomo::DType::f32, shape}, context);
  if (atomo::failed(status)) return false;
  double dot = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) dot += double{gradient[i]} * decoded[i];
  std::printf("%s: %zu bytes became %llu\n", spec.c_str(), gradient.size() * sizeof(float),
              static_cast<unsigned long long>(bytes));
  return exact ? gradient == decoded : dot > 0;
}

bool names_a_mistake() {
  try {
    (void)atomo::Codec::parse("atomoo:bits=1");
  } catch (const atomo::Error& error) {
    return std::string(error.what()).find("atomoo") != std::string::npos;
  }
  return false;
}

}  // namespace

int main() {
  const bool ok = round_trip("identity", true) && round_trip("atomo:bits=2", false) &&
                  round_trip("qsgd:bits=4", false) && names_a_mistake();
  return ok ? 0 : 1;
}
