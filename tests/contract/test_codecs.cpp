// SPDX-License-Identifier: Apache-2.0
/// What every codec promises, whatever it does.
#include <gtest/gtest.h>

#include <limits>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "core/half.hpp"
#include "support/support.hpp"

namespace atomo {

using namespace model;
namespace {

class EveryCodec : public testing::TestWithParam<std::string> {
 protected:
  Codec codec = Codec::parse(GetParam());
};

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name;
  for (const char c : info.param) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      name += c;
    else if (c == '.')
      name += 'p';
    else
      name += '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Specs, EveryCodec, testing::ValuesIn(test::all_specs()), test_name);

/// The specs of codecs that are unbiased and draw something.
std::vector<std::string> drawing_specs() {
  std::vector<std::string> specs;
  for (const auto& spec : test::all_specs()) {
    const Traits traits = Codec::parse(spec).traits();
    if (traits.unbiased && traits.omega != 0.0) specs.push_back(spec);
  }
  return specs;
}

class DrawingCodec : public EveryCodec {};
INSTANTIATE_TEST_SUITE_P(Specs, DrawingCodec, testing::ValuesIn(drawing_specs()), test_name);

/// On a device one spec stands for all: messages are the CPU's byte for byte
/// (test_device_parity.cpp), but for those of sketches and of singular pairs, whose own suites
/// average over keys.
std::vector<std::string> averaged_specs() {
  if (test::kDevice == Device::cuda) return {"atomo:bits=1,atoms=rows"};
  return drawing_specs();
}

class AveragedCodec : public EveryCodec {};
INSTANTIATE_TEST_SUITE_P(Specs, AveragedCodec, testing::ValuesIn(averaged_specs()), test_name);

bool is_exact_svd(const Codec& codec) { return codec.to_string().find("svd") != std::string::npos; }

/// Edge sizes: every message fits its bound, decodes, and the bound is exact where the traits say
/// so. On the host executor the three shapes of a size take turns under a sanitizer and on a commit.
TEST_P(EveryCodec, SizesAreBoundedAndDecode) {
  const bool turns = (test::kSanitized || test::in_brief()) && test::kDevice == Device::cuda;
  std::size_t turn = GetParam().size();  // other shapes first of other codecs
  for (const std::int64_t n : {1, 2, 7, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 4099}) {
    std::vector<Shape> shapes{Shape{n}, Shape{3, n}, Shape{n, 20}};
    if (turns) shapes = {shapes[turn++ % shapes.size()]};
    for (const Shape& shape : shapes) {
      const auto x = test::heavy_tailed(shape.elements(), 7, 50);
      const auto m =
          test::encode(codec, x, shape, {.seed = 1, .step = 2, .tensor = 3, .worker = 4});
      ASSERT_FALSE(failed(m.status)) << shape.to_string() << describe(m.status);
      if (codec.traits().fixed_size) {
        EXPECT_EQ(m.bytes.size(), codec.max_encoded_bytes(shape));
      }
      const auto d = test::decode(codec, m.bytes, shape);
      ASSERT_EQ(d.status, Status::ok) << shape.to_string();
      for (const float v : d.values) ASSERT_TRUE(std::isfinite(v));
    }
  }
}

TEST_P(EveryCodec, NeverWritesOutsideItsBuffers) {
  const Shape shape{37, 29};
  const auto x = test::heavy_tailed(shape.elements(), 11, 29);
  const std::size_t capacity = codec.max_encoded_bytes(shape),
                    work = test::workspace_bytes(codec, shape);
  constexpr std::size_t kGuard = 64;
  const test::StreamOwner stream;
  const test::Memory input(4 * x.size()), payload(capacity + 2 * kGuard),
      workspace(work + 2 * kGuard), y(4 * x.size() + 2 * kGuard);
  input.put(std::as_bytes(std::span(x)));
  for (const auto* memory : {&payload, &workspace, &y}) memory->fill(0xA5);
  const test::Word<std::uint64_t> bytes;
  Context context;
  context.stream = stream.get();
  context.workspace = {workspace.data() + kGuard, work};
  ASSERT_FALSE(failed(codec.encode({input.data(), DType::f32, shape, test::kDevice}, {},
                                   {payload.data() + kGuard, capacity, bytes.data()}, context)));
  stream.wait();
  ASSERT_FALSE(
      failed(codec.decode({payload.data() + kGuard, bytes.get()},
                          {y.data() + kGuard, DType::f32, shape, test::kDevice}, context)));
  stream.wait();
  for (const auto* memory : {&payload, &workspace, &y}) {
    const auto all = memory->get(memory->bytes().size());
    for (std::size_t i = 0; i < kGuard; ++i) {
      ASSERT_EQ(all[i], std::byte{0xA5});
      ASSERT_EQ(all[all.size() - 1 - i], std::byte{0xA5});
    }
  }
}

TEST_P(EveryCodec, RefusesBuffersThatAreTooSmall) {
  const Shape shape{20, 30};
  const auto x = test::heavy_tailed(600, 2, 30);
  const test::Memory input(2400), payload(codec.max_encoded_bytes(shape)),
      workspace(codec.encode_workspace_bytes(shape, DType::f32, test::kDevice));
  input.put(std::as_bytes(std::span(x)));
  const test::StreamOwner stream;
  const test::Word<std::uint64_t> bytes;
  Context context;
  context.stream = stream.get();
  context.workspace = workspace.bytes();
  const ConstTensorView view{input.data(), DType::f32, shape, test::kDevice};
  const std::size_t capacity = payload.bytes().size();
  EXPECT_EQ(codec.encode(view, {}, {payload.data(), capacity - 1, bytes.data()}, context),
            Status::buffer_too_small);
  if (!workspace.bytes().empty()) {
    context.workspace = workspace.bytes().first(workspace.bytes().size() / 4);
    EXPECT_EQ(codec.encode(view, {}, {payload.data(), capacity, bytes.data()}, context),
              Status::workspace_too_small);
  }
}

TEST_P(EveryCodec, SaysWhatAMessageIsExpectedToTake) {
  const Shape shape{200, 300};
  const auto x = test::heavy_tailed(shape.elements(), 2, 300);
  const auto m = test::encode(codec, x, shape);
  ASSERT_FALSE(failed(m.status));
  const auto expected = codec.expected_bytes(shape);
  if (codec.traits().fixed_size) {
    ASSERT_TRUE(expected.has_value());
    EXPECT_EQ(*expected, m.bytes.size());
  } else if (codec.to_string().find("bits=") != std::string::npos && expected.has_value() &&
             m.status == Status::ok) {
    EXPECT_NEAR(static_cast<double>(*expected) / static_cast<double>(m.bytes.size()), 1, 0.1);
  }
  EXPECT_EQ(codec.expected_bytes({0}).value_or(0), codec.max_encoded_bytes({0}));
}

/// The same bytes at any alignment of input, workspace and payload, and at any number of threads.
TEST_P(EveryCodec, BytesDependOnNothingButInputAndKey) {
  const Shape shape{70, 113};
  const auto x = test::heavy_tailed(shape.elements(), 21, 113);
  const Key key{.seed = 5, .step = 6, .tensor = 7, .worker = 8};
  const auto reference = test::encode(codec, x, shape, key);
  ASSERT_FALSE(failed(reference.status));
  ThreadPool pool(3);
  const std::size_t shifts = test::in_brief() && test::kDevice == Device::cuda ? 2 : 4;
  for (std::size_t shift = 0; shift < shifts; ++shift) {
    const auto m = test::encode_bytes(codec, std::as_bytes(std::span(x)), DType::f32, shape, key,
                                      shift % 2 == 1 ? &pool : nullptr, shift);
    EXPECT_TRUE(m.bytes == reference.bytes) << "shift " << shift;
  }
}

/// A key where the tensor is counts in place of the one that the call is given.
TEST_P(DrawingCodec, KeysMayStandInMemory) {
  const Shape shape{64, 64};
  const auto x = test::heavy_tailed(4096, 31, 64);
  const Key key{.seed = 5, .step = 6, .tensor = 7, .worker = 8, .channel = 9};
  const auto expected = test::encode(codec, x, shape, key);
  const test::StreamOwner stream;
  const test::Memory input(4 * x.size()), payload(codec.max_encoded_bytes(shape)),
      workspace(codec.encode_workspace_bytes(shape, DType::f32, test::kDevice));
  input.put(std::as_bytes(std::span(x)));
  const test::Word<std::uint64_t> bytes;
  const test::Word<Key> word(key);
  const Context context{.stream = stream.get(), .workspace = workspace.bytes(), .key = word.data()};
  ASSERT_FALSE(
      failed(codec.encode({input.data(), DType::f32, shape, test::kDevice}, {.seed = 1},
                          {payload.data(), payload.bytes().size(), bytes.data()}, context)));
  stream.wait();
  EXPECT_TRUE(payload.get(bytes.get()) == expected.bytes);
}

TEST_P(DrawingCodec, KeysMatter) {
  const Shape shape{64, 64};
  const auto x = test::heavy_tailed(4096, 31, 64);
  const auto base =
      test::decode(codec, test::encode(codec, x, shape, {.seed = 1}).bytes, shape).values;
  const auto values = [&](const Key& key) {
    return test::decode(codec, test::encode(codec, x, shape, key).bytes, shape).values;
  };
  // Few outcomes are possible where few atoms are kept, so of eight other values of a field one
  // must differ.
  const auto differs = [&](auto key_of) {
    for (std::uint16_t k = 1; k <= 8; ++k) {
      if (values(key_of(k)) != base) return true;
    }
    return false;
  };
  EXPECT_TRUE(differs([](std::uint16_t k) { return Key{.seed = 1u + k}; }));
  EXPECT_TRUE(differs([](std::uint16_t k) { return Key{.seed = 1, .step = k}; }));
  EXPECT_TRUE(differs([](std::uint16_t k) { return Key{.seed = 1, .tensor = k}; }));
  EXPECT_TRUE(differs([](std::uint16_t k) { return Key{.seed = 1, .channel = k}; }));
  EXPECT_EQ(differs([](std::uint16_t k) { return Key{.seed = 1, .worker = k}; }),
            codec.traits().averages_over_workers);
}

TEST_P(EveryCodec, DecodeAddIsTwoRoundings) {
  const Shape shape{40, 33};
  const std::size_t n = shape.elements();
  const auto x = test::heavy_tailed(n, 8, 33);
  const auto m = test::encode(codec, x, shape, {.seed = 3});
  const auto d = test::decode(codec, m.bytes, shape);
  const std::vector<float> before = test::heavy_tailed(n, 9, 20);
  const float alpha = 0.3f;
  const auto added = test::decode_bytes(codec, m.bytes, std::as_bytes(std::span(before)),
                                        DType::f32, shape, true, alpha);
  ASSERT_FALSE(failed(added.status));
  for (std::size_t i = 0; i < n; ++i) {
    const float scaled = alpha * d.values[i], expected = before[i] + scaled;
    float sum;
    std::memcpy(&sum, added.values.data() + 4 * i, 4);
    ASSERT_EQ(sum, expected) << i;
  }
}

TEST_P(EveryCodec, NonFiniteLayersDecodeToNaN) {
  const Shape shape{10, 30};
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    auto x = test::heavy_tailed(300, 2, 30);
    x[217] = bad;
    const auto m = test::encode(codec, x, shape);
    EXPECT_EQ(m.status, Status::non_finite);
    const auto d = test::decode(codec, m.bytes, shape);
    EXPECT_EQ(d.status, Status::non_finite);
    for (const float v : d.values) ASSERT_TRUE(std::isnan(v));
    ContainerInfo info;
    EXPECT_EQ(inspect(m.bytes, info, true), Status::ok);
    EXPECT_TRUE(info.layers.at(0).non_finite);
  }
}

TEST_P(EveryCodec, ZeroTensorsDecodeToZeroWhenUnbiased) {
  const Shape shape{33, 40};
  const auto m = test::encode(codec, std::vector<float>(shape.elements()), shape);
  ASSERT_FALSE(failed(m.status));
  const auto d = test::decode(codec, m.bytes, shape);
  ASSERT_EQ(d.status, Status::ok);
  if (!codec.traits().unbiased) return;
  for (const float v : d.values) ASSERT_EQ(v, 0.0f);
}

/// Scaling the input by a power of two scales the output, from subnormal to almost too large.
TEST_P(EveryCodec, ScalesOfAnySizeAreRight) {
  const Shape shape{48, 40};
  std::vector<float> x(shape.elements());
  std::mt19937 generator(3);
  std::normal_distribution<float> normal;
  for (auto& v : x) v = normal(generator);
  // Without draws the bits of a choice of forms do not fall steadily with the price, so which price the
  // bisection ends at follows from where it begins.
  const bool scale_free = GetParam() != "atomo:bits=0.5,content=nearest" &&
                          GetParam().find("price=") == std::string::npos &&
                          GetParam().find("delta=") == std::string::npos &&
                          GetParam().find("f16") == std::string::npos && GetParam() != "sign";
  // A sketch leaves a matrix with a row of norm 2^120 or more to its residual.
  const int largest = GetParam().find("sketch") == std::string::npos ? 120 : 116;
  const auto unit = test::decode(codec, test::encode(codec, x, shape).bytes, shape).values;
  for (const int exponent : {-140, -90, -76, 66, 116, 120}) {
    auto scaled = x;
    for (auto& v : scaled) v = std::ldexp(v, exponent);
    const auto m = test::encode(codec, scaled, shape);
    ASSERT_FALSE(failed(m.status)) << describe(m.status);
    const auto d = test::decode(codec, m.bytes, shape);
    ASSERT_FALSE(failed(d.status)) << describe(d.status);
    if (!scale_free || exponent < -100 || exponent > largest) continue;
    double error = 0, size = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double back = std::ldexp(double{d.values[i]}, -exponent);
      error += (back - unit[i]) * (back - unit[i]);
      size += double{unit[i]} * unit[i];
    }
    EXPECT_LE(error, 1e-9 * size) << "2^" << exponent;
  }
}

