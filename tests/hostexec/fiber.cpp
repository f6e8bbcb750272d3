// SPDX-License-Identifier: Apache-2.0
#include "fiber.hpp"

#include <sys/mman.h>

#include <cstdlib>

#ifdef HOSTEXEC_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#error "the host executor switches stacks on x86-64 only"
#endif

// Saves what the System V ABI lets a function rely on, changes stacks, and goes on there.
extern "C" void hostexec_switch(void** save, void* to);
asm(R"(
.text
.type hostexec_switch,@function
hostexec_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rdx
  jmp *%rdx
.size hostexec_switch,.-hostexec_switch
)");

namespace hostexec {

Fiber caller;
Fiber* current = &caller;

namespace {

constexpr std::size_t kStackBytes = 128 * 1024, kPage = 4096;
constexpr std::size_t kSavedRegisters = 6;

// All stacks, each above a page that nobody may touch. To ASan they are one: being told of every
// switch would cost it more than the switches themselves.
constexpr std::size_t kAllStacksBytes = kMaxFibers * (kPage + kStackBytes);
char* all_stacks;
std::size_t fibers_made;

#ifdef HOSTEXEC_ASAN
struct Stack {
  const void* bottom;
  std::size_t size;
  void* fake;  // ASan's
};
Stack of_caller, of_fibres;
const Fiber* switched_from;

void leave(const Fiber& from, const Fiber& to) {
  switched_from = &from;
  if (&from == &caller)
    __sanitizer_start_switch_fiber(&of_caller.fake, of_fibres.bottom, of_fibres.size);
  else if (&to == &caller)
    __sanitizer_start_switch_fiber(&of_fibres.fake, of_caller.bottom, of_caller.size);
}

void arrived() {
  // The bounds of the caller's stack are known to nobody else: learnt by whom it switches to.
  if (switched_from == &caller)
    __sanitizer_finish_switch_fiber(of_fibres.fake, &of_caller.bottom, &of_caller.size);
  else if (current == &caller)
    __sanitizer_finish_switch_fiber(of_caller.fake, nullptr, nullptr);
}
#else
void leave(const Fiber&, const Fiber&) {}
void arrived() {}
#endif

char* stack_memory() {
  if (all_stacks == nullptr) {
    void* const memory = mmap(nullptr, kAllStacksBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    all_stacks = static_cast<char*>(memory);
#ifdef HOSTEXEC_ASAN
    of_fibres = {all_stacks, kAllStacksBytes, nullptr};
#endif
  }
  if (fibers_made == kMaxFibers) std::abort();
  return all_stacks + fibers_made * (kPage + kStackBytes);
}

}  // namespace

void make_fiber(Fiber& fiber, void (*entry)()) {
  char* const memory = stack_memory();
  if (mprotect(memory, kPage, PROT_NONE) != 0) std::abort();
  char* const bottom = memory + kPage;
  // Stacks that end at the same offset of a page would share a few lines of the cache.
  const std::size_t stagger = fibers_made++ * 192 % kPage;
  void** top = reinterpret_cast<void**>(bottom + kStackBytes - stagger);
  *--top = nullptr;  // entry's return address, which also aligns the stack as after a call
  *--top = reinterpret_cast<void*>(entry);
  fiber = {top - kSavedRegisters, nullptr, 0};
}

void* new_identity() {
#ifdef HOSTEXEC_TSAN
  return __tsan_create_fiber(0);
#else
  return nullptr;
#endif
}

void begin_switching() {
  current = &caller;
#ifdef HOSTEXEC_TSAN
  caller.identity = __tsan_get_current_fiber();
#endif
}

void entered() { arrived(); }

void switch_to(Fiber& fiber) {
  Fiber* const me = current;
  if (&fiber == me) return;
  leave(*me, fiber);
  current = &fiber;
#ifdef HOSTEXEC_TSAN
  if (fiber.identity != me->identity)
    __tsan_switch_to_fiber(fiber.identity, __tsan_switch_to_fiber_no_sync);
#endif
  hostexec_switch(&me->stack_pointer, fiber.stack_pointer);
  arrived();
}

}  // namespace hostexec
