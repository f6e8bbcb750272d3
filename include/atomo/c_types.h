/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ATOMO_C_TYPES_H
#define ATOMO_C_TYPES_H
/// \file
/// What the functions of the C interface take and return: statuses, handles, tensors, keys, contexts.

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define ATOMO_API __attribute__((visibility("default")))
#else
/// What the shared library shows.
#define ATOMO_API
#endif

/// The version of this header. Versions of one number are compatible: functions and uses of
/// `reserved` are added.
#define ATOMO_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/// What a call came to: ATOMO_OK; one or more notices, which are flags; or one failure, which stands
/// alone.
typedef int32_t atomo_status;
/// The flags and numbers that a status is made of. From 256 on the call failed, from 512 on before
/// the library began.
enum atomo_status_value {
  ATOMO_OK = 0,
  ATOMO_NON_FINITE = 1,  ///< notice: a layer held an Inf or NaN and decodes to NaN everywhere
  ATOMO_UNDERSPENT = 2,  ///< notice: the budget is above what the finest class can spend
  ATOMO_OVERFLOW = 4,    ///< notice: a value too large for the half output became +-Inf
  ATOMO_OVERSPENT = 8,   ///< notice: the budget pays for no message worth sending: it is exceeded

  ATOMO_BUFFER_TOO_SMALL = 256,     ///< a capacity is below what the call needs
  ATOMO_WORKSPACE_TOO_SMALL = 257,  ///< the workspace is below what the query of its size says
  ATOMO_TRUNCATED = 258,            ///< the message ends before its header says
  ATOMO_BAD_MAGIC = 259,            ///< not an atomo container
  ATOMO_BAD_VERSION = 260,          ///< a format version or flag this build does not know
  ATOMO_BAD_CHECKSUM = 261,         ///< bytes changed since they were written
  ATOMO_CORRUPT = 262,              ///< the checksums hold, the content breaks the format's rules
  ATOMO_SHAPE_MISMATCH = 263,       ///< other layers than the caller's tensors, or than come next
  ATOMO_CODEC_MISMATCH = 264,       ///< the container was written by another codec
  ATOMO_UNSUPPORTED = 265,  ///< this dtype, device or size is not supported by this codec or call
  ATOMO_EXTERNAL = 266,     ///< a library below (LAPACK, blosc, CUDA) reported failure
  ATOMO_PRICE_MISMATCH = 267,    ///< messages of other prices or grid steps do not add or join
  ATOMO_TOO_LARGE = 268,         ///< a sum is beyond what a message can hold
  ATOMO_INVALID_ARGUMENT = 269,  ///< a mistake of the caller; `atomo_last_error` names it
  ATOMO_WRONG_STAGE = 270,       ///< a call out of its order: a step is or is not under way
  ATOMO_CODEC_UNKNOWN = 271,     ///< a layer's codec is not the library's, and not loaded here
  ATOMO_CODEC_FAILED = 272,      ///< a loaded codec failed; atomo_last_error has its words

  ATOMO_OUT_OF_MEMORY = 512,  ///< there was no memory for it
  ATOMO_INTERNAL = 513        ///< a mistake of the library's
};

/// 1 when the call did not do what was asked, else 0.
static inline int atomo_failed(atomo_status status) { return status >= ATOMO_BUFFER_TOO_SMALL; }
/// 1 when the status is no failure and holds this notice, else 0.
static inline int atomo_has(atomo_status status, atomo_status notice) {
  return !atomo_failed(status) && (status & notice) != 0;
}
/// An element type, one of `atomo_dtype_value`.
typedef int32_t atomo_dtype;
/// Element types accepted at the boundary. Arithmetic is f32.
enum atomo_dtype_value { ATOMO_F32 = 0, ATOMO_F16 = 1, ATOMO_BF16 = 2 };
/// Where memory is, one of `atomo_device_value`.
typedef int32_t atomo_device;
/// The host, or the CUDA device that is current.
enum atomo_device_value { ATOMO_CPU = 0, ATOMO_CUDA = 1 };

