// SPDX-License-Identifier: Apache-2.0
/// Sketches and layers that choose their form, on a device. Decoding gives the CPU's values bit for
/// bit, whatever became of the bytes. What needs no decomposition is encoded to the CPU's bytes;
/// the pairs of a sketch are the CPU's but for rounding and signs, so messages with one are as long
/// but for little, and are held to what they promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <utility>

#include "cuda/tuning.hpp"
#include "format/container_head.hpp"
#include "support/mutated_messages.hpp"
#include "support/on_cpu.hpp"

namespace atomo {

using namespace model;
namespace {

const std::vector<std::string>& specs() {
  static const std::vector<std::string> all = {
      "atomo:bits=2,atoms=sketch",     "atomo:bits=0.5,atoms=sketch,rank=3,iterations=2",
      "atomo:price=0.01,atoms=sketch", "atomo:bits=6,atoms=auto",
      "atomo:bits=1,atoms=auto",       "atomo:bits=0.2,atoms=auto,rank=2",
      "atomo:price=0.02,atoms=auto",   "atomo:bits=1,atoms=sketch,content=nearest"};
  return all;
}

enum class Data { heavy, low_rank, sparse, blocky };
constexpr std::array<Data, 4> kData = {Data::heavy, Data::low_rank, Data::sparse, Data::blocky};

/// Tensors of which each is best sent in another form.
std::vector<float> make_data(Data data, const Shape& shape, std::uint64_t seed) {
  const std::size_t n = shape.elements();
  std::vector<float> x = test::heavy_tailed(n, seed, 47);
  if (n == 0) return x;
  const std::size_t columns = shape.rank() == 0 ? 1 : n / static_cast<std::size_t>(shape[0]);
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  if (data == Data::low_rank) {
    for (float& v : x) v *= 0.05f;
    for (int r = 0; r < 3; ++r) {
      std::vector<float> u(n / columns), w(columns);
      for (float& e : u) e = normal(generator);
      for (float& e : w) e = 0.1f * normal(generator);
      for (std::size_t i = 0; i < n; ++i) x[i] += u[i / columns] * w[i % columns];
    }
  } else if (data == Data::sparse) {
    for (float& v : x) v = generator() % 20 == 0 ? normal(generator) : 0.0f;
  } else if (data == Data::blocky) {
    for (std::size_t i = 0; i < n; ++i) x[i] = i / 256 % 5 == 0 ? normal(generator) : 0.001f * x[i];
  }
  return x;
}

/// How many bodies had which form.
struct Forms {
  std::array<std::size_t, 4> of{};
  void add(ConstBytes message) {
    format::Head head;
    ASSERT_EQ(format::Head::parse(message, true, head), Status::ok);
    format::LayerCursor layer(head);
    Status status = Status::ok;
    while (layer.next(status)) ++of[layer.row.form()];
  }
  void print() const {
    std::cout << "[ forms    ] " << of[0] << " blocks or without forms, " << of[1] << " rows, "
              << of[2] << " sketches, " << of[3] << " grids\n";
  }
};

/// What the CPU decodes: the device's values, as the first two tests here see to.
std::vector<float> values_on_cpu(const Codec& codec, ConstBytes message, const Shape& shape) {
  std::vector<float> y(shape.elements());
  const auto d = test::decode_on_cpu(codec, message, test::entries_of(y), DType::f32, shape);
  EXPECT_FALSE(failed(d.status)) << describe(d.status);
  std::memcpy(y.data(), d.values.data(), d.values.size());
  return y;
}

class DeviceForms : public testing::TestWithParam<std::string> {
 protected:
  void TearDown() override { cuda::warps_per_block = 4; }
  /// The device makes of a message what the CPU makes of it.
  void expect_same(ConstBytes message, const Shape& shape, DType dtype = DType::f32,
                   std::size_t shift = 0) {
    test::expect_the_cpus_values(codec, message, shape, dtype, shift);
  }
  [[nodiscard]] std::vector<float> values_of(ConstBytes message, const Shape& shape) const {
    return values_on_cpu(codec, message, shape);
  }
  Codec codec = Codec::parse(GetParam());
  Forms forms;
};

INSTANTIATE_TEST_SUITE_P(Specs, DeviceForms, testing::ValuesIn(specs()), test::spec_name);

TEST_P(DeviceForms, DecodesToTheCpusValues) {
  for (const Shape& shape : {Shape{0}, Shape{33}, Shape{5000}, Shape{64, 3, 3}, Shape{2, 16},
                             Shape{17, 16}, Shape{40, 25}, Shape{31, 33}, Shape{9, 513},
                             Shape{300, 16}, Shape{3, 2051}, Shape{40, 1100}, Shape{600, 21, 2}}) {
    std::size_t turn = 0;
    for (const Data data : kData) {
      const auto x = make_data(data, shape, 3 + shape.elements());
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        SCOPED_TRACE(shape.to_string() + " data " + std::to_string(static_cast<int>(data)));
        const Key key{.seed = 7, .step = 5, .tensor = 6, .worker = 7};
        const auto m = test::encode_on_cpu(codec, test::entries_of(x, dtype), dtype, shape, key);
        ASSERT_FALSE(failed(m.status));
        forms.add(m.bytes);
        cuda::warps_per_block = std::array{1u, 2u, 8u}[turn % 3];
        ASSERT_NO_FATAL_FAILURE(expect_same(m.bytes, shape, dtype, turn++ % 4));
      }
    }
  }
  forms.print();
}

TEST_P(DeviceForms, DecodesDamagedMessagesAsTheCpu) {
  int accepted = 0, tried = 0;
  for (const Shape& shape : {Shape{23, 45}, Shape{5, 1030}, Shape{700}}) {
    for (const Data data : kData) {
      const auto x = make_data(data, shape, 4);
      const auto sound = test::encode_on_cpu(codec, x, shape, {.seed = 3}).bytes;
      std::mt19937_64 generator(11);
      const std::uint64_t trials = test::in_turns() ? 15 : test::kSanitized ? 40 : 120;
      for (std::uint64_t trial = 0; trial < trials; ++trial, ++tried) {
        SCOPED_TRACE(shape.to_string() + " data " + std::to_string(static_cast<int>(data)) +
                     " trial " + std::to_string(trial));
        auto bytes = sound;
        if (trial % 16 == 0) {
          bytes.resize(generator() % (sound.size() + 1));
        } else {
          bytes = test::mutated_message(sound, trial);
        }
        ASSERT_NO_FATAL_FAILURE(expect_same(bytes, shape));
        const auto on_cpu =
            test::decode_on_cpu(codec, bytes, test::entries_of(x), DType::f32, shape);
        accepted += failed(on_cpu.status) ? 0 : 1;
      }
    }
  }
  EXPECT_GT(accepted, 10);
  EXPECT_LT(accepted, tried);
}

/// Values beyond f32 become infinite, with a notice; tiny ones lose bits: as on the CPU.
TEST_P(DeviceForms, DecodesExtremeScalesAsTheCpu) {
  const Shape shape{20, 40};
  for (const float scale : {5e37f, 1e25f, 1e-25f, 1e-37f}) {
    auto x = make_data(Data::low_rank, shape, 5);
    for (float& v : x) v *= scale;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      const auto m = test::encode_on_cpu(codec, x, shape, {.seed = seed});
      ASSERT_FALSE(failed(m.status));
      ASSERT_NO_FATAL_FAILURE(expect_same(m.bytes, shape));
    }
  }
}

