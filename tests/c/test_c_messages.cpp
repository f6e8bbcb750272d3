// SPDX-License-Identifier: Apache-2.0
/// Containers through the C interface: what is in them, decoding any, joining, adding, lossless
/// stages; and what becomes of damaged ones.
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "c_support.hpp"
#include "support/mutated_messages.hpp"
#include "wire/format_cases.hpp"

namespace atomo {
namespace {

using test::Buffer;
using test::CContext;

const Shape kShapes[] = {{30, 41}, {64}, {0, 3}, {12, 5, 6}};
const char* const kSpecs[] = {"atomo:bits=2,atoms=rows", "qsgd:bits=4", "identity:dtype=f16",
                              "topk:keep=0.1+blosc:codec=zstd"};

/// Layers of several codecs, each a message of its own, numbered on.
struct Parts {
  Parts() {
    for (std::size_t i = 0; i < std::size(kSpecs); ++i) {
      values.push_back(test::heavy_tailed(kShapes[i].elements(), 20 + i, 40));
      if (i == 3) std::fill(values[i].begin() + 9, values[i].end(), 0.0f);
      const Key key{.seed = 8, .step = 4, .tensor = static_cast<std::uint16_t>(i), .worker = 6};
      messages.push_back(test::encode(Codec::parse(kSpecs[i]), values[i], kShapes[i], key).bytes);
      list.push_back({messages[i].data(), messages[i].size()});
      spans.emplace_back(messages[i]);
    }
  }
  [[nodiscard]] Buffer joined() const {
    Buffer out(joined_bytes_bound(spans));
    std::uint64_t bytes = 0;
    EXPECT_EQ(join(spans, {out.data(), out.size(), &bytes}), Status::ok);
    out.resize(bytes);
    return out;
  }
  std::vector<std::vector<float>> values;
  std::vector<Buffer> messages;
  std::vector<atomo_bytes> list;
  std::vector<ConstBytes> spans;
};

/// Room for every layer's values, in C's terms and in C++'s.
struct Room {
  Room() {
    std::size_t largest = 0;
    for (const Shape& shape : kShapes) {
      std::size_t bytes = 0;
      EXPECT_EQ(atomo_decode_workspace_bytes(shape.dims().data(), shape.rank(), ATOMO_F32, &bytes),
                ATOMO_OK);
      EXPECT_EQ(bytes, decode_workspace_bytes(shape));
      largest = std::max(largest, bytes);
    }
    workspace.resize(largest);
    for (const Shape& shape : kShapes) {
      here.emplace_back(shape.elements(), 0.25f);
      there.emplace_back(shape.elements(), 0.25f);
    }
    for (std::size_t i = 0; i < std::size(kShapes); ++i) {
      tensors.push_back(test::c_tensor(static_cast<void*>(here[i].data()), kShapes[i]));
      views.push_back({there[i].data(), DType::f32, kShapes[i]});
    }
  }
  std::vector<std::vector<float>> here, there;
  std::vector<atomo_tensor> tensors;
  std::vector<TensorView> views;
  Buffer workspace;
};

/// What C says of a layer is what C++ says.
void expect_same_layer(const atomo_layer_info& row, const LayerInfo& layer) {
  EXPECT_EQ(row.name, layer.name);
  EXPECT_EQ(row.name_bytes, layer.name.size());
  EXPECT_EQ(row.codec, layer.codec);
  EXPECT_EQ(Shape(std::span(row.dims, static_cast<std::size_t>(row.rank))), layer.shape);
  EXPECT_EQ(row.dtype, static_cast<atomo_dtype>(layer.dtype));
  EXPECT_EQ(row.price, layer.price);
  EXPECT_EQ(row.atoms, layer.atoms);
  EXPECT_EQ(row.kept, layer.kept);
  EXPECT_EQ(row.bytes, layer.bytes);
  EXPECT_EQ(row.non_finite, layer.non_finite ? 1 : 0);
  EXPECT_EQ(row.lossless, layer.lossless ? 1 : 0);
  EXPECT_EQ(row.thinned, layer.thinned ? 1 : 0);
  for (const std::uint8_t byte : row.reserved) EXPECT_EQ(byte, 0);
}

/// How many layers are flagged: non-finite, lossless, thinned, named.
using Flags = std::array<int, 4>;

void expect_same_inspection(Buffer message, Flags& flags) {
  ContainerInfo expected;
  ASSERT_FALSE(failed(inspect(message, expected, true)));
  atomo_message* made = nullptr;
  ASSERT_EQ(atomo_failed(atomo_message_inspect(message.data(), message.size(), 1, &made)), 0);
  const test::Owned<atomo_message> handle(made);
  const std::uint64_t bytes = message.size();
  std::fill(message.begin(), message.end(), std::byte{0xEE});  // it keeps nothing of the message
  atomo_message_info info;
  std::memset(&info, 0xEE, sizeof info);
  ASSERT_EQ(atomo_message_about(made, &info), ATOMO_OK);
  EXPECT_EQ(info.format_major, expected.major);
  EXPECT_EQ(info.format_minor, expected.minor);
  EXPECT_EQ((Key{info.key.seed, info.key.step, info.key.tensor, info.key.worker, info.key.channel}),
            expected.key);
  EXPECT_EQ((Prices{info.prices.atoms, info.prices.grid}), expected.prices);
  EXPECT_EQ(info.bytes, bytes);
  EXPECT_EQ(info.head_bytes, expected.head_bytes);
  EXPECT_EQ(info.elements, expected.elements());
  ASSERT_EQ(info.layers, expected.layers.size());
  for (std::size_t i = 0; i < info.layers; ++i) {
    atomo_layer_info row;
    std::memset(&row, 0xEE, sizeof row);
    ASSERT_EQ(atomo_message_layer(made, i, &row), ATOMO_OK);
    expect_same_layer(row, expected.layers[i]);
    const int flagged[] = {row.non_finite, row.lossless, row.thinned, row.name_bytes > 0};
    for (std::size_t k = 0; k < flags.size(); ++k) flags[k] += flagged[k];
  }
}

TEST(CMessages, AreInspectedAsInCpp) {
  Flags flags{};
  for (const auto& entry : std::filesystem::directory_iterator(ATOMO_TESTS_DIR "/golden")) {
    if (entry.path().extension() != ".atomo") continue;
    SCOPED_TRACE(entry.path());
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto bytes = std::as_bytes(std::span(text));
    expect_same_inspection({bytes.begin(), bytes.end()}, flags);
  }
  for (const int count : flags) EXPECT_GT(count, 0);
}

TEST(CMessages, BytesAfterThemAreRefusedOnRequest) {
  Buffer message = Parts().joined();
  message.push_back(std::byte{0});
  atomo_message* made = nullptr;
  EXPECT_EQ(atomo_message_inspect(message.data(), message.size(), 1, &made), ATOMO_CORRUPT);
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(atomo_message_inspect(message.data(), message.size(), 0, &made), ATOMO_OK);
  atomo_message_destroy(made);
}

TEST(CMessages, AreJoinedAndDecodedAsInCpp) {
  const Parts parts;
  const Buffer expected = parts.joined();
  std::size_t bound = 0;
  ASSERT_EQ(atomo_joined_bytes_bound(parts.list.data(), parts.list.size(), &bound), ATOMO_OK);
  EXPECT_EQ(bound, joined_bytes_bound(parts.spans));
  Buffer message(bound);
  std::uint64_t bytes = 0;
  ASSERT_EQ(atomo_join(parts.list.data(), parts.list.size(), message.data(), bound, &bytes),
            ATOMO_OK);
  message.resize(bytes);
  ASSERT_EQ(message, expected);

  Room room;
  const CContext context(room.workspace.size());
  EXPECT_EQ(atomo_decode(message.data(), message.size(), room.tensors.data(), room.tensors.size(),
                         context.get()),
            ATOMO_OK);
  EXPECT_EQ(decode(message, room.views, {.workspace = room.workspace}), Status::ok);
  EXPECT_EQ(room.here, room.there);
  EXPECT_EQ(atomo_decode_add(message.data(), message.size(), -2.5f, room.tensors.data(),
                             room.tensors.size(), context.get()),
            ATOMO_OK);
  EXPECT_EQ(decode_add(message, -2.5f, room.views, {.workspace = room.workspace}), Status::ok);
  EXPECT_EQ(room.here, room.there);
  EXPECT_EQ(atomo_decode(message.data(), message.size(), room.tensors.data(), 3, context.get()),
            ATOMO_SHAPE_MISMATCH);
}

TEST(CMessages, LosslessStagesComeAndGo) {
  std::vector<float> x(2000);
  for (std::size_t i = 0; i < x.size(); i += 50) x[i] = static_cast<float>(i);
  const Shape shape{40, 50};
  const auto codec = test::c_codec("qsgd:bits=4+blosc:codec=zstd");
  const auto plain = test::c_codec("qsgd:bits=4");
  const Key key{.seed = 2};
  const auto bare = test::c_encode(plain.get(), x.data(), shape, key).bytes,
             packed = test::c_encode(codec.get(), x.data(), shape, key).bytes;
  ASSERT_LT(packed.size(), bare.size());

  Buffer out(bare.size());
  std::uint64_t bytes = 0;
  const atomo_codec* const codecs[] = {codec.get(), codec.get()};
  ASSERT_EQ(
      atomo_pack_lossless(bare.data(), bare.size(), codecs, 1, out.data(), out.size(), &bytes),
      ATOMO_OK);
  EXPECT_EQ(Buffer(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(bytes)), packed);
  EXPECT_EQ(
      atomo_pack_lossless(bare.data(), bare.size(), codecs, 2, out.data(), out.size(), &bytes),
      ATOMO_SHAPE_MISMATCH);

  std::uint64_t needed = 0;
  ASSERT_EQ(atomo_unpacked_bytes(packed.data(), packed.size(), &needed), ATOMO_OK);
  EXPECT_EQ(needed, unpacked_bytes(packed));
  out.resize(needed);
  ASSERT_EQ(atomo_unpack_lossless(packed.data(), packed.size(), out.data(), out.size(), &bytes),
            ATOMO_OK);
  out.resize(bytes);
  EXPECT_EQ(out, bare);
}

TEST(CMessages, CoordinatesAddAsInCpp) {
  const Shape shape{700};
  const Codec codec = Codec::parse("atomo:atoms=coordinate,delta=0.0078125");
  std::vector<Buffer> messages;
  std::vector<atomo_bytes> list;
  for (std::uint16_t w = 0; w < 3; ++w)
    messages.push_back(
        test::encode(codec, test::heavy_tailed(700, 40u + w, 30), shape, {.worker = w}).bytes);
  for (const Buffer& m : messages) list.push_back({m.data(), m.size()});
  const std::vector<ConstBytes> spans(messages.begin(), messages.end());

  std::size_t workspace_bytes = 0;
  ASSERT_EQ(atomo_add_workspace_bytes(3, &workspace_bytes), ATOMO_OK);
  EXPECT_EQ(workspace_bytes, add_workspace_bytes(3));
  std::uint64_t bound = 0, bytes = 0, twin_bytes = 0;
  ASSERT_EQ(atomo_added_bytes_bound(list.data(), 3, &bound), ATOMO_OK);
  EXPECT_EQ(bound, added_bytes_bound(spans));
  Buffer workspace(workspace_bytes), here(bound), there(bound);
  ASSERT_EQ(atomo_add(list.data(), 3, workspace.data(), workspace_bytes, here.data(), here.size(),
                      &bytes),
            ATOMO_OK)
      << atomo_last_error();
  ASSERT_EQ(add(spans, workspace, {there.data(), there.size(), &twin_bytes}), Status::ok);
  here.resize(bytes);
  there.resize(twin_bytes);
  EXPECT_EQ(here, there);
  EXPECT_EQ(atomo_add(list.data(), 3, workspace.data(), workspace_bytes / 2, here.data(),
                      here.size(), &bytes),
            ATOMO_WORKSPACE_TOO_SMALL);
}

TEST(CMessages, SignsVoteAsInCpp) {
  const Shape shape{700};
  std::vector<Buffer> messages;
  std::vector<atomo_bytes> list;
  for (std::uint16_t w = 0; w < 4; ++w)
    messages.push_back(test::encode(Codec::parse("sign"), test::heavy_tailed(700, 40u + w, 30),
                                    shape, {.worker = w})
                           .bytes);
  for (const Buffer& m : messages) list.push_back({m.data(), m.size()});
  const std::vector<ConstBytes> spans(messages.begin(), messages.end());
  std::size_t workspace_bytes = 0;
  ASSERT_EQ(atomo_vote_workspace_bytes(4, &workspace_bytes), ATOMO_OK);
  EXPECT_EQ(workspace_bytes, vote_workspace_bytes(4));
  Buffer workspace(workspace_bytes);
  std::vector<float> here(700, 7), there(700, 7);
  const TensorView view{there.data(), DType::f32, shape};
  ASSERT_EQ(vote(spans, {&view, 1}, {.workspace = workspace}), Status::ok);
  const std::int64_t dim = 700;
  atomo_tensor tensor{};
  tensor.data = here.data();
  tensor.dims = &dim;
  tensor.rank = 1;
  const CContext context(workspace_bytes), small(workspace_bytes / 2);
  ASSERT_EQ(atomo_vote(list.data(), 4, &tensor, 1, context.get()), ATOMO_OK) << atomo_last_error();
  EXPECT_EQ(here, there);
  EXPECT_EQ(atomo_vote(list.data(), 4, &tensor, 1, small.get()), ATOMO_WORKSPACE_TOO_SMALL);
}

/// Every call that reads a message, on these bytes: the statuses of C are those of C++.
void expect_same_statuses(const Buffer& bytes, Room& room) {
  // Memory of exactly this size, so that a sanitizer sees a byte read behind it.
  const std::unique_ptr<std::byte[]> memory(new std::byte[bytes.size() + 1]);
  std::copy(bytes.begin(), bytes.end(), memory.get() + 1);
  const ConstBytes message(memory.get() + 1, bytes.size());
  const CContext context(room.workspace.size());
  const auto status_of = [](Status s) { return static_cast<atomo_status>(s); };
  EXPECT_EQ(atomo_decode(message.data(), message.size(), room.tensors.data(), room.tensors.size(),
                         context.get()),
            status_of(decode(message, room.views, {.workspace = room.workspace})));
  ContainerInfo info;
  const atomo_status expected = status_of(inspect(message, info, true));
  atomo_message* made = nullptr;
  EXPECT_EQ(atomo_message_inspect(message.data(), message.size(), 1, &made), expected);
  EXPECT_EQ(made == nullptr, atomo_failed(expected) != 0);
  if (atomo_failed(expected) != 0) {
    EXPECT_EQ(std::string(atomo_last_error()), atomo_status_text(expected));
  }
  atomo_message_destroy(made);
  std::uint64_t unpacked = 1;
  EXPECT_EQ(atomo_unpacked_bytes(message.data(), message.size(), &unpacked), ATOMO_OK);
  EXPECT_EQ(unpacked, unpacked_bytes(message));
  const atomo_bytes part{message.data(), message.size()};
  Buffer out(message.size() + 4096);
  std::uint64_t length = 0;
  EXPECT_EQ(atomo_join(&part, 1, out.data(), out.size(), &length),
            status_of(join({&message, 1}, {out.data(), out.size(), &length})));
}

TEST(CMessages, TruncatedOnesFailAsInCpp) {
  const Buffer message = Parts().joined();
  Room room;
  for (std::size_t n = 0; n < message.size(); n += n < 300 ? 1 : 37)
    expect_same_statuses({message.begin(), message.begin() + static_cast<std::ptrdiff_t>(n)}, room);
}

TEST(CMessages, MutatedOnesFailAsInCpp) {
  const Buffer message = Parts().joined();
  Room room;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    expect_same_statuses(test::mutated_message(message, seed), room);
    Buffer flipped = message;
    flipped[seed * 7919 % flipped.size()] ^= std::byte{0x10};
    expect_same_statuses(flipped, room);
  }
}

}  // namespace
}  // namespace atomo