/// A caller's flush-to-zero and rounding modes neither change the bytes nor are changed.
TEST_P(EveryCodec, IgnoresTheCallersFloatingPointModes) {
#if defined(__SSE__)
  const Shape shape{30, 40};
  auto x = test::heavy_tailed(shape.elements(), 17, 40);
  for (auto& v : x) v = std::ldexp(v, -125);
  const auto reference = test::encode(codec, x, shape);
  const unsigned saved = _mm_getcsr(),
                 strange = saved | 0x8040 | 0x6000;  // FTZ, DAZ, round toward zero
  _mm_setcsr(strange);
  const auto m = test::encode(codec, x, shape);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(saved);
  EXPECT_EQ(after & 0xE040u, strange & 0xE040u);
  EXPECT_TRUE(m.bytes == reference.bytes);
#endif
}

/// Half inputs are the f32 they stand for; half outputs are rounded up or down, the same on every
/// replica.
TEST_P(EveryCodec, HalfTensors) {
  const Shape shape{24, 50};
  const std::size_t n = shape.elements();
  const auto x = test::heavy_tailed(n, 5, 50);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    bool overflow = false;
    std::vector<std::uint16_t> half(n), out(n);
    std::vector<float> widened(n);
    for (std::size_t i = 0; i < n; ++i) {
      half[i] = dtype == DType::f16 ? to_f16(x[i], overflow) : to_bf16(x[i], overflow);
      widened[i] = dtype == DType::f16 ? from_f16(half[i]) : from_bf16(half[i]);
    }
    const auto room = std::as_bytes(std::span(out));
    const auto m = test::encode_bytes(codec, std::as_bytes(std::span(half)), dtype, shape);
    ASSERT_FALSE(failed(m.status));
    const auto direct =
        test::decode(codec, test::encode(codec, widened, shape).bytes, shape).values;
    const auto first = test::decode_bytes(codec, m.bytes, room, dtype, shape);
    ASSERT_FALSE(failed(first.status));
    EXPECT_TRUE(test::decode_bytes(codec, m.bytes, room, dtype, shape).values == first.values);
    std::memcpy(out.data(), first.values.data(), 2 * n);
    for (std::size_t i = 0; i < n; ++i) {
      const float y = dtype == DType::f16 ? from_f16(out[i]) : from_bf16(out[i]);
      const float spacing = dtype == DType::f16 ? std::max(std::fabs(direct[i]) / 1024, 0x1p-24f)
                                                : std::fabs(direct[i]) / 128;
      ASSERT_LE(std::fabs(y - direct[i]), spacing) << i;
    }
    EXPECT_EQ(test::decode_bytes(codec, m.bytes, room, dtype, shape, true).status,
              Status::unsupported);
  }
}

