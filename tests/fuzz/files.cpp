// SPDX-License-Identifier: Apache-2.0
/// Any bytes as a file: .npy, .npz, .safetensors, a patch, a saved state, a job. The first byte says
/// which. Each is refused with the error that its reader promises, or read, and what was read can be
/// written and read again.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "atomo/atomo.hpp"
#include "atomo/patch.hpp"
#include "command_line/job.hpp"
#include "format/checksum.hpp"
#include "fuzz/input.hpp"
#include "fuzz/mutations.hpp"
#include "fuzz/room.hpp"
#include "tensors/tensor_io.hpp"
#include "terminal/failure.hpp"

namespace atomo::fuzz {
namespace {

enum class File : std::uint8_t { npy, npz, safetensors, patch, state, job, count };
constexpr std::size_t kFiles = static_cast<std::size_t>(File::count);

File file_of(std::byte first) {
  return static_cast<File>(std::to_integer<std::size_t>(first) % kFiles);
}

/// An error by its letters, without the names and numbers of the input.
std::uint64_t kind_of_error(std::string_view said) {
  constexpr std::size_t kLetters = 60;
  std::uint64_t sight = 1;
  bool quoted = false;
  for (const char c : said.substr(0, kLetters)) {
    quoted = quoted != (c == '\'');
    if (!quoted && c >= 'a' && c <= 'z') sight = seen(sight, static_cast<std::uint64_t>(c));
  }
  return sight;
}

cli::Buffer file_buffer(ConstBytes bytes) {
  cli::Buffer file(bytes.size());
  if (!bytes.empty()) std::memcpy(file.data.get(), bytes.data(), bytes.size());
  return file;
}

Buffer whole(const cli::FileParts& file) {
  Buffer bytes;
  for (const ConstBytes part : file.parts) bytes.insert(bytes.end(), part.begin(), part.end());
  return bytes;
}

bool same_tensors(const std::vector<cli::Tensor>& a, std::vector<cli::Tensor> b) {
  if (a.size() != b.size()) return false;
  for (const cli::Tensor& t : a) {
    const auto found =
        std::find_if(b.begin(), b.end(), [&](const cli::Tensor& u) { return u.name == t.name; });
    if (found == b.end() || found->shape != t.shape || found->dtype != t.dtype ||
        std::memcmp(found->data.get(), t.data.get(), t.bytes()) != 0)
      return false;
  }
  return true;
}

std::uint64_t read_tensors(File kind, ConstBytes bytes) {
  const cli::Buffer file = file_buffer(bytes);
  std::vector<cli::Tensor> tensors;
  try {
    if (kind == File::npy) tensors = {cli::detail::read_npy(file, "file", "tensor")};
    if (kind == File::npz) tensors = cli::detail::read_npz(file, "file");
    if (kind == File::safetensors) tensors = cli::detail::read_safetensors(file, "file");
  } catch (const cli::InputError& error) {
    require(error.what()[0] != 0, "an error says something");
    return seen(1, kind_of_error(error.what()));
  }
  std::uint64_t sum = 0;
  for (const cli::Tensor& t : tensors) {
    for (std::size_t i = 0; i < t.bytes(); ++i) sum += std::to_integer<unsigned>(t.data[i]);
    static_cast<void>(cli::to_f32(t));
  }
  try {
    const Buffer again = whole(cli::write_tensors(tensors, cli::Format::safetensors));
    require(same_tensors(tensors, cli::detail::read_safetensors(file_buffer(again), "again")),
            "what was read reads as the same when it is written");
  } catch (const cli::InputError& error) {
    require(std::string_view(error.what()).find("UTF-8") != std::string_view::npos,
            "what was read can be written but for names that are not UTF-8");
  }
  return seen(tensors.size(), sum % 2);
}

/// The state before that patches are applied to.
struct State {
  std::vector<std::uint32_t> weights = std::vector<std::uint32_t>(700);
  std::vector<std::uint16_t> halves = std::vector<std::uint16_t>(300);
  std::vector<std::uint64_t> numbers = std::vector<std::uint64_t>(5);
  explicit State(std::uint64_t seed, std::uint64_t changed) {
    Draw draw(1);
    for (auto& w : weights) w = 0x3C000000u + static_cast<std::uint32_t>(draw() % 1000);
    for (auto& w : halves) w = static_cast<std::uint16_t>(0x3C00 + draw() % 64);
    for (auto& w : numbers) w = draw();
    Draw change(seed);
    for (std::uint64_t i = 0; i < changed; ++i) {
      weights[change() % weights.size()] += static_cast<std::uint32_t>(change() % 5);
      halves[change() % halves.size()] ^= static_cast<std::uint16_t>(1u << change() % 16);
      numbers[change() % numbers.size()] = change();
    }
  }
  [[nodiscard]] std::vector<PatchTensor> tensors() const {
    return {{"weights", "F32", {70, 10}, 4, true, std::as_bytes(std::span(weights))},
            {"halves", "BF16", {300}, 2, true, std::as_bytes(std::span(halves))},
            {"numbers", "I64", {5}, 8, false, std::as_bytes(std::span(numbers))}};
  }
};

std::uint64_t apply(ConstBytes bytes) {
  constexpr std::uint64_t kLargest = 1 << 20;
  const Room patch(bytes.size());
  if (!bytes.empty()) std::memcpy(patch.bytes().data(), bytes.data(), bytes.size());
  static const State before(1, 0);
  try {
    const PatchInfo info = inspect_patch(patch.bytes());
    std::vector<Room> rooms;
    std::vector<Bytes> out;
    std::uint64_t total = 0;
    for (const PatchEntry& entry : info.tensors) {
      total += std::min(entry.bytes, 2 * kLargest);
      if (total > kLargest) return seen(2, 0);
      rooms.emplace_back(entry.bytes);
      out.push_back(rooms.back().bytes());
    }
    apply_patch(patch.bytes(), before.tensors(), out);
    return seen(seen(3, info.tensors.size()), info.note.size() % 4);
  } catch (const Error& error) {
    const std::string said = error.what();
    require(!said.empty() && said.find('\0') == std::string::npos, "an error is a line");
    return seen(4, kind_of_error(said));
  }
}

std::vector<LayerSpec> layers() { return {{"a", {40, 100}}, {"b", {30}}, {"c", {64}}}; }
Policy policy() {
  return Policy::parse("a=atomo:bits=1,cap=16;b=ef+topk:keep=0.2;c=dgc+topk:keep=3");
}

/// Loads a state and goes on from it. A state that was refused leaves the model as it was.
std::uint64_t load(ConstBytes bytes) {
  Compressor model(layers(), policy());
  const std::vector<std::byte> fresh = model.save();
  std::uint64_t sight = 6;
  try {
    model.load(bytes);
    const std::vector<std::byte> saved = model.save();
    Compressor other(layers(), policy());
    other.load(saved);
    require(other.save() == saved, "a state that was loaded is saved as itself");
  } catch (const Error& error) {
    require(error.what()[0] != 0, "an error says something");
    require(model.save() == fresh, "a state that was refused changes nothing");
    sight = 7;
  }
  std::vector<std::vector<float>> values;
  std::vector<ConstTensorView> views;
  for (const LayerSpec& layer : model.layers()) {
    values.emplace_back(layer.shape.elements(), 0.5f);
    views.push_back({values.back().data(), DType::f32, layer.shape});
  }
  const Room workspace(model.encode_workspace_bytes()), message(model.max_encoded_bytes());
  std::uint64_t written = 0;
  const Status status =
      model.encode(views, {.seed = 1}, {message.bytes().data(), message.bytes().size(), &written},
                   {.workspace = workspace.bytes()});
  require(!failed(status), "a model encodes after any state");
  return seen(sight, static_cast<std::uint64_t>(status));
}

std::uint64_t read_job(ConstBytes bytes) {
  std::istringstream text(text_of(bytes));
  try {
    const train::JobValues values = train::read_toml(text);
    for (const auto& [name, value] : values) {
      std::istringstream line(name + " = " + train::toml_of(value) + "\n");
      const train::JobValues again = train::read_toml(line);
      require(again.size() == 1 && again[0].first == name && again[0].second == value,
              "a value reads as it is written");
    }
    return seen(8, values.size());
  } catch (const std::runtime_error& error) {
    return seen(9, kind_of_error(error.what()));
  }
}

std::uint64_t run(ConstBytes input) {
  if (input.empty()) return 0;
  const File kind = file_of(input[0]);
  const ConstBytes bytes = input.subspan(1);
  const std::uint64_t sight = kind == File::patch   ? apply(bytes)
                              : kind == File::state ? load(bytes)
                              : kind == File::job   ? read_job(bytes)
                                                    : read_tensors(kind, bytes);
  return seen(sight, static_cast<std::uint64_t>(kind));
}

template <typename T>
bool load_at(ConstBytes bytes, std::size_t at, T& value) {
  if (at > bytes.size() || bytes.size() - at < sizeof value) return false;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return true;
}
template <typename T>
void store_at(Bytes bytes, std::size_t at, T value) {
  if (at <= bytes.size() && bytes.size() - at >= sizeof value)
    std::memcpy(bytes.data() + at, &value, sizeof value);
}

/// Lengths and checksums of a patch, as far as its records can be walked.
void mend_patch(Bytes patch) {
  constexpr std::size_t kHeader = 40, kRecord = 56, kSum = 8, kLengthAt = 24;
  std::uint64_t head = 0;
  std::uint32_t note = 0, count = 0;
  if (!load_at(patch, 16, head) || !load_at(patch, 32, note) || !load_at(patch, 12, count)) return;
  if (head < kHeader + kSum || head > patch.size()) return;
  store_at(patch, kLengthAt, std::uint64_t{patch.size()});
  std::size_t at = kHeader + (std::size_t{note} + 7) / 8 * 8, body_at = head;
  for (std::uint32_t i = 0; i < count && at + kRecord <= head; ++i) {
    std::uint64_t body = 0;
    std::uint16_t name = 0;
    std::uint8_t type = 0, dimensions = 0;
    static_cast<void>(load_at(patch, at + 32, body) && load_at(patch, at + 48, name) &&
                      load_at(patch, at + 50, type) && load_at(patch, at + 51, dimensions));
    if (i + 1 == count) {
      body = patch.size() - std::min(body_at, patch.size());
      store_at(patch, at + 32, body);
    }
    if (body > patch.size() - std::min(body_at, patch.size())) break;
    store_at(patch, at + 16, format::body_checksum(patch.subspan(body_at, body), {}, nullptr));
    body_at += body;
    at += (kRecord + 8 * std::size_t{dimensions} + name + type + 7) / 8 * 8;
  }
  store_at(patch, head - kSum, format::body_checksum(patch.first(head - kSum), {}, nullptr));
}

std::uint32_t crc32(ConstBytes bytes) {
  std::uint32_t crc = ~0u;
  for (const std::byte b : bytes) {
    crc ^= std::to_integer<std::uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xEDB88320u & (0u - (crc & 1)));
  }
  return ~crc;
}

/// Checksums of the entries of an archive that are stored, in its directory and before them.
void mend_archive(Bytes archive) {
  for (std::size_t at = 0; at + 46 <= archive.size(); ++at) {
    std::uint32_t magic = 0, bytes = 0, local = 0;
    std::uint16_t name = 0, extra = 0;
    if (!load_at(archive, at, magic) || magic != 0x02014B50) continue;
    static_cast<void>(load_at(archive, at + 20, bytes) && load_at(archive, at + 42, local));
    if (!load_at(archive, std::size_t{local} + 26, name) ||
        !load_at(archive, std::size_t{local} + 28, extra))
      continue;
    const std::size_t data = std::size_t{local} + 30 + name + extra;
    if (data > archive.size() || bytes > archive.size() - data) continue;
    const std::uint32_t crc = crc32(archive.subspan(data, bytes));
    store_at(archive, at + 16, crc);
    store_at(archive, std::size_t{local} + 14, crc);
  }
}

/// The length of the header of .safetensors, which its text ends.
void mend_safetensors(Bytes file) {
  const std::string text = text_of(file);
  const std::size_t end = text.find("}}");
  if (end != std::string::npos && end >= 6) store_at(file, 0, std::uint64_t{end + 2 - 8});
}

/// The length of the header of .npy 1.0, which a line break ends.
void mend_npy(Bytes file) {
  const std::size_t end = text_of(file).find('\n');
  if (end != std::string::npos && end >= 10)
    store_at(file, 8, static_cast<std::uint16_t>(end + 1 - 10));
}

/// Where the array of a .npy 1.0 begins, or the data of a .safetensors; 0 where that cannot be told.
std::size_t data_at(File kind, ConstBytes file) {
  std::uint16_t npy = 0;
  std::uint64_t safetensors = 0;
  if (kind == File::npy && load_at(file, 8, npy))
    return std::size_t{npy} + 10 < file.size() ? std::size_t{npy} + 10 : 0;
  if (kind == File::safetensors && load_at(file, 0, safetensors))
    return safetensors < file.size() - 8 ? static_cast<std::size_t>(safetensors) + 8 : 0;
  return 0;
}

/// A size, a place or a length of a header that is otherwise as it was.
void change_digit(Bytes header, Draw& draw) {
  std::vector<std::size_t> digits;
  for (std::size_t i = 0; i < header.size(); ++i)
    if (header[i] >= std::byte{'0'} && header[i] <= std::byte{'9'}) digits.push_back(i);
  if (!digits.empty())
    header[digits[draw() % digits.size()]] = static_cast<std::byte>('0' + draw() % 10);
}

void mutate(Buffer& input, const AnyMutation& any, Draw& draw) {
  if (input.empty()) return any(input, kTarget.most);
  const std::byte first = input[0];
  const File kind = file_of(first);
  Buffer rest(input.begin() + 1, input.end());
  // Behind a header that stands, now and then: more changes than one seldom leave it so.
  const std::size_t kept = draw() % 4 == 0 ? data_at(kind, rest) : 0;
  const std::uint64_t what = kept > 0 ? draw() % 4 : 2;
  if (what == 0) change_digit(Bytes(input).subspan(1, kept), draw);
  if (what == 1) input.resize(1 + draw() % rest.size());  // a file that was cut off
  if (what < 2) return;
  Buffer part(rest.begin() + static_cast<std::ptrdiff_t>(kept), rest.end());
  any(part, kTarget.most - 1 - std::min(kept, kTarget.most - 1));
  rest.resize(kept);
  rest.insert(rest.end(), part.begin(), part.end());
  if (draw() % 8 != 0 && kept == 0) {
    if (kind == File::patch) mend_patch(rest);
    if (kind == File::npz) mend_archive(rest);
    if (kind == File::safetensors) mend_safetensors(rest);
    if (kind == File::npy && draw() % 2 == 0) mend_npy(rest);
  }
  input.assign(1, first);
  input.insert(input.end(), rest.begin(), rest.end());
}

Buffer tagged(File kind, ConstBytes bytes) {
  Buffer all{static_cast<std::byte>(kind)};
  all.insert(all.end(), bytes.begin(), bytes.end());
  return all;
}

std::vector<cli::Tensor> some_tensors(std::size_t count) {
  std::vector<cli::Tensor> tensors;
  for (std::size_t i = 0; i < count; ++i) {
    cli::Tensor t{"layer" + std::to_string(i),
                  i % 2 == 0 ? DType::f32 : DType::f16,
                  i % 2 == 0 ? Shape{3, 5} : Shape{7},
                  {}};
    t.data = std::shared_ptr<std::byte[]>(new std::byte[t.bytes()]());
    tensors.push_back(t);
  }
  return tensors;
}

Buffer saved_state(Saved what) {
  Compressor model(layers(), policy());
  std::vector<std::vector<float>> values;
  std::vector<ConstTensorView> views;
  for (const LayerSpec& layer : model.layers()) {
    auto& x = values.emplace_back(layer.shape.elements());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 13) - 6;
    views.push_back({x.data(), DType::f32, layer.shape});
  }
  const Room workspace(model.encode_workspace_bytes()), message(model.max_encoded_bytes());
  std::uint64_t written = 0;
  static_cast<void>(model.encode(views, {.seed = 1},
                                 {message.bytes().data(), message.bytes().size(), &written},
                                 {.workspace = workspace.bytes()}));
  return model.save(what);
}

