// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The specs that the tests of all codecs of the catalogue run: one for each way through the code.

namespace atomo::test {

struct CatalogueSpec {
  const char* spec;
  bool verified;  ///< its claims are verified by draws too
};

inline constexpr CatalogueSpec kCatalogue[] = {
    {"drive", false},
    {"drive:block=64,form=mse", true},
    {"drive:form=unbiased", true},
    {"eden:bits=3,rotations=2", false},
    {"eden:bits=4,form=mse", false},
    {"eden:bits=2,block=128,form=unbiased", true},
    {"eden:bits=0.22,rotations=2", false},
    {"eden:bits=0.5,block=64,form=mse", true},
    {"eden:bits=0.4,block=64,form=unbiased", true},
    {"trellis:bits=0.22,states=256", false},
    {"trellis:bits=3,block=64,rotations=2,form=mse", false},
    {"codebook:levels=quantile,bits=4", true},
    {"codebook:levels=lloyd,bits=3,code=huffman", true},
    {"codebook:levels=log,bits=8", true},
    {"codebook:levels=cot,bits=3,form=nearest,code=huffman", false},
    {"codebook:levels=ternary,code=huffman", true},
    {"codebook:levels=lloyd,bits=2,form=nearest", false},
    {"codebook:levels=quantile,bits=3,form=nearest", false},
    {"threshold:above=1.5", false},
    {"threshold:above=2,unit=rms,form=unbiased", true},
    {"dgc-threshold:keep=0.05", false},
    {"dgc-threshold:keep=0.1,form=unbiased", true},
    {"qsgd-elias:levels=4", true},
    {"qsgd-elias:levels=1,code=gaps", true},
    {"qsgd-elias:levels=255,bucket=64,norm=max,code=huffman", true},
    {"qsgd-elias:levels=255,code=gaps", false},
    {"qsgd-elias:levels=255,norm=max", false},
    {"sketchml:buckets=64,groups=4", false},
    {"sketchml:buckets=32,form=unbiased", true},
    {"lss:clusters=3,cells=0.1", false},
    {"lss:form=unbiased", true},
    {"countsketch:cells=0.5", true},
    {"countsketch:cells=0.25,rows=3,estimate=mean", true},
    {"countsketch:cells=0.5,top=0.1,hash=shared", false},
};

}  // namespace atomo::test
