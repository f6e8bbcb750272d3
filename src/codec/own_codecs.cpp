// SPDX-License-Identifier: Apache-2.0
/// The registry of codecs that are not the library's. User code (makers, destructors) never runs under
/// its lock.
#include "codec/own_codecs.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "codec/memory_stage.hpp"
#include "core/utf8.hpp"
#include "format/own_body.hpp"
#include "price/budget.hpp"

namespace atomo::codec {
namespace {

using Definition = std::shared_ptr<const CodecDefinition>;
using Instance = std::shared_ptr<const OwnInstance>;

/// Instances kept for messages, which may name any number of specs.
constexpr std::size_t kKept = 64;

struct Registry {
  std::shared_mutex mutex;
  std::vector<Definition> definitions;
  std::map<std::string, Instance, std::less<>> instances;  ///< by spec
  std::mutex error_mutex;
  std::string error;
};

/// Never destroyed: threads and languages that end later than the library may hold codecs.
Registry& registry() {
  static auto* const all = new Registry;
  return *all;
}

Definition find_definition(std::string_view name) {
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  const auto it =
      std::ranges::find_if(all.definitions, [&](const auto& d) { return d->name == name; });
  return it == all.definitions.end() ? nullptr : *it;
}

std::string_view name_in(std::string_view spec) { return spec.substr(0, spec.find(':')); }

/// Keeps an instance, in the place of whatever no one else holds, as long as its codec is registered.
void keep(const Instance& instance, const Definition& definition) {
  Registry& all = registry();
  std::vector<Instance> dropped;  // destroyed after the lock is gone
  const std::unique_lock lock(all.mutex);
  if (std::ranges::find(all.definitions, definition) == all.definitions.end()) return;
  if (all.instances.size() >= kKept) {
    for (auto it = all.instances.begin(); it != all.instances.end();) {
      if (it->second.use_count() > 1) {
        ++it;
        continue;
      }
      dropped.push_back(std::move(it->second));
      it = all.instances.erase(it);
    }
  }
  if (all.instances.size() >= kKept) return;
  Instance& kept = all.instances[instance->spec];
  dropped.push_back(std::exchange(kept, instance));
}

/// Hands the keys of a spec to a maker and writes the canonical spec.
class Keys final : public SpecKeys {
 public:
  Keys(SpecArgs& args, const std::string& name) : args_(args), spec_(name) {}

  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high,
                       std::optional<std::int64_t> fallback) override {
    const auto value = args_.integer(key, low, high, fallback);
    note(key, std::to_string(value));
    return value;
  }
  double number(std::string_view key, double low, double high,
                std::optional<double> fallback) override {
    const double value = args_.number(key, low, high, fallback);
    note(key, format_number(value));
    return value;
  }
  std::size_t choice(std::string_view key, const std::vector<std::string>& choices,
                     std::optional<std::size_t> fallback) override {
    const std::size_t place = args_.choice(key, choices, fallback);
    note(key, choices.at(place));
    return place;
  }

  [[nodiscard]] const std::string& spec() const noexcept { return spec_; }
  [[nodiscard]] const std::vector<std::string>& read() const noexcept { return read_; }

 private:
  void note(std::string_view key, const std::string& value) {
    if (std::ranges::find(read_, key) != read_.end()) return;
    spec_ += read_.empty() ? ':' : ',';
    spec_.append(key).append(1, '=').append(value);
    read_.emplace_back(key);
  }

