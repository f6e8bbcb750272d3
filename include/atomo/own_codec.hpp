// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Codecs that are not the library's: a class with an encoder and a decoder, registered under a name. Specs,
/// `Codec`, `Compressor`, policies, memories, lossless stages and containers then take the name as they
/// take `qsgd`; docs/own-codec.md writes one from the first line to the last.
///
/// ```cpp
/// struct Raw final : atomo::OwnCodec {
///   std::size_t max_bytes(const atomo::Shape& shape) const override { return 4 * shape.elements(); }
///   std::size_t encode(std::span<const float> x, const atomo::OwnLayer&,
///                      atomo::Bytes body) const override {
///     std::memcpy(body.data(), x.data(), x.size_bytes());
///     return x.size_bytes();
///   }
///   void decode(atomo::ConstBytes body, const atomo::OwnLayer&, std::span<float> y) const override {
///     if (body.size() != y.size_bytes()) throw atomo::Error("a body of another length");
///     std::memcpy(y.data(), body.data(), body.size());
///   }
/// };
/// atomo::register_codec({.name = "raw", .make = [](atomo::SpecKeys&) { return std::make_shared<Raw>(); }});
/// const auto codec = atomo::Codec::parse("ef+raw+blosc");
/// ```
///
/// A shared object needs this header alone and no library to link with: what it calls is inline or
/// virtual. `ATOMO_CODECS` is its way in, `load_codecs` loads it.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atomo/types.hpp"
#include "atomo/version.hpp"

namespace [[gnu::visibility("default")]] atomo {

/// The keys of a spec, `levels=8` of `mine:levels=8`, as the maker of a codec reads them. Each read
/// takes the value or its default; all of them, in the order of the reads, are the canonical spec. A
/// key that is not read is refused.
class SpecKeys {
 public:
  /// A whole number in [low, high]. \throws Error when it is none, or missing without a `fallback`.
  virtual std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high,
                               std::optional<std::int64_t> fallback = {}) = 0;
  /// A number in [low, high]. \throws Error as `integer`.
  virtual double number(std::string_view key, double low, double high,
                        std::optional<double> fallback = {}) = 0;
  /// The place of the value in `choices`; `fallback` is a place too. \throws Error as `integer`.
  virtual std::size_t choice(std::string_view key, const std::vector<std::string>& choices,
                             std::optional<std::size_t> fallback = {}) = 0;

 protected:
  ~SpecKeys() = default;
};

/// The random words of a layer, the same for both ends, in any order and on any thread (FORMAT.md,
/// purpose `own`).
class Draws {
 public:
  /// Words `first`, `first` + 1, ... of 2^42; 32 uniform bits each. Neither allocates nor
  /// synchronises.
  virtual void fill(std::uint64_t first, std::span<std::uint32_t> words) const noexcept = 0;

 protected:
  ~Draws() = default;
};

/// Fills words `first`, `first` + 1, ... of the draws of a key, as a codec gets them: for tests of codecs.
void own_draws(const Key& key, std::uint64_t first, std::span<std::uint32_t> words) noexcept;

/// What an encoder and a decoder know of a layer beside its entries.
struct OwnLayer {
  const Shape& shape;  ///< of the tensor, at least one element
  const Key& key;      ///< of the message, `tensor` being this layer's; the sender's at both ends
  const Draws& draws;  ///< of that key
  /// For an encoder with a budget: the place in the table of `price` of the point that the layer is sent
  /// at. 0 without a budget, and for a decoder: what it needs of the setting stands in the body.
  std::size_t setting = 0;
};

/// An operating point of a codec on a layer: the rate and the distortion of one of its settings.
struct RatePoint {
  double bytes = 0;          ///< expected, of the body
  double squared_error = 0;  ///< expected, of all entries together
};

/// A codec of one's own. Its functions are called from several threads at once, under the library's
/// floating-point modes (subnormals kept, to nearest), and may throw: `Codec` and `Compressor` then
/// return `Status::codec_failed`, and `codec_error` has the exception's text.
class OwnCodec {
 public:
  virtual ~OwnCodec() = default;

  /// What the codec claims: `unbiased`, `bias_bound`, `omega`, `contraction`,
  /// `averages_over_workers`, `fixed_size` (every body has `max_bytes`), `bounded` (`max_bytes` is
  /// worth sending in full), and the tensors that this is about: `largest`, `step`, `smallest`, `highest`. The library believes them, and sets the other members: it runs on the CPU,
  /// may allocate, and is not linear. A codec that is not unbiased has an infinite `bias_bound`.
  [[nodiscard]] virtual Traits traits() const { return {}; }
  /// The most bytes that `encode` writes for this shape: at most 8 an element and 32,000 more.
  [[nodiscard]] virtual std::size_t max_bytes(const Shape& shape) const = 0;
  /// Writes the body of a layer and returns its bytes. `x`: all entries, row-major, all finite (a layer
  /// with an Inf or NaN never comes here: it is flagged, and decodes to NaN). `body`: `max_bytes`, any
  /// alignment. Equal arguments have to give equal bytes.
  virtual std::size_t encode(std::span<const float> x, const OwnLayer& layer, Bytes body) const = 0;
  /// Reads what `encode` wrote into `y`, whose entries are all 0 at first. `body` may be any bytes,
  /// of any length up to the bound of the format: check what it says before using it, and throw if it is wrong.
  virtual void decode(ConstBytes body, const OwnLayer& layer, std::span<float> y) const = 0;

