// SPDX-License-Identifier: Apache-2.0
// No include guard: to be included before <hwy/foreach_target.h> by files whose results write fma.
// Sets without FMA are left to their plain loops, which call std::fma.
#include <hwy/detect_targets.h>
#undef HWY_DISABLED_TARGETS
#ifdef HWY_SSE2
#define HWY_DISABLED_TARGETS (HWY_SSE2 | HWY_SSSE3 | HWY_SSE4)
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#endif
