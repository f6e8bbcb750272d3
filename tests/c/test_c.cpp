// SPDX-License-Identifier: Apache-2.0
/// One tensor through the C interface: bytes, values, sizes and promises are those of C++.
#include <cstddef>
#include <limits>
#include <string_view>

#include "c_support.hpp"

namespace atomo {
namespace {

using test::Buffer;
using test::CContext;

// What a compiled caller knows of the structs: these numbers are the interface.
static_assert(sizeof(atomo_const_tensor) == 32 && sizeof(atomo_tensor) == 32);
static_assert(offsetof(atomo_tensor, rank) == 16 && offsetof(atomo_tensor, device) == 24);
static_assert(sizeof(atomo_bytes) == 16);
static_assert(sizeof(atomo_key) == 24 && offsetof(atomo_key, channel) == 16);
static_assert(sizeof(atomo_context) == 80 && offsetof(atomo_context, status) == 40);
static_assert(sizeof(atomo_traits) == 80 && offsetof(atomo_traits, cuda) == 67);
static_assert(sizeof(atomo_codec_row) == 32);
static_assert(sizeof(atomo_layer) == 32 && sizeof(atomo_compressor_options) == 32);
static_assert(sizeof(atomo_prices) == 8);
static_assert(sizeof(atomo_message_info) == 88 && offsetof(atomo_message_info, bytes) == 40);
static_assert(sizeof(atomo_layer_info) == 88 && offsetof(atomo_layer_info, price) == 64);

const Shape kShape{37, 45};
const Key kKey{.seed = 0x123456789ABCDEF0, .step = 70000, .tensor = 3, .worker = 11, .channel = 2};

/// The tensor's bytes in a dtype.
Buffer as_dtype(const std::vector<float>& x, DType dtype) {
  Buffer bytes(x.size() * size_of(dtype));
  bool overflow = false;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint16_t half =
        dtype == DType::f16 ? core::to_f16(x[i], overflow) : core::to_bf16(x[i], overflow);
    if (dtype == DType::f32) {
      std::memcpy(&bytes[4 * i], &x[i], 4);
    } else {
      std::memcpy(&bytes[2 * i], &half, 2);
    }
  }
  return bytes;
}

struct CDecoded {
  atomo_status status;
  Buffer values;
};

CDecoded c_decode(const atomo_codec* codec, const Buffer& message, Buffer y, DType dtype, bool add,
                  float alpha) {
  const CContext context(test::c_workspace_bytes(codec, kShape, dtype));
  const auto tensor = test::c_tensor(y.data(), kShape, dtype);
  const auto status =
      add ? atomo_codec_decode_add(codec, message.data(), message.size(), alpha, &tensor,
                                   context.get())
          : atomo_codec_decode(codec, message.data(), message.size(), &tensor, context.get());
  return {status, std::move(y)};
}

TEST(C, EveryCodecMakesTheSameBytesAndValues) {
  const auto x = test::heavy_tailed(kShape.elements(), 5, 45);
  for (const std::string& spec : test::all_specs()) {
    SCOPED_TRACE(spec);
    const Codec codec = Codec::parse(spec);
    const auto handle = test::c_codec(spec);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const Buffer input = as_dtype(x, dtype);
      const auto expected = test::encode_bytes(codec, input, dtype, kShape, kKey);
      const auto message = test::c_encode(handle.get(), input.data(), kShape, kKey, dtype);
      ASSERT_EQ(message.status, static_cast<atomo_status>(expected.status));
      ASSERT_EQ(message.bytes, expected.bytes);

      const Buffer before = as_dtype(test::heavy_tailed(x.size(), 6), dtype);
      for (const bool add : {false, true}) {
        const auto there =
            test::decode_bytes(codec, message.bytes, before, dtype, kShape, add, -0.75f);
        const auto here = c_decode(handle.get(), message.bytes, before, dtype, add, -0.75f);
        EXPECT_EQ(here.status, static_cast<atomo_status>(there.status));
        EXPECT_EQ(here.status == ATOMO_UNSUPPORTED, add && dtype != DType::f32);
        EXPECT_EQ(here.values, there.values);
      }
    }
  }
}

