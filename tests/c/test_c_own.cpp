// SPDX-License-Identifier: Apache-2.0
/// A codec that is not the library's, loaded from a shared object.
#include "c/c_support.hpp"

namespace atomo {
namespace {

TEST(COwnCodec, IsLoadedAndUsedByItsName) {
  EXPECT_EQ(atomo_load_codecs(nullptr), ATOMO_INVALID_ARGUMENT);
  EXPECT_EQ(atomo_load_codecs("./no-such-file.so"), ATOMO_INVALID_ARGUMENT);
  EXPECT_NE(std::string(atomo_last_error()).find("cannot be loaded"), std::string::npos);
  atomo_codec* none = nullptr;
  EXPECT_EQ(atomo_codec_create("raw", &none), ATOMO_INVALID_ARGUMENT);

  ASSERT_EQ(atomo_load_codecs(ATOMO_TEST_PLUGIN), ATOMO_OK) << atomo_last_error();
  EXPECT_EQ(atomo_load_codecs(ATOMO_TEST_PLUGIN), ATOMO_INVALID_ARGUMENT);
  EXPECT_NE(std::string(atomo_last_error()).find("is registered already"), std::string::npos);
  const auto codec = test::c_codec("raw+blosc");
  const Shape shape{4, 5};
  std::vector<float> x(20, 1), y(20);
  const auto message = test::c_encode(codec.get(), x.data(), shape, {});
  ASSERT_EQ(message.status, ATOMO_OK);
  std::size_t bytes = 0;
  ASSERT_EQ(atomo_codec_decode_workspace_bytes(codec.get(), shape.dims().data(), 2, ATOMO_F32,
                                               ATOMO_CPU, &bytes),
            ATOMO_OK);
  const test::CContext context(bytes);
  const auto out = test::c_tensor(y.data(), shape);
  EXPECT_EQ(atomo_codec_decode(codec.get(), message.bytes.data(), message.bytes.size(), &out,
                               context.get()),
            ATOMO_OK);
  EXPECT_EQ(y, x);

  x[0] = 13;
  EXPECT_EQ(test::c_encode(codec.get(), x.data(), shape, {}).status, ATOMO_CODEC_FAILED);
  EXPECT_NE(std::string(atomo_last_error()).find("thirteen is not sent"), std::string::npos);
}

}  // namespace
}  // namespace atomo