typedef struct atomo_codec atomo_codec;            ///< how one tensor becomes a message: immutable
typedef struct atomo_compressor atomo_compressor;  ///< a model: layers, a codec each, one price
typedef struct atomo_threads atomo_threads;        ///< threads that share the work of one call
typedef struct atomo_handles atomo_handles;        ///< cuBLAS and cuSOLVER of a CUDA caller
typedef struct atomo_message atomo_message;        ///< what a container holds, read from its head
typedef struct atomo_patch atomo_patch;            ///< a patch of weights: its bytes, what they say

/// A tensor to read: dense, row-major, aligned as its elements are. All zeros: a scalar without
/// data.
typedef struct atomo_const_tensor {
  const void* data;     ///< the first element; may be NULL when there are none
  const int64_t* dims;  ///< `rank` extents of at least 0, at most 2^40 elements; may be NULL at 0
  int32_t rank;         ///< 0 (a scalar of one element) to 8
  atomo_dtype dtype;    ///< of every element; 0: f32
  atomo_device device;  ///< where `data` points; 0: the host
  int32_t reserved;     ///< zero
} atomo_const_tensor;

/// A tensor to write, otherwise as `atomo_const_tensor`.
typedef struct atomo_tensor {
  void* data;           ///< the first element; may be NULL when there are none
  const int64_t* dims;  ///< `rank` extents of at least 0, at most 2^40 elements; may be NULL at 0
  int32_t rank;         ///< 0 (a scalar of one element) to 8
  atomo_dtype dtype;    ///< of every element; 0: f32
  atomo_device device;  ///< where `data` points; 0: the host
  int32_t reserved;     ///< zero
} atomo_tensor;

/// A message among several.
typedef struct atomo_bytes {
  const void* data;  ///< its first byte, any alignment
  size_t bytes;      ///< from there on; may be more than the message's own length
} atomo_bytes;

/// What every random draw of a message is a function of. No two messages of a run share a key.
typedef struct atomo_key {
  uint64_t seed;         ///< of the run
  uint32_t step;         ///< of the training
  uint16_t tensor;       ///< the layer's number in its model; 0 for a compressor
  uint16_t worker;       ///< the sender's rank
  uint16_t channel;      ///< direction, or how often this was encoded again on its way
  uint16_t reserved[3];  ///< zero
} atomo_key;

/// The legacy default stream by name, `cudaStreamLegacy`: calls on CUDA tensors refuse NULL.
#define ATOMO_LEGACY_STREAM ((void*)(uintptr_t)1)

/// What a call may use. NULL in its place is one of all zeros.
typedef struct atomo_context {
  void* stream;            ///< a cudaStream_t, not NULL on CUDA; unused on the CPU
  void* workspace;         ///< scratch of this call, any alignment; not shared by calls at once
  size_t workspace_bytes;  ///< of `workspace`
  atomo_threads* threads;  ///< NULL: the calling thread alone
  atomo_handles* handles;  ///< for encoding singular pairs on CUDA; NULL otherwise
  atomo_status* status;    ///< receives the status too (a device word on CUDA); NULL: not wanted
  const uint32_t* step;    ///< overrides the key's step (a device word on CUDA); NULL: does not
  const atomo_key* key;    ///< overrides the key given (device memory on CUDA); NULL: does not
  /// Room for a status of each message that a call decodes (device words on CUDA): which of several
  /// was refused. NULL: not wanted. Left alone where the call as a whole is refused.
  atomo_status* statuses;
  uint64_t reserved[1];  ///< zero
} atomo_context;

/// The prices of a message or a step, each 0 where there is none.
typedef struct atomo_prices {
  float atoms;  ///< the amplitude of an atom that is only just certain to be sent
  float grid;   ///< the step of the grid of coordinates
} atomo_prices;

