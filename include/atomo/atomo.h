/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ATOMO_ATOMO_H
#define ATOMO_ATOMO_H
/// \file
/// atomo from C: what codec.hpp, compressor.hpp, container.hpp, arithmetic.hpp, patch.hpp,
/// own_codec.hpp, thread_pool.hpp and cuda.hpp offer, behind `libatomo_c` (`pkg-config atomo_c`). The
/// C++ headers say more of each, and have more: verify.hpp, catalogue.hpp, votes on a device, and
/// memories that are taken back or saved apart.
///
/// ```c
/// atomo_codec* codec = NULL;
/// if (atomo_codec_create("atomo:bits=0.5", &codec)) puts(atomo_last_error());
/// ```
///
/// - Functions that can fail return an `atomo_status`; `atomo_failed` tells notices from failures.
///   After a failure `atomo_last_error` says, in the calling thread, which value was wrong and what
///   would be right. Nothing here prints, ends the program or lets an exception out.
/// - Structs that a caller fills begin as zeros (`= {0}`): zero is every field's default,
///   `reserved` stays zero, and room for what is to come is taken from it.
/// - No pointer may be NULL unless its description says so; a NULL gives ATOMO_INVALID_ARGUMENT.
/// - Handles belong to the caller, who destroys them; destroying NULL does nothing. Codecs and
///   messages may be used by many threads at once, a compressor as compressor.hpp says.
/// - Set-up takes memory. Encoding and decoding do not, unless the codec's traits say so; for a
///   model, a thread's first call of so many layers or messages takes some for their list.

#include "c_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/// One line for a person; several notices are told one after another. The text is of static
/// storage, also for numbers that are no status.
ATOMO_API const char* atomo_status_text(atomo_status status);
/// What went wrong in the calling thread's last call that failed, "" before the first. Valid until
/// this thread's next failure; at most 2047 bytes.
ATOMO_API const char* atomo_last_error(void);

/// The ATOMO_ABI_VERSION of the library that is loaded.
ATOMO_API uint32_t atomo_abi_version(void);
/// The library's version, "0.1.0".
ATOMO_API const char* atomo_version(void);
/// The version of the containers it writes; it reads every minor of this major.
ATOMO_API atomo_status atomo_format_version(int32_t* major_out, int32_t* minor_out);

/// Loads a shared object with codecs of one's own in C++ (atomo/own_codec.hpp, docs/own-codec.md) and
/// registers them in this process. Runs code of that file. Safe from several threads at once.
/// ATOMO_INVALID_ARGUMENT, with the reason in `atomo_last_error`, for a file that cannot be loaded, was
/// built for another version of atomo, or whose names are taken.
ATOMO_API atomo_status atomo_load_codecs(const char* path);
/// Registers a codec of one's own, written in C, in this process: specs, compressors and messages then take
/// its name as they take "qsgd". What `codec` points to is copied; its functions and `user` have to stay
/// for the rest of the process. Safe from several threads at once. ATOMO_INVALID_ARGUMENT for a name of another form,
/// of the library or registered before, a key that says what cannot be, and a function that is missing.
ATOMO_API atomo_status atomo_register_codec(const atomo_own_codec* codec);
/// Takes a registered codec out; its messages are no longer read. ATOMO_INVALID_ARGUMENT if there is none.
ATOMO_API atomo_status atomo_unregister_codec(const char* name);
/// Fills `words` with the random words `first`, `first` + 1, ... (of 2^42) of a key, 32 uniform bits each,
/// the same at both ends: for codecs of one's own.
ATOMO_API atomo_status atomo_own_draws(const atomo_key* key, uint64_t first, uint32_t* words,
                                       size_t count);

/// Reads a spec, "atomo:bits=0.5". `*codec` is NULL on failure.
ATOMO_API atomo_status atomo_codec_create(const char* spec, atomo_codec** codec);
/// Gives it back; what was made with it stays.
ATOMO_API void atomo_codec_destroy(atomo_codec* codec);
/// Another codec: this one without the lossless stage behind it, which a device does not run.
ATOMO_API atomo_status atomo_codec_without_lossless(const atomo_codec* codec, atomo_codec** plain);
/// Another codec: this one without the memory in front of it, which a compressor alone keeps.
ATOMO_API atomo_status atomo_codec_without_memory(const atomo_codec* codec, atomo_codec** plain);
/// The canonical spec. Strings and states are copied out so: `*needed` (may be NULL) receives the
/// bytes it takes, the terminating zero included; `text` NULL asks for no more than that; a smaller
/// `capacity` gives ATOMO_BUFFER_TOO_SMALL and leaves `text` alone.
ATOMO_API atomo_status atomo_codec_spec(const atomo_codec* codec, char* text, size_t capacity,
                                        size_t* needed);
