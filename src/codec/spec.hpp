// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Reading specs: stages joined by `+`, each `name` or `name:key=value,...`. Errors name the token,
/// its position (counted from 1), what is accepted there and the nearest known name.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codec/stages.hpp"

namespace atomo::codec {

/// The keys of one stage, consumed one by one by the codec's factory.
class SpecArgs {
 public:
  struct Arg {
    std::string key, value;
    std::size_t key_at = 0, value_at = 0;
    bool used = false;
  };

  SpecArgs(std::string spec, std::string stage, std::vector<Arg> args)
      : spec_(std::move(spec)), stage_(std::move(stage)), args_(std::move(args)) {}

  [[nodiscard]] bool has(std::string_view key) const;
  /// A number in [low, high]; `fallback` when the key is absent.
  double number(std::string_view key, double low, double high, std::optional<double> fallback = {});
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high,
                       std::optional<std::int64_t> fallback = {});
  /// One of `choices`; returns its place. `fallback` is a place too.
  std::size_t choice(std::string_view key, const std::vector<std::string>& choices,
                     std::optional<std::size_t> fallback = {});
  /// The raw text of a key, or nullopt.
  std::optional<std::string> text(std::string_view key);
  /// Refuses keys that are none of `known`, naming the nearest.
  void check_keys(const std::vector<std::string>& known) const;
  /// Refuses whatever was not consumed.
  void finish() const;
  /// \throws Error "spec: ... at position N of 'spec': <what>".
  [[noreturn]] void fail(std::string_view key, const std::string& what) const;

 private:
  Arg* find(std::string_view key);
  std::string spec_, stage_;
  std::vector<Arg> args_;
};

/// Reads a spec of one stage, as a message has it. \throws Error
[[nodiscard]] SpecArgs read_one_stage(std::string_view spec);

/// `keep=`: an integer is a count, a number with a point a fraction of the whole.
struct Keep {
  double value = 0;
  bool fraction = false;
  /// At least 1 and at most `total` (for total >= 1); a fraction is rounded to the nearest count.
  [[nodiscard]] std::uint64_t of(std::uint64_t total) const noexcept;
  [[nodiscard]] std::string to_string() const;
  friend bool operator==(const Keep&, const Keep&) = default;
};
[[nodiscard]] Keep read_keep(SpecArgs& args);

/// The shortest decimal that reads back as the same double.
[[nodiscard]] std::string format_number(double value);

/// The candidate with the least edit distance to `word`.
[[nodiscard]] std::string nearest(std::string_view word,
                                  const std::vector<std::string>& candidates);

/// A row of the table of codecs (format/methods.def).
struct CodecEntry {
  const char* name;
  const char* keys;
  const char* summary;
  const char* example;
  std::vector<std::string> specs;  ///< every choice that changes the messages
  std::vector<std::string> known;  ///< every key the factory reads: those of `keys`
  std::shared_ptr<const BodyEncoder> (*make)(SpecArgs&);
};
[[nodiscard]] const std::vector<CodecEntry>& codec_table();

// Factories, one a codec, in the files of codec/methods/.
#define ATOMO_CODEC(maker, ...) std::shared_ptr<const BodyEncoder> make_##maker(SpecArgs&);
#include "format/methods.def"

/// `bits=B` or `ratio=R` (32 / R bits), one of them required: bits a parameter, 0.001..32.
[[nodiscard]] double read_budget(SpecArgs& args);

/// What atoms at a price are given: a budget, under a cap or not, or the price itself.
struct PriceOptions {
  double bits = 0;  ///< a parameter; 0: `price` is given
  double cap = 0;   ///< bits a parameter that no message exceeds; 0: none
  float price = 0;  ///< lower 16 bits are 0
  /// "bits=1,cap=2" or "price=0.5".
  [[nodiscard]] std::string to_string() const;
  [[nodiscard]] PriceRule rule(Pool pool) const noexcept;
};
[[nodiscard]] PriceOptions read_price_options(SpecArgs& args);

// Families of `atomo:` and forms of `topk:` with files of their own.
std::shared_ptr<const BodyEncoder> make_coordinate(SpecArgs&);
/// Of a registered codec (own_codecs.hpp).
std::shared_ptr<const BodyEncoder> make_own(std::string_view name, SpecArgs&);
/// `identity:dtype=e4m3` and `e5m2`, whose parameters on the wire are 0 and 1.
std::shared_ptr<const BodyEncoder> make_fp8(std::uint32_t params);
/// `topk:chunk=`.
std::shared_ptr<const BodyEncoder> make_chunk_topk(SpecArgs&);
/// `atoms=svd`: null unless its pairs are sent as f32.
std::shared_ptr<const BodyEncoder> make_factors(SpecArgs&);

}  // namespace atomo::codec
