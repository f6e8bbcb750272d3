// SPDX-License-Identifier: Apache-2.0
/// \file
/// The functions of the module `_atomo` that need no codec object are defined here. `inspect`
/// describes a message as a dictionary, `decode` fills arrays from it, `add` and `join` make one
/// message of several, `draws` has the random words of a key, and `codecs` lists the codecs of the
/// library. Those that work on messages take their scratch memory from one pool.

#include "messages.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "arrays.hpp"
#include "atomo/arithmetic.hpp"
#include "atomo/codec.hpp"
#include "atomo/container.hpp"
#include "atomo/own_codec.hpp"
#include "workspaces.hpp"

namespace atomo::python {
namespace {

/// Of the functions here, which have no object to keep it.
WorkspacePool& pool() {
  static WorkspacePool pool;
  return pool;
}

nb::dict row_of(const LayerInfo& layer) {
  nb::dict row;
  row["name"] = layer.name;
  row["codec"] = layer.codec;
  row["dtype"] = std::string(atomo::name_of(layer.dtype));
  row["shape"] = tuple_of(layer.shape);
  row["price"] = layer.price;
  row["atoms"] = layer.atoms;
  row["kept"] = layer.kept;
  row["bytes"] = layer.bytes;
  row["non_finite"] = layer.non_finite;
  row["lossless"] = layer.lossless;
  row["thinned"] = layer.thinned;
  return row;
}

nb::dict inspect(nb::handle payload, bool exact) {
  const Memory message(payload, Access::read, "payload");
  const ConstBytes bytes = message.on_host();
  ContainerInfo info;
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    status = atomo::inspect(bytes, info, exact);
  }
  check_decoded(status);
  nb::dict key;
  key["seed"] = info.key.seed;
  key["step"] = info.key.step;
  key["tensor"] = info.key.tensor;
  key["worker"] = info.key.worker;
  key["channel"] = info.key.channel;
  nb::list layers;
  for (const LayerInfo& layer : info.layers) layers.append(row_of(layer));
  nb::dict found;
  found["version"] = nb::make_tuple(info.major, info.minor);
  found["key"] = key;
  found["prices"] = nb::make_tuple(info.prices.atoms, info.prices.grid);
  found["bytes"] = info.bytes;
  found["head_bytes"] = info.head_bytes;
  found["layers"] = layers;
  return found;
}

/// `alpha` nothing: overwrites.
void decode_or_add(nb::handle payload, nb::handle out, std::optional<float> alpha) {
  const Memory message(payload, Access::read, "payload");
  const Arrays arrays(out, Access::write, "out");
  arrays.require_host();
  if (alpha) arrays.require_f32();
  const ConstBytes bytes = message.on_host();
  const std::vector<TensorView> views = arrays.writable();
  std::size_t scratch = 0;
  for (const TensorView& view : views)
    scratch = std::max(scratch, decode_workspace_bytes(view.shape, view.dtype));
  const auto workspace = pool().take(scratch);
  const Context context{.workspace = workspace.bytes()};
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    status = alpha ? atomo::decode_add(bytes, *alpha, views, context)
                   : atomo::decode(bytes, views, context);
  }
  check_decoded(status);
}

void decode(nb::handle payload, nb::handle out) { decode_or_add(payload, out, {}); }

void decode_add(nb::handle payload, nb::handle out, nb::handle alpha) {
  decode_or_add(payload, out, alpha_of(alpha));
}

void decode_add_all(nb::list payloads, nb::handle out, nb::handle alpha) {
  const float factor = alpha_of(alpha);
  const Messages messages(payloads);
  messages.require_host();
  const Arrays arrays(out, Access::write, "out");
  arrays.require_host();
  arrays.require_f32();
  const std::vector<TensorView> views = arrays.writable();
  std::size_t scratch = 0;
  for (const TensorView& view : views)
    scratch = std::max(scratch, decode_workspace_bytes(view.shape, view.dtype));
  const auto workspace = pool().take(scratch);
  std::vector<Status> each(messages.bytes.size());
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    status = atomo::decode_add_all(messages.bytes, factor, views,
                                   {.workspace = workspace.bytes(), .statuses = each.data()});
  }
  check_added(status, each);
}

