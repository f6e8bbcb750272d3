// SPDX-License-Identifier: Apache-2.0
#include "hostile/rejected_messages.hpp"

#include <cstring>
#include <functional>
#include <limits>

#include "format/container_head.hpp"
#include "wire/format_cases.hpp"

namespace atomo::test {

using namespace model;
namespace {

using Buffer = std::vector<std::byte>;
using Edit = std::function<void(Buffer&)>;

template <typename T>
void put(Buffer& b, std::size_t at, T value) {
  std::memcpy(b.data() + at, &value, sizeof value);
}
void put_byte(Buffer& b, std::size_t at, unsigned value) {
  b.at(at) = static_cast<std::byte>(value);
}

FormatCase one_layer(const char* spec, const Shape& shape = {4, 40}) {
  return {spec, {{spec, shape, Content::flat}}};
}

/// A message of one layer taken apart, so that body and head can be changed and put together again.
struct Parts {
  Buffer head, body;
  explicit Parts(const FormatCase& c) {
    const Buffer m = encode_case(c);
    ContainerInfo info;
    if (failed(inspect(m, info, true))) throw Error(c.name + ": not a message");
    const auto cut = m.begin() + static_cast<std::ptrdiff_t>(info.head_bytes);
    head.assign(m.begin(), cut);
    body.assign(cut, cut + static_cast<std::ptrdiff_t>(info.layers.at(0).bytes));
  }
  /// With row, length and checksums to fit; `padding` fills the body up to a multiple of 4.
  [[nodiscard]] Buffer joined(unsigned padding = 0) const {
    Buffer m = head;
    put(m, 67, static_cast<std::uint32_t>(body.size()));
    m.insert(m.end(), body.begin(), body.end());
    m.resize(format::padded(m.size()), static_cast<std::byte>(padding));
    put(m, 8, static_cast<std::uint64_t>(m.size()));
    format::write_checksums(m, head.size());
    return m;
  }
};

class List {
 public:
  void add(const std::string& name, Buffer bytes) {
    messages_.push_back({name + ".atomo", std::move(bytes)});
  }
  /// Changes the body of `spec`'s message and makes the checksums hold.
  void add_body(const std::string& name, const char* spec, const Edit& edit) {
    Parts parts(one_layer(spec));
    edit(parts.body);
    add(name, parts.joined());
  }
  /// The same for the head; its last byte of padding, if any, stays last.
  void add_head(const std::string& name, const char* spec, const Edit& edit) {
    Parts parts(one_layer(spec));
    edit(parts.head);
    add(name, parts.joined());
  }
  std::vector<RejectedMessage> take() { return std::move(messages_); }

