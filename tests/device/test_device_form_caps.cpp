// SPDX-License-Identifier: Apache-2.0
/// `cap=` of sketches and of layers that choose their form, on a device: bodies of two parts lose
/// the runs that the CPU would take from the very same body.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <iostream>
#include <sstream>

#include "codec/layer.hpp"
#include "cuda/tuning.hpp"
#include "format/container_head.hpp"
#include "format/kind.hpp"
#include "format/matrix.hpp"
#include "format/thinning.hpp"
#include "support/on_cpu.hpp"

namespace atomo {

using namespace model;
namespace {

std::string spec_of(const std::string& atoms, double bits, double cap) {
  std::ostringstream spec;
  spec.precision(17);
  spec << "atomo:bits=" << bits << ",cap=" << cap << ",atoms=" << atoms;
  return spec.str();
}

/// The one layer of a message.
struct OnlyLayer {
  format::LayerRecord row;
  std::vector<std::byte> price, body;  ///< own price and what follows it

  explicit OnlyLayer(ConstBytes message) {
    format::Head head;
    Status status = format::Head::parse(message, true, head);
    format::LayerCursor layer(head);
    if (failed(status) || !layer.next(status)) throw Error("not a message of one layer");
    row = layer.row;
    const bool own = (row.flags & format::LayerRecord::kOwnPrice) != 0;
    const std::size_t front = own && !layer.body.empty() ? 4 : 0;
    price.assign(layer.body.begin(), layer.body.begin() + static_cast<long>(front));
    body.assign(layer.body.begin() + static_cast<long>(front), layer.body.end());
  }
  [[nodiscard]] bool thinned() const { return (row.flags & format::LayerRecord::kThinned) != 0; }
};

/// What the CPU makes of a body above its limit.
std::vector<std::byte> thin_on_cpu(const std::vector<std::byte>& body, const format::Kind& kind,
                                   std::uint8_t form, std::size_t limit, const Key& key) {
  const std::size_t n = kind.shape.elements();
  const MatrixShape view = format::matrix_view(kind.shape);
  const bool automatic = kind.method == format::MethodId::automatic;
  const bool sketch = automatic ? form == format::kSketchForm
                                : format::family_of(kind.params) == format::Family::sketch;
  format::DitheredLayer layer{{}, AtomLayout::blocks(n)};
  if (sketch || (automatic && form == format::kRowsForm))
    layer.atoms = AtomLayout::rows(view.rows, view.columns);
  if (sketch) layer.pairs = {view, automatic ? kind.params : format::rank_of(kind.params)};
  std::vector<std::byte> out(limit), workspace(format::thinning_workspace_bytes(layer));
  std::size_t bytes = 0;
  if (failed(format::thin(body, layer, limit, key, out, workspace, bytes)))
    throw Error("a body that cannot be thinned");
  out.resize(bytes);
  return out;
}

class DeviceFormCaps : public testing::TestWithParam<const char*> {
 protected:
  void TearDown() override { cuda::warps_per_block = 4; }
};
INSTANTIATE_TEST_SUITE_P(Atoms, DeviceFormCaps, testing::Values("sketch", "auto", "sketch,rank=3"),
                         [](const auto& made) { return std::to_string(made.index); });

TEST_P(DeviceFormCaps, ThinsWhatTheCpuThins) {
  std::size_t turn = 0, limits = 0, thinned = 0, messages = 0, forms[4] = {};
  for (const Shape& shape : {Shape{24, 300}, Shape{200, 40}, Shape{20, 1030}, Shape{700, 20},
                             Shape{40, 33, 3}, Shape{70, 130}}) {
    const codec::EncoderPlan plan(codec::Access::stages(Codec::parse(spec_of(GetParam(), 1, 1))),
                                  shape, DType::f32);
    const std::size_t head = format::one_layer_head_bytes(plan.kind);
    const double tightest = 8.0 * static_cast<double>(head + plan.min_limit_bytes) /
                            static_cast<double>(plan.n) * (1 + 1e-9);
    auto x = test::heavy_tailed(shape.elements(), 3 + shape.elements(), 47);
    for (const double cap : {tightest, 1.1 * tightest, 1.5 * tightest}) {
      if (cap > 64) continue;
      const double bits = std::min(cap, 32.0);
      const Codec capped = Codec::parse(spec_of(GetParam(), bits, cap));
      const Codec whole = Codec::parse(spec_of(GetParam(), bits, 64));
      ++limits;
      for (const std::size_t data : {0u, 1u, 2u, 3u}) {
        if (test::kSanitized && data != limits % 4) continue;  // they take turns
        auto values = x;
        const std::size_t columns = plan.n / static_cast<std::size_t>(shape[0]);
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (data == 1) values[i] = values[i] < 0 ? -0.01f : 0.01f;
          if (data == 3) {  // two pairs, and a little beside them
            const auto row = static_cast<float>(i / columns),
                       column = static_cast<float>(i % columns);
            values[i] = std::sin(row) * std::cos(column) + 0.3f * std::cos(2 * row + column) + x[i];
          }
          if (data == 2 && (i * 2654435761u >> 7) % 61 != 0) values[i] *= 0x1p-7f;
        }
        for (std::uint64_t seed = 0; seed < (test::kSanitized ? 1 : 2); ++seed, ++turn) {
          SCOPED_TRACE(shape.to_string() + " cap " + std::to_string(cap) + " data " +
                       std::to_string(data));
          cuda::warps_per_block = std::array{1u, 4u, 8u}[turn % 3];
          const Key key{.seed = seed, .step = 5, .tensor = 6, .worker = 7};
          const auto m = test::encode(capped, values, shape, key);
          ASSERT_FALSE(failed(m.status));
          ASSERT_LE(static_cast<double>(m.bytes.size()), cap * static_cast<double>(plan.n) / 8);
          const OnlyLayer got(m.bytes), all(test::encode(whole, values, shape, key).bytes);
          ASSERT_EQ(got.row.form(), all.row.form());
          ASSERT_TRUE(got.price == all.price);
          const codec::EncoderPlan of(codec::Access::stages(capped), shape, DType::f32);
          const std::size_t limit = backend::limit_of(of, head) - all.price.size();
          ASSERT_EQ(got.thinned(), all.body.size() > limit);
          const auto expected =
              got.thinned() ? thin_on_cpu(all.body, of.kind, got.row.form(), limit, key) : all.body;
          ASSERT_TRUE(got.body == expected) << got.body.size() << ", " << expected.size();
          const auto on_cpu =
              test::decode_on_cpu(capped, m.bytes, test::entries_of(values), DType::f32, shape);
          const auto d =
              test::decode_bytes(capped, m.bytes, test::entries_of(values), DType::f32, shape);
          ASSERT_EQ(d.status, on_cpu.status);
          ASSERT_TRUE(d.values == on_cpu.values);
          thinned += got.thinned() ? 1 : 0;
          ++forms[got.row.form()];
          ++messages;
        }
      }
    }
  }
  std::cout << "[ cap      ] " << GetParam() << ": " << messages << " messages, " << thinned
            << " thinned; forms " << forms[0] << " " << forms[1] << " " << forms[2] << "\n";
  EXPECT_GT(thinned, messages / 20);
  EXPECT_LT(thinned, messages);
}

}  // namespace
}  // namespace atomo
