// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Everything a user of codecs and compressors includes.

#include "atomo/arithmetic.hpp"
#include "atomo/catalogue.hpp"
#include "atomo/codec.hpp"
#include "atomo/compressor.hpp"
#include "atomo/container.hpp"
#include "atomo/own_codec.hpp"
#include "atomo/patch.hpp"
#include "atomo/thread_pool.hpp"
#include "atomo/types.hpp"
#include "atomo/verify.hpp"
#include "atomo/version.hpp"