std::vector<Buffer> seeds() {
  std::vector<Buffer> all;
  for (const std::size_t count : {1, 2, 4}) {
    const auto tensors = some_tensors(count);
    if (count <= 2)
      all.push_back(
          tagged(File::npy, whole(cli::write_tensors({tensors.back()}, cli::Format::npy))));
    all.push_back(tagged(File::npz, whole(cli::write_tensors(tensors, cli::Format::npz))));
    all.push_back(
        tagged(File::safetensors, whole(cli::write_tensors(tensors, cli::Format::safetensors))));
  }
  const State before(1, 0);
  for (const std::uint64_t changed : {0, 1, 20, 400}) {
    const State after(9, changed);
    const std::vector<PatchTensor> tensors = after.tensors();
    all.push_back(
        tagged(File::patch, make_patch(before.tensors(), tensors, changed == 1 ? "a note" : "")));
    all.push_back(tagged(File::patch, make_patch(before.tensors(), {tensors.data(), 1})));
  }
  for (const Saved what : {Saved::all, Saved::learnt, Saved::memories})
    all.push_back(tagged(File::state, saved_state(what)));
  for (const char* job :
       {"algorithm = \"ps\"\nsteps = 400\nquiet = true\n",
        "# a job\npolicy = \"\"\"\n*.bias = identity\n* = atomo:bits=1\n\"\"\"\nrate = 1e-3\n",
        "name = 'literal \\ text'\nother = \"\\u00e9\\n\"\n"})
    all.push_back(tagged(File::job, buffer_of(job)));
  return all;
}