/// What a codec promises; booleans are 0 or 1. See Traits in types.hpp.
typedef struct atomo_traits {
  double bias_bound;   ///< |E[decoded] - x| <= bias_bound * (|x| + step); infinite when biased
  double omega;        ///< E||decoded - g||^2 <= omega ||g||^2; 0 without `has_omega`
  double contraction;  ///< E||decoded - g||^2 <= (1 - contraction) ||g||^2; 0 without its flag
  double largest;      ///< |decoded_i| <= largest * max |g|; 0 without `has_largest`
  double step;         ///< of a fixed grid; 0 where the grid follows the tensor
  double smallest;     ///< the promises above are about largest magnitudes from here on, and zeros
  double highest;      ///< and not above this; infinite where a message holds every float
  uint8_t has_omega;   ///< `omega` is known without seeing g
  uint8_t has_contraction;        ///< `contraction` is known without seeing g
  uint8_t has_largest;            ///< `largest` is known without seeing g
  uint8_t unbiased;               ///< E[decoded] = g for every finite g, up to `bias_bound`
  uint8_t linear;                 ///< messages add without decoding
  uint8_t averages_over_workers;  ///< the mean's variance falls with the number of workers
  uint8_t fixed_size;             ///< the size depends on the shape alone
  uint8_t allocates;              ///< encode or decode takes heap memory
  uint8_t synchronises;           ///< encode or decode waits for the device
  uint8_t capturable;             ///< can be captured into a CUDA graph
  uint8_t cpu;                    ///< runs on the CPU
  uint8_t cuda;                   ///< has a CUDA twin
  uint8_t bounded;                ///< a fixed size or a `cap=`: `wire_bytes` says which
  uint8_t memory;                 ///< keeps what it has not sent: a compressor alone encodes
  uint8_t votes;                  ///< of signs: `atomo_vote` counts them
  uint8_t differences;            ///< of `ef21`: add what messages decode to up from step to step
  uint8_t reserved[8];            ///< zero
} atomo_traits;

/// A key of the specs of a codec of one's own, `levels=8` of `mine:levels=8`.
typedef struct atomo_codec_key {
  const char* name;     ///< "levels": small letters, digits, `_` or `-`
  const char* choices;  ///< "max|l2": it is one of these texts; NULL: a number from `low` to `high`
  double low;           ///< the least number
  double high;          ///< the largest number
  const char* fallback;  ///< "8": its value in specs without it; NULL: it has to be given
  int32_t whole;         ///< 1: whole numbers alone
  int32_t reserved;      ///< zero
} atomo_codec_key;

/// What the functions of a codec of one's own know of a layer beside its entries.
typedef struct atomo_codec_layer {
  const int64_t* dims;  ///< `rank` extents
  size_t elements;      ///< at least 1
  const atomo_key*
      key;  ///< of the message; the sender's at both ends. NULL for `max_bytes` and `price`
  /// For an encoder with a budget: the place in the table of `price` of the point that the layer is sent
  /// at. 0 without a budget, and for a decoder: what it needs of the setting stands in the body.
  size_t setting;
  char* error;       ///< room for ATOMO_CODEC_ERROR_BYTES: a function that fails may write why
  int32_t rank;      ///< 0 to 8
  int32_t reserved;  ///< zero
} atomo_codec_layer;

/// Bytes of the room for the text of a codec's failure, its terminating zero included.
#define ATOMO_CODEC_ERROR_BYTES 256

/// An operating point of a codec on a layer: the rate and the distortion of one of its settings.
typedef struct atomo_rate_point {
  double bytes;          ///< expected, of the body
  double squared_error;  ///< expected, of all entries together
} atomo_rate_point;

