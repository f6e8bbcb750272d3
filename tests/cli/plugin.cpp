// SPDX-License-Identifier: Apache-2.0
/// Shared objects that the tests give to --plugin; KIND says which.
#include <atomo/own_codec.hpp>
#include <cstring>

namespace {

[[maybe_unused]] atomo::CodecDefinition raw(const char* name) {
  /// f32 as it is. Throws where the first entry is 13 or 14.
  struct Raw final : atomo::OwnCodec {
    std::size_t max_bytes(const atomo::Shape& shape) const override { return 4 * shape.elements(); }
    std::size_t encode(std::span<const float> x, const atomo::OwnLayer&,
                       atomo::Bytes body) const override {
      if (x[0] == 13) throw std::runtime_error("thirteen is not sent");
      std::memcpy(body.data(), x.data(), x.size_bytes());
      return x[0] == 15 ? x.size_bytes() + 1 : x.size_bytes();
    }
    void decode(atomo::ConstBytes body, const atomo::OwnLayer&, std::span<float> y) const override {
      std::memcpy(y.data(), body.data(), body.size());
      if (y[0] == 14) throw std::runtime_error("fourteen is not read");
    }
  };
  return {.name = name, .make = [](atomo::SpecKeys&) { return std::make_shared<Raw>(); }};
}

}  // namespace

#if KIND == 0  // good
ATOMO_CODECS(registry) { registry.add(raw("raw")); }
#elif KIND == 1  // of another version
extern "C" {
[[gnu::visibility("default")]] extern const atomo::CodecsAbi atomo_codecs_abi;
const atomo::CodecsAbi atomo_codecs_abi{.version = "9.8.7"};
[[gnu::visibility("default")]] void atomo_codecs(atomo::CodecRegistry&);
}
void atomo_codecs(atomo::CodecRegistry& registry) { registry.add(raw("raw")); }
#elif KIND == 2  // without codecs
extern "C" [[gnu::visibility("default")]] void something_else();
void something_else() {}
#elif KIND == 3  // fails
ATOMO_CODECS(registry) {
  registry.add(raw("raw"));
  throw std::runtime_error("not today");
}
#elif KIND == 4  // one name is the library's
ATOMO_CODECS(registry) {
  registry.add(raw("raw"));
  registry.add(raw("qsgd"));
}
#elif KIND == 5  // of other headers
extern "C" {
[[gnu::visibility("default")]] extern const atomo::CodecsAbi atomo_codecs_abi;
const atomo::CodecsAbi atomo_codecs_abi = [] {
  atomo::CodecsAbi abi = atomo::CodecsAbi::here();
  abi.traits_bytes += 8;
  return abi;
}();
[[gnu::visibility("default")]] void atomo_codecs(atomo::CodecRegistry&);
}
void atomo_codecs(atomo::CodecRegistry& registry) { registry.add(raw("raw")); }
#endif
