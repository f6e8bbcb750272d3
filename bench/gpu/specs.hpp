// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The codecs that are measured on GPUs, and whose speed there is predicted (tools/gpu_model).

namespace atomo::bench {

// The exact SVD comes last: it takes longest.
inline constexpr const char* kListedOnGpu[] = {"sign",
                                               "identity:dtype=f16",
                                               "qsgd:bits=2",
                                               "qsgd:bits=4",
                                               "qsgd:bits=8",
                                               "terngrad",
                                               "topk:keep=0.01",
                                               "topk:chunk=4096,k=64,values=2",
                                               "randomk:keep=0.01",
                                               "atomo:atoms=blocks,bits=1",
                                               "atomo:atoms=blocks,bits=0.25",
                                               "atomo:atoms=rows,bits=1",
                                               "atomo:atoms=rows,bits=0.25",
                                               "atomo:atoms=coordinate,bits=1",
                                               "atomo:atoms=coordinate,bits=0.25",
                                               "atomo:atoms=sketch,bits=0.5,rank=4",
                                               "atomo:atoms=sketch,bits=0.5,rank=8",
                                               "atomo:atoms=sketch,bits=0.5,rank=32",
                                               "atomo:atoms=sketch,bits=0.5,rank=64",
                                               "atomo:bits=0.5",
                                               "identity",
                                               "identity:dtype=bf16",
                                               "sign:scale=mean",
                                               "atomo:atoms=svd,bits=0.5"};

}  // namespace atomo::bench
