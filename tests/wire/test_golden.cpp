// SPDX-License-Identifier: Apache-2.0
/// What older builds wrote: goldens decode to exactly their values, the same inputs encode to the
/// same bytes, and messages that break a rule are refused with the status that names it.
/// golden/README.md says how they are made.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "hostile/rejected_messages.hpp"
#include "wire/format_cases.hpp"

namespace atomo {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(ATOMO_TESTS_DIR) / "golden";

std::vector<std::byte> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::string case_name(const testing::TestParamInfo<test::FormatCase>& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class Golden : public testing::TestWithParam<test::FormatCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, Golden, testing::ValuesIn(test::golden_cases()), case_name);

TEST_P(Golden, DecodesToItsValues) {
  const auto message = read_file(kFolder / (GetParam().name + ".atomo"));
  EXPECT_EQ(test::decode_case(GetParam(), message, DType::f32),
            read_file(kFolder / (GetParam().name + ".f32")));
}

std::vector<test::FormatCase> fixed_cases() {
  std::vector<test::FormatCase> cases = test::golden_cases();
  std::erase_if(cases, [](const test::FormatCase& c) { return !test::bytes_are_fixed(c); });
  return cases;
}

class FixedGolden : public testing::TestWithParam<test::FormatCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, FixedGolden, testing::ValuesIn(fixed_cases()), case_name);

TEST_P(FixedGolden, IsWhatThisBuildWrites) {
  EXPECT_EQ(test::encode_case(GetParam()), read_file(kFolder / (GetParam().name + ".atomo")));
}

TEST(Goldens, NoFileIsWithoutACase) {
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(kFolder))
    files += entry.path().extension() == ".atomo" ? 1 : 0;
  EXPECT_EQ(files, test::golden_cases().size());
}

/// What `inspect` finds, or else decoding into a tensor of the message's only layer.
Status decode_rejected(const std::vector<std::byte>& message, bool exact) {
  ContainerInfo info;
  if (const Status status = inspect(message, info, exact); failed(status)) return status;
  const Shape& shape = info.layers.at(0).shape;
  std::vector<float> values(shape.elements());
  std::vector<std::byte> workspace(decode_workspace_bytes(shape));
  const TensorView view{values.data(), DType::f32, shape};
  return decode(message, {&view, 1}, {.workspace = workspace});
}

TEST(Rejected, EachIsRefusedWithItsStatus) {
  const std::map<std::string, Status> statuses{{"truncated", Status::truncated},
                                               {"bad_magic", Status::bad_magic},
                                               {"bad_version", Status::bad_version},
                                               {"bad_checksum", Status::bad_checksum},
                                               {"corrupt", Status::corrupt}};
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(kFolder / "rejected")) {
    const std::string name = entry.path().stem().string(), word = name.substr(0, name.find('-'));
    const auto message = read_file(entry.path());
    ++files;
    if (word == "exact") {
      EXPECT_EQ(decode_rejected(message, true), Status::corrupt) << name;
      EXPECT_EQ(decode_rejected(message, false), Status::ok) << name;
      continue;
    }
    ASSERT_TRUE(statuses.contains(word)) << name;
    EXPECT_EQ(decode_rejected(message, true), statuses.at(word)) << name;
  }
  EXPECT_EQ(files, test::rejected_messages().size());
}

/// Decoding alone, without the checks of `inspect` before it.
TEST(Rejected, DecodeRefusesThemToo) {
  for (const auto& entry : fs::directory_iterator(kFolder / "rejected")) {
    if (entry.path().filename().string().starts_with("exact-")) continue;
    const auto message = read_file(entry.path());
    std::vector<float> values(160);
    std::vector<std::byte> workspace(decode_workspace_bytes({4, 40}));
    const TensorView view{values.data(), DType::f32, {4, 40}};
    EXPECT_TRUE(failed(decode(message, {&view, 1}, {.workspace = workspace}))) << entry.path();
  }
}

}  // namespace
}  // namespace atomo
