/* SPDX-License-Identifier: Apache-2.0 */
// A gradient there and back from C: one tensor through a codec, then a whole model at one budget.
//
//   cc -std=c99 examples/c/roundtrip.c $(pkg-config --cflags --libs atomo_c) -o roundtrip
#include <atomo/atomo.h>
#include <stdio.h>
#include <stdlib.h>

static void check(atomo_status status) {
  if (!atomo_failed(status)) return;
  fprintf(stderr, "status %d, %s: %s\n", (int)status, atomo_status_text(status),
          atomo_last_error());
  exit(1);
}

static void* memory(size_t bytes) {
  void* data = malloc(bytes > 0 ? bytes : 1);
  if (data == NULL) exit(1);
  return data;
}

/// A stand-in for a gradient: noise in rows of very different scales, as layers have them.
static float* make_gradient(size_t rows, size_t columns) {
  float* gradient = memory(rows * columns * sizeof *gradient);
  uint32_t random = 1;
  for (size_t i = 0; i < rows * columns; ++i) {
    random = random * 1664525u + 1013904223u;
    gradient[i] = ((float)(random >> 8) / 8388608.0f - 1.0f) / (float)(1 + i / columns);
  }
  return gradient;
}

/// ||a - b||^2 / ||b||^2.
static double relative_error(const float* a, const float* b, size_t n) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < n; ++i) {
    error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    norm += (double)b[i] * b[i];
  }
  return error / norm;
}

static void one_tensor(void) {
  const int64_t dims[2] = {64, 1024};
  const size_t n = 64 * 1024;
  float *gradient = make_gradient(64, 1024), *decoded = memory(n * sizeof *decoded);
  atomo_codec* codec = NULL;
  check(atomo_codec_create("atomo:bits=1", &codec));

  size_t capacity = 0, to_encode = 0, to_decode = 0;
  atomo_context context = {0};
  check(atomo_codec_max_encoded_bytes(codec, dims, 2, ATOMO_F32, &capacity));
  check(atomo_codec_encode_workspace_bytes(codec, dims, 2, ATOMO_F32, ATOMO_CPU, &to_encode));
  check(atomo_codec_decode_workspace_bytes(codec, dims, 2, ATOMO_F32, ATOMO_CPU, &to_decode));
  context.workspace_bytes = to_encode > to_decode ? to_encode : to_decode;
  context.workspace = memory(context.workspace_bytes);
  void* message = memory(capacity);

  atomo_key key = {0};  // no two messages share one
  key.seed = 1;
  key.step = 7;
  key.worker = 3;
  const atomo_const_tensor from = {.data = gradient, .dims = dims, .rank = 2};
  const atomo_tensor to = {.data = decoded, .dims = dims, .rank = 2};
  uint64_t bytes = 0;
  check(atomo_codec_encode(codec, &from, &key, message, capacity, &bytes, &context));
  check(atomo_codec_decode(codec, message, (size_t)bytes, &to, &context));
  printf("one tensor: %zu bytes became %llu, relative error %.3f\n", n * sizeof *gradient,
         (unsigned long long)bytes, relative_error(decoded, gradient, n));

  atomo_codec_destroy(codec);
  free(message);
  free(context.workspace);
  free(decoded);
  free(gradient);
}

static void whole_model(void) {
  const int64_t dims[2][2] = {{128, 784}, {10, 128}};
  const atomo_layer layers[2] = {{.name = "fc1", .dims = dims[0], .rank = 2},
                                 {.name = "fc2", .dims = dims[1], .rank = 2}};
  float *gradients[2] = {make_gradient(128, 784), make_gradient(10, 128)}, *decoded[2];
  atomo_const_tensor from[2] = {{0}};
  atomo_tensor to[2] = {{0}};
  for (int i = 0; i < 2; ++i) {
    const size_t n = (size_t)(dims[i][0] * dims[i][1]);
    decoded[i] = memory(n * sizeof(float));
    from[i].data = gradients[i];
    to[i].data = decoded[i];
    from[i].dims = to[i].dims = dims[i];
    from[i].rank = to[i].rank = 2;
  }

  atomo_compressor* model = NULL;
  check(atomo_compressor_create(layers, 2, "fc2=qsgd:bits=4; *=atomo:bits=0.5", NULL, &model));
  size_t capacity = 0, to_encode = 0, to_decode = 0;
  atomo_context context = {0};
  check(atomo_compressor_max_encoded_bytes(model, &capacity));
  check(atomo_compressor_encode_workspace_bytes(model, &to_encode));
  check(atomo_compressor_decode_workspace_bytes(model, &to_decode));
  context.workspace_bytes = to_encode > to_decode ? to_encode : to_decode;
  context.workspace = memory(context.workspace_bytes);
  void* message = memory(capacity);

  const atomo_key key = {.seed = 1, .step = 8};
  uint64_t bytes = 0;
  check(atomo_compressor_encode(model, from, 2, &key, message, capacity, &bytes, &context));
  check(atomo_compressor_decode(model, message, (size_t)bytes, to, 2, &context));
  printf("a model of 2 layers: %llu bytes\n", (unsigned long long)bytes);

  atomo_message* inspected = NULL;
  check(atomo_message_inspect(message, (size_t)bytes, 1, &inspected));
  for (size_t i = 0; i < 2; ++i) {
    atomo_layer_info info;
    check(atomo_message_layer(inspected, i, &info));
    printf("  %s: %s, %llu bytes, relative error %.3f\n", layers[i].name, info.codec,
           (unsigned long long)info.bytes,
           relative_error(decoded[i], gradients[i], (size_t)(dims[i][0] * dims[i][1])));
    free(decoded[i]);
    free(gradients[i]);
  }

  atomo_message_destroy(inspected);
  atomo_compressor_destroy(model);
  free(message);
  free(context.workspace);
}

int main(void) {
  one_tensor();
  whole_model();
  return 0;
}
