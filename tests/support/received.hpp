// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Messages that have come to a device.

#include <cstring>
#include <memory>
#include <vector>

#include "support/support.hpp"

namespace atomo::test {

using Sent = std::vector<std::vector<std::byte>>;

/// Messages where the tests' memory is, longer than what is in them, as an all-gather pads them.
class Received {
 public:
  explicit Received(const Sent& sent) : statuses_(4 * sent.size()) {
    for (const auto& message : sent) {
      memory_.push_back(std::make_unique<Memory>(message.size() + 60, memory_.size() % 5));
      memory_.back()->fill(0xEE);
      memory_.back()->put(message);
      bytes.push_back(memory_.back()->bytes());
    }
    statuses_.fill(0x7E);
  }
  [[nodiscard]] Status* statuses() const { return reinterpret_cast<Status*>(statuses_.data()); }
  [[nodiscard]] std::vector<Status> told() const {
    std::vector<Status> told(bytes.size());
    const auto words = statuses_.get(4 * told.size());
    if (!told.empty()) std::memcpy(told.data(), words.data(), words.size());
    return told;
  }

  std::vector<ConstBytes> bytes;

 private:
  std::vector<std::unique_ptr<Memory>> memory_;
  Memory statuses_;
};

}  // namespace atomo::test
