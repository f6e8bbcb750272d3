// SPDX-License-Identifier: Apache-2.0
/// Any sequence of calls of the C interface, in any order, with any numbers: each gives a status and
/// keeps to the buffers it was given, which are of exactly the sizes that the calls are told.
#include <limits>

#include "fuzz/c_abi_world.hpp"
#include "fuzz/mutations.hpp"

namespace atomo::fuzz {
namespace {

/// One call after the other, from the bytes of an input.
class Calls {
 public:
  Calls(World& world, ConstBytes input) : w_(world), in_(input) {}

  void run() {
    for (std::size_t i = 0; i < kMostCalls && !in_.empty(); ++i) one();
  }

 private:
  using Call = void (Calls::*)();

  void one() {
    static constexpr Call kCalls[] = {
        &Calls::create_codec, &Calls::derive_codec, &Calls::ask_codec, &Calls::encode,
        &Calls::encode,       &Calls::decode,       &Calls::decode,    &Calls::create_model,
        &Calls::create_model, &Calls::part,         &Calls::destroy,   &Calls::ask_model,
        &Calls::encode_model, &Calls::encode_model, &Calls::stages,    &Calls::stages,
        &Calls::stages,       &Calls::layer,        &Calls::layer,     &Calls::decode_model,
        &Calls::decode_model, &Calls::state,        &Calls::inspect,   &Calls::whole_messages,
        &Calls::policy,       &Calls::threads};
    number_ = in_.below(std::size(kCalls));
    const Call call = kCalls[number_];
    (this->*call)();
  }
  atomo_status saw(atomo_status status) { return w_.saw(number_, status); }

  std::size_t slot() { return in_.below(kSlots); }
  atomo_codec* codec() { return w_.codecs[slot()]; }
  /// Not a size beyond what is there, which a caller must not claim.
  std::size_t size_near(std::size_t bytes) {
    const auto choice = in_.take<std::uint8_t>();
    return choice < 200   ? bytes
           : choice < 220 ? 0
           : choice < 240 ? bytes / 2
                          : bytes - std::min<std::size_t>(bytes, 1);
  }

  atomo_context context(std::size_t workspace_bytes) {
    atomo_context context{};
    const std::size_t bytes = size_near(workspace_bytes);
    context.workspace = w_.room(bytes).bytes().data();
    context.workspace_bytes = bytes;
    const auto more = in_.take<std::uint8_t>();
    if (more > 128) context.threads = w_.threads;
    if (more > 250) context.workspace = nullptr;
    if (more == 249) context.reserved[0] = 1;
    return context;
  }

  /// A message: the last one, some of it, or bytes of the input.
  ConstBytes message() {
    const auto choice = in_.take<std::uint8_t>();
    Buffer bytes = w_.sent;
    if (choice >= 160 && !bytes.empty())
      bytes[in_.take<std::uint16_t>() % bytes.size()] ^= std::byte{1};
    if (choice >= 200) mend_container(bytes);
    if (choice >= 240) {
      const ConstBytes front = in_.take_bytes(100);
      bytes.assign(front.begin(), front.end());
    }
    Room& room = w_.room(bytes.size());
    if (!bytes.empty()) std::memcpy(room.bytes().data(), bytes.data(), bytes.size());
    return room.bytes();
  }

  void sent(const Room& payload, std::uint64_t bytes, atomo_status status) {
    if (atomo_failed(status)) return;
    require(bytes <= payload.bytes().size(), "a message keeps to its capacity");
    const ConstBytes message = payload.bytes().first(bytes);
    w_.sent.assign(message.begin(), message.end());
  }

