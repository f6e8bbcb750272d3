// SPDX-License-Identifier: Apache-2.0
/// The table of codecs: one row a codec, in the order of the documentation.

#include "atomo/codec.hpp"
#include "codec/body_decoder.hpp"
#include "codec/spec.hpp"

namespace atomo::codec {

const std::vector<CodecEntry>& codec_table() {
  static const std::vector<CodecEntry> table{
      {"identity",
       "dtype=f32|f16|bf16",
       "raw values, or stochastically rounded to half",
       "identity:dtype=bf16",
       {"dtype"},
       make_identity},
      {"atomo",
       "bits=B|ratio=R|price=A, cap=C, atoms=auto|sketch|svd|rows|blocks|coordinate, rank=, "
       "iterations=, keep=, delta=, "
       "values=dither|f32",
       "atoms kept at one price for the model, each choosing its own bits",
       "atomo:bits=0.5",
       {"bits", "ratio", "price", "cap", "atoms", "keep", "delta", "values", "rank", "iterations"},
       make_atomo},
      {"qsgd",
       "bits=1..8, bucket=512, norm=max|l2",
       "stochastic levels of a bucket's norm",
       "qsgd:bits=4",
       {"bits", "bucket", "norm"},
       make_qsgd},
      {"terngrad",
       "clip=none|C",
       "-1, 0, 1 times the layer's largest magnitude",
       "terngrad",
       {"clip"},
       make_terngrad},
      {"sign",
       "scale=none|mean",
       "the sign of each entry, biased",
       "sign:scale=mean",
       {"scale"},
       make_sign},
      {"topk",
       "keep=F|K",
       "the largest magnitudes as they are, biased",
       "topk:keep=0.01",
       {"keep"},
       make_topk},
      {"randomk",
       "keep=F|K",
       "entries drawn with a shared seed, scaled; no indices on the wire",
       "randomk:keep=0.01",
       {"keep"},
       make_random_k},
  };
  return table;
}

const BodyDecoder* find_decoder(MethodId id) noexcept {
  switch (id) {
    case MethodId::identity:
      return &kIdentityDecoder;
    case MethodId::atoms:
      return &kAtomsDecoder;
    case MethodId::coordinate:
      return &kCoordinateDecoder;
    case MethodId::qsgd:
      return &kQsgdDecoder;
    case MethodId::ternary:
      return &kTernaryDecoder;
    case MethodId::sign:
      return &kSignDecoder;
    case MethodId::topk:
      return &kTopkDecoder;
    case MethodId::random_k:
      return &kRandomKDecoder;
    case MethodId::factors:
      return &kFactorsDecoder;
    case MethodId::automatic:
      return &kAutomaticDecoder;
  }
  return nullptr;
}

}  // namespace atomo::codec

namespace atomo {

using namespace codec;

std::vector<CodecHelp> list_codecs() {
  std::vector<CodecHelp> list;
  for (const auto& entry : codec::codec_table()) {
    list.push_back({entry.name, entry.keys, entry.summary, entry.example});
  }
  list.push_back({"+blosc", "codec=lz4|zstd|blosclz, level=0..9, shuffle=none|byte|bit",
                  "a lossless stage behind any codec, stored when it does not shrink",
                  "topk:keep=0.01+blosc:codec=zstd"});
  return list;
}

}  // namespace atomo
