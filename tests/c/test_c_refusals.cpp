// SPDX-License-Identifier: Apache-2.0
/// What the C interface makes of a caller's mistakes: a status and a message that names them, in
/// the thread that made them.
#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <thread>

#include "c_support.hpp"

namespace atomo {
namespace {

using test::Buffer;
using test::CContext;

/// Everything a call needs, all of it right.
class CRefusals : public testing::Test {
 protected:
  CRefusals() : codec_(test::c_codec("qsgd:bits=4")) {
    const atomo_layer layer{"w", dims_, 2, ATOMO_F32, 0};
    atomo_compressor* made = nullptr;
    EXPECT_EQ(atomo_compressor_create(&layer, 1, "*=atomo:bits=2", nullptr, &made), ATOMO_OK);
    model_.reset(made);
    message_ = test::c_encode(codec_.get(), x_.data(), Shape{20, 30}, {}).bytes;
    atomo_message* inspected = nullptr;
    EXPECT_EQ(atomo_message_inspect(message_.data(), message_.size(), 1, &inspected), ATOMO_OK);
    inspected_.reset(inspected);
    bytes_ = {message_.data(), message_.size()};
  }

  /// Fails as an argument's mistake, in words that hold `text`.
  static void refuses(atomo_status status, const std::string& text) {
    EXPECT_EQ(status, ATOMO_INVALID_ARGUMENT);
    EXPECT_NE(std::string(atomo_last_error()).find(text), std::string::npos)
        << "'" << atomo_last_error() << "' does not say '" << text << "'";
    atomo_codec* none = nullptr;  // so that the next one's words are its own
    EXPECT_EQ(atomo_codec_create("nonsense", &none), ATOMO_INVALID_ARGUMENT);
  }
  atomo_status encode(const atomo_const_tensor& tensor) {
    return atomo_codec_encode(codec_.get(), &tensor, &key_, out_.data(), out_.size(), &length_,
                              context_.get());
  }

