// SPDX-License-Identifier: Apache-2.0
// Which fibre runs when: blocks, barriers and warps. Built without sanitizers (see fiber.hpp), so
// only fixed arrays here: what the standard library instantiates may come from an instrumented
// object.
#include <xmmintrin.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "block_memory.hpp"
#include "executor.hpp"
#include "fiber.hpp"
#include "settings.hpp"

namespace hostexec {

uint3 thread_idx, block_idx;
dim3 block_dim, grid_dim;
const Launch* running;
std::size_t runs_before;

namespace {

constexpr int kThreads = kMaxThreads, kFibers = kMaxFibers, kWarp = 32;
static_assert(kFibers >= 2 * kThreads);
// Yields in a row during which nothing of a block changed: it waits for what never comes.
constexpr int kPatience = 1 << 20;
// Atomic operations in a row that found nothing changed before others get their turn.
constexpr int kSpins = 64;

enum class State : std::uint8_t { ready, at_barrier, at_meeting, returned };
struct Thread {
  Fiber* fiber;
  State state;
  Location where;  // it waits at
  uint3 index;
};

Fiber fibers[kFibers], *idle[kFibers];
int fibers_made, fibers_idle;

// A block that runs, or has run in this place of its group.
struct Block {
  std::size_t place;  // in its group
  uint3 index;
  Thread threads[kThreads];
  int alive, waiting;
  std::uint32_t alive_lanes[kThreads / kWarp];
  Meeting meetings[kThreads / kWarp][kWarp + 1];  // a warp's; those once used come first
  int ready[kThreads], ready_first, ready_count;  // a ring
  int votes, vote_sum, voters;                    // running, and of the barrier passed last
  int warp_apart;
  int epoch;
};
// A group runs at the same time in the random order; in the others its blocks follow one another. TSan takes them for
// concurrent in any order, so each has fibres, identities and memory of its own.
Block group[kMaxGroup];
std::size_t group_size;
Block* now = group;
int threads_in_block, blocks_alive, blocks_run;
int idle_yields, spins;

Settings settings;

void* identities[kMaxGroup][kThreads];
char grid_begins, grid_ends, fences, barriers[kMaxGroup][2];

void become_ready(int t) {
  now->threads[t].state = State::ready;
  now->ready[(now->ready_first + now->ready_count++) % kThreads] = t;
}

int take_ready() {
  if (settings.order == Order::random) {
    const int pick =
        (now->ready_first + int(settings.draw() % unsigned(now->ready_count))) % kThreads;
    std::swap(now->ready[now->ready_first], now->ready[pick]);
  }
  const int t = now->ready[now->ready_first];
  now->ready_first = (now->ready_first + 1) % kThreads;
  --now->ready_count;
  return t;
}

// The i-th thread in the order chosen; the random order picks among the ready ones instead.
int in_order(int i) { return settings.order == Order::descending ? threads_in_block - 1 - i : i; }

void print_waiting() {
  static const char* const names[] = {"could run", "at __syncthreads", "at a warp operation",
                                      "returned"};
  int lines = 0;
  for (int t = 0; t < threads_in_block && lines < 16; ++t) {
    const Thread& x = now->threads[t];
    const Thread& before = now->threads[t == 0 ? 0 : t - 1];
    if (t != 0 && x.state == before.state && x.where.line() == before.where.line()) continue;
    ++lines;
    std::fprintf(stderr, "  from thread %d on: %s", t, names[int(x.state)]);
    if (x.state == State::at_barrier || x.state == State::at_meeting)
      std::fprintf(stderr, ", %s:%u", x.where.file_name(), x.where.line());
    std::fputc('\n', stderr);
  }
}

bool same_place(const Location& a, const Location& b) {
  return a.line() == b.line() && a.column() == b.column();
}

// TSan's cost grows with the identities there are. Two warps of a block have one a lane, the first and one that
// changes with the block, and each other warp has one, so that its races with others are seen and those of its lanes
// are not; where every lane is wanted, each thread has its own.
void* identity(int t) {
  const int warp = t / kWarp;
  int number = 2 * kWarp + warp;
  if (settings.every_lane || warp == 0)
    number = t;
  else if (warp == now->warp_apart)
    number = kWarp + t % kWarp;
  void*& found = identities[now->place][number];
  if (found == nullptr) found = new_identity();
  return found;
}

void fibre_main();

void start(int t) {
  Fiber* fiber = nullptr;
  if (fibers_idle != 0) {
    fiber = idle[--fibers_idle];
  } else {
    fiber = &fibers[fibers_made++];
    make_fiber(*fiber, fibre_main);
  }
  fiber->thread = t;
  if (kTsan) fiber->identity = identity(t);
  now->threads[t].fiber = fiber;
}

void pass_barrier() {
  if (now->waiting != now->alive) {
    print_waiting();
    fail("deadlock: threads wait for others that never come", Location::current());
  }
  const Thread* first = nullptr;
  for (int t = 0; t < threads_in_block; ++t) {
    const Thread& x = now->threads[t];
    if (x.state != State::at_barrier) continue;
    if (first == nullptr) first = &x;
    if (same_place(x.where, first->where)) continue;
    print_waiting();
    fail("threads of a block wait at different __syncthreads", x.where);
  }
  for (int i = 0; i < threads_in_block; ++i) {
    if (now->threads[in_order(i)].state == State::at_barrier) become_ready(in_order(i));
  }
  now->vote_sum = now->votes;
  now->voters = now->alive;
  now->votes = now->waiting = idle_yields = 0;
  ++now->epoch;
}

void enter(Block& block) {
  now = &block;
  block_idx = block.index;
  use_block_memory(block.place);
}

// A block of the group that has threads left: any one in the random order, else the first.
Block& some_block() {
  std::size_t at = settings.order == Order::random ? settings.draw() % group_size : 0;
  while (group[at].alive == 0) at = (at + 1) % group_size;
  return group[at];
}

// Who runs now: the caller when all threads of the group have returned.
Fiber& next() {
  constexpr int kStay = 8;  // steps of a block, on average, before another runs (random order)
  if (blocks_alive == 0) return caller;
  const bool changes = settings.order == Order::random && blocks_alive > 1;
  if (now->alive == 0 || (changes && settings.draw() % kStay == 0)) enter(some_block());
  if (now->ready_count == 0) pass_barrier();
  const int t = take_ready();
  if (now->threads[t].fiber == nullptr) start(t);
  return *now->threads[t].fiber;
}

void wait_as(State state, Location where) {
  const int t = current->thread;
  now->threads[t].state = state;
  now->threads[t].where = where;
  switch_to(next());
  thread_idx = now->threads[t].index;
  spins = 0;
}

void wake(const Meeting& meeting, int warp, int except) {
  for (int i = 0; i < kWarp; ++i) {
    const int t = warp * kWarp + i;
    if ((meeting.arrived >> i & 1) != 0 && t != except) become_ready(t);
  }
}

void thread_returned(int t) {
  const int warp = t / kWarp;
  now->threads[t].state = State::returned;
  idle_yields = 0;
  if (--now->alive == 0) --blocks_alive;
  now->alive_lanes[warp] &= ~(1u << (t % kWarp));
  for (Meeting& m : now->meetings[warp]) {  // that waited for this lane only
    if (m.mask == 0) break;
    if (m.arrived == 0 || m.leaving != 0 || m.arrived != (m.mask & now->alive_lanes[warp]))
      continue;
    m.leaving = m.present;
    wake(m, warp, -1);
  }
}

void fibre_main() {
  entered();
  for (;;) {
    Fiber* const me = current;
    thread_idx = now->threads[me->thread].index;
    spins = 0;
    acquire(&grid_begins);
    running->call(running->arguments.get());
    release(&grid_ends);
    thread_returned(me->thread);
    // Under TSan it may serve another thread only after the group.
    if (!kTsan) idle[fibers_idle++] = me;
    switch_to(next());
  }
}

Meeting& find_meeting(int warp, std::uint32_t mask, Location where) {
  Meeting* spare = nullptr;
  for (Meeting& m : now->meetings[warp]) {
    if (m.arrived != 0) {
      if (m.leaving == 0 && m.mask == mask) return m;
      continue;
    }
    if (spare == nullptr) spare = &m;
    if (m.mask == 0) break;
  }
  spare->mask = mask;
  spare->where = where;
  return *spare;
}

void begin_block(Block& block, std::size_t number) {
  const dim3& g = grid_dim;
  block.index = {unsigned(number % g.x), unsigned(number / g.x % g.y),
                 unsigned(number / g.x / g.y)};
  enter(block);
  begin_block_memory(running->shared_bytes, settings);
  const int warps = (threads_in_block + kWarp - 1) / kWarp;
  block.warp_apart = blocks_run++ % warps;
  for (int w = 0; w < warps; ++w) {
    block.alive_lanes[w] = 0;
    for (Meeting& m : block.meetings[w]) {
      if (m.mask == 0) break;
      m.mask = m.arrived = m.present = m.leaving = 0;
    }
  }
  block.ready_first = block.ready_count = 0;
  for (int i = 0; i < threads_in_block; ++i) {
    const int t = in_order(i);
    const unsigned u = unsigned(t);
    block.threads[t].fiber = nullptr;
    block.threads[t].index = {u % block_dim.x, u / block_dim.x % block_dim.y,
                              u / block_dim.x / block_dim.y};
    block.alive_lanes[t / kWarp] |= 1u << (t % kWarp);
    become_ready(t);
  }
  block.alive = threads_in_block;
  block.waiting = block.votes = 0;
  ++blocks_alive;
}

void run_group() {
  idle_yields = 0;
  enter(some_block());
  switch_to(next());
}

void run_blocks(std::size_t blocks) {
  // In the random order a stride without a common divisor visits every block once.
  std::size_t stride = 1, most = 1;
  if (settings.order == Order::random) do {
      stride = settings.draw() % blocks + 1;
    } while (std::gcd(stride, blocks) != 1);
  if (kTsan || settings.order == Order::random)
    most = std::min(kMaxGroup, std::size_t(kFibers / threads_in_block));
  std::size_t number = 0;
  for (std::size_t i = 0; i < blocks; i += group_size) {
    group_size = std::min(most, blocks - i);
    // Alone at times: whoever waits for a block that need not run at the same time is found out.
    if (!kTsan && group_size > 1) group_size = settings.draw() % group_size + 1;
    if (kTsan) {
      acquire(&grid_ends);
      release(&grid_begins);
      begin_group_memory();
      for (fibers_idle = 0; fibers_idle < fibers_made; ++fibers_idle)
        idle[fibers_idle] = &fibers[fibers_idle];
    }
    for (std::size_t place = 0; place < group_size; ++place, number = (number + stride) % blocks) {
      group[place].place = place;
      begin_block(group[place],
                  settings.order == Order::descending ? blocks - 1 - (i + place) : number);
    }
    run_group();
  }
  acquire(&grid_ends);
}

}  // namespace

void fail(const char* what, Location where) {
  std::fprintf(stderr, "hostexec: %s\n  %s:%u: %s\n", what, where.file_name(), where.line(),
               where.function_name());
  if (running != nullptr)
    std::fprintf(stderr, "  kernel %s block (%u,%u,%u) thread (%u,%u,%u)\n",
                 kernel_name(running->kernel), block_idx.x, block_idx.y, block_idx.z, thread_idx.x,
                 thread_idx.y, thread_idx.z);
  std::abort();
}

unsigned lane() { return unsigned(current->thread) % kWarp; }

int barrier(Vote vote, bool predicate, Location where) {
  void* const place = &barriers[now->place][now->epoch & 1];
  now->votes += predicate ? 1 : 0;
  ++now->waiting;
  release(place);
  wait_as(State::at_barrier, where);
  acquire(place);
  if (vote == Vote::count) return now->vote_sum;
  return vote == Vote::all ? now->vote_sum == now->voters : now->vote_sum != 0;
}

Meeting& meet(std::uint32_t mask, std::uint64_t value, bool orders_memory, Location where) {
  const int t = current->thread, warp = t / kWarp;
  const std::uint32_t bit = 1u << (t % kWarp);
  if ((mask & bit) == 0) fail("warp operation by a lane that its mask does not name", where);
  Meeting& m = find_meeting(warp, mask, where);
  if (!same_place(m.where, where)) {
    print_waiting();
    fail("lanes of a warp meet at different warp operations", where);
  }
  m.arrived |= bit;
  ++m.present;
  m.value[t % kWarp] = value;
  if (orders_memory) release(&m);
  if (m.arrived == (mask & now->alive_lanes[warp])) {
    m.leaving = m.present;
    idle_yields = 0;
    const bool go_on = settings.order != Order::random;
    wake(m, warp, go_on ? t : -1);
    if (!go_on) wait_as(State::ready, where);
  } else {
    wait_as(State::at_meeting, where);
  }
  if (orders_memory) acquire(&m);
  return m;
}

void leave(Meeting& m) {
  if (--m.leaving == 0) m.arrived = m.present = 0;
}

void fence() {
  acquire(&fences);
  release(&fences);
}

void yield() {
  if (current == &caller) return;
  if (++idle_yields > kPatience)
    fail("a thread waits for what no other thread that runs will do", Location::current());
  spins = 0;
  const bool others = settings.order == Order::random && blocks_alive > 1;
  if (now->ready_count == 0 && !others) return;
  become_ready(current->thread);
  wait_as(State::ready, Location::current());
}

void atomic_done(bool changed) {
  if (current == &caller) return;
  if (changed) {
    idle_yields = spins = 0;
    if (settings.order != Order::random || settings.draw() % 4 != 0 ||
        (now->ready_count == 0 && blocks_alive == 1))
      return;
    become_ready(current->thread);
    wait_as(State::ready, Location::current());
  } else if (++spins > kSpins || (settings.order == Order::random && settings.draw() % 4 == 0)) {
    yield();
  }
}

void run(const Launch& launch) {
  const unsigned floating_point = _mm_getcsr();
  _mm_setcsr(0x1F80);  // round to nearest, subnormals kept: whatever the caller's mode is
  running = &launch;
  settings = Settings::from_environment();
  settings.vary(runs_before);
  grid_dim = launch.grid;
  block_dim = launch.block;
  threads_in_block = int(block_dim.x * block_dim.y * block_dim.z);
  begin_switching();
  run_blocks(std::size_t{grid_dim.x} * grid_dim.y * grid_dim.z);
  end_grid_memory();
  running = nullptr;
  ++runs_before;
  _mm_setcsr(floating_point);
}

}  // namespace hostexec