const std::vector<std::string>& tokens() {
  static const std::vector<std::string> all{"'descr'",
                                            "'<f4'",
                                            "'<f2'",
                                            "'>f4'",
                                            "'|u1'",
                                            "'fortran_order'",
                                            "False",
                                            "True",
                                            "'shape'",
                                            "(3, 5)",
                                            "(,)",
                                            "()",
                                            "(0,)",
                                            "{",
                                            "}",
                                            "[",
                                            "]",
                                            "\"dtype\":\"F32\"",
                                            "\"BF16\"",
                                            "\"shape\":[",
                                            "\"data_offsets\":[0,0]",
                                            "__metadata__",
                                            ",",
                                            ":",
                                            "-1",
                                            "1e9",
                                            "9223372036854775807",
                                            "18446744073709551615",
                                            "4294967296",
                                            "\"\"\"",
                                            "'''",
                                            "\\u0000",
                                            "\\",
                                            "= ",
                                            "\n",
                                            "PK\x03\x04",
                                            "PK\x01\x02",
                                            "PK\x05\x06",
                                            "\x93NUMPY\x01",
                                            "ATMPATCH",
                                            "ATMOST05"};
  return all;
}

}  // namespace

const Target kTarget{1 << 13, run, seeds, mutate, tokens};

}  // namespace atomo::fuzz
