// SPDX-License-Identifier: Apache-2.0
/// What sketches promise of their distributions. The checks are in sketch_checks.hpp;
/// test_mutants.cpp shows what they catch.
#include <gtest/gtest.h>

#include "sketch_checks.hpp"

namespace atomo::test {
namespace {

TEST(SketchStatistics, TheWholeEstimateIsExact) { EXPECT_EQ(check_sketch(), ""); }

}  // namespace
}  // namespace atomo::test
