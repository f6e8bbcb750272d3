// SPDX-License-Identifier: Apache-2.0
/// Patches of weights through the C interface: the bytes and the words of the same calls in C++.
#include <string>

#include "atomo/patch.hpp"
#include "c_support.hpp"

namespace atomo {
namespace {

using test::Owned;

constexpr std::uint64_t kShape[] = {30, 20};
constexpr std::uint64_t kElements = 600;

/// Weights of two names, of which one moves; in C's terms and in C++'s.
struct CPatch : testing::Test {
  CPatch() : moved(test::heavy_tailed(kElements, 5, 10)), weights(moved), bias(20, 0.5f) {
    moved[7] = 3;
    moved[411] = -1;
  }
  [[nodiscard]] std::vector<atomo_patch_tensor> state(const std::vector<float>& of) const {
    return {{"fc.weight", "F32", kShape, 2, 4, 1, {}, of.data(), 4 * kElements},
            {"fc.bias", "F32", &kShape[1], 1, 4, 1, {}, bias.data(), 80}};
  }
  [[nodiscard]] std::vector<PatchTensor> state_in_cpp(const std::vector<float>& of) const {
    return {{"fc.weight", "F32", {30, 20}, 4, true, std::as_bytes(std::span(of))},
            {"fc.bias", "F32", {20}, 4, true, std::as_bytes(std::span(bias))}};
  }
  [[nodiscard]] Owned<atomo_patch> made(atomo_threads* threads = nullptr) const {
    const auto before = state(weights), after = state(moved);
    atomo_patch* patch = nullptr;
    EXPECT_EQ(atomo_patch_make(before.data(), 2, after.data(), 2, "step 3", 6, threads, &patch),
              ATOMO_OK)
        << atomo_last_error();
    return Owned<atomo_patch>(patch);
  }
  static atomo_patch_info about(const atomo_patch* patch) {
    atomo_patch_info info;
    EXPECT_EQ(atomo_patch_about(patch, &info), ATOMO_OK);
    return info;
  }
  static void refuses(atomo_status status, const std::string& words) {
    EXPECT_EQ(status, ATOMO_INVALID_ARGUMENT);
    EXPECT_NE(std::string(atomo_last_error()).find(words), std::string::npos) << atomo_last_error();
  }

