// SPDX-License-Identifier: Apache-2.0
// Codecs of one's own: loaded, or functions of C behind OwnCodec (atomo/own_codec.hpp).
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "boundary.hpp"

namespace atomo::c {
namespace {

/// A key, checked and copied.
struct OwnKey {
  std::string name;
  std::vector<std::string> choices;  ///< empty: a number
  double low = 0, high = 0;
  bool whole = false;
  std::optional<double> fallback;  ///< of choices its place
};

/// What the caller's struct says, copied.
struct Definition {
  atomo_own_codec functions{};
  std::string name;
  std::vector<OwnKey> keys;
};
using DefinitionPtr = std::shared_ptr<const Definition>;

std::string text_of(const char* text) { return text == nullptr ? "" : text; }

/// The shortest decimal that reads back as the same number.
std::string text_of(double number) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, number).ptr};
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  for (std::size_t end = text.find('|'); end != text.npos; end = text.find('|')) {
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  parts.emplace_back(text);
  return parts;
}

bool is_key_text(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

/// A value that a key may have: a number, or the place of a choice. \throws Error
double value_of(const OwnKey& key, const std::string& text, const std::string& what) {
  if (!key.choices.empty()) {
    const auto at = std::ranges::find(key.choices, text);
    if (at == key.choices.end()) throw Error(what + "'" + text + "' is none of its choices");
    return static_cast<double>(at - key.choices.begin());
  }
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool sound = error == std::errc() && stop == end && value >= key.low && value <= key.high;
  if (!sound || (key.whole && value != std::floor(value)))
    throw Error(what + "'" + text + "': expected a " + (key.whole ? "whole " : "") +
                "number from " + text_of(key.low) + " to " + text_of(key.high));
  return value;
}

/// \throws Error
OwnKey checked_key(const atomo_codec_key& key, const std::string& codec) {
  OwnKey read{text_of(key.name), {}, key.low, key.high, key.whole != 0, {}};
  const std::string what = "the key '" + read.name + "' of the codec '" + codec + "' ";
  check_zero("a key", key.reserved);
  if (!is_key_text(read.name))
    throw Error(what + "has another name than a key: expected small letters, digits, '_' or '-'");
  if (key.choices != nullptr) {
    read.choices = split(key.choices);
    if (!std::ranges::all_of(read.choices, is_key_text))
      throw Error(what + "has the choices '" + key.choices +
                  "': expected texts of small letters, digits, '_' or '-' with '|' between, "
                  "e.g. max|l2");
  } else {
    constexpr double kMost = 9007199254740992.0;  // 2^53: whole numbers up to there are exact
    const bool sound = std::isfinite(key.low) && std::isfinite(key.high) && key.low <= key.high;
    const bool fits = !read.whole || (key.low == std::floor(key.low) && key.low >= -kMost &&
                                      key.high == std::floor(key.high) && key.high <= kMost);
    if (!sound || !fits)
      throw Error(what + "is from " + text_of(key.low) + " to " + text_of(key.high) +
                  ": expected finite numbers, the lower one first" +
                  (read.whole ? ", whole and of at most 2^53" : ""));
  }
  if (key.fallback != nullptr)
    read.fallback = value_of(read, key.fallback, what + "falls back to ");
  return read;
}

std::string help_of(const OwnKey& key) {
  std::string values = text_of(key.low) + ".." + text_of(key.high);
  for (std::size_t i = 0; i < key.choices.size(); ++i)
    values = i == 0 ? key.choices[0] : values + "|" + key.choices[i];
  return key.name + "=" + values;
}

/// Reads a key of a spec and gives its value as text. \throws Error
std::string read_key(SpecKeys& keys, const OwnKey& key) {
  if (!key.choices.empty()) {
    std::optional<std::size_t> place;
    if (key.fallback) place = static_cast<std::size_t>(*key.fallback);
    return key.choices[keys.choice(key.name, key.choices, place)];
  }
  if (!key.whole) return text_of(keys.number(key.name, key.low, key.high, key.fallback));
  std::optional<std::int64_t> whole;
  if (key.fallback) whole = static_cast<std::int64_t>(*key.fallback);
  return std::to_string(keys.integer(key.name, static_cast<std::int64_t>(key.low),
                                     static_cast<std::int64_t>(key.high), whole));
}

using ErrorText = std::array<char, ATOMO_CODEC_ERROR_BYTES>;

/// What a function says that returned `code`.
std::string reason(std::int32_t code, ErrorText& text) {
  text.back() = '\0';
  const std::string number = "it returned " + std::to_string(code);
  return text[0] == '\0' ? number + ": expected 0" : std::string(text.data()) + " (" + number + ")";
}

class CCodec final : public OwnCodec {
 public:
  CCodec(DefinitionPtr definition, void* codec)
      : definition_(std::move(definition)), codec_(codec) {}
  CCodec(const CCodec&) = delete;
  CCodec& operator=(const CCodec&) = delete;
  ~CCodec() override {
    if (functions().destroy != nullptr) functions().destroy(codec_);
  }

  Traits traits() const override {
    atomo_traits claims{};
    if (functions().traits != nullptr) functions().traits(codec_, &claims);
    Traits t;
    t.unbiased = claims.unbiased != 0;
    t.bias_bound = claims.bias_bound;
    if (claims.has_omega != 0) t.omega = claims.omega;
    if (claims.has_contraction != 0) t.contraction = claims.contraction;
    if (claims.has_largest != 0) t.largest = claims.largest;
    t.step = claims.step;
    t.smallest = claims.smallest;
    if (claims.highest != 0) t.highest = claims.highest;
    t.averages_over_workers = claims.averages_over_workers != 0;
    t.fixed_size = claims.fixed_size != 0;
    t.bounded = claims.bounded != 0;
    return t;
  }
  std::size_t max_bytes(const Shape& shape) const override {
    std::size_t bytes = 0;
    call(shape, nullptr, 0, [&](const atomo_codec_layer& layer) {
      return functions().max_bytes(codec_, &layer, &bytes);
    });
    return bytes;
  }
  std::size_t encode(std::span<const float> x, const OwnLayer& own, Bytes body) const override {
    std::size_t bytes = 0;
    call(own.shape, &own.key, own.setting, [&](const atomo_codec_layer& layer) {
      return functions().encode(codec_, x.data(), &layer, body.data(), body.size(), &bytes);
    });
    return bytes;
  }
  void decode(ConstBytes body, const OwnLayer& own, std::span<float> y) const override {
    call(own.shape, &own.key, 0, [&](const atomo_codec_layer& layer) {
      return functions().decode(codec_, body.data(), body.size(), &layer, y.data());
    });
  }
  double budget_bits() const override {
    return functions().budget_bits == nullptr ? 0 : functions().budget_bits(codec_);
  }
  std::vector<RatePoint> price(std::span<const float> x, const Shape& shape) const override {
    std::array<atomo_rate_point, kMaxRatePoints> points{};
    std::size_t count = 0;
    call(shape, nullptr, 0, [&](const atomo_codec_layer& layer) {
      return functions().price(codec_, x.data(), &layer, points.data(), points.size(), &count);
    });
    if (count > points.size())
      throw Error("it gave " + std::to_string(count) + " rate points: expected 1 to " +
                  std::to_string(points.size()));
    std::vector<RatePoint> told(count);
    for (std::size_t i = 0; i < count; ++i) told[i] = {points[i].bytes, points[i].squared_error};
    return told;
  }

 private:
  [[nodiscard]] const atomo_own_codec& functions() const noexcept { return definition_->functions; }
  /// \throws Error where the function fails.
  template <typename Function>
  void call(const Shape& shape, const Key* key, std::size_t setting, Function function) const {
    ErrorText text{};
    atomo_key of_message{};
    if (key != nullptr)
      of_message = {key->seed, key->step, key->tensor, key->worker, key->channel, {}};
    const atomo_codec_layer layer{shape.dims().data(),
                                  shape.elements(),
                                  key == nullptr ? nullptr : &of_message,
                                  setting,
                                  text.data(),
                                  shape.rank(),
                                  0};
    if (const std::int32_t code = function(layer); code != 0) throw Error(reason(code, text));
  }

  DefinitionPtr definition_;
  void* codec_;
};

/// \throws Error
std::shared_ptr<const OwnCodec> make(const DefinitionPtr& definition, SpecKeys& keys) {
  std::string values;
  for (const OwnKey& key : definition->keys)
    values += (values.empty() ? "" : ",") + key.name + "=" + read_key(keys, key);
  const atomo_own_codec& functions = definition->functions;
  void* codec = functions.user;
  if (functions.create != nullptr) {
    ErrorText text{};
    const std::int32_t code = functions.create(functions.user, values.c_str(), text.data(), &codec);
    if (code != 0)
      throw Error("the codec '" + definition->name + "' could not be made of '" + values +
                  "': " + reason(code, text));
  }
  return std::make_shared<CCodec>(definition, codec);
}

/// \throws Error
void check_functions(const atomo_own_codec& codec) {
  for (const std::uint64_t reserved : codec.reserved) check_zero("the codec", reserved);
  const auto check = [&](bool is_there, const char* function) {
    if (!is_there)
      throw Error("the codec '" + text_of(codec.name) + "' has no function " + function +
                  ": expected one, NULL stands there");
  };
  check(codec.max_bytes != nullptr, "max_bytes");
  check(codec.encode != nullptr, "encode");
  check(codec.decode != nullptr, "decode");
  check(codec.budget_bits == nullptr || codec.price != nullptr, "price beside its budget_bits");
  check(codec.create != nullptr || codec.destroy == nullptr, "create beside its destroy");
}

}  // namespace
}  // namespace atomo::c

