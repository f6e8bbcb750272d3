// SPDX-License-Identifier: Apache-2.0
/// Patches: every state comes back, whatever its type, size and changes; what is damaged or made
/// for another state is refused by name.
#include "atomo/patch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "atomo/thread_pool.hpp"
#include "format/checksum.hpp"
#include "patch/changes.hpp"

namespace atomo {
namespace {

using Data = std::vector<std::byte>;

Data random_bytes(std::size_t bytes, std::mt19937_64& random) {
  Data data(bytes);
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  return data;
}

/// A share of the elements gets other bytes.
Data with_changes(Data data, std::size_t element, double share, std::mt19937_64& random) {
  std::bernoulli_distribution changes(share);
  for (std::size_t i = 0; i < data.size(); i += element) {
    if (!changes(random)) continue;
    for (std::size_t b = 0; b < element; ++b) data[i + b] = static_cast<std::byte>(random());
  }
  return data;
}

PatchTensor tensor(const Data& data, std::uint8_t element, bool floating, std::string name = "w") {
  return {std::move(name), "T", {data.size() / element}, element, floating, data};
}

Data applied(ConstBytes patch, const PatchTensor& before, std::size_t bytes,
             Executor* executor = nullptr) {
  Data out(bytes);
  const Bytes room[] = {out};
  apply_patch(patch, {&before, 1}, room, executor);
  return out;
}

std::string refusal(ConstBytes patch, const PatchTensor& before, std::size_t bytes) {
  try {
    static_cast<void>(applied(patch, before, bytes));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Patch, EveryStateComesBack) {
  std::mt19937_64 random(1);
  ThreadPool pool(3);
  for (const std::uint8_t element : {1, 2, 4, 8}) {
    for (const bool floating : {false, true}) {
      for (const std::size_t count : {0, 1, 7, 63, 64, 65, 4095, 4097, 600'000}) {
        if (count > 10'000 && floating) continue;
        for (const double share : {0.0, 0.001, 0.01, 0.3, 1.0}) {
          const Data old = random_bytes(count * element, random);
          const Data now = with_changes(old, element, share, random);
          const PatchTensor before = tensor(old, element, floating),
                            after = tensor(now, element, floating);
          const auto patch = make_patch({&before, 1}, {&after, 1});
          EXPECT_EQ(patch, make_patch({&before, 1}, {&after, 1}, {}, &pool));
          EXPECT_EQ(applied(patch, before, now.size()), now);
          EXPECT_EQ(applied(patch, before, now.size(), &pool), now);
          EXPECT_LE(patch.size(), now.size() + 128);
          std::uint64_t changed = 0;
          for (std::size_t i = 0; i < now.size(); i += element)
            changed += std::memcmp(old.data() + i, now.data() + i, element) != 0 ? 1 : 0;
          const PatchEntry entry = inspect_patch(patch).tensors.at(0);
          EXPECT_EQ(entry.changed, entry.form == PatchEntry::Form::whole ? count : changed);
          EXPECT_EQ(entry.form == PatchEntry::Form::same, changed == 0);
        }
      }
    }
  }
}

TEST(Patch, ATensorIsMadeInItsOwnPlace) {
  std::mt19937_64 random(2);
  Data old = random_bytes(20'000, random);
  const Data now = with_changes(old, 2, 0.02, random);
  const PatchTensor before = tensor(old, 2, true), after = tensor(now, 2, true);
  const auto patch = make_patch({&before, 1}, {&after, 1});
  const Bytes room[] = {old};
  apply_patch(patch, {&before, 1}, room);
  EXPECT_EQ(old, now);
}

/// Every bf16 and its neighbours, infinities and NaN included, and across zero.
TEST(Patch, EveryPairOfNeighboursOfAHalf) {
  Data old(2 << 16), now(2 << 16);
  for (std::uint32_t i = 0; i < 1 << 16; ++i) {
    const auto word = static_cast<std::uint16_t>(i), next = static_cast<std::uint16_t>(i + 1);
    std::memcpy(old.data() + 2 * i, &word, 2);
    std::memcpy(now.data() + 2 * i, &next, 2);
  }
  const PatchTensor before = tensor(old, 2, true), after = tensor(now, 2, true);
  const auto patch = make_patch({&before, 1}, {&after, 1});
  EXPECT_EQ(applied(patch, before, now.size()), now);
  EXPECT_LT(patch.size(), now.size() / 4);  // one bit of the marks, one or two of the difference
}

/// Weights of which one in a hundred moved to a neighbour.
TEST(Patch, FewNeighboursTakeAHundredAndThirtiethOfTheBytes) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal(0, 0.02F);
  std::bernoulli_distribution moves(0.01), up(0.5);
  const std::size_t count = 1 << 20;
  Data old(2 * count), now(2 * count);
  for (std::size_t i = 0; i < count; ++i) {
    const float value = normal(random);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    auto word = static_cast<std::uint16_t>(bits >> 16);
    std::memcpy(old.data() + 2 * i, &word, 2);
    if (moves(random)) word = static_cast<std::uint16_t>(up(random) ? word + 1 : word - 1);
    std::memcpy(now.data() + 2 * i, &word, 2);
  }
  const PatchTensor before = tensor(old, 2, true), after = tensor(now, 2, true);
  const auto patch = make_patch({&before, 1}, {&after, 1});
  EXPECT_GT(static_cast<double>(now.size()) / static_cast<double>(patch.size()), 130);
  EXPECT_EQ(applied(patch, before, now.size()), now);
}

TEST(Patch, TensorsComeGoAndChangeTheirShape) {
  std::mt19937_64 random(4);
  const Data a = random_bytes(400, random), b = random_bytes(800, random);
  const PatchTensor before[] = {tensor(a, 4, true, "stays"), tensor(a, 4, true, "goes"),
                                tensor(a, 4, true, "grows")};
  const PatchTensor after[] = {tensor(b, 4, true, "grows"), tensor(b, 4, true, "comes"),
                               tensor(a, 4, true, "stays")};
  const auto patch = make_patch(before, after, "a note");
  const PatchInfo info = inspect_patch(patch);
  EXPECT_EQ(info.note, "a note");
  EXPECT_EQ(info.bytes, patch.size());
  ASSERT_EQ(info.tensors.size(), 3u);
  EXPECT_EQ(info.tensors[0].form, PatchEntry::Form::whole);
  EXPECT_EQ(info.tensors[1].name, "comes");
  EXPECT_EQ(info.tensors[2].form, PatchEntry::Form::same);
  EXPECT_EQ(info.tensors[0].checksum, info.tensors[1].checksum);  // both are b
  EXPECT_NE(info.tensors[0].checksum, info.tensors[2].checksum);
  Data grown(800), come(800), stayed(400);
  const Bytes room[] = {grown, come, stayed};
  apply_patch(patch, before, room);
  EXPECT_EQ(grown, b);
  EXPECT_EQ(come, b);
  EXPECT_EQ(stayed, a);
}

TEST(Patch, WhatDoesNotFitIsNamed) {
  std::mt19937_64 random(5);
  const Data old = random_bytes(4000, random);
  const Data now = with_changes(old, 4, 0.01, random);
  const PatchTensor before = tensor(old, 4, true), after = tensor(now, 4, true);
  const auto patch = make_patch({&before, 1}, {&after, 1});
  const PatchTensor other = tensor(now, 4, true), renamed = tensor(old, 4, true, "v");
  EXPECT_NE(refusal(patch, other, now.size()).find("'w' is not the one"), std::string::npos);
  EXPECT_NE(refusal(patch, renamed, now.size()).find("'w', which the state to patch has not"),
            std::string::npos);
  EXPECT_NE(refusal(patch, before, 8).find("room is given for 8"), std::string::npos);
  const PatchTensor twice[] = {before, before},
                    odd{"odd", "T", {}, 4, true, ConstBytes(old).first(7)},
                    wide{"wide", "T", {}, 3, true, ConstBytes(old).first(6)};
  EXPECT_THROW(static_cast<void>(make_patch(twice, {&after, 1})), Error);
  EXPECT_THROW(static_cast<void>(make_patch({}, {&odd, 1})), Error);
  EXPECT_THROW(static_cast<void>(make_patch({}, {&wide, 1})), Error);
}

TEST(Patch, EveryDamageIsRefused) {
  std::mt19937_64 random(6);
  const Data old = random_bytes(2000, random);
  const Data now = with_changes(old, 2, 0.05, random);
  const PatchTensor before = tensor(old, 2, true), after = tensor(now, 2, true);
  const auto patch = make_patch({&before, 1}, {&after, 1}, "note");
  for (std::size_t i = 0; i < patch.size(); ++i) {
    auto damaged = patch;
    damaged[i] ^= static_cast<std::byte>(1u << (i % 8));
    EXPECT_NE(refusal(damaged, before, now.size()), "") << "byte " << i;
    EXPECT_NE(refusal(ConstBytes(patch).first(i), before, now.size()), "") << i << " bytes";
  }
  auto longer = patch;
  longer.push_back(std::byte{0});
  EXPECT_NE(refusal(longer, before, now.size()), "");
}

/// With a head that is sealed again, so that its values alone are wrong.
TEST(Patch, RecordsThatNoWriterMakesAreRefused) {
  std::mt19937_64 random(8);
  const Data old = random_bytes(2000, random), now = with_changes(old, 2, 0.05, random);
  const auto refused = [&](const Data& after, std::size_t at, std::uint64_t value) {
    const PatchTensor before = tensor(old, 2, true), made = tensor(after, 2, true);
    auto patch = make_patch({&before, 1}, {&made, 1});
    std::uint64_t head = 0;
    std::memcpy(&head, patch.data() + 16, 8);
    std::memcpy(patch.data() + 40 + at, &value, 8);
    const std::uint64_t sum = format::body_checksum(ConstBytes(patch).first(head - 8), {}, nullptr);
    std::memcpy(patch.data() + head - 8, &sum, 8);
    return refusal(patch, before, after.size());
  };
  constexpr std::size_t kBefore = 0, kChanged = 40;
  const Data other = random_bytes(2000, random);
  const std::string form = "has values that its form has not";
  EXPECT_NE(refused(old, kChanged, 1).find(form), std::string::npos) << "same";
  EXPECT_NE(refused(old, kBefore, 1).find(form), std::string::npos) << "same";
  EXPECT_NE(refused(other, kChanged, 7).find(form), std::string::npos) << "whole";
  EXPECT_NE(refused(other, kBefore, 1).find(form), std::string::npos) << "whole";
  EXPECT_NE(refused(now, kChanged, 0).find(form), std::string::npos) << "changes";
  EXPECT_NE(refused(now, kChanged, 1).find("not as many as its record says"), std::string::npos);

  const PatchTensor twice[] = {tensor(old, 2, true, "a"), tensor(old, 2, true, "b")};
  auto patch = make_patch({}, twice);
  std::uint64_t head = 0;
  std::memcpy(&head, patch.data() + 16, 8);
  const auto end = patch.begin() + static_cast<std::ptrdiff_t>(head);
  const std::byte of_second[] = {std::byte{'b'}, std::byte{'T'}};
  const auto name = std::search(patch.begin(), end, std::begin(of_second), std::end(of_second));
  ASSERT_NE(name, end);
  *name = std::byte{'a'};
  const std::uint64_t sum = format::body_checksum(ConstBytes(patch).first(head - 8), {}, nullptr);
  std::memcpy(patch.data() + head - 8, &sum, 8);
  try {
    static_cast<void>(inspect_patch(patch));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'a' stands twice"), std::string::npos);
  }
}

/// Blocks without the checksums that guard them: any bytes come to an end.
TEST(Patch, AnyBlockIsReadOrRefused) {
  std::mt19937_64 random(7);
  for (const std::uint8_t element : {1, 2, 4}) {
    const patch::WordType type{element, true};
    const Data old = random_bytes(5000 * element, random);
    const Data now = with_changes(old, element, 0.03, random);
    Data block;
    const std::uint64_t changed = patch::write_changes(old, now, type, block);
    Data made = old;
    ASSERT_EQ(patch::apply_changes(block, type, made), changed);
    ASSERT_EQ(made, now);
    int refused = 0;
    constexpr int kTries = 3000;
    for (int t = 0; t < kTries; ++t) {
      Data damaged = block;
      for (int k = 0; k < 1 + t % 3; ++k)
        damaged[random() % damaged.size()] ^= static_cast<std::byte>(1u << (random() % 8));
      if (t % 5 == 0) damaged.resize(random() % damaged.size() + 1);
      made = old;
      refused += patch::apply_changes(damaged, type, made) == ~std::uint64_t{0} ? 1 : 0;
    }
    EXPECT_GT(refused, kTries / 10);
  }
}

}  // namespace
}  // namespace atomo