/// Tensors that have no sketch: blocks, rows and coordinates. Under a sanitizer the dtypes take turns.
TEST_P(DeviceForms, EncodesToTheCpusBytes) {
  std::size_t turn = 0;
  for (const Shape& shape : {Shape{0}, Shape{}, Shape{33}, Shape{1023}, Shape{1025}, Shape{5000},
                             Shape{64, 3, 3}, Shape{1, 300}, Shape{1, 20011}, Shape{12000}}) {
    for (const Data data : kData) {
      const auto x = make_data(data, shape, 3 + shape.elements());
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        if (test::kSanitized && turn % 3 != (turn / 3 + turn / 9) % 3) {
          ++turn;
          continue;
        }
        const auto entries = test::entries_of(x, dtype);
        const auto where = shape.to_string() + " data " + std::to_string(static_cast<int>(data)) +
                           " " + std::string(name_of(dtype));
        const Key key{.seed = 7, .step = 5, .tensor = 6, .worker = 7, .channel = 3};
        const auto expected = test::encode_on_cpu(codec, entries, dtype, shape, key);
        ASSERT_FALSE(failed(expected.status));
        cuda::warps_per_block = std::array{1u, 4u, 8u}[turn / 3 % 3];
        const auto m = test::encode_bytes(codec, entries, dtype, shape, key, nullptr, turn % 4);
        ASSERT_EQ(m.status, expected.status) << where << ": " << describe(m.status);
        ASSERT_TRUE(m.bytes == expected.bytes)
            << where << ": " << m.bytes.size() << ", " << expected.bytes.size();
        ++turn;
        forms.add(expected.bytes);
      }
    }
  }
  forms.print();
}