 private:
  std::vector<RejectedMessage> messages_;
};

void add_framing(List& list) {
  const Buffer whole = Parts(one_layer("identity:dtype=f16", {5, 33})).joined();
  const auto changed = [&](std::size_t at, unsigned bits) {
    Buffer b = whole;
    b.at(at) ^= static_cast<std::byte>(bits);
    return b;
  };
  const auto first = [&](std::size_t n) {
    return Buffer(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n));
  };
  list.add("truncated-nothing", {});
  list.add("truncated-header", first(30));
  list.add("truncated-rows", first(66));
  list.add("truncated-body", first(whole.size() - 1));
  list.add("bad_magic-foreign", Buffer(200, std::byte{'P'}));
  list.add("bad_magic-letter", changed(3, 0x20));
  list.add("bad_checksum-key", changed(20, 1));
  list.add("bad_checksum-row", changed(67, 1));
  list.add("bad_checksum-kind", changed(78, 1));
  list.add("bad_checksum-body", changed(100, 16));
  list.add("bad_checksum-padding", changed(whole.size() - 1, 128));
  list.add("bad_checksum-sum", changed(63, 4));
  list.add("corrupt-body_padding", Parts(one_layer("identity:dtype=f16", {5, 33})).joined(1));
  Buffer longer = whole;
  longer.resize(whole.size() + 4);
  list.add("exact-bytes_after_the_message", longer);
}

void add_heads(List& list) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  // LayerRecord at 64; kind at 72: method, dtype, parameters (4), rank, dimensions 4 and 40; padding at 81.
  const auto add = [&](const char* name, const Edit& edit) {
    list.add_head(name, "identity", edit);
  };
  add("bad_version-major", [](Buffer& h) { put_byte(h, 4, 1); });
  add("bad_version-flag", [](Buffer& h) { put_byte(h, 6, 2); });
  add("corrupt-too_many_layers", [](Buffer& h) { put(h, 36, std::uint32_t{65537}); });
  add("corrupt-price_not_a_number", [](Buffer& h) { put(h, 40, kNan); });
  add("corrupt-grid_step_below_zero", [](Buffer& h) { put(h, 44, -1.0f); });
  add("corrupt-kind_unknown", [](Buffer& h) { put_byte(h, 64, 1); });
  add("corrupt-flag_of_a_layer", [](Buffer& h) { put_byte(h, 66, 128); });
  add("corrupt-non_finite_with_a_body", [](Buffer& h) { put_byte(h, 66, 1); });
  add("corrupt-dtype", [](Buffer& h) { put_byte(h, 73, 3); });
  add("corrupt-rank", [](Buffer& h) { put_byte(h, 78, 9); });
  add("corrupt-dimension_not_in_shortest_form", [](Buffer& h) {
    put_byte(h, 80, 0xA8);
    put_byte(h, 81, 0);
  });
  add("corrupt-head_padding", [](Buffer& h) { put_byte(h, 81, 1); });
  add("corrupt-kind_without_a_layer", [](Buffer& h) {
    put_byte(h, 34, 2);
    const Buffer kind(h.begin() + 72, h.begin() + 81);
    h.resize(81);
    h.insert(h.end(), kind.begin(), kind.end());
    put_byte(h, 74 + 9, 1);
    h.resize(92);
  });
  add("corrupt-identity_parameters", [](Buffer& h) { put_byte(h, 74, 3); });
  list.add_head("corrupt-atoms_family", "atomo:bits=2,atoms=blocks",
                [](Buffer& h) { put_byte(h, 74, 3); });
  list.add_head("corrupt-atoms_without_a_price", "atomo:bits=2,atoms=blocks",
                [](Buffer& h) { put(h, 40, 0.0f); });
  list.add_head("corrupt-coordinates_without_a_step", "atomo:bits=2,atoms=coordinate",
                [](Buffer& h) { put(h, 44, 0.0f); });
  list.add_head("corrupt-qsgd_parameters", "qsgd:bits=4", [](Buffer& h) { put_byte(h, 77, 0x10); });
  list.add_head("corrupt-minmax_bucket", "minmax:bits=8", [](Buffer& h) { put_byte(h, 74, 12); });
  list.add_head("corrupt-fp8_type", "identity:dtype=e4m3", [](Buffer& h) { put_byte(h, 74, 2); });
  list.add_head("corrupt-random_blocks_count", "randomk:keep=5,block=64",
                [](Buffer& h) { put_byte(h, 74, 0); });
  list.add_head("corrupt-sign_parameters", "sign", [](Buffer& h) { put_byte(h, 74, 3); });
  list.add_head("corrupt-sign_bucket", "sign:scale=means", [](Buffer& h) { put_byte(h, 74, 26); });
  list.add_head("corrupt-topk_count", "topk:keep=5", [](Buffer& h) { put_byte(h, 74, 6); });
  list.add_head("corrupt-randomk_count", "randomk:keep=5", [](Buffer& h) { put_byte(h, 74, 4); });
  list.add_head("corrupt-own_price_of_zero", "randomk:keep=5",
                [](Buffer& h) { put_byte(h, 66, 4); });
}

/// One layer of 4 x 40 called "abc": the bytes of its name are what a test case puts there.
void add_names(List& list) {
  const auto add = [&](const char* name, const char(&bytes)[4]) {
    list.add_head(name, "identity", [&](Buffer& h) {
      put_byte(h, 6, 1);
      h.resize(81);
      h.insert(h.end(), {std::byte{3}, std::byte{0}});
      for (int i = 0; i < 3; ++i) h.push_back(static_cast<std::byte>(bytes[i]));
      h.resize(format::padded(h.size()));
    });
  };
  add("corrupt-name_of_latin_1", "\xE9t\xE9");
  add("corrupt-name_cut_in_a_character", "a\xE2\x82");
  add("corrupt-name_longer_than_needed", "a\xC0\x80");
  add("corrupt-name_surrogate", "\xED\xA0\x80");
}