  /// Bits a parameter that a layer of this codec pays into the budget of its message, 0.001 to 32. 0: it
  /// has no budget, and `price` is not called. A codec with a budget does not claim `fixed_size`.
  [[nodiscard]] virtual double budget_bits() const { return 0; }
  /// With a budget: what each setting of the codec would come to on a layer, 1 to `kMaxRatePoints` of
  /// them in any order. The library takes the point that is best at the one price of the message, which
  /// the layers of `atomo` share, and names it to `encode` as `OwnLayer::setting`. `x`: as `encode` gets it.
  /// Without draws, so that the choice is none of chance: an unbiased codec stays unbiased.
  [[nodiscard]] virtual std::vector<RatePoint> price(std::span<const float> x,
                                                     const Shape& shape) const {
    static_cast<void>(x);
    static_cast<void>(shape);
    return {};
  }
  static constexpr std::size_t kMaxRatePoints = 64;  ///< of a table of `price`
};

/// A codec's name, its help and how it is made.
struct CodecDefinition {
  /// In a spec: 2 to 32 small letters, digits, `_` or `-`, the first a letter; none of the library's names.
  std::string name{};
  std::string keys{};     ///< for help texts: "levels=2..256"
  std::string summary{};  ///< for help texts: one line
  std::string example{};  ///< a spec that parses; empty: the name alone
  /// Reads the keys and makes the codec. May throw; is called from any thread, whenever a spec is
  /// parsed or a message with a new spec is read.
  std::function<std::shared_ptr<const OwnCodec>(SpecKeys& keys)> make{};
};

/// Registers a codec in this process, for every thread. Safe to call from several threads at once and
/// beside any other call. Allocates.
/// \throws Error for a name of another form, of the library or registered before, and without `make`.
void register_codec(CodecDefinition definition);
/// Takes a registered codec out; false if there is none. A `Codec` made before goes on encoding; its
/// messages are no longer read. Safe as `register_codec`.
bool unregister_codec(std::string_view name);
/// The names of all registered codecs, in the order of their registration. Allocates.
[[nodiscard]] std::vector<std::string> registered_codecs();

/// Loads a shared object and registers its codecs, all or none. A path without a `/` is looked for as
/// the dynamic linker does. Runs code of that file: load no file that you would not run. It is never unloaded.
/// Safe as `register_codec`. \throws Error for a file that cannot be loaded, has no `ATOMO_CODECS`,
/// or was built for another version of atomo or by a compiler with another ABI, and as `register_codec`.
void load_codecs(const std::string& path);

/// Why a codec of one's own failed last, in whatever thread: which codec, and what its exception said, or how to
/// register the one that a message needs. Empty as long as none failed. Allocates.
[[nodiscard]] std::string codec_error();
/// `describe`, and for `codec_failed` and `codec_unknown` the text of `codec_error` instead. Allocates.
[[nodiscard]] std::string explain(Status status);

/// What `ATOMO_CODECS` gives the functions of a shared object.
class CodecRegistry {
 public:
  /// Takes a codec, as `register_codec` does once the function has returned.
  virtual void add(CodecDefinition definition) = 0;

 protected:
  ~CodecRegistry() = default;
};

/// What the shared object and its host must agree in; `load_codecs` compares. It changes with the version,
/// the compiler's ABI, or the types of this header.
struct CodecsAbi {
  std::uint32_t interface = 2;         ///< of this header
  std::uint32_t compiler_abi = 0;      ///< g++'s or clang's
  std::uint32_t string_abi = 0;        ///< libstdc++'s: old or new strings
  std::uint32_t definition_bytes = 0;  ///< of a CodecDefinition
  std::uint32_t traits_bytes = 0;      ///< of Traits
  std::uint32_t shape_bytes = 0;       ///< of a Shape
  char version[16] = {};               ///< of atomo, "0.1.0"

  /// That of the headers which are compiled.
  [[nodiscard]] static constexpr CodecsAbi here() noexcept {
    CodecsAbi abi;
    abi.compiler_abi = __GXX_ABI_VERSION;
    abi.string_abi = _GLIBCXX_USE_CXX11_ABI;
    abi.definition_bytes = sizeof(CodecDefinition);
    abi.traits_bytes = sizeof(Traits);
    abi.shape_bytes = sizeof(Shape);
    for (std::size_t i = 0; i + 1 < sizeof abi.version && kVersion[i] != 0; ++i)
      abi.version[i] = kVersion[i];
    return abi;
  }
};

}  // namespace atomo

/// Begins the function of a shared object that adds its codecs:
/// `ATOMO_CODECS(registry) { registry.add({.name = "mine", .make = make_mine}); }`.
/// Once in each shared object, outside of every namespace.
#define ATOMO_CODECS(registry)                                                      \
  extern "C" {                                                                      \
  [[gnu::visibility("default")]] extern const atomo::CodecsAbi atomo_codecs_abi;    \
  const atomo::CodecsAbi atomo_codecs_abi = atomo::CodecsAbi::here();               \
  [[gnu::visibility("default")]] void atomo_codecs(atomo::CodecRegistry& registry); \
  }                                                                                 \
  void atomo_codecs(atomo::CodecRegistry& registry)