using atomo::c::given;
using atomo::c::guarded;

atomo_status atomo_load_codecs(const char* path) {
  return guarded([&] { atomo::load_codecs(&given(path, "path")); });
}

atomo_status atomo_register_codec(const atomo_own_codec* codec) {
  return guarded([&] {
    const atomo_own_codec& own = given(codec, "codec");
    const auto definition = std::make_shared<atomo::c::Definition>();
    definition->functions = own;
    definition->name = &given(own.name, "name");
    atomo::c::check_functions(own);
    if (own.key_count > 0) atomo::c::check_given(own.keys, "keys");
    std::string help;
    for (std::size_t i = 0; i < own.key_count; ++i) {
      definition->keys.push_back(atomo::c::checked_key(own.keys[i], definition->name));
      help += (help.empty() ? "" : ", ") + help_of(definition->keys.back());
    }
    atomo::register_codec(
        {.name = definition->name,
         .keys = help,
         .summary = atomo::c::text_of(own.summary),
         .example = atomo::c::text_of(own.example),
         .make = [definition](atomo::SpecKeys& keys) { return atomo::c::make(definition, keys); }});
  });
}

atomo_status atomo_unregister_codec(const char* name) {
  return guarded([&] {
    if (!atomo::unregister_codec(&given(name, "name")))
      throw atomo::Error(
          "no codec '" + std::string(name) +
          "' is registered: expected a name of atomo_register_codec or of a loaded file");
  });
}

atomo_status atomo_own_draws(const atomo_key* key, uint64_t first, uint32_t* words, size_t count) {
  return guarded([&] {
    const atomo::Key of_message = atomo::c::key_of(key);
    if (count > 0) atomo::c::check_given(words, "words");
    atomo::own_draws(of_message, first, {words, count});
  });
}