/// `*equal` receives 1 when both have one canonical spec, else 0.
ATOMO_API atomo_status atomo_codec_equal(const atomo_codec* a, const atomo_codec* b,
                                         int32_t* equal);
/// What the codec promises.
ATOMO_API atomo_status atomo_codec_traits(const atomo_codec* codec, atomo_traits* traits);
/// How many rows the table of codecs has: those of the library, and of the codecs that are registered now.
ATOMO_API atomo_status atomo_codec_rows(size_t* rows);
/// Row `i` of it, in the order of the documentation.
ATOMO_API atomo_status atomo_codec_row_at(size_t i, atomo_codec_row* row);

/// Capacity that suffices for a message of one tensor of this shape, whatever its values.
ATOMO_API atomo_status atomo_codec_max_encoded_bytes(const atomo_codec* codec, const int64_t* dims,
                                                     int32_t rank, atomo_dtype dtype,
                                                     size_t* bytes);
/// Bytes that a message of this shape is expected to take: all of them at a fixed size, the budget
/// of a codec with `bits=`; 0 where the values alone say.
ATOMO_API atomo_status atomo_codec_expected_bytes(const atomo_codec* codec, const int64_t* dims,
                                                  int32_t rank, atomo_dtype dtype, uint64_t* bytes);
/// That capacity where `bounded`, else 0: every worker sends it whole, and no lengths travel.
ATOMO_API atomo_status atomo_codec_wire_bytes(const atomo_codec* codec, const int64_t* dims,
                                              int32_t rank, atomo_dtype dtype, size_t* bytes);
/// Workspace for encoding this shape; device memory for ATOMO_CUDA.
ATOMO_API atomo_status atomo_codec_encode_workspace_bytes(const atomo_codec* codec,
                                                          const int64_t* dims, int32_t rank,
                                                          atomo_dtype dtype, atomo_device device,
                                                          size_t* bytes);
/// Workspace for decoding into a tensor of this shape; device memory for ATOMO_CUDA.
ATOMO_API atomo_status atomo_codec_decode_workspace_bytes(const atomo_codec* codec,
                                                          const int64_t* dims, int32_t rank,
                                                          atomo_dtype dtype, atomo_device device,
                                                          size_t* bytes);
/// Writes the tensor as a container of one layer; `*bytes` receives its length. With a tensor on a
/// CUDA device every pointer to data (`bytes`, `status`, `step` too) is a device pointer, and the
/// work is queued on the context's stream: the status returned is what the host can see.
ATOMO_API atomo_status atomo_codec_encode(const atomo_codec* codec,
                                          const atomo_const_tensor* tensor, const atomo_key* key,
                                          void* payload, size_t capacity, uint64_t* bytes,
                                          const atomo_context* context);
/// Reads a container of one layer into the tensor. Any bytes at all give a status; after a failure
/// the tensor's content is unspecified.
ATOMO_API atomo_status atomo_codec_decode(const atomo_codec* codec, const void* message,
                                          size_t message_bytes, const atomo_tensor* tensor,
                                          const atomo_context* context);
/// `x + (alpha * decoded)`, otherwise as `atomo_codec_decode`; f32 alone. Any `alpha` but NaN.
ATOMO_API atomo_status atomo_codec_decode_add(const atomo_codec* codec, const void* message,
                                              size_t message_bytes, float alpha,
                                              const atomo_tensor* tensor,
                                              const atomo_context* context);

/// Adds several messages in their order, bit for bit what one after another gives, in less time. A
/// message that is refused keeps none of the others from being added; the context's `statuses` tell
/// which it was.
ATOMO_API atomo_status atomo_codec_decode_add_all(const atomo_codec* codec,
                                                  const atomo_bytes* messages, size_t message_count,
                                                  float alpha, const atomo_tensor* tensor,
                                                  const atomo_context* context);