TEST(C, CodecsSayWhatTheySayInCpp) {
  for (const std::string& spec : test::all_specs()) {
    SCOPED_TRACE(spec);
    const Codec codec = Codec::parse(spec);
    const auto handle = test::c_codec(spec);
    std::size_t needed = 0;
    ASSERT_EQ(atomo_codec_spec(handle.get(), nullptr, 0, &needed), ATOMO_OK);
    ASSERT_EQ(needed, codec.to_string().size() + 1);
    std::string text(needed, '?');
    EXPECT_EQ(atomo_codec_spec(handle.get(), text.data(), needed - 1, nullptr),
              ATOMO_BUFFER_TOO_SMALL);
    EXPECT_EQ(text, std::string(needed, '?'));
    ASSERT_EQ(atomo_codec_spec(handle.get(), text.data(), needed, nullptr), ATOMO_OK);
    EXPECT_EQ(std::string_view(text.data()), codec.to_string());

    for (const Shape& shape : {Shape{}, Shape{0, 3}, kShape}) {
      std::size_t bytes = 0;
      EXPECT_EQ(atomo_codec_max_encoded_bytes(handle.get(), shape.dims().data(), shape.rank(),
                                              ATOMO_BF16, &bytes),
                ATOMO_OK);
      EXPECT_EQ(bytes, codec.max_encoded_bytes(shape, DType::bf16));
      EXPECT_EQ(test::c_workspace_bytes(handle.get(), shape, DType::f16),
                test::workspace_bytes(codec, shape, DType::f16));
      std::uint64_t expected = 0;
      EXPECT_EQ(atomo_codec_expected_bytes(handle.get(), shape.dims().data(), shape.rank(),
                                           ATOMO_F16, &expected),
                ATOMO_OK);
      EXPECT_EQ(expected, codec.expected_bytes(shape, DType::f16).value_or(0));
      EXPECT_EQ(atomo_codec_wire_bytes(handle.get(), shape.dims().data(), shape.rank(), ATOMO_F16,
                                       &bytes),
                ATOMO_OK);
      EXPECT_EQ(bytes, codec.wire_bytes(shape, DType::f16).value_or(0));
    }

    atomo_traits t;
    std::memset(&t, 0xEE, sizeof t);
    const Traits& expected = codec.traits();
    ASSERT_EQ(atomo_codec_traits(handle.get(), &t), ATOMO_OK);
    EXPECT_EQ(t.bias_bound, expected.bias_bound);
    EXPECT_EQ(t.has_omega ? std::optional(t.omega) : std::nullopt, expected.omega);
    EXPECT_EQ(t.has_contraction ? std::optional(t.contraction) : std::nullopt,
              expected.contraction);
    EXPECT_EQ(t.has_largest ? std::optional(t.largest) : std::nullopt, expected.largest);
    EXPECT_EQ(t.step, expected.step);
    EXPECT_EQ(t.smallest, expected.smallest);
    EXPECT_EQ(t.highest, expected.highest);
    const bool bits[] = {expected.unbiased,   expected.linear,    expected.averages_over_workers,
                         expected.fixed_size, expected.allocates, expected.synchronises,
                         expected.capturable, expected.cpu,       expected.cuda,
                         expected.bounded,    expected.votes,     expected.differences};
    const std::uint8_t told[] = {t.unbiased,   t.linear,    t.averages_over_workers,
                                 t.fixed_size, t.allocates, t.synchronises,
                                 t.capturable, t.cpu,       t.cuda,
                                 t.bounded,    t.votes,     t.differences};
    for (std::size_t i = 0; i < std::size(bits); ++i) EXPECT_EQ(told[i], bits[i] ? 1 : 0) << i;
    for (const std::uint8_t byte : t.reserved) EXPECT_EQ(byte, 0);
  }
}

TEST(C, CodecsCompareAndLoseTheirLosslessStage) {
  const auto packed = test::c_codec("qsgd:bits=2+blosc"), plain = test::c_codec("qsgd:bits=2"),
             spelt = test::c_codec("qsgd:bits=2,bucket=512,norm=max");
  atomo_codec* without = nullptr;
  ASSERT_EQ(atomo_codec_without_lossless(packed.get(), &without), ATOMO_OK);
  const test::Owned<atomo_codec> owned(without);
  std::int32_t equal = -1;
  EXPECT_EQ(atomo_codec_equal(packed.get(), plain.get(), &equal), ATOMO_OK);
  EXPECT_EQ(equal, 0);
  EXPECT_EQ(atomo_codec_equal(without, plain.get(), &equal), ATOMO_OK);
  EXPECT_EQ(equal, 1);
  EXPECT_EQ(atomo_codec_equal(spelt.get(), plain.get(), &equal), ATOMO_OK);
  EXPECT_EQ(equal, 1);
}

