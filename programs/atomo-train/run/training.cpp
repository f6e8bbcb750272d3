// SPDX-License-Identifier: Apache-2.0
/// \file
/// All processes look at the options first, and none begins when one objects. Then the length of the
/// run and the threads of the process are settled, and the algorithm's loop has the rest.

#include "run/training.hpp"

#include <cblas.h>

#include <cstdlib>
#include <exception>
#include <string>

#include "algorithms/algorithms.hpp"
#include "exchange/exchange.hpp"
#include "exchange/threads.hpp"
#include "files/checkpoint.hpp"
#include "files/stored_tensors.hpp"
#include "files/whole_file.hpp"
#include "learning/learner.hpp"
#include "learning/replica.hpp"
#include "run/agreement.hpp"
#include "run/run_folder.hpp"

namespace train {
namespace {

/// Empty when the run can begin, as far as this process knows. Reads `files`.
std::string objection(const Options& options, const Transport& transport, FirstFiles& files) {
  if (!options.error.empty()) return options.error;
  if (transport.workers() < 1) {
    return "--algorithm " + options.algorithm + " with " + std::to_string(options.servers) +
           " servers needs at least one worker: mpirun -n " + std::to_string(options.servers + 1) +
           " or more";
  }
  if (transport.workers() > 65535) return "at most 65,535 workers have random streams of their own";
  if (transport.rank() == 0) {
    if (auto text = run_folder_objection(options); !text.empty()) return text;
  }
  // Every process reads it, and all wait for each other here: nobody has written anything yet.
  if (!options.resume.empty()) {
    if (auto text = checkpoint_objection(options.resume, files.resume); !text.empty()) return text;
  }
  if (!options.init.empty() && options.resume.empty()) {
    try {
      files.init = "xxh3 " + checksum_of(read_whole_file(options.init));
    } catch (const std::exception& e) {
      return std::string("--init: ") + e.what();
    }
  }
  if (!options.on_device()) return "";
  const std::string network = options.own != nullptr ? "" : gpu_objection(options.model);
  return network.empty() ? device_objection() : network;
}

}  // namespace

void keep_to_one_thread_of_blas() {
  if (std::getenv("OPENBLAS_NUM_THREADS") == nullptr) openblas_set_num_threads(1);
}

int servers_of(const Options& options) {
  const auto* const algorithm = find_algorithm(options.algorithm);
  return algorithm != nullptr && algorithm->family == Family::server ? options.servers : 0;
}

Outcome train_on(Options& options, Transport& transport) {
  if (options.slow_rank != transport.rank()) options.slow_factor = 1;
  FirstFiles files;
  if (!all_ready(transport, objection(options, transport, files))) return Outcome::cannot_start;
  const auto all_alike = [&] {
    return all_ready(transport, disagreement(options, files, transport));
  };
  if (!all_alike()) return Outcome::cannot_start;
  if (options.on_device()) options.gpu = choose_gpu();
  keep_to_one_thread_of_blas();
  if (options.epochs != 0) {
    std::string error;
    try {
      options.steps = steps_of_epochs(options, transport.workers());
    } catch (const std::exception& e) {
      error = e.what();
    }
    // The data may be of other lengths elsewhere.
    if (!all_ready(transport, error) || !all_alike()) return Outcome::cannot_start;
  }
  // Not before all want it: who outlives others ends otherwise, and would be waited for.
  if (options.on_lost_node == "go-on") transport.outlive_lost();
  if (options.threads == 0) options.threads = threads_of_this_process(transport);
  Threads threads(options.threads);
  Run run{options, transport, threads};
  return find_algorithm(options.algorithm)->run(run);
}

}  // namespace train
