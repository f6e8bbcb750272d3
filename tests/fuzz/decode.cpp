// SPDX-License-Identifier: Apache-2.0
/// Any bytes as a container: every call that reads one gives a Status and keeps to its buffers,
/// which are of exactly their sizes, and calls that read the same message agree.
#include <cmath>
#include <memory>

#include "atomo/atomo.hpp"
#include "codec/stages.hpp"
#include "format/container_head.hpp"
#include "fuzz/contracts.hpp"
#include "fuzz/mutations.hpp"
#include "fuzz/room.hpp"

namespace atomo::fuzz {
namespace {

constexpr std::size_t kMostElements = 1 << 15, kMostLayers = 256;

struct Layers {
  std::vector<format::Kind> kinds;
  std::size_t elements = 0;
};

/// The layers of a message, or none where its head is refused or asks for too much memory.
Layers layers_of(ConstBytes message) {
  format::Head head;
  Layers layers;
  if (failed(format::Head::parse(message, false, head)) || head.layers() > kMostLayers) return {};
  Status status = Status::ok;
  for (format::LayerCursor layer(head); layer.next(status);) {
    layers.kinds.push_back(layer.kind);
    layers.elements += std::min<std::size_t>(layer.kind.shape.elements(), 2 * kMostElements);
    if (layers.elements > kMostElements) return {};
  }
  return failed(status) ? Layers{} : layers;
}

/// Tensors of the layers, each in memory of its own.
class Tensors {
 public:
  Tensors(const Layers& layers, DType dtype, int fill) {
    for (const auto& kind : layers.kinds) {
      const std::size_t bytes = kind.shape.elements() * size_of(dtype);
      rooms_.push_back(std::make_unique<Room>(bytes, fill));
      views.push_back({rooms_.back()->bytes().data(), dtype, kind.shape});
    }
  }
  [[nodiscard]] bool equal(const Tensors& other) const {
    for (std::size_t i = 0; i < rooms_.size(); ++i) {
      const Bytes a = rooms_[i]->bytes(), b = other.rooms_[i]->bytes();
      if (!a.empty() && std::memcmp(a.data(), b.data(), a.size()) != 0) return false;
    }
    return true;
  }
  [[nodiscard]] std::vector<float> values() const {
    std::vector<float> all;
    for (const auto& room : rooms_) {
      const Bytes bytes = room->bytes();
      const std::size_t before = all.size();
      all.resize(before + bytes.size() / 4);
      if (!bytes.empty()) std::memcpy(all.data() + before, bytes.data(), bytes.size());
    }
    return all;
  }
  std::vector<TensorView> views;

 private:
  std::vector<std::unique_ptr<Room>> rooms_;
};

std::size_t workspace_of(const Layers& layers, DType dtype) {
  std::size_t most = 0;
  for (const auto& kind : layers.kinds)
    most = std::max(most, decode_workspace_bytes(kind.shape, dtype));
  return most;
}

bool announce_infinity(const Layers& layers) {
  return std::all_of(layers.kinds.begin(), layers.kinds.end(), announces_infinity);
}

/// Decoding, into each dtype, alone and on several threads, and adding.
Status check_decoding(ConstBytes message, const Layers& layers) {
  Status first = Status::ok;
  const bool announces = announce_infinity(layers);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Room workspace(workspace_of(layers, dtype)), other(workspace.bytes().size(), 0xC3);
    const Tensors y(layers, dtype, 0x11), again(layers, dtype, 0xEE);
    const Status status = decode(message, y.views, {.workspace = workspace.bytes()});
    const Status second =
        decode(message, again.views, {.workspace = other.bytes(), .executor = &pool()});
    require(status == second, "a decoder judges alike on every number of threads");
    if (!failed(status)) require(y.equal(again), "a message decodes to the same values each time");
    if (dtype != DType::f32) {
      require(failed(status) == failed(first), "halves and f32 are refused alike");
      continue;
    }
    first = status;
    const Tensors sum(layers, dtype, 0);
    const Status added = decode_add(message, 1, sum.views, {.workspace = workspace.bytes()});
    require(failed(added) == failed(status), "adding refuses what decoding refuses");
    const std::vector<float> a = y.values(), b = sum.values();
    for (std::size_t i = 0; !failed(status) && i < a.size(); ++i) {
      require(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])), "0 + v is v");
      if (!announces) continue;
      require(!std::isnan(a[i]) || has(status, Status::non_finite), "NaN is announced");
      require(!std::isinf(a[i]) || has(status, Status::overflow), "infinity is announced");
    }
  }
  return first;
}