/// An unbiased codec's mean over keys comes near the input: the mean of K draws has error nmse / K.
TEST_P(AveragedCodec, MeanOverKeysApproachesTheInput) {
  const Shape shape{16, 64};
  const std::size_t n = shape.elements();
  auto x = test::heavy_tailed(n, 13, 64);
  const int draws = is_exact_svd(codec) || test::kDevice == Device::cuda ? 300 : 2000;
  std::vector<double> mean(n), square(n);
  for (int k = 0; k < draws; ++k) {
    const auto d = test::decode(
        codec, test::encode(codec, x, shape, {.seed = 1000u + static_cast<unsigned>(k)}).bytes,
        shape);
    ASSERT_EQ(d.status, Status::ok);
    for (std::size_t i = 0; i < n; ++i) {
      const double e = double{d.values[i]} - x[i];
      mean[i] += e / draws;
      square[i] += e * e / draws;
    }
  }
  // The expected sum of mean^2 is the sum of variance / K; a bias b adds |b|^2. If all entries were
  // drawn together the ratio would be the square of one normal, the widest it can be: above 30 once
  // in 2e7.
  double observed = 0, expected = 0;
  for (std::size_t i = 0; i < n; ++i) {
    observed += mean[i] * mean[i];
    expected += square[i] / draws;
  }
  const double rounding = 1e-12 * test::squared_norm(x);
  EXPECT_LE(observed, 30 * expected + rounding) << GetParam();
}

TEST_P(EveryCodec, RefusesDTypesThatAreNone) {
  const Shape shape{30};
  const auto none = static_cast<DType>(7);
  std::vector<float> x(30, 1.0f);
  std::vector<std::byte> message(codec.max_encoded_bytes(shape)),
      workspace(test::workspace_bytes(codec, shape, DType::f16, Device::cpu) + 4096);
  std::uint64_t bytes = 0;
  const Context context{.workspace = workspace};
  const Payload payload{message.data(), message.size(), &bytes};
  EXPECT_EQ(codec.encode({x.data(), none, shape}, {}, payload, context), Status::unsupported);
  ASSERT_FALSE(failed(codec.encode({x.data(), DType::f32, shape}, {}, payload, context)));
  EXPECT_EQ(codec.decode(ConstBytes(message).first(bytes), {x.data(), none, shape}, context),
            Status::unsupported);
}

}  // namespace
}  // namespace atomo
