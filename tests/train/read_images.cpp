// SPDX-License-Identifier: Apache-2.0
/// Reads a folder of images as the trainer does and writes what it found: a line of channels, height, width,
/// classes, training samples and test samples, then of both splits the labels (i64) and the pixels (f32).
///
///     read_images FOLDER SIDE
#include <cstdio>
#include <exception>
#include <numeric>
#include <string>
#include <vector>

#include "learning/images.hpp"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const auto task = train::make_image_task(argv[1], true, std::stol(argv[2]));
    const auto shape = std::get<train::ImageShape>(task->input());
    std::printf("%ld %ld %ld %ld %zu %zu\n", shape.channels, shape.height, shape.width,
                shape.classes, task->samples(train::Split::train),
                task->samples(train::Split::test));
    for (const auto split : {train::Split::train, train::Split::test}) {
      std::vector<std::uint32_t> all(task->samples(split));
      std::iota(all.begin(), all.end(), 0U);
      train::Batch batch;
      task->gather(split, all, batch);
      std::fwrite(batch.targets.data(), sizeof batch.targets[0], batch.targets.size(), stdout);
      std::fwrite(batch.pixels.data(), sizeof batch.pixels[0], batch.pixels.size(), stdout);
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