  const std::int64_t dims_[2] = {20, 30};
  std::vector<float> x_ = test::heavy_tailed(600, 1, 30);
  test::Owned<atomo_codec> codec_;
  test::Owned<atomo_compressor> model_;
  test::Owned<atomo_message> inspected_;
  Buffer message_, out_ = Buffer(8192);
  CContext context_{1 << 20};
  atomo_key key_{};
  atomo_bytes bytes_{};
  atomo_const_tensor from_{x_.data(), dims_, 2, ATOMO_F32, ATOMO_CPU, 0};
  atomo_tensor to_{x_.data(), dims_, 2, ATOMO_F32, ATOMO_CPU, 0};
  std::uint64_t length_ = 0;
  std::size_t size_ = 0;
};

TEST_F(CRefusals, DestroyingNothingDoesNothing) {
  atomo_codec_destroy(nullptr);
  atomo_compressor_destroy(nullptr);
  atomo_threads_destroy(nullptr);
  atomo_handles_destroy(nullptr);
  atomo_message_destroy(nullptr);
}

TEST_F(CRefusals, NullInCallsOnCodecs) {
  const atomo_codec* const c = codec_.get();
  atomo_codec* made = nullptr;
  std::int32_t equal = 0;
  atomo_traits traits;
  char text[256];
  refuses(atomo_codec_create(nullptr, &made), "spec is NULL");
  refuses(atomo_codec_create("sign", nullptr), "receives the handle is NULL");
  refuses(atomo_codec_without_lossless(nullptr, &made), "codec is NULL");
  refuses(atomo_codec_without_lossless(c, nullptr), "receives the handle is NULL");
  refuses(atomo_codec_spec(nullptr, text, sizeof text, &size_), "codec is NULL");
  refuses(atomo_codec_spec(c, nullptr, 0, nullptr), "is NULL");
  refuses(atomo_codec_equal(nullptr, c, &equal), "a is NULL");
  refuses(atomo_codec_equal(c, nullptr, &equal), "b is NULL");
  refuses(atomo_codec_equal(c, c, nullptr), "equal is NULL");
  refuses(atomo_codec_traits(nullptr, &traits), "codec is NULL");
  refuses(atomo_codec_traits(c, nullptr), "traits is NULL");
  refuses(atomo_codec_rows(nullptr), "rows is NULL");
  refuses(atomo_codec_row_at(0, nullptr), "row is NULL");
  refuses(atomo_codec_expected_bytes(nullptr, dims_, 2, 0, &length_), "codec is NULL");
  refuses(atomo_codec_expected_bytes(c, nullptr, 2, 0, &length_), "dims is NULL");
  refuses(atomo_codec_expected_bytes(c, dims_, 2, 0, nullptr), "bytes is NULL");
  refuses(atomo_codec_wire_bytes(nullptr, dims_, 2, 0, &size_), "codec is NULL");
  refuses(atomo_codec_wire_bytes(c, nullptr, 2, 0, &size_), "dims is NULL");
  refuses(atomo_codec_wire_bytes(c, dims_, 2, 0, nullptr), "bytes is NULL");
  refuses(atomo_codec_max_encoded_bytes(nullptr, dims_, 2, 0, &size_), "codec is NULL");
  refuses(atomo_codec_max_encoded_bytes(c, nullptr, 2, 0, &size_), "dims is NULL");
  refuses(atomo_codec_max_encoded_bytes(c, dims_, 2, 0, nullptr), "bytes is NULL");
  refuses(atomo_codec_encode_workspace_bytes(nullptr, dims_, 2, 0, 0, &size_), "codec is NULL");
  refuses(atomo_codec_decode_workspace_bytes(nullptr, dims_, 2, 0, 0, &size_), "codec is NULL");
  refuses(atomo_codec_encode_workspace_bytes(c, nullptr, 2, 0, 0, &size_), "dims is NULL");
  refuses(atomo_codec_decode_workspace_bytes(c, nullptr, 2, 0, 0, &size_), "dims is NULL");
  refuses(atomo_codec_encode_workspace_bytes(c, dims_, 2, 0, 0, nullptr), "bytes is NULL");
  refuses(atomo_codec_decode_workspace_bytes(c, dims_, 2, 0, 0, nullptr), "bytes is NULL");
  refuses(atomo_codec_encode(nullptr, &from_, &key_, out_.data(), 1, &length_, nullptr), "codec");
  refuses(atomo_codec_encode(c, nullptr, &key_, out_.data(), 1, &length_, nullptr), "tensor");
  refuses(atomo_codec_encode(c, &from_, nullptr, out_.data(), 1, &length_, nullptr), "key");
  refuses(atomo_codec_encode(c, &from_, &key_, nullptr, 1, &length_, nullptr), "buffer");
  refuses(atomo_codec_encode(c, &from_, &key_, out_.data(), 1, nullptr, nullptr), "bytes");
  refuses(atomo_codec_decode(nullptr, message_.data(), 1, &to_, nullptr), "codec is NULL");
  refuses(atomo_codec_decode(c, nullptr, 1, &to_, nullptr), "message is NULL");
  refuses(atomo_codec_decode(c, message_.data(), 1, nullptr, nullptr), "tensor is NULL");
  refuses(atomo_codec_decode_add(nullptr, message_.data(), 1, 1, &to_, nullptr), "codec is NULL");
  refuses(atomo_codec_decode_add(c, nullptr, 1, 1, &to_, nullptr), "message is NULL");
  refuses(atomo_codec_decode_add(c, message_.data(), 1, 1, nullptr, nullptr), "tensor is NULL");
  refuses(atomo_codec_decode_add_all(nullptr, &bytes_, 1, 1, &to_, nullptr), "codec is NULL");
  refuses(atomo_codec_decode_add_all(c, nullptr, 1, 1, &to_, nullptr), "messages is NULL");
  refuses(atomo_codec_decode_add_all(c, &bytes_, 1, 1, nullptr, nullptr), "tensor is NULL");
}

TEST_F(CRefusals, NullInCallsOnModels) {
  atomo_compressor* const m = model_.get();
  atomo_compressor* made = nullptr;
  atomo_codec* codec = nullptr;
  atomo_layer layer{"w", dims_, 2, ATOMO_F32, 0};
  atomo_prices prices;
  double budget = 0;
  char text[256];
  const char* const policy = "*=sign";
  refuses(atomo_policy_text(nullptr, 0, text, sizeof text, &size_), "policy is NULL");
  refuses(atomo_policy_text(policy, 0, nullptr, 0, nullptr), "is NULL");
  refuses(atomo_policy_codec(nullptr, "w", &codec), "policy is NULL");
  refuses(atomo_policy_codec(policy, nullptr, &codec), "layer is NULL");
  refuses(atomo_policy_codec(policy, "w", nullptr), "handle is NULL");
  refuses(atomo_compressor_create(nullptr, 1, policy, nullptr, &made), "layers is NULL");
  refuses(atomo_compressor_create(&layer, 1, nullptr, nullptr, &made), "policy is NULL");
  refuses(atomo_compressor_create(&layer, 1, policy, nullptr, nullptr), "handle is NULL");
  layer.name = nullptr;
  refuses(atomo_compressor_create(&layer, 1, policy, nullptr, &made), "layers[0]: name is NULL");
  refuses(atomo_compressor_layers(nullptr, &size_), "compressor is NULL");
  refuses(atomo_compressor_layers(m, nullptr), "layers is NULL");
  refuses(atomo_compressor_layer(nullptr, 0, &layer), "compressor is NULL");
  refuses(atomo_compressor_layer(m, 0, nullptr), "layer is NULL");
  refuses(atomo_compressor_codec(nullptr, 0, &codec), "compressor is NULL");
  refuses(atomo_compressor_codec(m, 0, nullptr), "handle is NULL");
  refuses(atomo_compressor_elements(nullptr, &length_), "compressor is NULL");
  refuses(atomo_compressor_elements(m, nullptr), "elements is NULL");
  refuses(atomo_compressor_budget_bytes(nullptr, &budget), "compressor is NULL");
  refuses(atomo_compressor_budget_bytes(m, nullptr), "bytes is NULL");
  refuses(atomo_compressor_max_encoded_bytes(nullptr, &size_), "compressor is NULL");
  refuses(atomo_compressor_max_encoded_bytes(m, nullptr), "bytes is NULL");
  refuses(atomo_compressor_layer_max_encoded_bytes(nullptr, 0, &size_), "compressor is NULL");
  refuses(atomo_compressor_layer_max_encoded_bytes(m, 0, nullptr), "bytes is NULL");
  refuses(atomo_compressor_encode_workspace_bytes(nullptr, &size_), "compressor is NULL");
  refuses(atomo_compressor_decode_workspace_bytes(nullptr, &size_), "compressor is NULL");
  refuses(atomo_compressor_encode_workspace_bytes(m, nullptr), "bytes is NULL");
  refuses(atomo_compressor_decode_workspace_bytes(m, nullptr), "bytes is NULL");
  refuses(atomo_compressor_layer_encode_workspace_bytes(nullptr, 0, &size_), "compressor is NULL");
  refuses(atomo_compressor_layer_decode_workspace_bytes(nullptr, 0, &size_), "compressor is NULL");
  refuses(atomo_compressor_layer_encode_workspace_bytes(m, 0, nullptr), "bytes is NULL");
  refuses(atomo_compressor_layer_decode_workspace_bytes(m, 0, nullptr), "bytes is NULL");
  refuses(atomo_compressor_expected_bytes(nullptr, &length_), "compressor is NULL");
  refuses(atomo_compressor_expected_bytes(m, nullptr), "bytes is NULL");
  refuses(atomo_compressor_wire_bytes(nullptr, &size_), "compressor is NULL");
  refuses(atomo_compressor_wire_bytes(m, nullptr), "bytes is NULL");
  refuses(atomo_compressor_prices(nullptr, &prices), "compressor is NULL");
  refuses(atomo_compressor_predicted_prices(nullptr, &prices), "compressor is NULL");
  refuses(atomo_compressor_prices(m, nullptr), "prices is NULL");
  refuses(atomo_compressor_predicted_prices(m, nullptr), "prices is NULL");
  refuses(atomo_compressor_save(nullptr, text, sizeof text, &size_), "compressor is NULL");
  refuses(atomo_compressor_save(m, nullptr, 0, nullptr), "is NULL");
  refuses(atomo_compressor_load(nullptr, text, 1), "compressor is NULL");
  refuses(atomo_compressor_load(m, nullptr, 1), "state is NULL");
}

TEST_F(CRefusals, NullInAModelsSteps) {
  atomo_compressor* const m = model_.get();
  std::byte* const out = out_.data();
  const void* const message = message_.data();
  const std::size_t n = out_.size();
  refuses(atomo_compressor_encode(nullptr, &from_, 1, &key_, out, n, &length_, nullptr), "compres");
  refuses(atomo_compressor_encode(m, nullptr, 1, &key_, out, n, &length_, nullptr), "tensors is");
  refuses(atomo_compressor_encode(m, &from_, 1, nullptr, out, n, &length_, nullptr), "key is NULL");
  refuses(atomo_compressor_encode(m, &from_, 1, &key_, nullptr, n, &length_, nullptr), "buffer");
  refuses(atomo_compressor_encode(m, &from_, 1, &key_, out, n, nullptr, nullptr), "bytes");
  refuses(atomo_compressor_decode(nullptr, message, 1, &to_, 1, nullptr), "compressor is NULL");
  refuses(atomo_compressor_decode(m, nullptr, 1, &to_, 1, nullptr), "message is NULL");
  refuses(atomo_compressor_decode(m, message, 1, nullptr, 1, nullptr), "tensors is NULL");
  refuses(atomo_compressor_decode_add_all(nullptr, &bytes_, 1, 1, &to_, 1, nullptr),
          "compressor is");
  refuses(atomo_compressor_decode_add_all(m, nullptr, 1, 1, &to_, 1, nullptr), "messages is NULL");
  refuses(atomo_compressor_decode_add_all(m, &bytes_, 1, 1, nullptr, 1, nullptr),
          "tensors is NULL");
  refuses(atomo_compressor_decode_add(nullptr, message, 1, 1, &to_, 1, nullptr), "compressor is");
  refuses(atomo_compressor_decode_add(m, nullptr, 1, 1, &to_, 1, nullptr), "message is NULL");
  refuses(atomo_compressor_decode_add(m, message, 1, 1, nullptr, 1, nullptr), "tensors is NULL");
  bytes_.data = nullptr;
  refuses(atomo_compressor_decode_add_all(m, &bytes_, 1, 1, &to_, 1, nullptr), "messages[0]: ");
  refuses(atomo_compressor_begin_message(nullptr, &key_, out, n, &length_, nullptr), "compressor");
  refuses(atomo_compressor_begin_message(m, nullptr, out, n, &length_, nullptr), "key is NULL");
  refuses(atomo_compressor_begin_message(m, &key_, nullptr, n, &length_, nullptr), "buffer");
  refuses(atomo_compressor_begin_message(m, &key_, out, n, nullptr, nullptr), "bytes");
  refuses(atomo_compressor_add_layer(nullptr, 0, &from_, nullptr), "compressor is NULL");
  refuses(atomo_compressor_add_layer(m, 0, nullptr, nullptr), "tensor is");
  refuses(atomo_compressor_end_message(nullptr, nullptr), "compressor is NULL");
  refuses(atomo_compressor_begin_step(nullptr, &key_), "compressor is NULL");
  refuses(atomo_compressor_begin_step(m, nullptr), "key is NULL");
  const atomo_prices prices = {0, 0};
  refuses(atomo_compressor_begin_step_at(nullptr, &key_, &prices), "compressor is NULL");
  refuses(atomo_compressor_begin_step_at(m, nullptr, &prices), "key is NULL");
  refuses(atomo_compressor_begin_step_at(m, &key_, nullptr), "prices is NULL");
  ASSERT_EQ(atomo_compressor_begin_step(m, &key_), ATOMO_OK);
  refuses(atomo_compressor_encode_layer(nullptr, 0, &from_, out, n, &length_, nullptr), "compres");
  refuses(atomo_compressor_encode_layer(m, 0, nullptr, out, n, &length_, nullptr), "tensor is");
  refuses(atomo_compressor_encode_layer(m, 0, &from_, nullptr, n, &length_, nullptr), "buffer");
  refuses(atomo_compressor_encode_layer(m, 0, &from_, out, n, nullptr, nullptr), "bytes");
  refuses(atomo_compressor_end_step(nullptr, nullptr), "compressor is NULL");
  refuses(atomo_compressor_decode_layer(nullptr, 0, message, 1, &to_, nullptr),
          "compressor is NULL");
  refuses(atomo_compressor_decode_layer(m, 0, nullptr, 1, &to_, nullptr), "message is NULL");
  refuses(atomo_compressor_decode_layer(m, 0, message, 1, nullptr, nullptr), "tensor is NULL");
  refuses(atomo_compressor_decode_layer_add(nullptr, 0, message, 1, 1, &to_, nullptr),
          "compressor");
  refuses(atomo_compressor_decode_layer_add(m, 0, nullptr, 1, 1, &to_, nullptr), "message is NULL");
  refuses(atomo_compressor_decode_layer_add(m, 0, message, 1, 1, nullptr, nullptr),
          "tensor is NULL");
  bytes_.data = message;
  refuses(atomo_compressor_decode_layer_add_all(nullptr, 0, &bytes_, 1, 1, &to_, nullptr),
          "compressor");
  refuses(atomo_compressor_decode_layer_add_all(m, 0, nullptr, 1, 1, &to_, nullptr),
          "messages is NULL");
  refuses(atomo_compressor_decode_layer_add_all(m, 0, &bytes_, 1, 1, nullptr, nullptr),
          "tensor is NULL");
  refuses(atomo_compressor_decode_layer_add_all(m, 1, &bytes_, 1, 1, &to_, nullptr), "i is 1");
}

TEST_F(CRefusals, NullInCallsOnMessages) {
  const void* const message = message_.data();
  const std::size_t n = message_.size();
  std::byte* const out = out_.data();
  atomo_message* made = nullptr;
  atomo_message_info info;
  atomo_layer_info layer;
  std::int32_t number = 0;
  const atomo_codec* const codecs[] = {nullptr};
  refuses(atomo_message_inspect(nullptr, 1, 0, &made), "message is NULL");
  refuses(atomo_message_inspect(message, n, 0, nullptr), "handle is NULL");
  refuses(atomo_message_about(nullptr, &info), "message is NULL");
  refuses(atomo_message_about(inspected_.get(), nullptr), "info is NULL");
  refuses(atomo_message_layer(nullptr, 0, &layer), "message is NULL");
  refuses(atomo_message_layer(inspected_.get(), 0, nullptr), "info is NULL");
  refuses(atomo_decode(nullptr, n, &to_, 1, nullptr), "message is NULL");
  refuses(atomo_decode(message, n, nullptr, 1, nullptr), "tensors is NULL");
  refuses(atomo_decode_add(nullptr, n, 1, &to_, 1, nullptr), "message is NULL");
  refuses(atomo_decode_add(message, n, 1, nullptr, 1, nullptr), "tensors is NULL");
  refuses(atomo_decode_add_all(nullptr, 1, 1, &to_, 1, nullptr), "messages is NULL");
  refuses(atomo_decode_add_all(&bytes_, 1, 1, nullptr, 1, nullptr), "tensors is NULL");
  refuses(atomo_decode_workspace_bytes(nullptr, 2, 0, &size_), "dims is NULL");
  refuses(atomo_decode_workspace_bytes(dims_, 2, 0, nullptr), "bytes is NULL");
  refuses(atomo_join(nullptr, 1, out, 1, &length_), "is NULL");
  refuses(atomo_join(nullptr, 0, out, 1, &length_), "count is 0");
  refuses(atomo_join(&bytes_, 1, nullptr, 1, &length_), "buffer");
  refuses(atomo_join(&bytes_, 1, out, 1, nullptr), "bytes");
  refuses(atomo_joined_bytes_bound(nullptr, 1, &size_), "is NULL");
  refuses(atomo_joined_bytes_bound(&bytes_, 1, nullptr), "bytes is NULL");
  refuses(atomo_pack_lossless(nullptr, n, codecs, 1, out, 1, &length_), "is NULL");
  refuses(atomo_pack_lossless(message, n, nullptr, 1, out, 1, &length_), "codecs is NULL");
  refuses(atomo_pack_lossless(message, n, codecs, 1, out, 1, &length_), "codecs[0] is NULL");
  const atomo_codec* const right[] = {codec_.get()};
  refuses(atomo_pack_lossless(message, n, right, 1, nullptr, 1, &length_), "buffer");
  refuses(atomo_pack_lossless(message, n, right, 1, out, 1, nullptr), "bytes");
  refuses(atomo_unpack_lossless(nullptr, n, out, 1, &length_), "message is NULL");
  refuses(atomo_unpack_lossless(message, n, nullptr, 1, &length_), "buffer");
  refuses(atomo_unpack_lossless(message, n, out, 1, nullptr), "bytes");
  refuses(atomo_unpacked_bytes(nullptr, n, &length_), "message is NULL");
  refuses(atomo_unpacked_bytes(message, n, nullptr), "bytes is NULL");
  refuses(atomo_add(nullptr, 1, out, 1, out, 1, &length_), "is NULL");
  refuses(atomo_add(&bytes_, 1, nullptr, 1, out, 1, &length_), "workspace is NULL");
  refuses(atomo_add(&bytes_, 1, out, 1, nullptr, 1, &length_), "buffer");
  refuses(atomo_add(&bytes_, 1, out, 1, out, 1, nullptr), "bytes");
  refuses(atomo_add_workspace_bytes(1, nullptr), "bytes is NULL");
  refuses(atomo_vote(nullptr, 1, &to_, 1, nullptr), "messages is NULL");
  refuses(atomo_vote_workspace_bytes(1, nullptr), "bytes is NULL");
  refuses(atomo_added_bytes_bound(nullptr, 1, &length_), "is NULL");
  refuses(atomo_added_bytes_bound(&bytes_, 1, nullptr), "bytes is NULL");
  refuses(atomo_threads_create(1, nullptr), "handle is NULL");
  refuses(atomo_threads_from(nullptr, nullptr, nullptr), "handle is NULL");
  atomo_threads* threads = nullptr;
  refuses(atomo_threads_from(nullptr, nullptr, &threads), "run is NULL");
  refuses(atomo_handles_create(nullptr), "handle is NULL");
  refuses(atomo_format_version(nullptr, &number), "major_out is NULL");
  refuses(atomo_format_version(&number, nullptr), "minor_out is NULL");
}

TEST_F(CRefusals, ImpossibleTensors) {
  for (const int rank : {-1, 9, std::numeric_limits<int>::max()}) {
    auto tensor = from_;
    tensor.rank = rank;
    refuses(encode(tensor), "rank is " + std::to_string(rank) + ": expected 0 to 8");
  }
  for (const int dtype : {-1, 3, 7}) {
    auto tensor = from_;
    tensor.dtype = dtype;
    refuses(encode(tensor), "dtype is " + std::to_string(dtype) + ": expected");
  }
  for (const int device : {-1, 2, 5}) {
    auto tensor = from_;
    tensor.device = device;
    refuses(encode(tensor), "device is " + std::to_string(device) + ": expected");
  }
  auto tensor = from_;
  tensor.reserved = 1;
  refuses(encode(tensor), "`reserved` of a tensor");
  tensor = from_;
  tensor.data = nullptr;
  refuses(encode(tensor), "data is NULL for a tensor [20, 30] of 600 elements");
  tensor = from_;
  tensor.dims = nullptr;
  refuses(encode(tensor), "dims is NULL");
  const std::int64_t negative[] = {4, -3}, many[] = {std::int64_t{1} << 40, 2};
  tensor.dims = negative;
  refuses(encode(tensor), "dimension 1 is -3");
  tensor.dims = many;
  refuses(encode(tensor), "2^40");
  const atomo_tensor two[] = {to_, {nullptr, dims_, 2, ATOMO_F32, ATOMO_CPU, 0}};
  refuses(atomo_decode(message_.data(), message_.size(), two, 2, nullptr), "tensors[1]: data");

  const std::int64_t empty[] = {0, 3};
  tensor = {nullptr, empty, 2, ATOMO_F32, ATOMO_CPU, 0};
  EXPECT_EQ(encode(tensor), ATOMO_OK) << atomo_last_error();
  const float one = 1;
  tensor = {&one, nullptr, 0, ATOMO_F32, ATOMO_CPU, 0};
  EXPECT_EQ(encode(tensor), ATOMO_OK) << atomo_last_error();
}

TEST_F(CRefusals, ImpossibleNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const void* const message = message_.data();
  const std::size_t n = message_.size();
  atomo_compressor* const m = model_.get();
  refuses(atomo_codec_decode_add(codec_.get(), message, n, nan, &to_, nullptr), "alpha is NaN");
  refuses(atomo_decode_add(message, n, nan, &to_, 1, nullptr), "alpha is NaN");
  refuses(atomo_codec_decode_add_all(codec_.get(), &bytes_, 1, nan, &to_, nullptr), "alpha is NaN");
  refuses(atomo_decode_add_all(&bytes_, 1, nan, &to_, 1, nullptr), "alpha is NaN");
  refuses(atomo_compressor_decode_layer_add_all(m, 0, &bytes_, 1, nan, &to_, nullptr),
          "alpha is NaN");
  refuses(atomo_compressor_decode_add_all(m, &bytes_, 1, nan, &to_, 1, nullptr), "alpha is NaN");
  refuses(atomo_compressor_decode_add(m, message, n, nan, &to_, 1, nullptr), "alpha is NaN");
  refuses(atomo_compressor_decode_layer_add(m, 0, message, n, nan, &to_, nullptr), "alpha is NaN");
  refuses(atomo_compressor_decode_layer(m, 1, message, n, &to_, nullptr), "i is 1");
  refuses(atomo_compressor_decode_layer_add(m, 1, message, n, 1, &to_, nullptr), "i is 1");
  for (const atomo_prices prices : {atomo_prices{nan, 0}, atomo_prices{0, -1}})
    EXPECT_EQ(atomo_compressor_begin_step_at(m, &key_, &prices), ATOMO_INVALID_ARGUMENT);

  atomo_codec_row row;
  atomo_layer layer;
  atomo_layer_info info;
  atomo_codec* codec = nullptr;
  refuses(atomo_codec_row_at(1000, &row), "i is 1000: there are ");
  refuses(atomo_compressor_layer(m, 1, &layer), "i is 1: there are 1 layers");
  refuses(atomo_compressor_codec(m, 1, &codec), "i is 1");
  refuses(atomo_compressor_layer_max_encoded_bytes(m, 1, &size_), "i is 1");
  refuses(atomo_compressor_layer_encode_workspace_bytes(m, SIZE_MAX, &size_),
          "i is 18446744073709551615");
  refuses(atomo_compressor_layer_decode_workspace_bytes(m, SIZE_MAX, &size_),
          "i is 18446744073709551615");
  refuses(atomo_compressor_encode_layer(m, 1, &from_, out_.data(), 1, &length_, nullptr), "i is 1");
  refuses(atomo_compressor_add_layer(m, 1, &from_, nullptr), "i is 1");
  refuses(atomo_message_layer(inspected_.get(), 1, &info), "i is 1");

  atomo_threads* threads = nullptr;
  for (const std::uint32_t count : {0u, 4097u, 4294967295u}) {
    refuses(atomo_threads_create(count, &threads),
            "count is " + std::to_string(count) + ": expected 1 to 4096");
    EXPECT_EQ(threads, nullptr);
  }
  refuses(atomo_add_workspace_bytes(SIZE_MAX, &size_), "count is 18446744073709551615");
  // Counts beyond what there can be are refused before any tensor is looked at.
  refuses(atomo_decode(message, n, &to_, SIZE_MAX, nullptr), "count is 18446744073709551615");
  EXPECT_EQ(atomo_compressor_decode(m, message, n, &to_, SIZE_MAX, nullptr), ATOMO_SHAPE_MISMATCH);
  atomo_compressor* made = nullptr;
  refuses(atomo_compressor_create(&layer, SIZE_MAX, "*=sign", nullptr, &made), "at most 65536");
  refuses(atomo_compressor_create(&layer, 0, "*=sign", nullptr, &made), "a model without layers");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they map all memory at once
TEST_F(CRefusals, MoreThreadsThanTheSystemGives) {
  const auto in_little_memory = [] {
    const rlimit little{rlim_t{1} << 30, rlim_t{1} << 30};
    setrlimit(RLIMIT_AS, &little);
    atomo_threads* threads = nullptr;
    const auto status = atomo_threads_create(4096, &threads);
    const std::string_view text = atomo_last_error();
    const bool named = text.find("a thread pool of 4096 threads: the system started") == 0;
    std::_Exit(status == ATOMO_INVALID_ARGUMENT && threads == nullptr && named ? 0 : 1);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(in_little_memory(), testing::ExitedWithCode(0), "");
}
#endif

TEST_F(CRefusals, FieldsThatAreReserved) {
  atomo_key key = key_;
  key.reserved[2] = 1;
  refuses(atomo_codec_encode(codec_.get(), &from_, &key, out_.data(), out_.size(), &length_,
                             context_.get()),
          "`reserved` of the key");
  CContext context(1 << 20);
  context.context.reserved[0] = 1;
  refuses(atomo_codec_decode(codec_.get(), message_.data(), message_.size(), &to_, context.get()),
          "`reserved` of the context");
  context = CContext(1 << 20);
  context.context.workspace = nullptr;
  refuses(atomo_codec_decode(codec_.get(), message_.data(), message_.size(), &to_, context.get()),
          "workspace is NULL");
  atomo_compressor* made = nullptr;
  atomo_layer layer{"w", dims_, 2, ATOMO_F32, 7};
  refuses(atomo_compressor_create(&layer, 1, "*=sign", nullptr, &made), "layers[0]: `reserved`");
  layer.reserved = 0;
  atomo_compressor_options options{};
  options.reserved[3] = 1;
  refuses(atomo_compressor_create(&layer, 1, "*=sign", &options, &made), "of the options");
  options = {};
  options.device = 5;
  refuses(atomo_compressor_create(&layer, 1, "*=sign", &options, &made), "device is 5");
}

TEST_F(CRefusals, TheLibrarysOwnWordsArriveInC) {
  atomo_codec* codec = codec_.get();
  refuses(atomo_codec_create("qsgdd:bits=4", &codec), "qsgdd");
  EXPECT_EQ(codec, nullptr);
  atomo_compressor* made = model_.get();
  const atomo_layer twice[] = {{"w", dims_, 2, ATOMO_F32, 0}, {"w", dims_, 2, ATOMO_F32, 0}};
  refuses(atomo_compressor_create(twice, 2, "*=sign", nullptr, &made), "two layers are called 'w'");
  EXPECT_EQ(made, nullptr);
  refuses(atomo_compressor_create(twice, 1, "v*=sign", nullptr, &made), "no rule");
  refuses(atomo_compressor_create(twice, 1, "*=sign;sign", nullptr, &made), "policy, line 1");
  atomo_message* message = inspected_.get();
  EXPECT_EQ(
      atomo_message_inspect("not a message, but long enough for a header of 64 bytes, that is", 64,
                            0, &message),
      ATOMO_BAD_MAGIC);
  EXPECT_EQ(message, nullptr);
  EXPECT_EQ(atomo_last_error(), describe(Status::bad_magic));
  // A spec that is quoted is cut where the room for the message ends.
  refuses(atomo_codec_create(std::string(5000, 'q').c_str(), &codec), "qqq");
  refuses(atomo_codec_create(("x:" + std::string(5000, '\xE9')).c_str(), &codec), "");
}

TEST_F(CRefusals, TensorsOnOtherDevicesThanTheModel) {
  auto from = from_;
  auto to = to_;
  from.device = to.device = ATOMO_CUDA;
  atomo_compressor* const m = model_.get();
  EXPECT_EQ(atomo_compressor_encode(m, &from, 1, &key_, out_.data(), out_.size(), &length_,
                                    context_.get()),
            ATOMO_UNSUPPORTED);
  EXPECT_EQ(atomo_compressor_decode_add_all(m, &bytes_, 1, 1, &to, 1, context_.get()),
            ATOMO_UNSUPPORTED);
  EXPECT_EQ(atomo_decode(message_.data(), message_.size(), &to, 1, context_.get()),
            ATOMO_UNSUPPORTED);
  // Halves are added through f32, by another way; the host cannot read a device's memory.
  to.dtype = ATOMO_BF16;
  to.data = reinterpret_cast<void*>(std::uintptr_t{4096});
  Buffer message(8192);
  ASSERT_EQ(atomo_compressor_encode(m, &from_, 1, &key_, message.data(), message.size(), &length_,
                                    context_.get()),
            ATOMO_OK);
  bytes_ = {message.data(), length_};
  EXPECT_EQ(atomo_compressor_decode_add_all(m, &bytes_, 1, 1, &to, 1, context_.get()),
            ATOMO_UNSUPPORTED);
}

TEST_F(CRefusals, EachThreadHasItsLastError) {
  std::atomic<int> wrong = 0, ready = 0;
  std::vector<std::thread> threads;
  constexpr int kThreads = 8;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      if (*atomo_last_error() != '\0') ++wrong;
      const std::string mine = "codec" + std::to_string(t);
      ++ready;
      while (ready < kThreads) std::this_thread::yield();
      for (int round = 0; round < 200; ++round) {
        atomo_codec* codec = nullptr;
        if (atomo_codec_create(mine.c_str(), &codec) != ATOMO_INVALID_ARGUMENT) ++wrong;
        const Shape shape{20, 30};
        const auto message = test::c_encode(codec_.get(), x_.data(), shape, {});
        if (message.bytes != message_) ++wrong;
        if (std::string(atomo_last_error()).find(mine) == std::string::npos) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace atomo
