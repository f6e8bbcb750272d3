// SPDX-License-Identifier: Apache-2.0
/// The lossless stage: what it packs it unpacks, and it unpacks nothing else.

#include "support/method_support.hpp"

namespace atomo::test {
namespace {

const char* const kStages[] = {"+blosc:codec=lz4", "+blosc:codec=zstd,level=1,shuffle=bit",
                               "+blosc:codec=blosclz,level=9,shuffle=none",
                               "+blosc:codec=zstd,level=9,shuffle=byte"};

/// Mostly zeros, so that codes compress.
std::vector<float> sparse_entries(std::size_t n) {
  auto x = normal_entries(n, n);
  for (std::size_t i = 0; i < n; ++i) x[i] = i % 19 == 0 ? x[i] : 0;
  return x;
}

TEST(Blosc, UnpacksToTheInnerBody) {
  for (const std::string inner : {"qsgd:bits=4", "topk:keep=0.05", "sign", "terngrad"}) {
    const auto plain = codec::parse_spec(inner);
    for (const std::string stage : kStages) {
      const auto packed = codec::parse_spec(inner + stage);
      for (const std::size_t n : {1u, 33u, 5000u, 300'000u}) {
        const auto x = sparse_entries(n);
        const Body body = encode_body(packed, x), raw = encode_body(plain, x);
        ASSERT_EQ(body.status, Status::ok);
        EXPECT_EQ(kind_of(packed, n), kind_of(plain, n));
        if (!body.lossless) {
          EXPECT_EQ(body.bytes, raw.bytes);
          continue;
        }
        EXPECT_LT(body.bytes.size(), raw.bytes.size());
        Guarded out(raw.bytes.size());
        std::size_t bytes = 0;
        ASSERT_EQ(codec::unpack_frame(kind_of(packed, n), body.bytes, out.bytes(), bytes),
                  Status::ok);
        EXPECT_TRUE(out.intact());
        ASSERT_EQ(bytes, raw.bytes.size());
        EXPECT_TRUE(std::equal(raw.bytes.begin(), raw.bytes.end(), out.data()));
      }
    }
  }
}

TEST(Blosc, PacksWhatShrinksAndStoresWhatDoesNot) {
  EXPECT_TRUE(
      encode_body(codec::parse_spec("qsgd:bits=4+blosc:codec=zstd"), sparse_entries(100'000))
          .lossless);
  EXPECT_FALSE(
      encode_body(codec::parse_spec("qsgd:bits=4+blosc:codec=lz4,level=0"), sparse_entries(100'000))
          .lossless);
  EXPECT_FALSE(
      encode_body(codec::parse_spec("sign+blosc:codec=lz4"), normal_entries(20, 1)).lossless);
}

TEST(Blosc, SpecAndTraits) {
  const auto method = codec::parse_spec("sign+blosc:codec=zstd,level=3,shuffle=bit");
  EXPECT_EQ(method.to_string(), "sign+blosc:codec=zstd,level=3,shuffle=bit");
  EXPECT_TRUE(method.lossless.has_value());
  EXPECT_TRUE(method.traits().allocates);
  EXPECT_FALSE(method.traits().fixed_size);
  EXPECT_FALSE(method.traits().capturable);
  EXPECT_FALSE(codec::parse_spec("randomk:keep=0.1+blosc").traits().linear);
}

class BloscDamage : public testing::Test {
 protected:
  BloscDamage() {
    const auto x = sparse_entries(3000);
    raw_ = encode_body(codec::parse_spec("qsgd:bits=8,bucket=3000"), x).bytes.size();
    const Body body = encode_body(codec::parse_spec("qsgd:bits=8,bucket=3000+blosc:codec=zstd"), x);
    EXPECT_TRUE(body.lossless);
    packed_ = body.bytes;
  }
  /// Unpacks from and into memory of exactly the right size.
  [[nodiscard]] Status unpack(const std::vector<std::byte>& packed, std::size_t room) const {
    Guarded in(packed.size()), out(room);
    std::copy(packed.begin(), packed.end(), in.data());
    std::size_t bytes = 0;
    const Status status = codec::unpack_frame({}, in.bytes(), out.bytes(), bytes);
    EXPECT_TRUE(out.intact());
    EXPECT_LE(bytes, room);
    return status;
  }
  std::vector<std::byte> packed_;
  std::size_t raw_ = 0;
};

TEST_F(BloscDamage, TruncationsAndTrailingBytesAreRefused) {
  ASSERT_EQ(unpack(packed_, raw_), Status::ok);
  for (std::size_t length = 0; length < packed_.size(); ++length) {
    EXPECT_TRUE(failed(
        unpack({packed_.begin(), packed_.begin() + static_cast<std::ptrdiff_t>(length)}, raw_)));
  }
  auto longer = packed_;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(failed(unpack(longer, raw_)));
}

TEST_F(BloscDamage, OutputThatDoesNotFitIsRefused) {
  EXPECT_TRUE(failed(unpack(packed_, raw_ - 1)));
  EXPECT_TRUE(failed(unpack(packed_, 0)));
  EXPECT_EQ(unpack(packed_, raw_ + 100), Status::ok);
}

TEST_F(BloscDamage, FlippedBitsGiveAStatus) {
  for (std::size_t bit = 0; bit < 8 * packed_.size(); ++bit) {
    packed_[bit / 8] ^= std::byte{1} << (bit % 8);
    (void)unpack(packed_, raw_);
    packed_[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST_F(BloscDamage, RandomBytesGiveAStatus) {
  std::mt19937_64 generator(5);
  for (int trial = 0; trial < 3000; ++trial) {
    auto bytes = packed_;
    for (int change = 0; change < 3; ++change)
      bytes[generator() % bytes.size()] = static_cast<std::byte>(generator());
    (void)unpack(bytes, raw_);
  }
}

}  // namespace
}  // namespace atomo::test
