// SPDX-License-Identifier: Apache-2.0
/// Damaged messages and what the library makes of each, for the decoder that was written from FORMAT.md
/// (tests/python/fuzz_format.py). To standard output, one after another until it is closed: the message's bytes
/// (u64), the message, the entries of what it decodes to (u64, all ones where it is refused), the entries (f32).
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "atomo/atomo.hpp"
#include "format/container_head.hpp"
#include "fuzz/mutations.hpp"

namespace atomo::fuzz {
namespace {

/// The other decoder is slow, and has no codecs of one's own.
constexpr std::size_t kMostBytes = 4096, kMostElements = 4096, kMostLayers = 16;
constexpr std::uint64_t kRefused = ~std::uint64_t{0};

struct Judgement {
  bool is_asked = true;  ///< the other decoder is asked too
  bool is_refused = false;
  std::vector<float> values;
};

Judgement judge(ConstBytes message) {
  format::Head head;
  Judgement judgement;
  judgement.is_refused = failed(format::Head::parse(message, true, head));
  if (judgement.is_refused) return judgement;
  std::vector<format::Kind> kinds;
  std::size_t elements = 0, workspace = 0;
  Status status = Status::ok;
  for (format::LayerCursor layer(head); layer.next(status);) {
    kinds.push_back(layer.kind);
    elements += std::min<std::size_t>(layer.kind.shape.elements(), 2 * kMostElements);
    judgement.is_asked &= elements <= kMostElements && kinds.size() <= kMostLayers &&
                          layer.kind.method != format::MethodId::own;
    if (!judgement.is_asked) return judgement;
    workspace = std::max(workspace, decode_workspace_bytes(layer.kind.shape));
  }
  judgement.values.resize(elements);
  std::vector<TensorView> views;
  std::size_t at = 0;
  for (const format::Kind& kind : kinds) {
    views.push_back({judgement.values.data() + at, DType::f32, kind.shape});
    at += kind.shape.elements();
  }
  Buffer room(workspace);
  judgement.is_refused = failed(status) || failed(decode(message, views, {.workspace = room}));
  return judgement;
}

template <typename T>
void write(const T* data, std::size_t count) {
  if (std::fwrite(data, sizeof(T), count, stdout) != count) std::exit(0);  // nobody reads on
}

void tell(ConstBytes message) {
  const Judgement judgement = judge(message);
  if (!judgement.is_asked) return;
  const std::uint64_t bytes = message.size(),
                      entries = judgement.is_refused ? kRefused : judgement.values.size();
  write(&bytes, 1);
  write(message.data(), message.size());
  write(&entries, 1);
  if (!judgement.is_refused) write(judgement.values.data(), judgement.values.size());
}

int run(std::uint64_t seed, std::span<char*> files) {
  std::signal(SIGPIPE, SIG_IGN);
  for (const char* path : files) {
    std::ifstream file(path, std::ios::binary);
    tell(buffer_of(std::string{std::istreambuf_iterator<char>(file), {}}));
  }
  Draw draw(seed);
  std::vector<Buffer> seeds = container_seeds();
  std::erase_if(seeds, [](const Buffer& message) { return message.size() > kMostBytes; });
  const AnyMutation any = [&](Buffer& part, std::size_t most) {
    mutate_bytes(part, most, draw, seeds[draw() % seeds.size()], nullptr);
  };
  while (true) {
    Buffer message = seeds[draw() % seeds.size()];
    for (std::size_t times = 1 + draw() % 3; times > 0; --times)
      mutate_container(message, kMostBytes, any, draw);
    tell(message);
  }
}

}  // namespace
}  // namespace atomo::fuzz

int main(int argc, char** argv) {
  if (argc < 2 || argv[1][0] < '0' || argv[1][0] > '9') {
    std::fputs("usage: format_messages SEED [FILE...]\n", stderr);
    return 2;
  }
  return atomo::fuzz::run(std::strtoull(argv[1], nullptr, 10),
                          {argv + 2, static_cast<std::size_t>(argc - 2)});
}