/// Codecs that write this kind decode the message as `decode` does, or refuse it.
void check_codecs(ConstBytes message, const Layers& layers, Status status) {
  static const std::vector<Codec> codecs = [] {
    std::vector<Codec> all;
    for (const CodecHelp& help : list_codecs())
      for (const std::string& spec : help.specs) all.push_back(Codec::parse(spec));
    return all;
  }();
  if (layers.kinds.size() != 1) return;
  const format::Kind& kind = layers.kinds[0];
  for (const Codec& codec : codecs) {
    const auto& body = *codec::Access::stages(codec).body;
    format::Kind own;
    try {
      own = body.kind(kind.shape, kind.dtype);
    } catch (const Error&) {
      continue;  // not for this shape
    }
    if (!(own == kind)) continue;
    const Room workspace(codec.decode_workspace_bytes(kind.shape));
    const Tensors y(layers, DType::f32, 1), any(layers, DType::f32, 2);
    const Status alone = codec.decode(message, y.views[0], {.workspace = workspace.bytes()});
    if (failed(alone)) continue;
    require(!failed(status), "what a codec decodes, any decoder decodes");
    const Room more(workspace_of(layers, DType::f32));
    require(decode(message, any.views, {.workspace = more.bytes()}) == alone && y.equal(any),
            "a codec decodes as any decoder does");
    return;
  }
}

/// Taken out of its lossless stages a message has the same values.
void check_unpacking(ConstBytes message, const Layers& layers, Status status) {
  constexpr std::uint64_t kLargest = 1 << 20;
  const std::uint64_t bytes = unpacked_bytes(message);
  if (bytes == 0 || bytes > kLargest) return;
  const Room plain(bytes);
  std::uint64_t written = 0;
  const Status unpacked =
      unpack_lossless(message, {plain.bytes().data(), plain.bytes().size(), &written});
  if (failed(unpacked)) {
    require(failed(status), "what decodes can be taken out of its lossless stages");
    return;
  }
  require(written <= bytes, "an unpacked message is as long as announced");
  if (failed(status) || layers.kinds.empty()) return;
  const Room workspace(workspace_of(layers, DType::f32));
  const Tensors y(layers, DType::f32, 1), z(layers, DType::f32, 2);
  static_cast<void>(decode(message, y.views, {.workspace = workspace.bytes()}));
  const Status plainly =
      decode(plain.bytes().first(written), z.views, {.workspace = workspace.bytes()});
  require(plainly == status && y.equal(z), "a message taken out of its stages decodes alike");
}

/// Sums of a message with itself, and it alone joined.
void check_arithmetic(ConstBytes message) {
  constexpr std::uint64_t kLargest = 1 << 21;
  const ConstBytes twice[] = {message, message};
  const std::uint64_t bytes = added_bytes_bound(twice);
  if (bytes > 0 && bytes <= kLargest) {
    const Room workspace(add_workspace_bytes(2)), sum(bytes);
    std::uint64_t written = 0;
    const Status status =
        add(twice, workspace.bytes(), {sum.bytes().data(), sum.bytes().size(), &written});
    require(failed(status) || written <= bytes, "a sum keeps to its bound");
    ContainerInfo info;
    require(failed(status) || !failed(inspect(sum.bytes().first(written), info, true)),
            "a sum is a message");
  }
  const std::size_t bound = joined_bytes_bound({twice, 1});
  if (bound <= kLargest) {
    const Room joined(bound);
    std::uint64_t written = 0;
    const Status status =
        join({twice, 1}, {joined.bytes().data(), joined.bytes().size(), &written});
    require(failed(status) || written <= bound, "a joined message keeps to its bound");
  }
}

std::uint64_t run(ConstBytes input) {
  const Room exactly(input.size());
  if (!input.empty()) std::memcpy(exactly.bytes().data(), input.data(), input.size());
  const ConstBytes message = exactly.bytes();
  ContainerInfo info;
  const Status inspected = inspect(message, info, true);
  std::uint64_t sight = seen(1, static_cast<std::uint64_t>(inspected));
  const Layers layers = layers_of(message);
  if (layers.kinds.empty()) return sight;
  const Status status = check_decoding(message, layers);
  check_codecs(message, layers, status);
  check_unpacking(message, layers, status);
  check_arithmetic(message);
  const format::Kind& kind = layers.kinds[0];
  sight = seen(sight, static_cast<std::uint64_t>(status));
  sight = seen(sight, static_cast<std::uint64_t>(kind.method));
  return seen(sight, layers.kinds.size() > 1 ? 1 : 0);
}

void mutate(Buffer& input, const AnyMutation& any, Draw& draw) {
  mutate_container(input, kTarget.most, any, draw);
}

}  // namespace

const Target kTarget{1 << 14, run, container_seeds, mutate, nullptr};

}  // namespace atomo::fuzz
