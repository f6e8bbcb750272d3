// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The codecs of the catalogue, a file each.

#include "atomo/own_codec.hpp"

namespace atomo::catalogue {

CodecDefinition drive_definition();
CodecDefinition eden_definition();
CodecDefinition trellis_definition();
CodecDefinition codebook_definition();
CodecDefinition threshold_definition();
CodecDefinition dgc_threshold_definition();
CodecDefinition qsgd_elias_definition();
CodecDefinition sketchml_definition();
CodecDefinition lss_definition();
CodecDefinition countsketch_definition();

}  // namespace atomo::catalogue