/// A codec of one's own: its name and its functions, which OwnCodec in own_codec.hpp describes. They are
/// called from several threads at once. Those that can fail return 0, or any other number where they do: the call
/// that needed them then gives ATOMO_CODEC_FAILED, and `atomo_last_error` has the number and what they wrote
/// to `error`; where `create` fails, the spec is refused with both. `codec` is what `create` made.
typedef struct atomo_own_codec {
  const char* name;             ///< 2 to 32 small letters, digits, `_` or `-`, the first a letter
  const char* summary;          ///< for help texts: one line; may be NULL
  const char* example;          ///< a spec that parses; NULL: the name alone
  const atomo_codec_key* keys;  ///< what its specs may say; may be NULL at 0
  size_t key_count;             ///< of `keys`
  void* user;                   ///< for `create`; may be NULL
  /// Makes a codec of the values of all keys, in their order: "levels=8,norm=max". May be NULL: `user` is
  /// the codec then. `error`: as in atomo_codec_layer.
  int32_t (*create)(void* user, const char* keys, char* error, void** codec);
  void (*destroy)(void* codec);  ///< gives up what `create` made; may be NULL
  /// What the codec claims, in a struct of zeros: `unbiased`, `bias_bound`, `omega`, `contraction` and
  /// `largest` (with their flags), `step`, `smallest`, `highest` (0: a message holds every float),
  /// `averages_over_workers`, `fixed_size`, `bounded`. NULL: it claims nothing.
  void (*traits)(void* codec, atomo_traits* claims);
  /// The most bytes that `encode` writes for a shape: at most 8 an element and 32,000 more.
  int32_t (*max_bytes)(void* codec, const atomo_codec_layer* layer, size_t* bytes);
  /// Writes the body of a layer of finite entries; `capacity` is what `max_bytes` said. Equal arguments have
  /// to give equal bytes.
  int32_t (*encode)(void* codec, const float* x, const atomo_codec_layer* layer, void* body,
                    size_t capacity, size_t* bytes);
  /// Reads what `encode` wrote into `y`, all 0 at first. `body` may be any bytes: fail for those that are wrong.
  int32_t (*decode)(void* codec, const void* body, size_t bytes, const atomo_codec_layer* layer,
                    float* y);
  /// Bits a parameter that its layers pay into the budget of their message, 0.001 to 32. NULL, or 0: none.
  double (*budget_bits)(void* codec);
  /// With a budget: what each setting would come to on a layer, 1 to `capacity` points, in any order. A
  /// function of the entries alone.
  int32_t (*price)(void* codec, const float* x, const atomo_codec_layer* layer,
                   atomo_rate_point* points, size_t capacity, size_t* count);
  uint64_t reserved[4];  ///< zero
} atomo_own_codec;

/// A row of the table of codecs; its strings stay as long as the process.
typedef struct atomo_codec_row {
  const char* name;     ///< "qsgd"
  const char* keys;     ///< "bits=1..8, bucket=512, norm=max|l2"
  const char* summary;  ///< one line
  const char* example;  ///< a spec that parses
} atomo_codec_row;

/// A tensor of a state of weights, in host memory, of elements of any type.
typedef struct atomo_patch_tensor {
  const char* name;       ///< unique among the tensors of a state
  const char* type;       ///< what its elements are called, "BF16"
  const uint64_t* shape;  ///< `rank` extents; may be NULL when `rank` is 0
  int32_t rank;           ///< 0 to 255
  uint8_t element_bytes;  ///< 1, 2, 4 or 8
  uint8_t floating;  ///< 1: IEEE numbers, sign first, whose neighbours are near each other; else 0
  uint8_t reserved[2];  ///< zero
  const void* data;     ///< any alignment; may be NULL when `bytes` is 0
  uint64_t bytes;       ///< a whole number of elements
} atomo_patch_tensor;

/// What a patch says as a whole; its pointers are valid as long as the patch's handle.
typedef struct atomo_patch_info {
  const void* data;      ///< the patch, to be sent
  uint64_t bytes;        ///< of it
  const void* note;      ///< what `atomo_patch_make` was given
  uint64_t note_bytes;   ///< of the note
  uint64_t tensors;      ///< of the new state
  uint64_t reserved[3];  ///< zero
} atomo_patch_info;

/// How a patch has a tensor's new state, `atomo_patch_entry::form`.
enum atomo_patch_form_value {
  ATOMO_PATCH_SAME = 0,
  ATOMO_PATCH_CHANGES = 1,
  ATOMO_PATCH_WHOLE = 2
};

/// A tensor as a patch describes it; its pointers are valid as long as the patch's handle.
typedef struct atomo_patch_entry {
  const char* name;       ///< as `atomo_patch_tensor`
  const char* type;       ///< as `atomo_patch_tensor`
  const uint64_t* shape;  ///< as `atomo_patch_tensor`
  int32_t rank;           ///< as `atomo_patch_tensor`
  int32_t form;           ///< one of `atomo_patch_form_value`
  uint8_t element_bytes;  ///< as `atomo_patch_tensor`
  uint8_t floating;       ///< as `atomo_patch_tensor`
  uint8_t reserved[6];    ///< zero
  uint64_t bytes;         ///< of the tensor
  uint64_t changed;       ///< elements that differ; of a whole tensor all
  uint64_t sent;          ///< bytes of the patch that are this tensor's alone
  uint64_t checksum;      ///< of the new state's bytes (FORMAT.md, "Patches")
} atomo_patch_entry;

#ifdef __cplusplus
}
#endif
#endif