  void create_codec() {
    const std::size_t i = slot();
    atomo_codec_destroy(w_.codecs[i]);
    w_.codecs[i] = nullptr;
    if (in_.take<std::uint8_t>() > 240) {
      const std::string spec = text_of(in_.take_bytes(40));
      saw(atomo_codec_create(spec.c_str(), &w_.codecs[i]));
    } else {
      saw(atomo_codec_create(kSpecs[in_.below(std::size(kSpecs))], &w_.codecs[i]));
    }
  }
  void derive_codec() {
    atomo_codec* made = nullptr;
    const std::size_t i = slot();
    const auto choice = in_.take<std::uint8_t>();
    saw(choice % 2 == 0 ? atomo_codec_without_lossless(codec(), &made)
                        : atomo_codec_without_memory(codec(), &made));
    atomo_codec_destroy(w_.codecs[i]);
    w_.codecs[i] = made;
  }
  void ask_codec() {
    const atomo_codec* c = codec();
    char text[64];
    std::size_t needed = 0;
    const std::size_t capacity = in_.take<std::uint8_t>() % 65;
    saw(atomo_codec_spec(c, text, capacity, &needed));
    atomo_traits traits;
    saw(atomo_codec_traits(c, &traits));
    std::int32_t equal = 0;
    saw(atomo_codec_equal(c, codec(), &equal));
    atomo_codec_row row;
    saw(atomo_codec_row_at(in_.take<std::uint8_t>(), &row));
    const Dims dims(in_);
    const std::int32_t dtype = dtype_of(in_), device = in_.take<std::uint8_t>() % 3;
    std::size_t bytes = 0;
    std::uint64_t expected = 0;
    saw(atomo_codec_max_encoded_bytes(c, dims.extents, dims.rank, dtype, &bytes));
    saw(atomo_codec_expected_bytes(c, dims.extents, dims.rank, dtype, &expected));
    saw(atomo_codec_wire_bytes(c, dims.extents, dims.rank, dtype, &bytes));
    saw(atomo_codec_encode_workspace_bytes(c, dims.extents, dims.rank, dtype, device, &bytes));
    saw(atomo_codec_decode_workspace_bytes(c, dims.extents, dims.rank, dtype, device, nullptr));
  }

  /// A tensor, whose memory is there where its extents are sound.
  template <typename Tensor>
  Tensor tensor_of(const Dims& dims, std::int32_t dtype) {
    Tensor tensor{};
    tensor.dims = dims.extents;
    tensor.rank = dims.rank;
    tensor.dtype = dtype;
    const bool sound = dims.sound && dtype >= 0 && dtype <= 2;
    const std::size_t bytes = sound ? dims.elements * bytes_of(dtype) : 0;
    Room& room = w_.room(bytes, 0x3C);
    tensor.data = sound ? room.bytes().data() : nullptr;
    for (std::size_t i = 0; i + 4 <= bytes && i < 64; i += 4) {
      const auto value = in_.take<std::uint32_t>();
      std::memcpy(room.bytes().data() + i, &value, 4);
    }
    const auto more = in_.take<std::uint8_t>();
    if (more > 250) tensor.data = nullptr;
    if (more == 249) tensor.device = ATOMO_CUDA;
    if (more == 248) tensor.reserved = 1;
    return tensor;
  }

  void encode() {
    const atomo_codec* c = codec();
    const Dims dims(in_);
    const std::int32_t dtype = dtype_of(in_);
    std::size_t capacity = 0, workspace = 0;
    const auto tensor = tensor_of<atomo_const_tensor>(dims, dtype);
    if (atomo_failed(
            saw(atomo_codec_max_encoded_bytes(c, dims.extents, dims.rank, dtype, &capacity))) ||
        capacity > 1 << 20)
      capacity = 0;
    if (atomo_failed(saw(atomo_codec_encode_workspace_bytes(c, dims.extents, dims.rank, dtype,
                                                            ATOMO_CPU, &workspace))) ||
        workspace > 1 << 22)
      workspace = 0;
    const Room& payload = w_.room(size_near(capacity));
    const atomo_key key = key_of(in_);
    const atomo_context context = this->context(workspace);
    std::uint64_t& bytes = w_.word();
    sent(payload, bytes,
         saw(atomo_codec_encode(c, &tensor, &key, payload.bytes().data(), payload.bytes().size(),
                                &bytes, &context)));
  }
  void decode() {
    const atomo_codec* c = codec();
    const Dims dims(in_);
    const std::int32_t dtype = dtype_of(in_);
    const auto tensor = tensor_of<atomo_tensor>(dims, dtype);
    const ConstBytes m = message();
    std::size_t workspace = 0;
    if (atomo_failed(saw(atomo_codec_decode_workspace_bytes(c, dims.extents, dims.rank, dtype,
                                                            ATOMO_CPU, &workspace))) ||
        workspace > 1 << 22)
      workspace = 0;
    const atomo_context context = this->context(workspace);
    const atomo_bytes both[] = {{m.data(), m.size()}, {m.data(), m.size()}};
    switch (in_.below(4)) {
      case 0:
        saw(atomo_codec_decode(c, m.data(), m.size(), &tensor, &context));
        break;
      case 1:
        saw(atomo_codec_decode_add(c, m.data(), m.size(), in_.take<float>(), &tensor, &context));
        break;
      case 2:
        saw(atomo_codec_decode_add_all(c, both, in_.below(3), in_.take<float>(), &tensor,
                                       &context));
        break;
      default: {
        std::size_t bytes = 0;
        if (!atomo_failed(
                saw(atomo_decode_workspace_bytes(dims.extents, dims.rank, dtype, &bytes))) &&
            bytes < 1 << 22) {
          atomo_context any = context;
          any.workspace = w_.room(bytes).bytes().data(), any.workspace_bytes = bytes;
          saw(atomo_decode(m.data(), m.size(), &tensor, 1, &any));
          saw(atomo_decode_add_all(both, 2, 0.5f, &tensor, 1, &any));
        }
      }
    }
  }