TEST(C, TheTableOfCodecsIsThatOfCpp) {
  const auto expected = list_codecs();
  std::size_t rows = 0;
  ASSERT_EQ(atomo_codec_rows(&rows), ATOMO_OK);
  ASSERT_EQ(rows, expected.size());
  for (std::size_t i = 0; i < rows; ++i) {
    atomo_codec_row row;
    ASSERT_EQ(atomo_codec_row_at(i, &row), ATOMO_OK);
    EXPECT_EQ(row.name, expected[i].name);
    EXPECT_EQ(row.keys, expected[i].keys);
    EXPECT_EQ(row.summary, expected[i].summary);
    EXPECT_EQ(row.example, expected[i].example);
  }
}

TEST(C, TheContextsWordsAreUsed) {
  const auto x = test::heavy_tailed(kShape.elements(), 5, 45);
  const Codec codec = Codec::parse("qsgd:bits=4");
  const auto handle = test::c_codec("qsgd:bits=4");
  Key key = kKey;
  key.step = 123456;
  const auto expected = test::encode(codec, x, kShape, key);

  CContext context(test::c_workspace_bytes(handle.get(), kShape, DType::f32));
  const std::uint32_t step = key.step;
  atomo_status status = 77;
  context.context.step = &step;
  context.context.status = &status;
  Buffer message(codec.max_encoded_bytes(kShape));
  std::uint64_t bytes = 0;
  const auto tensor = test::c_tensor(x.data(), kShape);
  const auto k = test::c_key(kKey);
  ASSERT_EQ(atomo_codec_encode(handle.get(), &tensor, &k, message.data(), message.size(), &bytes,
                               context.get()),
            ATOMO_OK);
  EXPECT_EQ(status, ATOMO_OK);
  message.resize(bytes);
  EXPECT_EQ(message, expected.bytes);

  const atomo_key overriding = test::c_key(key), other = test::c_key({.seed = 1});
  context.context.step = nullptr;
  context.context.key = &overriding;
  message.resize(codec.max_encoded_bytes(kShape));
  ASSERT_EQ(atomo_codec_encode(handle.get(), &tensor, &other, message.data(), message.size(),
                               &bytes, context.get()),
            ATOMO_OK);
  message.resize(bytes);
  EXPECT_EQ(message, expected.bytes);

  context.context.workspace_bytes = 0;
  EXPECT_EQ(atomo_codec_encode(handle.get(), &tensor, &k, message.data(), 1, &bytes, context.get()),
            ATOMO_BUFFER_TOO_SMALL);
  EXPECT_EQ(status, ATOMO_BUFFER_TOO_SMALL);
  EXPECT_EQ(atomo_last_error(), describe(Status::buffer_too_small));
}

TEST(C, NoticesAreNoFailures) {
  std::vector<float> x(kShape.elements(), 1.0f);
  x[7] = std::numeric_limits<float>::infinity();
  const auto handle = test::c_codec("qsgd:bits=4");
  const auto message = test::c_encode(handle.get(), x.data(), kShape, kKey);
  EXPECT_EQ(message.status, ATOMO_NON_FINITE);
  EXPECT_EQ(atomo_failed(message.status), 0);
  EXPECT_FALSE(message.bytes.empty());
}

TEST(C, StatusesHaveTheirTexts) {
  for (int s = -3; s < 600; ++s) {
    const std::string_view text = atomo_status_text(s);
    if (s != ATOMO_OUT_OF_MEMORY && s != ATOMO_INTERNAL) {
      const bool known = (s >= 0 && s <= 15) || (s >= 256 && s <= ATOMO_CODEC_FAILED);
      EXPECT_EQ(text, known ? describe(static_cast<Status>(s)) : "unknown status") << s;
    }
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(atomo_failed(s), s >= 256 ? 1 : 0);
  }
  EXPECT_NE(std::string_view(atomo_status_text(ATOMO_INTERNAL)),
            atomo_status_text(ATOMO_OUT_OF_MEMORY));
  EXPECT_EQ(atomo_status_text(std::numeric_limits<int>::min()), std::string_view("unknown status"));
}

TEST(C, VersionsAreThoseOfCpp) {
  EXPECT_EQ(atomo_abi_version(), static_cast<std::uint32_t>(ATOMO_ABI_VERSION));
  EXPECT_EQ(atomo_version(), std::string_view(kVersion));
  std::int32_t major_format = -1, minor_format = -1;
  ASSERT_EQ(atomo_format_version(&major_format, &minor_format), ATOMO_OK);
  EXPECT_EQ(major_format, kFormatMajor);
  EXPECT_EQ(minor_format, kFormatMinor);
}

}  // namespace
}  // namespace atomo
