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

[[maybe_unused]] Fiber* switched_from;

void arrived() {
#ifdef HOSTEXEC_ASAN
  // The caller's stack is known to nobody else: whoever is switched to from it learns its bounds.
  const bool learn = switched_from == &caller;
  __sanitizer_finish_switch_fiber(current->fake_stack, learn ? &caller.bottom : nullptr,
                                  learn ? &caller.size : nullptr);
#endif
}

}  // namespace

void make_fiber(Fiber& fiber, void (*entry)()) {
  static std::size_t made = 0;
  void* const memory = mmap(nullptr, kPage + kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kPage, PROT_NONE) != 0) std::abort();
  char* const bottom = static_cast<char*>(memory) + kPage;
  // Stacks that end at the same offset of a page would share a few lines of the cache.
  const std::size_t stagger = made++ * 192 % kPage;
  void** top = reinterpret_cast<void**>(bottom + kStackBytes - stagger);
  *--top = nullptr;  // entry's return address, which also aligns the stack as after a call
  *--top = reinterpret_cast<void*>(entry);
  fiber = {top - kSavedRegisters, bottom, kStackBytes, nullptr, nullptr, 0};
#ifdef HOSTEXEC_TSAN
  fiber.tsan = __tsan_create_fiber(0);
#endif
}

void begin_switching() {
  current = &caller;
#ifdef HOSTEXEC_TSAN
  caller.tsan = __tsan_get_current_fiber();
#endif
}

void entered() { arrived(); }

void switch_to(Fiber& fiber) {
  Fiber* const me = current;
  if (&fiber == me) return;
  switched_from = me;
  current = &fiber;
#ifdef HOSTEXEC_TSAN
  __tsan_switch_to_fiber(fiber.tsan, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef HOSTEXEC_ASAN
  __sanitizer_start_switch_fiber(&me->fake_stack, fiber.bottom, fiber.size);
#endif
  hostexec_switch(&me->stack_pointer, fiber.stack_pointer);
  arrived();
}

}  // namespace hostexec
