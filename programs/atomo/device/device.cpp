// SPDX-License-Identifier: Apache-2.0
/// \file
/// The functions here need no CUDA, so every build has them. A decoder for a container is a model
/// whose policy is rebuilt from the codec that each layer names; keys that only an encoder reads
/// get any valid value.
#include "device/device.hpp"

namespace atomo::cli {
namespace {

/// Any codec whose messages have layers of this kind: what else a spec says, its encoder alone
/// needs.
std::string decoding_spec(const std::string& kind) {
  if (kind == "atomo/coordinate") {
    return "atomo:atoms=coordinate,bits=1";
  }
  if (kind.ends_with(":keep=0")) {  // of an empty tensor, whose keep says nothing
    return kind.substr(0, kind.size() - 1) + "1";
  }
  if (!kind.starts_with("atomo:")) {
    return kind;
  }
  return kind + (kind.ends_with("values=f32") ? ",keep=1" : ",bits=1");
}

}  // namespace

std::string_view name_of(Device device) noexcept { return device == Device::cuda ? "cuda" : "cpu"; }

std::unique_ptr<DeviceModel> make_device_decoder(const ContainerInfo& info,
                                                 const std::vector<Tensor>& tensors) {
  std::vector<LayerSpec> layers;
  std::vector<Policy::Rule> rules;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    // Numbers for names: a tensor's own name may hold what a rule takes for a pattern.
    const std::string name = std::to_string(i);
    layers.push_back({name, tensors[i].shape, tensors[i].dtype});
    rules.push_back({name, Codec::parse(decoding_spec(info.layers[i].codec))});
  }
  return make_device_model(std::move(layers), Policy(std::move(rules)), false);
}

}  // namespace atomo::cli
