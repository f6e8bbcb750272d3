// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Sets a run of the server family up: ranks that serve, and ranks that work.

#include "roles/server.hpp"
#include "roles/worker.hpp"

namespace train {

/// Runs one loop on the servers and another on the workers, to the end.
inline Outcome run_server_family(Run& run, const Plan& plan, void (*serve)(Server&),
                                 void (*work)(Worker&)) {
  if (run.transport.rank() < run.transport.servers()) {
    const auto server = prepare<Server>(run, plan);
    if (!server) return Outcome::cannot_start;
    return or_end_the_job(run.transport, [&] {
      serve(*server);
      return server->outcome();
    });
  }
  const auto worker = prepare<Worker>(run, plan);
  if (!worker) return Outcome::cannot_start;
  return or_end_the_job(run.transport, [&] {
    work(*worker);
    return Outcome::finished;
  });
}

}  // namespace train
