// SPDX-License-Identifier: Apache-2.0
/// A checkpoint comes back as it was written, and is refused when one bit of it or its end is
/// missing.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "files/checkpoint.hpp"
#include "files/stored_tensors.hpp"
#include "files/whole_file.hpp"

namespace train {
namespace {

class Checkpoints : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_);
    write_checkpoint(path_, checkpoint_, layers_);
    whole_ = read_whole_file(path_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// As a new file: some file systems wait for the disk when one is emptied and written again.
  void put(const std::string& content) const {
    std::filesystem::remove(path_);
    std::ofstream(path_, std::ios::binary) << content;
  }
  /// What is said against the file; the test fails when it is read.
  std::string refusal() const {
    try {
      (void)read_checkpoint(path_, layers_, checkpoint_.fingerprint);
    } catch (const DamagedFile& e) {
      return e.what();
    } catch (const std::exception& e) {
      return std::string("not as damaged: ") + e.what();
    }
    return "nothing";
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) /
      ("checkpoint-" +
       std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
  const std::string path_ = (folder_ / "c.safetensors").string();
  const std::vector<atomo::LayerSpec> layers_{{"a", atomo::Shape{2, 2}}, {"b", atomo::Shape{3}}};
  const Checkpoint checkpoint_{.fingerprint = {{"workers", 1}, {"lr", 0.5}},
                               .step = 7,
                               .sent_bytes = 99,
                               .weights = {1, 2, 3, 4, 5, 6, 7},
                               .moments = {},
                               .workers = {{.compressor = {std::byte{1}, std::byte{2}},
                                            .buffers = {8, 9},
                                            .arrays = {{"z", {-1}}}}},
                               .arrays = {{"memory", {7, 6, 5, 4, 3, 2, 1}}}};
  std::string whole_;
};

TEST_F(Checkpoints, AWholeOneComesBack) {
  const auto read = read_checkpoint(path_, layers_, checkpoint_.fingerprint);
  EXPECT_EQ(read.step, 7U);
  EXPECT_EQ(read.sent_bytes, 99U);
  EXPECT_EQ(read.weights, checkpoint_.weights);
  EXPECT_EQ(read.arrays, checkpoint_.arrays);
  ASSERT_EQ(read.workers.size(), 1U);
  EXPECT_EQ(read.workers[0].compressor, checkpoint_.workers[0].compressor);
  EXPECT_EQ(read.workers[0].buffers, checkpoint_.workers[0].buffers);
  EXPECT_EQ(read.workers[0].arrays, checkpoint_.workers[0].arrays);
  EXPECT_FALSE(read.owes_test);
  std::string which;
  EXPECT_EQ(checkpoint_objection(path_, which), "");
  EXPECT_TRUE(which.starts_with("step 7, xxh3 ")) << which;
  EXPECT_NE(whole_.find(which.substr(which.size() - 16)), whole_.npos) << which;
}

TEST_F(Checkpoints, AnOwedTestComesBack) {
  auto owing = checkpoint_;
  owing.owes_test = true;
  write_checkpoint(path_, owing, layers_);
  EXPECT_TRUE(read_checkpoint(path_, layers_, checkpoint_.fingerprint).owes_test);
}

TEST_F(Checkpoints, EveryBitCounts) {
  for (std::size_t byte = 0; byte < whole_.size(); ++byte) {
    for (const unsigned bit : {0U, 1U, 2U, 3U, 4U, 5U, 6U, 7U}) {
      auto changed = whole_;
      changed[byte] = static_cast<char>(static_cast<unsigned char>(changed[byte]) ^ (1U << bit));
      put(changed);
      const auto said = refusal();
      ASSERT_TRUE(said.starts_with("'" + path_ + "' is ")) << byte << ", " << bit << ": " << said;
      ASSERT_NE(said.find("damaged"), said.npos) << byte << ", " << bit << ": " << said;
    }
  }
}

TEST_F(Checkpoints, OneThatWasCutOrGrewIsDamaged) {
  for (std::size_t bytes = 0; bytes < whole_.size(); ++bytes) {
    put(whole_.substr(0, bytes));
    const auto said = refusal();
    ASSERT_TRUE(said.starts_with("'" + path_ + "' is ")) << bytes << ": " << said;
    ASSERT_NE(said.find("damaged"), said.npos) << bytes << ": " << said;
  }
  put(whole_.substr(0, whole_.size() - 3));
  EXPECT_NE(refusal().find("it was cut"), std::string::npos) << refusal();
  put(whole_ + '\0');
  EXPECT_NE(refusal().find("1 bytes behind the last tensor"), std::string::npos) << refusal();
}

TEST_F(Checkpoints, TheObjectionSaysWhatToDo) {
  auto changed = whole_;
  changed.back() = static_cast<char>(changed.back() ^ 1);
  put(changed);
  std::string which;
  const auto said = checkpoint_objection(path_, which);
  for (const std::string word : {"--resume", path_.c_str(), "is damaged: its checksum is",
                                 "Nothing was overwritten", "another checkpoint"}) {
    EXPECT_NE(said.find(word), said.npos) << "'" << word << "' is missing in: " << said;
  }
  std::filesystem::remove(path_);
  const auto missing = checkpoint_objection(path_, which);
  EXPECT_NE(missing.find("No such file"), missing.npos) << missing;
  EXPECT_EQ(missing.find("damaged"), missing.npos) << missing;
  // A file of tensors that is no checkpoint is not called damaged.
  write_safetensors(path_, {}, {{"what", "tensors"}});
  const auto other = checkpoint_objection(path_, which);
  EXPECT_NE(other.find("is not a checkpoint"), other.npos) << other;
}

}  // namespace
}  // namespace train