void vote(nb::list payloads, nb::handle out) {
  const Messages messages(payloads);
  messages.require_host();
  const Arrays arrays(out, Access::write, "out");
  arrays.require_host();
  arrays.require_f32();
  const std::vector<TensorView> views = arrays.writable();
  const auto workspace = pool().take(vote_workspace_bytes(messages.bytes.size()));
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    status = atomo::vote(messages.bytes, views, {.workspace = workspace.bytes()});
  }
  check_decoded(status);
}

nb::bytes add(nb::list payloads) {
  const Messages messages(payloads);
  messages.require_host();
  std::uint64_t capacity = 0;
  {
    const nb::gil_scoped_release gil_released;
    capacity = added_bytes_bound(messages.bytes);
    // Where there is no bound the messages do not add; `add` says why when it has room to look.
    if (capacity == 0) capacity = joined_bytes_bound(messages.bytes);
  }
  const auto sum = pool().take(static_cast<std::size_t>(capacity));
  const auto workspace = pool().take(add_workspace_bytes(messages.bytes.size()));
  std::uint64_t bytes = 0;
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    status = atomo::add(messages.bytes, workspace.bytes(),
                        {sum.bytes().data(), sum.bytes().size(), &bytes});
  }
  check_decoded(status);
  return bytes_of(sum.bytes(), bytes);
}

nb::bytes join(nb::list payloads) {
  const Messages messages(payloads);
  messages.require_host();
  const auto joined = pool().take(joined_bytes_bound(messages.bytes));
  std::uint64_t bytes = 0;
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    status = atomo::join(messages.bytes, {joined.bytes().data(), joined.bytes().size(), &bytes});
  }
  check_decoded(status);
  return bytes_of(joined.bytes(), bytes);
}

/// Words of the draws of a key, as bytes, and the shape of `count`: FORMAT.md, purpose `own`.
nb::tuple draws(nb::handle key, nb::handle first, nb::handle count) {
  constexpr std::uint64_t kWords = std::uint64_t{1} << 42;
  const Key of = key_of(key.attr("seed"), key.attr("step"), key.attr("worker"), key.attr("channel"),
                        key.attr("tensor"));
  const std::uint64_t begin = integer_of(first, "first", kWords - 1);
  const Shape shape = shape_of(count, "count");
  if (shape.elements() > kWords - begin) {
    throw Error("first is " + std::to_string(begin) + ", count " +
                std::to_string(shape.elements()) + ": a key has 2^42 words");
  }
  std::vector<std::uint32_t> words(shape.elements());
  {
    const nb::gil_scoped_release gil_released;
    own_draws(of, begin, words);
  }
  return nb::make_tuple(nb::bytes(words.data(), 4 * words.size()), tuple_of(shape));
}

nb::list codecs() {
  nb::list rows;
  for (const CodecHelp& codec : list_codecs()) {
    nb::dict row;
    row["name"] = codec.name;
    row["keys"] = codec.keys;
    row["summary"] = codec.summary;
    row["example"] = codec.example;
    rows.append(row);
  }
  return rows;
}

}  // namespace

void bind_messages(nb::module_& module) {
  module.def("inspect", &inspect, nb::arg("payload").none(), nb::arg("exact"));
  module.def("decode_add_all", &decode_add_all, nb::arg("payloads"), nb::arg("out").none(),
             nb::arg("alpha").none());
  module.def("alpha_of", &alpha_of, nb::arg("alpha").none());
  module.def("decode", &decode, nb::arg("payload").none(), nb::arg("out").none());
  module.def("decode_add", &decode_add, nb::arg("payload").none(), nb::arg("out").none(),
             nb::arg("alpha").none());
  module.def("add", &add, nb::arg("payloads"));
  module.def("vote", &vote, nb::arg("payloads"), nb::arg("out").none());
  module.def("join", &join, nb::arg("payloads"));
  module.def("draws", &draws, nb::arg("key").none(), nb::arg("first").none(),
             nb::arg("count").none());
  module.def("codecs", &codecs);
}

}  // namespace atomo::python
