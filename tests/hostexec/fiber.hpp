// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Fibres: stacks to switch between, with the sanitizers told. Built without sanitizers,
/// HOSTEXEC_ASAN or HOSTEXEC_TSAN defined when the program has them.

#include <cstddef>

#ifdef HOSTEXEC_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace hostexec {

struct Fiber {
  void* stack_pointer;
  void* identity;  // whom TSan takes it for
  int thread;      // of the block
};
inline constexpr std::size_t kMaxFibers = 2048;

/// The calling thread's own stack.
extern Fiber caller;
/// Who runs.
extern Fiber* current;

/// Gives `fiber` a stack on which `entry` starts when it is first switched to.
void make_fiber(Fiber& fiber, void (*entry)());
/// To be called before the first switch on behalf of a caller, on its own stack.
void begin_switching();
/// First thing in a fibre's entry.
void entered();
void switch_to(Fiber& fiber);
/// Someone whom TSan takes for a thread. What fibres of one identity do is in order in its eyes.
void* new_identity();

/// What happened before a release of `place` is seen after an acquire of it (TSan).
#ifdef HOSTEXEC_TSAN
inline constexpr bool kTsan = true;
inline void acquire(void* place) { __tsan_acquire(place); }
inline void release(void* place) { __tsan_release(place); }
#else
inline constexpr bool kTsan = false;
inline void acquire(void*) {}
inline void release(void*) {}
#endif

}  // namespace hostexec