void add_bodies(List& list) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const char* const atoms = "atomo:bits=2,atoms=blocks";
  list.add_body("corrupt-identity_too_long", "identity", [](Buffer& b) { b.resize(b.size() + 4); });
  list.add_body("corrupt-identity_too_short", "identity",
                [](Buffer& b) { b.resize(b.size() - 4); });
  // One block, kept and certain: mode, marks, flag and class in 6 bits, padding, one length,
  // content.
  list.add_body("corrupt-marks_mode", atoms, [](Buffer& b) { put_byte(b, 0, 14); });
  list.add_body("corrupt-marks_padding", atoms, [](Buffer& b) { b.at(1) |= std::byte{2}; });
  list.add_body("corrupt-atom_class", atoms, [](Buffer& b) { b.at(2) |= std::byte{62}; });
  list.add_body("corrupt-atom_class_padding", atoms, [](Buffer& b) { b.at(2) |= std::byte{64}; });
  list.add_body("corrupt-group_length", atoms, [](Buffer& b) { b.at(4) ^= std::byte{1}; });
  list.add_body("corrupt-atoms_too_long", atoms, [](Buffer& b) { b.resize(b.size() + 4); });
  list.add_body("corrupt-own_price_alone", "atomo:price=0.01,atoms=blocks",
                [](Buffer& b) { b.resize(4); });
  const char* const grid = "atomo:bits=2,atoms=coordinate";
  list.add_body("corrupt-coordinate_mode", grid, [](Buffer& b) { b.at(2) &= std::byte{0xF9}; });
  list.add_body("corrupt-coordinate_level_parameter", grid,
                [](Buffer& b) { put_byte(b, 3, 0xF7); });
  list.add_body("corrupt-coordinate_too_long", grid, [](Buffer& b) { b.resize(b.size() + 1); });
  list.add_body("corrupt-qsgd_norm", "qsgd:bits=3", [](Buffer& b) { b.at(3) |= std::byte{128}; });
  list.add_body("corrupt-qsgd_norm_infinite", "qsgd:bits=3",
                [&](Buffer& b) { put(b, 0, kInfinity); });
  list.add_body("corrupt-qsgd_too_long", "qsgd:bits=3", [](Buffer& b) { b.resize(b.size() + 1); });
  list.add_body("corrupt-ternary_byte", "terngrad", [](Buffer& b) { put_byte(b, 5, 243); });
  list.add_body("corrupt-ternary_norm", "terngrad", [&](Buffer& b) { put(b, 0, kInfinity); });
  list.add_body("corrupt-sign_scale", "sign:scale=mean",
                [](Buffer& b) { b.at(3) |= std::byte{128}; });
  list.add_body("corrupt-minmax_low", "minmax:bits=8", [&](Buffer& b) { put(b, 0, kInfinity); });
  list.add_body("corrupt-minmax_step", "minmax:bits=8",
                [](Buffer& b) { b.at(7) |= std::byte{128}; });
  list.add_body("corrupt-fp8_scale", "identity:dtype=e4m3",
                [](Buffer& b) { b.at(0) |= std::byte{1}; });
  list.add_body("corrupt-fp8_code", "identity:dtype=e5m2", [](Buffer& b) { put_byte(b, 9, 0xFC); });
  list.add_body("corrupt-random_blocks_value", "randomk:keep=5,block=64",
                [&](Buffer& b) { put(b, 0, kInfinity); });
  list.add_body("corrupt-sign_mean", "sign:scale=means",
                [](Buffer& b) { b.at(7) |= std::byte{128}; });
  list.add_body("corrupt-topk_value", "topk:keep=5",
                [&](Buffer& b) { put(b, b.size() - 4, kInfinity); });
  // Marks of 10 bytes.
  list.add_body("corrupt-topk_padding", "topk:keep=5", [](Buffer& b) { b.at(10) |= std::byte{1}; });
  list.add_body("corrupt-randomk_value", "randomk:keep=5",
                [&](Buffer& b) { put(b, b.size() - 4, kInfinity); });
  list.add_body("corrupt-lossless_nothing", "identity+blosc:codec=lz4",
                [](Buffer& b) { put(b, 0, std::uint64_t{0}); });
  list.add_body("corrupt-lossless_size", "identity+blosc:codec=lz4",
                [](Buffer& b) { put(b, 0, std::uint64_t{636}); });
  list.add_body("corrupt-lossless_too_long", "identity+blosc:codec=lz4",
                [](Buffer& b) { b.resize(b.size() + 4); });
}

/// The message of one tensor.
Buffer encoded(const Codec& codec, const std::vector<float>& x, const Shape& shape) {
  Buffer message(codec.max_encoded_bytes(shape)), workspace(codec.encode_workspace_bytes(shape));
  std::uint64_t bytes = 0;
  const Status status =
      codec.encode({x.data(), DType::f32, shape}, {}, {message.data(), message.size(), &bytes},
                   {.workspace = workspace});
  if (failed(status)) throw Error("no message of " + codec.to_string());
  message.resize(bytes);
  return message;
}

