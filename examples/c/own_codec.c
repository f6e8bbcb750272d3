/* SPDX-License-Identifier: Apache-2.0 */
// A codec written in C: registered, used by its name for a layer, and read back.
//
//   cc -std=c99 examples/c/own_codec.c $(pkg-config --cflags --libs atomo_c) -lm -o own_codec
#include <atomo/atomo.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/// Levels of the layer's largest magnitude, a byte an entry, rounded up or down at random.
struct levels {
  float levels;
};

static int32_t create(void* user, const char* keys, char* error, void** codec) {
  (void)user;
  struct levels* made = malloc(sizeof *made);
  if (made == NULL) {
    snprintf(error, ATOMO_CODEC_ERROR_BYTES, "there is no memory for it");
    return 1;
  }
  made->levels = strtof(keys + strlen("levels="), NULL);  // 1 to 127: the library has checked it
  *codec = made;
  return 0;
}

static void traits(void* codec, atomo_traits* claims) {
  (void)codec;
  claims->unbiased = claims->averages_over_workers = claims->fixed_size = 1;
  claims->bias_bound = 1e-5;  // of f32 arithmetic and of draws with 24 bits
}

/// The largest magnitude, then a byte an entry.
static int32_t max_bytes(void* codec, const atomo_codec_layer* layer, size_t* bytes) {
  (void)codec;
  *bytes = sizeof(float) + layer->elements;
  return 0;
}

static int32_t encode(void* codec, const float* x, const atomo_codec_layer* layer, void* body,
                      size_t capacity, size_t* bytes) {
  (void)capacity;  // what max_bytes said
  const float levels = ((const struct levels*)codec)->levels;
  float largest = 0;
  for (size_t i = 0; i < layer->elements; ++i) largest = fmaxf(largest, fabsf(x[i]));
  memcpy(body, &largest, sizeof largest);
  uint8_t* out = (uint8_t*)body + sizeof largest;
  for (size_t i = 0; i < layer->elements; ++i) {
    uint32_t word = 0;
    if (atomo_failed(atomo_own_draws(layer->key, i, &word, 1))) return 1;
    const float up = (float)(word >> 8) * 0x1p-24f;  // in [0, 1)
    const float level = largest > 0 ? floorf(x[i] / largest * levels + up) : 0;
    out[i] = (uint8_t)((int)level + 128);
  }
  *bytes = sizeof largest + layer->elements;
  return 0;
}

static int32_t decode(void* codec, const void* body, size_t bytes, const atomo_codec_layer* layer,
                      float* y) {
  const float levels = ((const struct levels*)codec)->levels;
  float largest = 0;
  if (bytes != sizeof largest + layer->elements) {
    snprintf(layer->error, ATOMO_CODEC_ERROR_BYTES, "a body of %zu bytes: expected %zu", bytes,
             sizeof largest + layer->elements);
    return 1;
  }
  memcpy(&largest, body, sizeof largest);
  const uint8_t* in = (const uint8_t*)body + sizeof largest;
  for (size_t i = 0; i < layer->elements; ++i) y[i] = (float)(in[i] - 128) * (largest / levels);
  return 0;
}

static void check(atomo_status status) {
  if (!atomo_failed(status)) return;
  fprintf(stderr, "status %d: %s\n", (int)status, atomo_last_error());
  exit(1);
}

int main(void) {
  const atomo_codec_key keys[1] = {
      {.name = "levels", .low = 1, .high = 127, .fallback = "8", .whole = 1}};
  const atomo_own_codec own = {.name = "mine",
                               .summary = "levels of the largest magnitude, a byte an entry",
                               .keys = keys,
                               .key_count = 1,
                               .create = create,
                               .destroy = free,
                               .traits = traits,
                               .max_bytes = max_bytes,
                               .encode = encode,
                               .decode = decode};
  check(atomo_register_codec(&own));

  const int64_t dims[2] = {16, 8};
  const atomo_layer layers[1] = {{.name = "weight", .dims = dims, .rank = 2}};
  atomo_compressor* model = NULL;
  check(atomo_compressor_create(layers, 1, "*=mine:levels=100", NULL, &model));
  size_t capacity = 0, to_encode = 0, to_decode = 0;
  check(atomo_compressor_max_encoded_bytes(model, &capacity));
  check(atomo_compressor_encode_workspace_bytes(model, &to_encode));
  check(atomo_compressor_decode_workspace_bytes(model, &to_decode));
  atomo_context context = {0};
  context.workspace_bytes = to_encode > to_decode ? to_encode : to_decode;
  context.workspace = malloc(context.workspace_bytes + 1);
  void* message = malloc(capacity);
  if (context.workspace == NULL || message == NULL) return 1;

  float gradient[128], decoded[128];
  for (int i = 0; i < 128; ++i) gradient[i] = (float)i / 64 - 1;
  const atomo_const_tensor from = {.data = gradient, .dims = dims, .rank = 2};
  const atomo_tensor to = {.data = decoded, .dims = dims, .rank = 2};
  const atomo_key key = {.seed = 1, .step = 7};
  uint64_t bytes = 0;
  check(atomo_compressor_encode(model, &from, 1, &key, message, capacity, &bytes, &context));
  check(atomo_compressor_decode(model, message, (size_t)bytes, &to, 1, &context));
  float worst = 0;
  for (int i = 0; i < 128; ++i) worst = fmaxf(worst, fabsf(decoded[i] - gradient[i]));
  printf("%llu bytes for 128 entries, none of them off by more than %.4f\n",
         (unsigned long long)bytes, (double)worst);

  free(message);
  free(context.workspace);
  atomo_compressor_destroy(model);
  check(atomo_unregister_codec("mine"));
  return worst < 0.0101f ? 0 : 1;
}
