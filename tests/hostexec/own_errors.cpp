// SPDX-License-Identifier: Apache-2.0
/// Each case begins without the runtime's last error, which cases about refused calls leave behind and the next call of
/// cudaGetLastError would take for its own.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

namespace {

class OwnErrors : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { (void)cudaGetLastError(); }
};

// GoogleTest owns its listeners.
const bool appended = (testing::UnitTest::GetInstance()->listeners().Append(new OwnErrors), true);

}  // namespace
