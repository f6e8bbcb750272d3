// SPDX-License-Identifier: Apache-2.0
// Sets up a model on the GPU: it works, or one line says why not. Ends with 0 either way, with 1
// when the CUDA backend is not in the program or its refusal says nothing.
#include <atomo/codec.hpp>
#include <cstdio>
#include <cstring>
#include <vector>

#include "backend/backend.hpp"
#include "codec/layer.hpp"
#include "format/container_head.hpp"

int main() {
  const atomo::backend::DeviceBackend* backend = atomo::backend::device_backend();
  if (backend == nullptr) {
    std::puts("no CUDA backend in this program");
    return 1;
  }
  try {
    const auto codec = atomo::Codec::parse("qsgd:bits=4");
    const std::vector<atomo::backend::LayerPlan> layers{atomo::codec::EncoderPlan(
        atomo::codec::Access::stages(codec), {64, 1024}, atomo::DType::f32)};
    const std::vector<atomo::format::Kind> kinds{layers[0].kind};
    const atomo::format::HeadLayout head(kinds, {});
    const std::vector<atomo::backend::StreamedLayer> streamed(layers.size());
    const auto model = backend->make_model(layers, head, streamed, 0, false);
    std::printf("CUDA backend: a model takes a workspace of %zu bytes\n",
                model->encode_workspace_bytes());
  } catch (const atomo::Error& error) {
    std::printf("CUDA backend: %s\n", error.what());
    const bool says_why = std::strncmp(error.what(), "CUDA: ", 6) == 0;
    return says_why && std::strchr(error.what(), '\n') == nullptr ? 0 : 1;
  }
  return 0;
}
