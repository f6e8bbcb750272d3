// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Messages that break one rule of the format each. Where a rule lies behind the checksums, they
/// are made to hold.

#include <string>
#include <vector>

#include "atomo/atomo.hpp"

namespace atomo::test {

struct RejectedMessage {
  std::string file;  ///< STATUS-RULE.atomo, e.g. corrupt-marks_mode.atomo; "exact-": refused by
                     ///< exact reading alone
  std::vector<std::byte> bytes;
};

/// Made from containers of 4 x 40 entries, by every codec whose bytes are fixed, and from a model.
std::vector<RejectedMessage> rejected_messages();

}  // namespace atomo::test