/// A pool of so many threads, 1 to 4096; the thread that calls is one of them.
ATOMO_API atomo_status atomo_threads_create(uint32_t count, atomo_threads** threads);
/// One part of a call's work.
typedef void (*atomo_task)(void* state, size_t i);
/// Calls `task(state, i)` once for every i below `count`, on any threads, and returns when all are
/// done. Must not throw.
typedef void (*atomo_run)(void* user, size_t count, atomo_task task, void* state);
/// Threads of the caller's own: `run` is called with `user` (may be NULL).
ATOMO_API atomo_status atomo_threads_from(atomo_run run, void* user, atomo_threads** threads);
/// Ends the threads; no call may be using them.
ATOMO_API void atomo_threads_destroy(atomo_threads* threads);

/// Handles for the current CUDA device. ATOMO_INVALID_ARGUMENT in a build without the backend.
ATOMO_API atomo_status atomo_handles_create(atomo_handles** handles);
/// Waits for the device and gives them back.
ATOMO_API void atomo_handles_destroy(atomo_handles* handles);

/// A layer to register, or one that is registered.
typedef struct atomo_layer {
  const char* name;     ///< unique in the model
  const int64_t* dims;  ///< `rank` extents of its gradient; may be NULL when `rank` is 0
  int32_t rank;         ///< 0 to 8
  atomo_dtype dtype;    ///< of its gradient; 0: f32
  uint64_t reserved;    ///< zero
} atomo_layer;

/// What is chosen once for a model.
typedef struct atomo_compressor_options {
  int32_t names_on_wire;     ///< not 0: whole-model containers carry the layers' names
  atomo_device device;       ///< where the gradients are; 0: the host
  int32_t without_lossless;  ///< not 0: every codec without the lossless stage behind it
  int32_t fixed_ranks;  ///< not 0: sketches look for as many pairs as their shapes allow, whatever
                        ///< earlier messages had a use for
  int32_t reserved[4];  ///< zero
} atomo_compressor_options;

/// The canonical text of rules "pattern = spec", one a line or separated by `;` (see
/// `atomo_codec_spec` for text, capacity and needed). `without_lossless` not 0: without those
/// stages.
ATOMO_API atomo_status atomo_policy_text(const char* policy, int32_t without_lossless, char* text,
                                         size_t capacity, size_t* needed);
/// The codec that these rules give a layer of this name.
ATOMO_API atomo_status atomo_policy_codec(const char* policy, const char* layer,
                                          atomo_codec** codec);

/// A model of `count` layers under the rules of `policy`, "*=atomo:bits=0.5", or one spec for all
/// of them. Copies what it is given. `options` may be NULL. `*compressor` is NULL on failure.
ATOMO_API atomo_status atomo_compressor_create(const atomo_layer* layers, size_t count,
                                               const char* policy,
                                               const atomo_compressor_options* options,
                                               atomo_compressor** compressor);
/// Layers [first, first + count) as a compressor whose messages belong to the steps of `compressor`: a
/// bucket of gradients as one message at the step's prices. `atomo_compressor_encode` of a part is
/// called between `atomo_compressor_begin_step` and `..._end_step` of `compressor`, with the step's
/// key, once a step; the step learns from it as from single layers. `compressor` outlives its parts,
/// which are destroyed like it. `*part` is NULL on failure. Allocates.
ATOMO_API atomo_status atomo_compressor_part(atomo_compressor* compressor, size_t first,
                                             size_t count, atomo_compressor** part);
/// Gives it back; no call may be using it.
ATOMO_API void atomo_compressor_destroy(atomo_compressor* compressor);
/// How many layers it has.
ATOMO_API atomo_status atomo_compressor_layers(const atomo_compressor* compressor, size_t* layers);
/// Layer `i`; the pointers in it are valid as long as the compressor.
ATOMO_API atomo_status atomo_compressor_layer(const atomo_compressor* compressor, size_t i,
                                              atomo_layer* layer);
/// The codec of layer `i`, a handle of its own.
ATOMO_API atomo_status atomo_compressor_codec(const atomo_compressor* compressor, size_t i,
                                              atomo_codec** codec);
/// Elements of all layers together.
ATOMO_API atomo_status atomo_compressor_elements(const atomo_compressor* compressor,
                                                 uint64_t* elements);