/// Of a matrix with an entry beyond 2^120 the rows take everything, so nothing can differ.
TEST_P(DeviceForms, EncodesMatricesThatAreAllResidualToTheCpusBytes) {
  std::size_t turn = 0;
  for (const Shape& shape : {Shape{2, 16}, Shape{40, 25}, Shape{9, 513}, Shape{300, 16},
                             Shape{3, 2051}, Shape{600, 21, 2}}) {
    ++turn;
    for (const Data data : kData) {
      if (test::kSanitized && data != kData[turn % kData.size()]) continue;  // they take turns
      auto x = make_data(data, shape, 3 + shape.elements());
      for (float& v : x) v *= 0x1p118f;
      x[5] = 0x1p121f;
      for (std::uint64_t seed = 0; seed < (test::kSanitized ? 1 : 3); ++seed) {
        const auto expected = test::encode_on_cpu(codec, x, shape, {.seed = seed});
        const auto m = test::encode(codec, x, shape, {.seed = seed});
        ASSERT_EQ(m.status, expected.status) << shape.to_string();
        ASSERT_TRUE(m.bytes == expected.bytes)
            << shape.to_string() << " data " << static_cast<int>(data);
        forms.add(m.bytes);
      }
    }
  }
  forms.print();
}

double squared_error(const std::vector<float>& x, const std::vector<float>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = static_cast<double>(x[i]) - static_cast<double>(y[i]);
    sum += error * error;
  }
  return sum;
}

/// What draws of one side and of the other say: their means, and how far these may be apart by
/// chance, four standard errors.
class TwoSides {
 public:
  void add(double cpu, double device) {
    for (const auto& [side, value] : {std::pair{0, cpu}, {1, device}}) {
      sum_[side] += value;
      square_[side] += value * value;
    }
    ++draws_;
  }
  [[nodiscard]] double mean(int side) const { return sum_[side] / draws_; }
  [[nodiscard]] double chance() const {
    double variance = 0;
    for (int side = 0; side < 2; ++side) {
      const double mean = sum_[side] / draws_;
      variance += std::max(0.0, square_[side] / draws_ - mean * mean) / (draws_ - 1);
    }
    return 4 * std::sqrt(variance);
  }

 private:
  double sum_[2] = {}, square_[2] = {}, draws_ = 0;
};

