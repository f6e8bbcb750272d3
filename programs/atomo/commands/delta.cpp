// SPDX-License-Identifier: Apache-2.0
/// \file
/// `atomo delta` writes a patch from one .safetensors file to another, and `atomo apply` makes the
/// second file of the first one and the patch. The patch's note is the second file's header, or
/// nothing where it is the first one's, so that the file that is made has the same bytes.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "atomo/patch.hpp"
#include "atomo/thread_pool.hpp"
#include "commands/commands.hpp"
#include "tensors/files.hpp"
#include "tensors/tensor_io.hpp"
#include "terminal/failure.hpp"
#include "terminal/progress.hpp"
#include "terminal/table.hpp"

namespace atomo::cli {
namespace {

using Json = nlohmann::ordered_json;
using Form = PatchEntry::Form;

struct ElementType {
  std::string_view name;
  std::uint8_t bytes;
  bool floating;
};
constexpr ElementType kElementTypes[] = {
    {"F64", 8, true},  {"F32", 4, true},  {"F16", 2, true},     {"BF16", 2, true},
    {"I64", 8, false}, {"U64", 8, false}, {"I32", 4, false},    {"U32", 4, false},
    {"I16", 2, false}, {"U16", 2, false}, {"F8_E4M3", 1, true}, {"F8_E5M2", 1, true},
};
/// A type that is not in the table is compared byte for byte.
constexpr ElementType kOfBytes{"", 1, false};

struct StateFile {
  std::string label;
  Buffer file;
  detail::StoredTensors stored;
  std::vector<PatchTensor> tensors;

  [[nodiscard]] std::string_view header() const noexcept {
    return {reinterpret_cast<const char*>(file.data.get()),
            static_cast<std::size_t>(stored.data_begin)};
  }
};

PatchTensor tensor_of(const detail::StoredTensor& stored, ConstBytes data) {
  const auto* found = std::find_if(std::begin(kElementTypes), std::end(kElementTypes),
                                   [&](const ElementType& t) { return t.name == stored.type; });
  const bool known = found != std::end(kElementTypes) && stored.bytes() % found->bytes == 0;
  const ElementType& type = known ? *found : kOfBytes;
  return {stored.name, stored.type, stored.shape, type.bytes, type.floating, data};
}

StateFile read_state(const std::string& path) {
  StateFile state;
  state.label = input_label(path);
  state.file = read_whole(path);
  state.stored = detail::index_safetensors(state.file, state.label);
  for (const auto& stored : state.stored.tensors) {
    state.tensors.push_back(tensor_of(
        stored, state.file.view().subspan(state.stored.data_begin + stored.begin, stored.bytes())));
  }
  return state;
}

const char* form_name(Form form) {
  return form == Form::same ? "same" : form == Form::changes ? "changes" : "whole";
}

std::uint64_t elements_of(const PatchEntry& entry) { return entry.bytes / entry.element_bytes; }

struct Totals {
  std::uint64_t bytes = 0, elements = 0, changed = 0;
  std::size_t forms[3] = {};