  SpecArgs& args_;
  std::string spec_;
  std::vector<std::string> read_;
};

Traits completed(Traits t) {
  t.cpu = t.allocates = true;
  t.cuda = t.capturable = t.synchronises = t.linear = t.memory = t.differences = false;
  if (!t.unbiased) t.bias_bound = std::numeric_limits<double>::infinity();
  return t;
}

/// \throws Error
void check_budget(const std::string& name, const OwnInstance& made) {
  if (made.budget_bits == 0) return;
  const std::string what = "the codec '" + name + "' has a budget of " +
                           format_number(made.budget_bits) + " bits a parameter";
  if (!(made.budget_bits >= kMinBudgetBits && made.budget_bits <= kMaxBudgetBits))
    throw Error(what + ": expected " + format_number(kMinBudgetBits) + " to " +
                format_number(kMaxBudgetBits) + ", or 0 for none");
  if (made.traits.fixed_size) throw Error(what + " and claims fixed_size: expected one of the two");
}

/// \throws Error
Instance make_instance(const Definition& definition, SpecArgs& args) {
  const std::string& name = definition->name;
  Keys keys(args, name);
  OwnInstance made;
  try {
    made.codec = definition->make(keys);
    if (made.codec != nullptr) {
      made.traits = completed(made.codec->traits());
      made.budget_bits = made.codec->budget_bits();
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    throw Error("the codec '" + name + "' could not be made: " + core::shown(e.what()));
  } catch (...) {
    throw Error("the codec '" + name +
                "' could not be made: its maker threw what is no std::exception");
  }
  if (made.codec == nullptr)
    throw Error("the codec '" + name + "' could not be made: its maker gave none");
  args.check_keys(keys.read());
  check_budget(name, made);
  made.spec = keys.spec();
  if (!format::is_own_spec(made.spec)) {
    throw Error("the spec '" + core::shown(made.spec) + "' has " +
                std::to_string(made.spec.size()) + " characters: expected at most " +
                std::to_string(format::kMaxOwnSpec) + ", all of them printable ASCII");
  }
  auto instance = std::make_shared<const OwnInstance>(std::move(made));
  keep(instance, definition);
  return instance;
}

void check_definition(const CodecDefinition& definition) {
  const std::string& name = definition.name;
  const std::string what = "the name '" + core::shown(name) + "' of a codec ";
  if (!format::is_own_name(name)) {
    throw Error(what +
                "is none: expected 2 to 32 small letters, digits, '_' or '-', the first a letter, "
                "e.g. mine");
  }
  const auto& table = codec_table();
  const bool taken = name == "blosc" || is_memory(name) ||
                     std::ranges::any_of(table, [&](const auto& e) { return e.name == name; });
  if (taken) throw Error(what + "is the library's: choose another");
  if (!definition.make)
    throw Error("the codec '" + name + "' has no `make`: expected a function that makes it");
}

/// Adds all or none. \throws Error
void add_definitions(std::vector<CodecDefinition> definitions) {
  std::vector<Definition> checked;
  for (CodecDefinition& definition : definitions) {
    check_definition(definition);
    checked.push_back(std::make_shared<const CodecDefinition>(std::move(definition)));
  }
  Registry& all = registry();
  std::vector<Definition> together;  // destroyed after the lock is gone
  const std::unique_lock lock(all.mutex);
  together = all.definitions;
  for (Definition& definition : checked) {
    for (const Definition& other : together) {
      if (other->name == definition->name)
        throw Error("a codec '" + definition->name +
                    "' is registered already: choose another name, or unregister that one first");
    }
    together.push_back(std::move(definition));
  }
  all.definitions = together;
}

}  // namespace

void register_definitions(std::vector<CodecDefinition> definitions) {
  add_definitions(std::move(definitions));
}

bool is_own_codec(std::string_view name) { return find_definition(name) != nullptr; }

std::shared_ptr<const OwnInstance> parse_own(std::string_view name, SpecArgs& args) {
  const Definition definition = find_definition(name);
  if (definition == nullptr) throw Error("no codec '" + std::string(name) + "' is registered");
  return make_instance(definition, args);
}

std::shared_ptr<const OwnInstance> find_own(std::string_view spec, Status& status) noexcept {
  const std::string_view name = name_in(spec);
  status = Status::codec_unknown;
  try {
    {
      Registry& all = registry();
      const std::shared_lock lock(all.mutex);
      if (const auto it = all.instances.find(spec); it != all.instances.end()) return it->second;
    }
    const Definition definition = find_definition(name);
    if (definition == nullptr) {
      note_codec_error(
          spec,
          "is not registered here: register it (C++ atomo::register_codec or atomo::load_codecs, "
          "Python atomo.register or atomo.load_codecs, tools --plugin FILE.so)");
      return nullptr;
    }
    status = Status::codec_failed;
    SpecArgs args = read_one_stage(spec);
    Instance instance = make_instance(definition, args);
    if (instance->spec == spec) return instance;
    note_codec_error(spec,
                     "is written as '" + instance->spec + "' here: another version of the codec?");
  } catch (const std::exception& e) {
    note_codec_error(spec, e.what());
  } catch (...) {
    note_codec_error(spec, "could not be made");
  }
  return nullptr;
}

void note_codec_error(std::string_view codec, std::string_view what) noexcept {
  try {
    std::string text = "the codec '";
    text.append(codec).append("' ").append(core::shown(what));
    Registry& all = registry();
    const std::scoped_lock lock(all.error_mutex);
    all.error = std::move(text);
  } catch (...) {  // out of memory: the status stays
  }
}

std::vector<CodecHelp> own_codec_help() {
  std::vector<CodecHelp> rows;
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  for (const Definition& d : all.definitions) {
    const std::string& example = d->example.empty() ? d->name : d->example;
    rows.push_back({d->name, d->keys, d->summary, example, {example}});
  }
  return rows;
}

}  // namespace atomo::codec

namespace atomo {

void register_codec(CodecDefinition definition) {
  std::vector<CodecDefinition> one;
  one.push_back(std::move(definition));
  codec::register_definitions(std::move(one));
}

bool unregister_codec(std::string_view name) {
  codec::Registry& all = codec::registry();
  std::vector<std::shared_ptr<const void>> dropped;  // destroyed after the lock is gone
  const std::unique_lock lock(all.mutex);
  const auto it =
      std::ranges::find_if(all.definitions, [&](const auto& d) { return d->name == name; });
  if (it == all.definitions.end()) return false;
  dropped.push_back(*it);
  all.definitions.erase(it);
  std::erase_if(all.instances, [&](const auto& kept) {
    if (codec::name_in(kept.first) != name) return false;
    dropped.push_back(kept.second);
    return true;
  });
  return true;
}

std::vector<std::string> registered_codecs() {
  std::vector<std::string> names;
  for (const CodecHelp& row : codec::own_codec_help()) names.push_back(row.name);
  return names;
}

std::string codec_error() {
  codec::Registry& all = codec::registry();
  const std::scoped_lock lock(all.error_mutex);
  return all.error;
}

std::string explain(Status status) {
  const bool of_codec = status == Status::codec_failed || status == Status::codec_unknown;
  std::string text = of_codec ? codec_error() : std::string();
  return text.empty() ? std::string(describe(status)) : text;
}

}  // namespace atomo
