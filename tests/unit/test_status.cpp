// SPDX-License-Identifier: Apache-2.0
/// Statuses: notices are flags of which none hides another, a failure stands alone.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "atomo/types.hpp"

namespace atomo {
namespace {

constexpr Status kNotices[] = {Status::non_finite, Status::underspent, Status::overflow,
                               Status::overspent};

TEST(Status, NoticesAddUp) {
  for (const Status a : kNotices) {
    for (const Status b : kNotices) {
      const Status both = a | b;
      EXPECT_FALSE(failed(both));
      for (const Status notice : kNotices) EXPECT_EQ(has(both, notice), notice == a || notice == b);
    }
    EXPECT_EQ(a | Status::ok, a);
    EXPECT_FALSE(has(Status::ok, a));
  }
}

TEST(Status, AFailureStandsAlone) {
  EXPECT_EQ(Status::overspent | Status::corrupt, Status::corrupt);
  EXPECT_EQ(Status::corrupt | Status::non_finite, Status::corrupt);
  EXPECT_EQ(Status::corrupt | Status::truncated, Status::corrupt);
  Status status = Status::non_finite;
  status |= Status::wrong_stage;
  EXPECT_EQ(status, Status::wrong_stage);
  for (const Status notice : kNotices) EXPECT_FALSE(has(status, notice));
}

TEST(Status, EverySetOfNoticesHasItsText) {
  std::set<std::string> texts;
  for (int set = 0; set < 16; ++set) {
    const auto text = describe(static_cast<Status>(set));
    EXPECT_EQ(text.data()[text.size()], '\0');
    texts.emplace(text);
  }
  EXPECT_EQ(texts.size(), 16u);
  EXPECT_EQ(describe(Status::ok), "ok");
  EXPECT_EQ(describe(Status::non_finite | Status::overspent),
            "done, but a layer holds an Inf or NaN and decodes to NaN; the budget does not pay for "
            "a message worth sending, so it is exceeded");
}

TEST(Status, EveryFailureHasItsText) {
  const auto first = static_cast<int>(Status::buffer_too_small),
             last = static_cast<int>(Status::codec_failed);
  for (int number = first; number <= last; ++number) {
    EXPECT_TRUE(failed(static_cast<Status>(number)));
    EXPECT_NE(describe(static_cast<Status>(number)), "unknown status") << number;
  }
  for (const int number : {-1, 16, 255, last + 1})
    EXPECT_EQ(describe(static_cast<Status>(number)), "unknown status") << number;
}

}  // namespace
}  // namespace atomo
