// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Marks what stands once and is compiled for the host and for the device.

#include "core/namespaces.hpp"

#ifdef __CUDACC__
#define ATOMO_HD __host__ __device__
#else
#define ATOMO_HD
#endif