/// The budget of a whole message in bytes, 0 when no layer has one.
ATOMO_API atomo_status atomo_compressor_budget_bytes(const atomo_compressor* compressor,
                                                     double* bytes);
/// What messages have of their budgets from now on, and the step after the next `atomo_compressor_end_step`: 1/1024 to 1024.
/// Not within a message. Neither allocates nor waits.
ATOMO_API atomo_status atomo_compressor_set_budget_share(atomo_compressor* compressor,
                                                         double share);
/// Shares of a budget for `count` steps by their learning rates: rate^power, at least `least` of the largest, over their
/// mean; the rates are those at which an optimiser of this momentum takes each gradient (compressor.hpp,
/// `budget_shares`). `shares` may be `rates`.
ATOMO_API atomo_status atomo_budget_shares(const double* rates, size_t count, double power,
                                           double least, double momentum, double* shares);
/// Capacity that suffices for a whole message.
ATOMO_API atomo_status atomo_compressor_max_encoded_bytes(const atomo_compressor* compressor,
                                                          size_t* bytes);
/// Capacity that suffices for `atomo_compressor_encode_layer` of layer `i`.
ATOMO_API atomo_status atomo_compressor_layer_max_encoded_bytes(const atomo_compressor* compressor,
                                                                size_t i, size_t* bytes);
/// Bytes that a whole message is expected to take; 0 where a layer's values alone say.
ATOMO_API atomo_status atomo_compressor_expected_bytes(const atomo_compressor* compressor,
                                                       uint64_t* bytes);
/// Bytes that no whole message exceeds, to be sent alike; 0 where a layer's codec is not bounded.
ATOMO_API atomo_status atomo_compressor_wire_bytes(const atomo_compressor* compressor,
                                                   size_t* bytes);
/// Workspace of `atomo_compressor_encode`.
ATOMO_API atomo_status atomo_compressor_encode_workspace_bytes(const atomo_compressor* compressor,
                                                               size_t* bytes);
/// Workspace of the calls that decode whole messages.
ATOMO_API atomo_status atomo_compressor_decode_workspace_bytes(const atomo_compressor* compressor,
                                                               size_t* bytes);
/// Workspace of `atomo_compressor_encode_layer` of layer `i`.
ATOMO_API atomo_status atomo_compressor_layer_encode_workspace_bytes(
    const atomo_compressor* compressor, size_t i, size_t* bytes);
/// Workspace of the calls that decode layer `i` alone.
ATOMO_API atomo_status atomo_compressor_layer_decode_workspace_bytes(
    const atomo_compressor* compressor, size_t i, size_t* bytes);

/// One container of all layers, in registration order, at one price. One thread at a time.
ATOMO_API atomo_status atomo_compressor_encode(atomo_compressor* compressor,
                                               const atomo_const_tensor* tensors, size_t count,
                                               const atomo_key* key, void* payload, size_t capacity,
                                               uint64_t* bytes, const atomo_context* context);
/// Begins a whole message whose layers come one by one; its bytes are those of
/// `atomo_compressor_encode`. `payload`, `bytes` and the context's workspace belong to the message
/// until `atomo_compressor_end_message`. ATOMO_WRONG_STAGE while a message or a step is under way,
/// ATOMO_UNSUPPORTED on a device.
ATOMO_API atomo_status atomo_compressor_begin_message(atomo_compressor* compressor,
                                                      const atomo_key* key, void* payload,
                                                      size_t capacity, uint64_t* bytes,
                                                      const atomo_context* context);
/// Layer `i` of the message: any order, different layers on any threads at once; of a layer that is
/// added again the last counts. What the tensor points to stays as it is until the message ends. Of
/// the context the threads and `status` are used. ATOMO_WRONG_STAGE outside a message.
ATOMO_API atomo_status atomo_compressor_add_layer(atomo_compressor* compressor, size_t i,
                                                  const atomo_const_tensor* tensor,
                                                  const atomo_context* context);
/// Finds the price, does the rest of the work and ends the message, even where it fails. Of the
/// context the threads and `status` are used. ATOMO_WRONG_STAGE outside a message or when a layer was
/// not added.
ATOMO_API atomo_status atomo_compressor_end_message(atomo_compressor* compressor,
                                                    const atomo_context* context);