  void create_model() {
    const std::size_t i = slot();
    w_.destroy_model(i);
    const std::size_t count = in_.below(4);
    constexpr const char* kNames[] = {"a", "b", "ab", "a"};
    const bool twice = in_.take<std::uint8_t>() > 240;
    std::vector<Dims> dims;
    std::vector<atomo_layer> layers;
    dims.reserve(count);
    for (std::size_t k = 0; k < count; ++k) {
      dims.emplace_back(in_);
      layers.push_back({twice ? "a" : kNames[k], dims.back().extents, dims.back().rank,
                        in_.take<std::uint8_t>() % 3, 0});
    }
    atomo_compressor_options options{};
    const auto more = in_.take<std::uint8_t>();
    options.names_on_wire = more % 2;
    options.fixed_ranks = more / 2 % 2;
    if (more > 250) options.device = ATOMO_CUDA;
    const atomo_status status = saw(atomo_compressor_create(
        layers.data(), count, kPolicies[in_.below(std::size(kPolicies))], &options, &w_.models[i]));
    std::size_t bytes = 0;
    if (!atomo_failed(status) &&
        (atomo_failed(atomo_compressor_encode_workspace_bytes(w_.models[i], &bytes)) ||
         bytes > 1 << 24))
      w_.destroy_model(i);
  }
  void part() {
    const std::size_t from = slot(), to = slot();
    if (from == to) return;
    w_.destroy_model(to);
    saw(atomo_compressor_part(w_.models[from], in_.below(4), in_.below(4), &w_.models[to]));
    w_.is_part[to] = w_.models[to] != nullptr;
    w_.whole_of[to] = static_cast<int>(from);
  }
  void destroy() { w_.destroy_model(slot()); }

  void ask_model() {
    atomo_compressor* m = w_.models[slot()];
    const std::size_t i = in_.take<std::uint8_t>() % 5;
    std::size_t size = 0;
    std::uint64_t number = 0;
    double budget = 0;
    atomo_prices prices;
    atomo_layer layer;
    atomo_codec* c = nullptr;
    saw(atomo_compressor_layers(m, &size));
    saw(atomo_compressor_layer(m, i, &layer));
    saw(atomo_compressor_codec(m, i, &c));
    atomo_codec_destroy(c);
    saw(atomo_compressor_elements(m, &number));
    saw(atomo_compressor_budget_bytes(m, &budget));
    saw(atomo_compressor_set_budget_share(m, in_.take<float>()));
    saw(atomo_compressor_expected_bytes(m, &number));
    saw(atomo_compressor_wire_bytes(m, &size));
    saw(atomo_compressor_prices(m, &prices));
    saw(atomo_compressor_predicted_prices(m, &prices));
    Room& values = w_.room(4 * (in_.take<std::uint16_t>() % kMostElements));
    saw(atomo_compressor_memory(m, i, reinterpret_cast<float*>(values.bytes().data()),
                                values.bytes().size() / 4, &size));
  }

  /// Tensors of a model's layers, perhaps one fewer.
  template <typename Tensor>
  std::vector<Tensor> tensors_of(const atomo_compressor* m) {
    std::size_t count = 0;
    std::vector<Tensor> tensors;
    if (atomo_failed(atomo_compressor_layers(m, &count))) return tensors;
    for (std::size_t i = 0; i < count; ++i) tensors.push_back(tensor_of_layer<Tensor>(m, i));
    if (in_.take<std::uint8_t>() > 245 && !tensors.empty()) tensors.pop_back();
    return tensors;
  }
  template <typename Tensor>
  Tensor tensor_of_layer(const atomo_compressor* m, std::size_t i) {
    Tensor tensor{};
    atomo_layer layer;
    if (atomo_failed(atomo_compressor_layer(m, i, &layer))) return tensor;
    std::size_t elements = 1;
    for (std::int32_t k = 0; k < layer.rank; ++k)
      elements *= static_cast<std::size_t>(layer.dims[k]);
    const std::size_t bytes = elements * bytes_of(layer.dtype);
    Room& room = w_.room(bytes, 0x3C);
    const auto value = in_.take<std::uint32_t>();
    if (bytes >= 4) std::memcpy(room.bytes().data(), &value, 4);
    tensor.data = room.bytes().data();
    tensor.dims = layer.dims, tensor.rank = layer.rank, tensor.dtype = layer.dtype;
    return tensor;
  }