  std::vector<float> moved, weights, bias;
};

TEST_F(CPatch, HasTheBytesOfCpp) {
  const auto expected = make_patch(state_in_cpp(weights), state_in_cpp(moved), "step 3");
  atomo_threads* threads = nullptr;
  ASSERT_EQ(atomo_threads_create(2, &threads), ATOMO_OK);
  const Owned<atomo_threads> held(threads);
  const auto patch = made(threads);
  const atomo_patch_info info = about(patch.get());
  const auto* const bytes = static_cast<const std::byte*>(info.data);
  EXPECT_EQ(std::vector<std::byte>(bytes, bytes + info.bytes), expected);
}

TEST_F(CPatch, SaysWhatItHolds) {
  const auto patch = made();
  const atomo_patch_info info = about(patch.get());
  EXPECT_EQ(std::string(static_cast<const char*>(info.note), info.note_bytes), "step 3");
  ASSERT_EQ(info.tensors, 2u);
  const PatchInfo expected = inspect_patch({static_cast<const std::byte*>(info.data), info.bytes});
  atomo_patch_entry entry;
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_EQ(atomo_patch_entry_at(patch.get(), i, &entry), ATOMO_OK);
    const PatchEntry& of = expected.tensors[i];
    EXPECT_EQ(entry.name, of.name);
    EXPECT_EQ(entry.type, of.type);
    EXPECT_EQ(std::vector<std::uint64_t>(entry.shape, entry.shape + entry.rank), of.shape);
    EXPECT_EQ(entry.form, i == 0 ? ATOMO_PATCH_CHANGES : ATOMO_PATCH_SAME);
    EXPECT_EQ(entry.form, static_cast<std::int32_t>(of.form));
    EXPECT_EQ(entry.element_bytes, 4);
    EXPECT_EQ(entry.floating, 1);
    EXPECT_EQ(entry.bytes, of.bytes);
    EXPECT_EQ(entry.changed, i == 0 ? 2u : 0u);
    EXPECT_EQ(entry.sent, of.sent);
    EXPECT_EQ(entry.checksum, of.checksum);
  }
  refuses(atomo_patch_entry_at(patch.get(), 2, &entry), "i is 2: there are 2 tensors");
}

TEST_F(CPatch, IsAppliedAfterItTravelled) {
  const auto sent = made();
  const atomo_patch_info info = about(sent.get());
  atomo_patch* received = nullptr;
  ASSERT_EQ(atomo_patch_read(info.data, info.bytes, &received), ATOMO_OK) << atomo_last_error();
  const Owned<atomo_patch> patch(received);
  std::vector<float> now(kElements), bias_now(20);
  void* const out[] = {now.data(), bias_now.data()};
  const std::uint64_t room[] = {4 * kElements, 80};
  const auto before = state(weights);
  ASSERT_EQ(atomo_patch_apply(patch.get(), before.data(), 2, out, room, 2, nullptr), ATOMO_OK)
      << atomo_last_error();
  EXPECT_EQ(now, moved);
  EXPECT_EQ(bias_now, bias);
  // Other weights are none that the patch was made from, and nothing is written.
  const auto other = state(moved);
  now.assign(kElements, 8);
  refuses(atomo_patch_apply(patch.get(), other.data(), 2, out, room, 2, nullptr), "fc.weight");
  EXPECT_EQ(now, std::vector<float>(kElements, 8));
  refuses(atomo_patch_apply(patch.get(), before.data(), 2, out, room, 1, nullptr), "2 tensors");
}

TEST_F(CPatch, RefusesWhatCannotBe) {
  const auto patch = made();
  const atomo_patch_info info = about(patch.get());
  const auto before = state(weights);
  atomo_patch* none = patch.get();
  refuses(atomo_patch_read(info.data, info.bytes - 1, &none), "patch");
  EXPECT_EQ(none, nullptr);
  refuses(atomo_patch_read(nullptr, 5, &none), "is NULL");
  refuses(atomo_patch_make(before.data(), 2, nullptr, 2, nullptr, 0, nullptr, &none),
          "after is NULL");
  refuses(atomo_patch_make(before.data(), 2, before.data(), 2, nullptr, 3, nullptr, &none),
          "note is NULL");
  refuses(atomo_patch_about(nullptr, nullptr), "patch is NULL");
  refuses(atomo_patch_about(patch.get(), nullptr), "info is NULL");
  refuses(atomo_patch_entry_at(patch.get(), 0, nullptr), "entry is NULL");
  refuses(atomo_patch_apply(patch.get(), before.data(), 2, nullptr, nullptr, 2, nullptr),
          "out is NULL");
  const auto with = [&](auto change, const std::string& words) {
    auto changed = before;
    change(changed[1]);
    refuses(atomo_patch_make(changed.data(), 2, before.data(), 2, nullptr, 0, nullptr, &none),
            words);
  };
  with([](atomo_patch_tensor& t) { t.name = nullptr; }, "before[1]: name is NULL");
  with([](atomo_patch_tensor& t) { t.type = nullptr; }, "before[1]: type is NULL");
  with([](atomo_patch_tensor& t) { t.shape = nullptr; }, "before[1]: shape is NULL");
  with([](atomo_patch_tensor& t) { t.rank = -1; }, "before[1]: rank is -1");
  with([](atomo_patch_tensor& t) { t.floating = 2; }, "before[1]: floating is 2");
  with([](atomo_patch_tensor& t) { t.reserved[1] = 1; }, "before[1]: `reserved` of a tensor");
  with([](atomo_patch_tensor& t) { t.data = nullptr; }, "before[1]: data is NULL");
  with([](atomo_patch_tensor& t) { t.name = "fc.weight"; }, "stands twice");
  with([](atomo_patch_tensor& t) { t.element_bytes = 3; }, "fc.bias");
  atomo_patch_destroy(nullptr);  // does nothing
}

}  // namespace
}  // namespace atomo
