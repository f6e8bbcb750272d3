// SPDX-License-Identifier: Apache-2.0
/// \file
/// These functions take the place of device_exchange.cpp and device_coder.cpp in a build without the
/// CUDA backend. `device_objection` explains how to get a build that has it, and the others throw
/// this explanation.

#include <stdexcept>

#include "exchange/coder.hpp"
#include "exchange/exchange.hpp"

namespace train {

std::string device_objection() {
  return "--device cuda: this build has no CUDA backend; build with -DATOMO_CUDA=ON where nvcc is, "
         "or take --device cpu";
}

std::unique_ptr<Exchange> make_device_exchange(atomo::Compressor&, const atomo::Policy&,
                                               std::size_t, bool, bool) {
  throw std::runtime_error(device_objection());
}
std::unique_ptr<Coder> make_device_coder(const atomo::Policy&) {
  throw std::runtime_error(device_objection());
}
void device_to_host(std::span<const float>, std::span<float>) {
  throw std::runtime_error(device_objection());
}

int choose_gpu() { throw std::runtime_error(device_objection()); }

}  // namespace train