  void encode_model() {
    atomo_compressor* m = w_.models[slot()];
    std::size_t capacity = 0, workspace = 0;
    saw(atomo_compressor_max_encoded_bytes(m, &capacity));
    saw(atomo_compressor_encode_workspace_bytes(m, &workspace));
    const auto tensors = tensors_of<atomo_const_tensor>(m);
    const Room& payload = w_.room(size_near(capacity));
    const atomo_key key = key_of(in_);
    const atomo_context context = this->context(workspace);
    std::uint64_t& bytes = w_.word();
    sent(
        payload, bytes,
        saw(atomo_compressor_encode(m, tensors.data(), tensors.size(), &key, payload.bytes().data(),
                                    payload.bytes().size(), &bytes, &context)));
  }

  /// Begins and ends of steps and messages.
  void stages() {
    atomo_compressor* m = w_.models[slot()];
    const atomo_key key = key_of(in_);
    std::size_t capacity = 0, workspace = 0;
    switch (in_.below(6)) {
      case 0: {
        saw(atomo_compressor_max_encoded_bytes(m, &capacity));
        saw(atomo_compressor_encode_workspace_bytes(m, &workspace));
        const Room& payload = w_.room(size_near(capacity));
        const atomo_context context = this->context(workspace);
        saw(atomo_compressor_begin_message(m, &key, payload.bytes().data(), payload.bytes().size(),
                                           &w_.word(), &context));
        break;
      }
      case 1: {
        const std::size_t i = in_.below(4);
        const auto tensor = tensor_of_layer<atomo_const_tensor>(m, i);
        saw(atomo_compressor_add_layer(m, i, &tensor, nullptr));
        break;
      }
      case 2:
        saw(atomo_compressor_end_message(m, nullptr));
        break;
      case 3:
        saw(atomo_compressor_begin_step(m, &key));
        break;
      case 4: {
        const atomo_prices prices{in_.take<float>(), in_.take<float>()};
        saw(atomo_compressor_begin_step_at(m, &key, &prices));
        break;
      }
      default:
        saw(atomo_compressor_end_step(m, nullptr));
    }
  }
  void layer() {
    atomo_compressor* m = w_.models[slot()];
    const std::size_t i = in_.below(4);
    std::size_t capacity = 0, workspace = 0, reading = 0;
    saw(atomo_compressor_layer_max_encoded_bytes(m, i, &capacity));
    saw(atomo_compressor_layer_encode_workspace_bytes(m, i, &workspace));
    saw(atomo_compressor_layer_decode_workspace_bytes(m, i, &reading));
    if (in_.take<std::uint8_t>() % 2 == 0) {
      const auto tensor = tensor_of_layer<atomo_const_tensor>(m, i);
      const Room& payload = w_.room(size_near(capacity));
      const atomo_context context = this->context(workspace);
      std::uint64_t& bytes = w_.word();
      sent(payload, bytes,
           saw(atomo_compressor_encode_layer(m, i, &tensor, payload.bytes().data(),
                                             payload.bytes().size(), &bytes, &context)));
    } else {
      const auto tensor = tensor_of_layer<atomo_tensor>(m, i);
      const ConstBytes bytes = message();
      const atomo_context context = this->context(reading);
      saw(atomo_compressor_decode_layer(m, i, bytes.data(), bytes.size(), &tensor, &context));
      saw(atomo_compressor_decode_layer_add(m, i, bytes.data(), bytes.size(), in_.take<float>(),
                                            &tensor, &context));
    }
  }
  void decode_model() {
    atomo_compressor* m = w_.models[slot()];
    const auto tensors = tensors_of<atomo_tensor>(m);
    const ConstBytes bytes = message();
    std::size_t workspace = 0;
    saw(atomo_compressor_decode_workspace_bytes(m, &workspace));
    const atomo_context context = this->context(workspace);
    const atomo_bytes both[] = {{bytes.data(), bytes.size()}, {bytes.data(), bytes.size()}};
    saw(atomo_compressor_decode(m, bytes.data(), bytes.size(), tensors.data(), tensors.size(),
                                &context));
    saw(atomo_compressor_decode_add(m, bytes.data(), bytes.size(), in_.take<float>(),
                                    tensors.data(), tensors.size(), &context));
    saw(atomo_compressor_decode_add_all(m, both, in_.below(3), 0.5f, tensors.data(), tensors.size(),
                                        &context));
  }
  void state() {
    atomo_compressor* m = w_.models[slot()];
    std::size_t needed = 0;
    saw(atomo_compressor_save(m, nullptr, 0, &needed));
    const Room& room = w_.room(size_near(needed));
    saw(atomo_compressor_save(m, room.bytes().data(), room.bytes().size(), &needed));
    const std::size_t flipped = in_.take<std::uint16_t>();
    if (flipped % 2 == 0 && !room.bytes().empty())
      room.bytes()[flipped % room.bytes().size()] ^= std::byte{16};
    saw(atomo_compressor_load(w_.models[slot()], room.bytes().data(), room.bytes().size()));
    if (flipped % 5 == 0) saw(atomo_compressor_reset_memory(m));
  }
  void inspect() {
    atomo_message_destroy(w_.message);
    w_.message = nullptr;
    const ConstBytes bytes = message();
    saw(atomo_message_inspect(bytes.data(), bytes.size(), in_.take<std::uint8_t>() % 2,
                              &w_.message));
    atomo_message_info about;
    atomo_layer_info info;
    saw(atomo_message_about(w_.message, &about));
    saw(atomo_message_layer(w_.message, in_.below(4), &info));
  }
  void whole_messages() {
    const ConstBytes a = message(), b = message();
    const atomo_bytes both[] = {{a.data(), a.size()}, {b.data(), b.size()}};
    const std::size_t count = in_.below(3);
    std::size_t bound = 0;
    std::uint64_t bytes = 0, unpacked = 0, added = 0;
    saw(atomo_joined_bytes_bound(both, count, &bound));
    const Room& joined = w_.room(size_near(std::min<std::size_t>(bound, 1 << 20)));
    saw(atomo_join(both, count, joined.bytes().data(), joined.bytes().size(), &bytes));
    saw(atomo_unpacked_bytes(a.data(), a.size(), &unpacked));
    const Room& plain = w_.room(std::min<std::size_t>(unpacked, 1 << 20));
    saw(atomo_unpack_lossless(a.data(), a.size(), plain.bytes().data(), plain.bytes().size(),
                              &bytes));
    const Room& packed = w_.room(a.size());
    const atomo_codec* const codecs[] = {w_.codecs[0], w_.codecs[1]};
    saw(atomo_pack_lossless(a.data(), a.size(), codecs, in_.below(3), packed.bytes().data(),
                            packed.bytes().size(), &bytes));
    saw(atomo_add_workspace_bytes(count, &bound));
    saw(atomo_added_bytes_bound(both, count, &added));
    const Room &workspace = w_.room(bound), &sum = w_.room(std::min<std::size_t>(added, 1 << 20));
    sent(sum, bytes,
         saw(atomo_add(both, count, workspace.bytes().data(), workspace.bytes().size(),
                       sum.bytes().data(), sum.bytes().size(), &bytes)));
  }
  void policy() {
    const std::string text = in_.take<std::uint8_t>() % 2 == 0
                                 ? kPolicies[in_.below(std::size(kPolicies))]
                                 : text_of(in_.take_bytes(40));
    char written[64];
    std::size_t needed = 0;
    saw(atomo_policy_text(text.c_str(), in_.take<std::uint8_t>() % 2, written,
                          in_.take<std::uint8_t>() % 65, &needed));
    atomo_codec* c = nullptr;
    saw(atomo_policy_codec(text.c_str(), "ab", &c));
    atomo_codec_destroy(c);
  }
  void threads() {
    if (w_.threads != nullptr) return;  // messages under way may be using them
    const auto choice = in_.take<std::uint8_t>();
    if (choice % 2 == 0) {
      saw(atomo_threads_create(choice < 250 ? choice % 3 : 5000, &w_.threads));
    } else {
      const atomo_run backwards = [](void*, std::size_t count, atomo_task task, void* state) {
        for (std::size_t i = count; i > 0; --i) task(state, i - 1);
      };
      saw(atomo_threads_from(choice < 250 ? backwards : nullptr, nullptr, &w_.threads));
    }
  }

  World& w_;
  Input in_;
  std::size_t number_ = 0;
};

std::uint64_t run(ConstBytes input) {
  World world;
  Calls(world, input).run();
  return world.sight;
}

std::vector<Buffer> seeds() {
  std::vector<Buffer> all;
  Draw draw(3);
  for (int i = 0; i < 64; ++i) {
    Buffer seed(64 + draw() % 256);
    for (std::byte& b : seed) b = static_cast<std::byte>(draw() % (draw() % 4 == 0 ? 256 : 26));
    all.push_back(seed);
  }
  return all;
}

}  // namespace

const Target kTarget{600, run, seeds, mutate_plainly, nullptr};

}  // namespace atomo::fuzz