/// Of matrices: the CPU decodes the device's messages to the device's values, their size is the
/// CPU's but for little, also where no budget says how large a message is, and so is their error. A
/// pair of the other sign is rounded by other draws, so what errors differ by in six draws counts
/// beside what is allowed.
TEST_P(DeviceForms, EncodesWhatDecodesAlike) {
  std::size_t turn = 0;
  double all_on_cpu = 0, all_on_device = 0;
  for (const Shape& shape : {Shape{2, 16}, Shape{17, 16}, Shape{40, 25}, Shape{9, 513},
                             Shape{60, 16}, Shape{3, 1100}, Shape{16, 1030}, Shape{130, 70}}) {
    for (const Data data : kData) {
      const auto x = make_data(data, shape, 3 + shape.elements());
      TwoSides bytes, errors;
      bool overspent = false;
      for (std::uint64_t seed = 0; seed < 6; ++seed, ++turn) {
        SCOPED_TRACE(shape.to_string() + " data " + std::to_string(static_cast<int>(data)));
        cuda::warps_per_block = std::array{1u, 2u, 8u}[turn % 3];
        const Key key{.seed = seed, .step = 5, .tensor = 6, .worker = 7};
        const auto on_cpu = test::encode_on_cpu(codec, x, shape, key);
        const auto m = test::encode(codec, x, shape, key);
        ASSERT_FALSE(failed(m.status)) << describe(m.status);
        EXPECT_EQ(m.status, on_cpu.status);
        overspent = overspent || m.status == Status::overspent;
        forms.add(m.bytes);
        if (seed == 0) {
          ASSERT_NO_FATAL_FAILURE(expect_same(m.bytes, shape));
        }
        bytes.add(static_cast<double>(on_cpu.bytes.size()), static_cast<double>(m.bytes.size()));
        errors.add(squared_error(x, values_of(on_cpu.bytes, shape)),
                   squared_error(x, values_of(m.bytes, shape)));
      }
      all_on_cpu += bytes.mean(0);
      all_on_device += bytes.mean(1);
      EXPECT_NEAR(bytes.mean(1), bytes.mean(0), 0.02 * bytes.mean(0))
          << shape.to_string() << " data " << static_cast<int>(data);
      if (errors.mean(0) == 0 || overspent) continue;
      EXPECT_NEAR(errors.mean(1), errors.mean(0), 0.05 * errors.mean(0) + errors.chance())
          << shape.to_string() << " data " << static_cast<int>(data);
    }
  }
  EXPECT_NEAR(all_on_device, all_on_cpu, 0.003 * all_on_cpu);
  forms.print();
}

/// Ranks whose small matrices do not fit into shared memory: the same, of one matrix each.
TEST(LargeRanks, EncodeWhatDecodesAlike) {
  for (const std::int64_t rank : {65, 128, 256}) {
    const Shape shape{rank + 30, rank + 70};
    const auto x = make_data(Data::heavy, shape, 6);
    const Codec codec = Codec::parse("atomo:bits=4,atoms=sketch,rank=" + std::to_string(rank));
    double bytes[2] = {}, errors[2] = {};
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      SCOPED_TRACE("rank " + std::to_string(rank) + " seed " + std::to_string(seed));
      const test::Message sent[2] = {test::encode_on_cpu(codec, x, shape, {.seed = seed}),
                                     test::encode(codec, x, shape, {.seed = seed})};
      for (int side = 0; side < 2; ++side) {
        ASSERT_FALSE(failed(sent[side].status)) << describe(sent[side].status);
        ASSERT_NO_FATAL_FAILURE(test::expect_the_cpus_values(codec, sent[side].bytes, shape));
        bytes[side] += static_cast<double>(sent[side].bytes.size());
        errors[side] += squared_error(x, values_on_cpu(codec, sent[side].bytes, shape));
      }
    }
    std::cout << "[ rank     ] " << rank << ": bytes " << bytes[1] << ", CPU " << bytes[0]
              << "; error " << errors[1] << ", CPU " << errors[0] << '\n';
    EXPECT_NEAR(bytes[1], bytes[0], 0.01 * bytes[0]);
    EXPECT_NEAR(errors[1], errors[0], 0.05 * errors[0]);
  }
}

/// Over the draws, the device's sketches average to the tensor; those without draws do not, and the codec says so.
TEST_P(DeviceForms, EstimatesAreUnbiased) {
  const Shape shape{24, 40};
  const auto x = make_data(Data::low_rank, shape, 8);
  const int draws = test::in_brief() ? 100 : 300;
  std::vector<double> sum(x.size()), squares(x.size());
  cuda::warps_per_block = 1;  // so small a tensor leaves the other warps of a block idle
  for (std::uint64_t seed = 0; seed < static_cast<std::uint64_t>(draws); ++seed) {
    const auto y = values_of(test::encode(codec, x, shape, {.seed = seed}).bytes, shape);
    for (std::size_t i = 0; i < x.size(); ++i) {
      sum[i] += static_cast<double>(y[i]);
      squares[i] += static_cast<double>(y[i]) * static_cast<double>(y[i]);
    }
  }
  double error = 0, variance = 0;  // of the mean, over all entries
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double mean = sum[i] / draws, off = mean - static_cast<double>(x[i]);
    error += off * off;
    variance += (squares[i] / draws - mean * mean) / (draws - 1);
  }
  EXPECT_EQ(error < 1.5 * variance, codec.traits().unbiased) << error << " " << variance;
}

}  // namespace
}  // namespace atomo