  explicit Totals(const PatchInfo& info) {
    for (const PatchEntry& entry : info.tensors) {
      bytes += entry.bytes;
      elements += elements_of(entry);
      changed += entry.changed;
      ++forms[static_cast<std::size_t>(entry.form)];
    }
  }
};

/// What a patch says, under "output" or "file".
std::string json_report(const char* role, const std::string& path, const PatchInfo& info) {
  const Totals totals(info);
  Json json{{role, path},
            {"patch_bytes", info.bytes},
            {"tensor_bytes", totals.bytes},
            {"elements", totals.elements},
            {"changed", totals.changed},
            {"tensors", Json::array()}};
  for (const PatchEntry& entry : info.tensors) {
    json["tensors"].push_back({{"name", entry.name},
                               {"type", entry.type},
                               {"shape", entry.shape},
                               {"form", form_name(entry.form)},
                               {"elements", elements_of(entry)},
                               {"changed", entry.changed},
                               {"bytes", entry.sent}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// A line: the file's name, `what`, and how much of it changed.
std::string text_report(const std::string& label, const std::string& what, const PatchInfo& info) {
  const Totals totals(info);
  const double share = totals.elements == 0 ? 0
                                            : 100 * static_cast<double>(totals.changed) /
                                                  static_cast<double>(totals.elements);
  return fmt::format(
      "{}: {}; {} % of {} changed; of {}, {} sent as changes, {} whole, {} as before\n",
      printable(label), what, significant(share), counted(totals.elements, "element"),
      counted(info.tensors.size(), "tensor"), totals.forms[1], totals.forms[2], totals.forms[0]);
}

/// `output` was written; its line says `what`.
void report(const std::string& output, const std::string& what, const PatchInfo& info,
            bool as_json) {
  print(as_json ? json_report("output", output, info) : text_report(output, what, info));
}

/// "1,741,452 bytes for 268,435,464 (1/154.1)".
std::string patch_size(const PatchInfo& info) {
  const std::uint64_t bytes = Totals(info).bytes;
  return fmt::format("{} for {} (1/{:.1f})", counted(info.bytes, "byte"), grouped(bytes),
                     static_cast<double>(bytes) / static_cast<double>(info.bytes));
}

/// The file that a patch makes: its header is there, its data are not yet.
StateFile make_room(const StateFile& before, const PatchInfo& info, const std::string& label) {
  // What the patch claims is held against the tensors that are here before memory is taken.
  std::map<std::string_view, std::uint64_t> sizes;
  for (const PatchTensor& tensor : before.tensors) {
    sizes.emplace(tensor.name, tensor.data.size());
  }
  std::uint64_t data_bytes = 0;
  for (const PatchEntry& entry : info.tensors) {
    const auto size = sizes.find(entry.name);
    if (entry.form != Form::whole && (size == sizes.end() || size->second != entry.bytes)) {
      throw PayloadRefused(fmt::format(
          "{}: refused: it was made from another file than {}, with a tensor '{}' of {}", label,
          before.label, printable(entry.name), counted(entry.bytes, "byte")));
    }
    data_bytes += entry.bytes;
  }
  const std::string_view header = info.note.empty() ? before.header() : std::string_view(info.note);
  StateFile state;
  state.label = label;
  state.file = Buffer(header.size() + data_bytes);
  std::memcpy(state.file.data.get(), header.data(), header.size());
  try {
    state.stored = detail::index_safetensors(state.file, label);
  } catch (const InputError& error) {
    throw PayloadRefused(fmt::format("{}: refused: its header: {}", label, error.what()));
  }
  return state;
}

std::vector<Bytes> rooms_of(StateFile& state, const PatchInfo& info) {
  std::map<std::string_view, const detail::StoredTensor*> stored;
  for (const auto& tensor : state.stored.tensors) {
    stored.emplace(tensor.name, &tensor);
  }
  std::vector<Bytes> rooms;
  for (const PatchEntry& entry : info.tensors) {
    const auto at = stored.find(entry.name);
    if (at == stored.end() || at->second->bytes() != entry.bytes) {
      throw PayloadRefused(fmt::format("{}: refused: its header and its tensor '{}' do not agree",
                                       state.label, printable(entry.name)));
    }
    rooms.push_back(
        state.file.span().subspan(state.stored.data_begin + at->second->begin, entry.bytes));
  }
  if (rooms.size() != stored.size()) {
    throw PayloadRefused(fmt::format("{}: refused: its header has {}, it has {}", state.label,
                                     counted(stored.size(), "tensor"),
                                     counted(rooms.size(), "tensor")));
  }
  return rooms;
}

/// \throws InputError where `output` is the file `input`, which `what` says of what is written.
void refuse_to_replace(const std::string& input, const std::string& output, const char* what) {
  std::error_code none;
  if (std::filesystem::is_regular_file(output, none) &&
      std::filesystem::equivalent(input, output, none))
    throw InputError(fmt::format("{}: {}: give -o another name", printable(output), what));
}

/// A patch is of no use without the file that it was made from, and would be all that is left of
/// the other.
constexpr char kPatchOverInput[] = "the patch would take the place of a file that it is made from";
constexpr char kFileOverPatch[] = "the file would take the place of the patch that makes it";

}  // namespace

bool is_patch(ConstBytes file) noexcept {
  constexpr std::string_view kMagic = "ATMPATCH";  // FORMAT.md, "Patches"
  return file.size() >= kMagic.size() &&
         std::memcmp(file.data(), kMagic.data(), kMagic.size()) == 0;
}

std::string describe_patch(ConstBytes patch, const std::string& path, bool as_json) {
  const std::string label = input_label(path);
  PatchInfo info;
  try {
    info = inspect_patch(patch);
  } catch (const Error& error) {
    throw PayloadRefused(fmt::format("{}: refused: {}", label, error.what()));
  }
  if (as_json) return json_report("file", path, info);
  using Align = Table::Align;
  Table table({{"tensor", Align::left},
               {"type", Align::left},
               {"shape", Align::left},
               {"sent", Align::left},
               {"elements", Align::right},
               {"changed", Align::right},
               {"bytes", Align::right}});
  for (const PatchEntry& entry : info.tensors) {
    table.add({printable(entry.name), printable(entry.type),
               fmt::format("[{}]", fmt::join(entry.shape, ", ")), form_name(entry.form),
               grouped(elements_of(entry)), grouped(entry.changed), grouped(entry.sent)});
  }
  return text_report(label, "atomo patch, " + patch_size(info), info) + "\n" + table.render();
}

void run_delta(const DeltaOptions& options) {
  refuse_to_replace(options.before, options.output, kPatchOverInput);
  refuse_to_replace(options.after, options.output, kPatchOverInput);
  OutputFile out(options.output);
  std::vector<std::byte> patch;
  {
    Progress progress("reading");
    const StateFile before = read_state(options.before), after = read_state(options.after);
    progress.set("comparing");
    ThreadPool pool(options.threads);
    const bool same_header = before.header() == after.header();
    patch = make_patch(before.tensors, after.tensors, same_header ? "" : after.header(), &pool);
    progress.set("writing");
    const ConstBytes parts[] = {patch};
    out.commit(parts);
  }
  if (!out.is_standard_output()) {
    const PatchInfo info = inspect_patch(patch);
    report(options.output, patch_size(info), info, options.json);
  }
}

void run_apply(const ApplyOptions& options) {
  refuse_to_replace(options.patch, options.output, kFileOverPatch);
  OutputFile out(options.output);
  PatchInfo info;
  {
    Progress progress("reading");
    const StateFile before = read_state(options.before);
    const std::string label = input_label(options.patch);
    const Buffer patch = read_whole(options.patch);
    progress.set("applying");
    ThreadPool pool(options.threads);
    StateFile after;
    try {
      info = inspect_patch(patch.view());
      after = make_room(before, info, label);
      apply_patch(patch.view(), before.tensors, rooms_of(after, info), &pool);
    } catch (const Error& error) {
      throw PayloadRefused(fmt::format("{}: refused: {}", label, error.what()));
    }
    progress.set("writing");
    const ConstBytes parts[] = {after.file.view()};
    out.commit(parts);
  }
  if (!out.is_standard_output()) {
    report(options.output, counted(Totals(info).bytes, "byte") + " of tensors", info, options.json);
  }
}

}  // namespace atomo::cli
