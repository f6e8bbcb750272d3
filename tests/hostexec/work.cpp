// SPDX-License-Identifier: Apache-2.0
// The compiler calls __sanitizer_cov_trace_pc in every basic block of a kernel. Built without that
// option itself.
#include "work.hpp"

#include "executor.hpp"
#include "settings.hpp"

namespace hostexec {

namespace {

std::vector<GridWork> grids;
std::size_t current_run = ~std::size_t{0};
std::uint32_t current_block = 0;
std::uint64_t* count = nullptr;
bool inside = false;  // what the standard library instantiates may come from a counted object

// Another grid or block than before.
void move_on() {
  if (current_run != runs_before) {
    current_run = runs_before;
    grids.push_back({kernel_name(running->kernel), {}});
  }
  current_block = block_idx.x;
  count = &grids.back().blocks.emplace_back(0);
}

}  // namespace

void reset_work() {
  grids.clear();
  current_run = ~std::size_t{0};
  count = nullptr;
}

std::vector<GridWork> work() { return grids; }

}  // namespace hostexec

extern "C" void __sanitizer_cov_trace_pc() {
  using namespace hostexec;
  if (running == nullptr || inside) return;
  if (count == nullptr || current_run != runs_before || current_block != block_idx.x) {
    inside = true;
    move_on();
    inside = false;
  }
  ++*count;
}