/// Reads a container of all layers. Thread-safe, as all that decodes, with a workspace each.
ATOMO_API atomo_status atomo_compressor_decode(const atomo_compressor* compressor,
                                               const void* message, size_t message_bytes,
                                               const atomo_tensor* tensors, size_t count,
                                               const atomo_context* context);
/// `x + (alpha * decoded)` for every layer; f32 alone. Any `alpha` but NaN.
ATOMO_API atomo_status atomo_compressor_decode_add(const atomo_compressor* compressor,
                                                   const void* message, size_t message_bytes,
                                                   float alpha, const atomo_tensor* tensors,
                                                   size_t count, const atomo_context* context);
/// `x + (alpha * decoded)` for the messages in their order, bit for bit what one after another
/// gives; a half tensor is rounded once, at the end. Any `alpha` but NaN.
ATOMO_API atomo_status atomo_compressor_decode_add_all(const atomo_compressor* compressor,
                                                       const atomo_bytes* messages,
                                                       size_t message_count, float alpha,
                                                       const atomo_tensor* tensors, size_t count,
                                                       const atomo_context* context);

/// Fixes the key, and the price as predicted from earlier steps, for layers that come one by one.
ATOMO_API atomo_status atomo_compressor_begin_step(atomo_compressor* compressor,
                                                   const atomo_key* key);
/// Fixes the key, and the prices by hand (both 0: each layer finds its own, as in the first step). A
/// price is at least 0 and an f32 whose lower 16 bits are zero; ATOMO_INVALID_ARGUMENT otherwise.
ATOMO_API atomo_status atomo_compressor_begin_step_at(atomo_compressor* compressor,
                                                      const atomo_key* key,
                                                      const atomo_prices* prices);
/// A container of layer `i`: different layers on any threads at once, each once a step.
ATOMO_API atomo_status atomo_compressor_encode_layer(atomo_compressor* compressor, size_t i,
                                                     const atomo_const_tensor* tensor,
                                                     void* payload, size_t capacity,
                                                     uint64_t* bytes, const atomo_context* context);
/// Learns from the step; of the context `status` and, on a device, `stream` are used.
ATOMO_API atomo_status atomo_compressor_end_step(atomo_compressor* compressor,
                                                 const atomo_context* context);
/// Reads a container of layer `i`.
ATOMO_API atomo_status atomo_compressor_decode_layer(const atomo_compressor* compressor, size_t i,
                                                     const void* message, size_t message_bytes,
                                                     const atomo_tensor* tensor,
                                                     const atomo_context* context);
/// `x + (alpha * decoded)` for layer `i`; f32 alone. Any `alpha` but NaN.
ATOMO_API atomo_status atomo_compressor_decode_layer_add(const atomo_compressor* compressor,
                                                         size_t i, const void* message,
                                                         size_t message_bytes, float alpha,
                                                         const atomo_tensor* tensor,
                                                         const atomo_context* context);
/// Adds several messages of layer `i`, otherwise as `atomo_codec_decode_add_all`.
ATOMO_API atomo_status atomo_compressor_decode_layer_add_all(const atomo_compressor* compressor,
                                                             size_t i, const atomo_bytes* messages,
                                                             size_t message_count, float alpha,
                                                             const atomo_tensor* tensor,
                                                             const atomo_context* context);
/// The prices of the step under way or the last one. On a device this waits for all its work.
ATOMO_API atomo_status atomo_compressor_prices(const atomo_compressor* compressor,
                                               atomo_prices* prices);
/// The prices that the next `atomo_compressor_begin_step` takes; waits likewise.
ATOMO_API atomo_status atomo_compressor_predicted_prices(const atomo_compressor* compressor,
                                                         atomo_prices* prices);
/// What the memory of layer `i` keeps, an f32 an entry: what was not sent yet, of `ef21` what was sent so far.
/// None where its codec has no memory. `*needed` (may be NULL) receives how many; `values` NULL asks for no more than that; a
/// smaller `capacity`, of values, gives ATOMO_BUFFER_TOO_SMALL. Between steps.
ATOMO_API atomo_status atomo_compressor_memory(const atomo_compressor* compressor, size_t i,
                                               float* values, size_t capacity, size_t* needed);
