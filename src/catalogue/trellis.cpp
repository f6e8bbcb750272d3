// SPDX-License-Identifier: Apache-2.0
/// \file
/// A block is rotated at random, as DRIVE's and EDEN's, and sent as the nearest path of a trellis (viterbi.hpp): rotated entries
/// are near normal and alike, and a path errs less than EDEN's levels of as many bits, or below a bit one entry of each group.
/// Scales are EDEN's (arXiv 2108.08842): |x|^2 / <Rx, path>, or with `form=mse` <Rx, path> / |path|^2.
///
/// EDEN's scale has no bias where R is uniform over all rotations, whatever the path is chosen by: what is left of the error
/// turns around x. A Hadamard matrix behind random signs is no such rotation, so the codec claims no absence of bias.
#include "catalogue/definitions.hpp"
#include "catalogue/rotated_blocks.hpp"
#include "catalogue/viterbi.hpp"

namespace atomo::catalogue {
namespace {

class TrellisCodec final : public RotatedBlocks {
 public:
  TrellisCodec(std::size_t states, double bits, std::size_t block, unsigned rotations,
               RotatedForm form)
      : RotatedBlocks(block, rotations, form), trellis_(states, bits, block) {}

  Traits traits() const override {
    Traits t;
    t.fixed_size = t.bounded = true;
    return t;
  }

 private:
  std::size_t codes_of(std::size_t length) const override { return trellis_.steps_of(length); }
  std::size_t code_bytes(std::size_t length) const override {
    return (trellis_.state_bits() + (codes_of(length) - 1) * trellis_.step_bits() + 7) / 8;
  }

  float choose(std::span<const float> v, double energy, Words&,
               std::span<Code> codes) const override {
    trellis_.find(v, static_cast<float>(1 / std::sqrt(energy)), codes);
    std::vector<float> q(v.size());
    trellis_.expand(codes, q);
    double along = 0, squares = 0;
    for (std::size_t i = 0; i < v.size(); ++i) {
      along += double{v[i]} * q[i];
      squares += double{q[i]} * q[i];
    }
    // A path at right angles to the block says nothing of it, and its scale would be without bound.
    const auto length = static_cast<double>(v.size());
    return along > kLeastCosine * std::sqrt(length * energy * squares)
               ? scale_of(along, squares, energy, v.size())
               : 0;
  }

  void put(Writer& out, std::span<const Code> codes) const override {
    BitWriter packed(out.rest());
    packed.put(codes[0], trellis_.state_bits());
    for (const Code code : codes.subspan(1)) packed.put(code, trellis_.step_bits());
    out.skip(packed.finish());
  }
  void get(Reader& in, std::span<Code> codes, std::size_t length) const override {
    BitReader packed(in.take(code_bytes(length)));
    codes[0] = static_cast<Code>(packed.get(trellis_.state_bits()));
    for (Code& code : codes.subspan(1)) code = static_cast<Code>(packed.get(trellis_.step_bits()));
    packed.end();
  }
  void expand(std::span<const Code> codes, std::span<float> q) const noexcept override {
    trellis_.expand(codes, q);
  }

  static constexpr double kLeastCosine = 0.01;  ///< of the angle between a block and its path

  Trellis trellis_;
};

}  // namespace

CodecDefinition trellis_definition() {
  return {.name = "trellis",
          .keys =
              "bits=1..4 or 0.02 to below 1, states=256..4096, block=64..65536, rotations=1..3, "
              "form=published|mse",
          .summary =
              "a path of a trellis near a block rotated at random, and a scale (TCQ, QTIP, EDEN)",
          .example = "trellis:bits=2,states=256",
          .make = [](SpecKeys& keys) -> std::shared_ptr<const OwnCodec> {
            const double bits = read_rotated_bits(keys);
            const auto states = static_cast<std::size_t>(
                keys.integer("states", Trellis::kFewestStates, Trellis::kMostStates, 1024));
            const auto block = static_cast<std::size_t>(keys.integer("block", 64, 65536, 16384));
            const auto rotations = static_cast<unsigned>(keys.integer("rotations", 1, 3, 1));
            const auto form = keys.choice("form", {"published", "mse"}, 0);
            return std::make_shared<TrellisCodec>(states, bits, block, rotations,
                                                  static_cast<RotatedForm>(form));
          }};
}

}  // namespace atomo::catalogue
