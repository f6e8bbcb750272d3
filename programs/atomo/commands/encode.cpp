// SPDX-License-Identifier: Apache-2.0
/// \file
/// `atomo encode` reads tensors from one or several files, encodes them as one model with one
/// codec, on the CPU or on a GPU, and writes a container. A lossless stage runs on the host in
/// either case. A report of the sizes follows, which stays off standard output when the container
/// goes there.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "atomo/compressor.hpp"
#include "atomo/own_codec.hpp"
#include "commands/commands.hpp"
#include "device/device.hpp"
#include "tensors/files.hpp"
#include "tensors/model.hpp"
#include "terminal/failure.hpp"
#include "terminal/progress.hpp"
#include "terminal/table.hpp"

namespace atomo::cli {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> inputs_of(const EncodeOptions& options) {
  if (options.paths.size() < 2) {
    throw InputError("encode needs IN and OUT, e.g. atomo encode --codec sign g.npy g.atomo");
  }
  if (has_tensor_extension(options.paths.back())) {
    throw InputError(fmt::format(
        "{}: the last path is the output, a container such as g.atomo; give IN before OUT",
        options.paths.back()));
  }
  return {options.paths.begin(), options.paths.end() - 1};
}

/// What a successful status has to say, empty for plain success.
void note(Status status) {
  if (status != Status::ok) {
    fmt::print(stderr, "atomo: note: {}\n", describe(status));
  }
}

struct Encoded {
  Buffer message;
  std::uint64_t bytes = 0;  ///< of it that were written
  Status status = Status::ok;
};

Encoded encode_on_host(const std::vector<Tensor>& tensors, const Codec& codec,
                       const EncodeOptions& options) {
  Compressor model(layer_specs(tensors), Policy(codec), {.names_on_wire = !options.without_names});
  Scratch scratch(model.encode_workspace_bytes(), options.threads, codec);
  Encoded encoded{Buffer(model.max_encoded_bytes())};
  encoded.status = model.encode(views_of(tensors), options.key,
                                {encoded.message.data.get(), encoded.message.bytes, &encoded.bytes},
                                scratch.context());
  return encoded;
}

/// A lossless stage comes after the copy to the host.
Encoded encode_on_device(const std::vector<Tensor>& tensors, const Codec& codec,
                         const EncodeOptions& options) {
  const Codec plain = codec.without_lossless();
  const auto model = make_device_model(layer_specs(tensors), Policy(plain), !options.without_names);
  model->upload(tensors);
  const DeviceRun run = model->encode(options.key);
  if (failed(run.status)) {
    return {{}, 0, run.status};
  }
  Encoded encoded{model->download_message(run.bytes), run.bytes, run.status};
  if (plain == codec) {
    return encoded;
  }
  Encoded packed{Buffer(encoded.message.bytes), 0, run.status};
  const Status status =
      pack_lossless(encoded.message.view(), {&codec, 1},
                    {packed.message.data.get(), packed.message.bytes, &packed.bytes});
  packed.status = failed(status) ? status : run.status;
  return packed;
}

}  // namespace

void run_encode(const EncodeOptions& options) {
  const std::vector<std::string> inputs = inputs_of(options);
  const Codec codec = Codec::parse(options.codec);
  require_no_memory(codec);
  if (options.device == Device::cuda) {
    require_cuda();
  }
  OutputFile out(options.paths.back());
  Progress progress("reading");
  const std::vector<Tensor> tensors = read_model(inputs);
  const std::uint64_t elements = elements_of(tensors);
  progress.set(fmt::format("encoding {} elements by {}", grouped(elements), codec.to_string()));
  const auto encode = options.device == Device::cuda ? encode_on_device : encode_on_host;
  const auto [message, bytes, status] = encode(tensors, codec, options);
  if (failed(status)) {
    throw InputError(
        fmt::format("{} could not encode this: {}", codec.to_string(), explain(status)));
  }
  progress.set("writing");
  const std::vector<ConstBytes> parts{message.view().first(bytes)};
  out.commit(parts);
  note(status);
  warn_of_bias({&codec, 1});

  const double bits = bits_per_parameter(static_cast<double>(bytes), elements);
  const bool to_pipe = out.is_standard_output();
  if (options.json) {
    const Json report{{"output", options.paths.back()},
                      {"codec", codec.to_string()},
                      {"tensors", tensors.size()},
                      {"elements", elements},
                      {"bytes", bytes},
                      {"bits_per_parameter", bits},
                      {"status", describe(status)}};
    const std::string text = report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    to_pipe ? fmt::print(stderr, "{}", text) : print(text);
  } else if (!to_pipe) {
    print(fmt::format("{}: {}, {}, {}, {} bits a parameter\n", printable(options.paths.back()),
                      counted(tensors.size(), "tensor"), counted(elements, "element"),
                      counted(bytes, "byte"), significant(bits)));
  }
}

}  // namespace atomo::cli