/// Every memory becomes zero, as in a new model. Refused within a step or message.
ATOMO_API atomo_status atomo_compressor_reset_memory(atomo_compressor* compressor);
/// What it has learnt of its price and of its layers' shares under a `cap=`, and its memories, to go on after a crash;
/// copied out as `atomo_codec_spec` says, without a terminating zero. On a device this and `atomo_compressor_load` wait.
ATOMO_API atomo_status atomo_compressor_save(const atomo_compressor* compressor, void* state,
                                             size_t capacity, size_t* needed);
/// Goes on from what was saved; ATOMO_INVALID_ARGUMENT when the bytes are no such state.
ATOMO_API atomo_status atomo_compressor_load(atomo_compressor* compressor, const void* state,
                                             size_t state_bytes);

/// What a whole container says of itself.
typedef struct atomo_message_info {
  int32_t format_major;  ///< version of the format
  int32_t format_minor;  ///< version of the format
  atomo_key key;         ///< `tensor` is that of the first layer; layers are numbered on from it
  atomo_prices prices;   ///< of the whole message; a layer may have its own
  uint64_t bytes;        ///< the whole message
  uint64_t head_bytes;   ///< header, rows, kinds, names
  uint64_t elements;     ///< of all layers together
  uint64_t layers;       ///< how many
  uint64_t reserved[2];  ///< zero
} atomo_message_info;

/// One layer of a container; its pointers are valid as long as the message's handle.
typedef struct atomo_layer_info {
  const char* name;      ///< "" unless the container carries names
  uint64_t name_bytes;   ///< of the name, which may hold zeros
  const char* codec;     ///< "atomo/rows", "qsgd:bits=4,bucket=512,norm=max", ...
  const int64_t* dims;   ///< `rank` extents of what the encoder was given
  int32_t rank;          ///< 0 to 8
  atomo_dtype dtype;     ///< what the encoder was given
  uint64_t atoms;        ///< atoms or elements, 0 where there are none or inspecting does not say
  uint64_t kept;         ///< of these, kept in this message
  uint64_t bytes;        ///< of its body on the wire
  float price;           ///< its amplitude or grid step, 0 when none
  uint8_t non_finite;    ///< 1: it held an Inf or NaN and decodes to NaN everywhere
  uint8_t lossless;      ///< 1: the body went through a lossless stage
  uint8_t thinned;       ///< 1: atoms were left out to keep a cap
  uint8_t reserved[17];  ///< zero
} atomo_layer_info;

/// Reads the head of any container, verifies its checksums and walks every body's index. `exact`
/// not 0: bytes after the message are refused. `*out` is NULL on failure, and keeps no pointer to
/// `message`.
ATOMO_API atomo_status atomo_message_inspect(const void* message, size_t message_bytes,
                                             int32_t exact, atomo_message** out);
/// Gives it back.
ATOMO_API void atomo_message_destroy(atomo_message* message);
/// The container as a whole.
ATOMO_API atomo_status atomo_message_about(const atomo_message* message, atomo_message_info* info);
/// Layer `i`, in the order of the container.
ATOMO_API atomo_status atomo_message_layer(const atomo_message* message, size_t i,
                                           atomo_layer_info* info);

/// Decodes every layer of any container, whatever codec wrote each, into host memory. Workspace:
/// `atomo_decode_workspace_bytes` of the largest layer.
ATOMO_API atomo_status atomo_decode(const void* message, size_t message_bytes,
                                    const atomo_tensor* tensors, size_t count,
                                    const atomo_context* context);
/// `x + (alpha * decoded)`, otherwise as `atomo_decode`; f32 alone. Any `alpha` but NaN.
ATOMO_API atomo_status atomo_decode_add(const void* message, size_t message_bytes, float alpha,
                                        const atomo_tensor* tensors, size_t count,
                                        const atomo_context* context);
/// Adds several messages in their order, otherwise as `atomo_codec_decode_add_all`.
ATOMO_API atomo_status atomo_decode_add_all(const atomo_bytes* messages, size_t message_count,
                                            float alpha, const atomo_tensor* tensors, size_t count,
                                            const atomo_context* context);
/// Workspace that these need for a layer of this shape, whatever its codec.
ATOMO_API atomo_status atomo_decode_workspace_bytes(const int64_t* dims, int32_t rank,
                                                    atomo_dtype dtype, size_t* bytes);