/// A frame of few bytes that unpacks to all pairs of a matrix, all zero: 4.7 MB.
void add_pairs_behind_lossless(List& list) {
  const std::int64_t side = 768;
  const auto kept = static_cast<std::uint32_t>(side);
  // The frame is that of an identity layer of the same bytes: the count, an exponent, the vectors.
  std::vector<float> zeros(2 + static_cast<std::size_t>(2 * side * side));
  std::memcpy(zeros.data(), &kept, sizeof kept);
  const Shape flat{static_cast<std::int64_t>(zeros.size())};
  const Buffer packed = encoded(Codec::parse("identity+blosc:codec=zstd,level=9"), zeros, flat);
  ContainerInfo info;
  if (failed(inspect(packed, info, true))) throw Error("pairs behind a lossless stage: no message");
  const format::Kind kind{format::MethodId::factors, DType::f32, 0, {side, side}};
  const std::size_t head = format::one_layer_head_bytes(kind),
                    body = packed.size() - info.head_bytes;
  Buffer message(head + body);
  std::copy(packed.begin() + static_cast<std::ptrdiff_t>(info.head_bytes), packed.end(),
            message.begin() + static_cast<std::ptrdiff_t>(head));
  format::write_one_layer_head(
      message.data(), kind, {0, format::LayerRecord::kLossless, info.layers.at(0).bytes}, {}, 0, 0);
  list.add("corrupt-lossless_pays_for_fewer_pairs", message);
}

/// Sketches of 4 x 40 have a rank of 4; their body starts with the bytes of the pairs.
void add_sketches(List& list) {
  const char* const sketch = "atomo:bits=4,atoms=sketch";
  list.add_head("corrupt-sketch_of_rank_0", sketch, [](Buffer& h) { put_byte(h, 75, 0); });
  list.add_head("corrupt-sketch_of_too_large_a_rank", sketch,
                [](Buffer& h) { put_byte(h, 75, 5); });
  list.add_head("corrupt-rank_of_rows", "atomo:bits=4,atoms=rows",
                [](Buffer& h) { put_byte(h, 75, 1); });
  list.add_head("corrupt-sketch_without_a_price", sketch, [](Buffer& h) { put(h, 40, 0.0f); });
  list.add_body("corrupt-sketch_bytes_of_pairs", sketch,
                [](Buffer& b) { b.at(0) ^= std::byte{2}; });
  list.add_body("corrupt-sketch_pairs_beyond_the_body", sketch,
                [](Buffer& b) { put(b, 0, static_cast<std::uint32_t>(b.size())); });
  list.add_body("corrupt-sketch_of_nothing", sketch, [](Buffer& b) { b.assign(4, std::byte{0}); });
  list.add_body("corrupt-sketch_too_long", sketch, [](Buffer& b) { b.resize(b.size() + 4); });
}

/// The form is in bits 4 and 5 of byte 66.
void add_forms(List& list) {
  constexpr unsigned kRowsForm = 1 << 4, kGridForm = 3 << 4, kThinned = 8, kCentred = 1 << 6;
  const char* const automatic = "atomo:bits=4,atoms=auto";
  list.add_head("corrupt-form_of_another_method", "identity",
                [](Buffer& h) { put_byte(h, 66, kRowsForm); });
  list.add_head("corrupt-form_of_atoms", "atomo:bits=4,atoms=rows",
                [](Buffer& h) { put_byte(h, 66, kRowsForm); });
  list.add_head("corrupt-centred_identity", "identity",
                [](Buffer& h) { put_byte(h, 66, kCentred); });
  list.add_head("corrupt-centred_coordinates", "atomo:bits=2,atoms=coordinate",
                [](Buffer& h) { put_byte(h, 66, kCentred); });
  list.add_head("corrupt-automatic_without_its_rank", automatic,
                [](Buffer& h) { put_byte(h, 74, 0); });
  list.add_head("corrupt-automatic_of_too_large_a_rank", automatic,
                [](Buffer& h) { put_byte(h, 74, 5); });
  list.add_head("corrupt-automatic_without_a_price", automatic,
                [](Buffer& h) { put(h, 40, 0.0f); });
  Parts zeros({automatic, {{automatic, {4, 40}, Content::zero}}});
  put_byte(zeros.head, 66, kRowsForm);
  list.add("corrupt-form_without_a_body", zeros.joined());
  put_byte(zeros.head, 66, kThinned);
  list.add("corrupt-thinned_without_a_body", zeros.joined());
  put_byte(zeros.head, 66, kCentred);
  list.add("corrupt-centred_without_a_body", zeros.joined());
  put_byte(zeros.head, 66, 4);
  list.add("corrupt-own_price_without_a_body", zeros.joined());
  put_byte(zeros.head, 66, 2);
  list.add("corrupt-lossless_without_a_body", zeros.joined());
  // Coordinates, as an automatic layer has them.
  Parts grid(one_layer("atomo:bits=2,atoms=coordinate"));
  put_byte(grid.head, 66, kGridForm);
  put_byte(grid.head, 72, 9);
  put_byte(grid.head, 74, 4);
  put(grid.head, 40, 2e38f);
  list.add("corrupt-automatic_grid_step", grid.joined());
  put(grid.head, 40, 1.0f);
  put_byte(grid.head, 66, kGridForm | kCentred);
  list.add("corrupt-automatic_centred_coordinates", grid.joined());
  put_byte(grid.head, 66, kGridForm | kThinned);
  grid.body.insert(grid.body.begin(), {std::byte{1}, std::byte{1}, std::byte{0}, std::byte{0}});
  list.add("corrupt-automatic_thinned_coordinates", grid.joined());
}

