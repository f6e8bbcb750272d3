// SPDX-License-Identifier: Apache-2.0
/// \file
/// The signal handler does nothing but set a flag, because it may run in the middle of any other
/// code. System calls that a signal breaks into are restarted, so only the places that ask for the
/// flag see an interruption.

#include "run/interrupt.hpp"

#include <csignal>
#include <initializer_list>

namespace train {
namespace {
volatile std::sig_atomic_t flag = 0;
void raise_flag(int) { flag = 1; }
}  // namespace

void catch_interrupts() {
  flag = 0;
  struct sigaction action = {};
  action.sa_handler = raise_flag;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaction(signal, &action, nullptr);
  signal(SIGXFSZ, SIG_IGN);
}

bool interrupted() noexcept { return flag != 0; }

}  // namespace train