/// Joins containers of consecutive layers, in order, into one.
ATOMO_API atomo_status atomo_join(const atomo_bytes* parts, size_t count, void* payload,
                                  size_t capacity, uint64_t* bytes);
/// Capacity that suffices for it.
ATOMO_API atomo_status atomo_joined_bytes_bound(const atomo_bytes* parts, size_t count,
                                                size_t* bytes);
/// Puts each body behind the lossless stage of its layer's codec; `codecs` holds one a layer or one
/// for all. A capacity of `message_bytes` suffices; `payload` is other memory.
ATOMO_API atomo_status atomo_pack_lossless(const void* message, size_t message_bytes,
                                           const atomo_codec* const* codecs, size_t count,
                                           void* payload, size_t capacity, uint64_t* bytes);
/// Takes every body out of its lossless stage.
ATOMO_API atomo_status atomo_unpack_lossless(const void* message, size_t message_bytes,
                                             void* payload, size_t capacity, uint64_t* bytes);
/// Capacity that it needs; 0 when this is not a message.
ATOMO_API atomo_status atomo_unpacked_bytes(const void* message, size_t message_bytes,
                                            uint64_t* bytes);
/// Adds messages of coordinates on one grid step without decoding them (arithmetic.hpp). `sum` is
/// other memory than the messages.
ATOMO_API atomo_status atomo_add(const atomo_bytes* messages, size_t count, void* workspace,
                                 size_t workspace_bytes, void* sum, size_t capacity,
                                 uint64_t* bytes);
/// Every entry becomes the sign of the sum of the signs that messages of `sign` have for it, 1, -1,
/// or 0 for as many of both: a majority vote, without decoding (arithmetic.hpp). `tensors` are f32 in
/// host memory, one a layer. Workspace: `atomo_vote_workspace_bytes`.
ATOMO_API atomo_status atomo_vote(const atomo_bytes* messages, size_t message_count,
                                  const atomo_tensor* tensors, size_t count,
                                  const atomo_context* context);
/// Workspace that a vote of so many messages needs.
ATOMO_API atomo_status atomo_vote_workspace_bytes(size_t count, size_t* bytes);
/// Workspace that adding so many messages needs.
ATOMO_API atomo_status atomo_add_workspace_bytes(size_t count, size_t* bytes);
/// Capacity that suffices for the sum; 0 when the first is not a message of coordinates alone.
ATOMO_API atomo_status atomo_added_bytes_bound(const atomo_bytes* messages, size_t count,
                                               uint64_t* bytes);

/// The patch that makes `after` of `before`, two states of weights, without loss (patch.hpp). `note`
/// is kept with it, NULL for none; `threads` may be NULL. `*patch` is NULL on failure. Allocates.
ATOMO_API atomo_status atomo_patch_make(const atomo_patch_tensor* before, size_t before_count,
                                        const atomo_patch_tensor* after, size_t after_count,
                                        const void* note, size_t note_bytes, atomo_threads* threads,
                                        atomo_patch** patch);
/// A copy of a patch that was received, checked to be whole; any bytes at all may be given. `*patch`
/// is NULL on failure.
ATOMO_API atomo_status atomo_patch_read(const void* data, size_t bytes, atomo_patch** patch);
/// Gives it back.
ATOMO_API void atomo_patch_destroy(atomo_patch* patch);
/// The patch as a whole, with its bytes.
ATOMO_API atomo_status atomo_patch_about(const atomo_patch* patch, atomo_patch_info* info);
/// Tensor `i` of the new state.
ATOMO_API atomo_status atomo_patch_entry_at(const atomo_patch* patch, size_t i,
                                            atomo_patch_entry* entry);
/// Writes the new state: `out[i]` has room for `out_bytes[i]` bytes, those of entry i, and may be the
/// memory of the tensor in `before`. ATOMO_INVALID_ARGUMENT, and `atomo_last_error` names the tensor,
/// where `before` is not what the patch was made from. `threads` may be NULL.
ATOMO_API atomo_status atomo_patch_apply(const atomo_patch* patch, const atomo_patch_tensor* before,
                                         size_t before_count, void* const* out,
                                         const uint64_t* out_bytes, size_t count,
                                         atomo_threads* threads);

#ifdef __cplusplus
}
#endif
#endif