/// A price, the word of the only segment, its second word, content.
void add_wide_bodies(List& list) {
  const auto add = [&](const char* name, const Edit& edit) {
    Parts parts({name,
                 {{"atomo:atoms=coordinate,delta=0.0001", {4, 40}, Content::flat}},
                 Joining::summed,
                 false,
                 30});
    edit(parts.body);
    list.add(name, parts.joined());
  };
  add("corrupt-coordinate_wide_without_content", [](Buffer& b) {
    put(b, 4, std::uint32_t{31} << 27 | 4);
    b.resize(12);
  });
  add("corrupt-coordinate_wide_too_long", [](Buffer& b) {
    b.resize(b.size() + 1);
    put(b, 4, static_cast<std::uint32_t>(std::uint32_t{31} << 27 | (b.size() - 8)));
  });
  add("corrupt-coordinate_wide_mode", [](Buffer& b) { b.at(8) &= std::byte{0xFC}; });
  add("corrupt-coordinate_wide_width_of_others", [](Buffer& b) { put_byte(b, 10, 29); });
  add("corrupt-coordinate_wide_width", [](Buffer& b) { put_byte(b, 10, 54); });
  add("corrupt-coordinate_wide_padding", [](Buffer& b) { put_byte(b, 11, 1); });
  add("corrupt-coordinate_wide_level_parameter", [](Buffer& b) { b.at(9) |= std::byte{0xFC}; });
}

/// `word` in front of the body and the flag that announces it.
void add_thinning(List& list) {
  const auto add = [&](const char* name, const char* spec, std::uint32_t word) {
    Parts parts(one_layer(spec));
    put_byte(parts.head, 66, 8);
    parts.body.insert(parts.body.begin(), 4, std::byte{0});
    put(parts.body, 0, word);
    list.add(name, parts.joined());
  };
  constexpr std::uint32_t kRunsOfTwo = 1, kOne = 1u << 8, kFromOne = 1u << 20;
  const char* const rows = "atomo:bits=2,atoms=rows";
  add("corrupt-thinned_nothing_left_out", rows, kRunsOfTwo);
  add("corrupt-thinned_everything_left_out", rows, kRunsOfTwo + 2 * kOne);
  add("corrupt-thinned_start", rows, kRunsOfTwo + kOne + 2 * kFromOne);
  add("corrupt-thinned_too_many_runs", rows, 12 + kOne);
  add("corrupt-thinned_coordinates", "atomo:bits=2,atoms=coordinate", kRunsOfTwo + kOne);
  add("corrupt-thinned_identity", "identity", kRunsOfTwo + kOne);
}

/// Of a codec that is not the library's.
void add_own(List& list) {
  const char* const own = "levels";
  list.add_body("truncated-own_spec", own, [](Buffer& b) { b.resize(5); });
  list.add_body("corrupt-own_name", own, [](Buffer& b) { put_byte(b, 1, 'L'); });
  list.add_body("corrupt-own_parameters", own, [](Buffer& b) { b.at(15) ^= std::byte{1}; });
  list.add_body("corrupt-own_too_long", own, [](Buffer& b) { b.resize(8 * 160 + 32769); });
}

}  // namespace

std::vector<RejectedMessage> rejected_messages() {
  static_cast<void>(golden_cases());  // which register the codec of the tests
  List list;
  add_framing(list);
  add_heads(list);
  add_names(list);
  add_bodies(list);
  add_pairs_behind_lossless(list);
  add_sketches(list);
  add_forms(list);
  add_wide_bodies(list);
  add_thinning(list);
  add_own(list);
  return list.take();
}

}  // namespace atomo::test
