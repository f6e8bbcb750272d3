// SPDX-License-Identifier: Apache-2.0
/// What preparing and writing a form of dithered atoms takes: the analysis of each of its families,
/// and its body (FORMAT.md, "atoms").
#include "codec/methods/dithered_form.hpp"

#include <algorithm>

#include "core/bits.hpp"
#include "cpu/atoms.hpp"
#include "cpu/dither_kernels.hpp"
#include "cpu/pairs.hpp"
#include "cpu/sketch.hpp"
#include "format/atom_body.hpp"
#include "price/atom_costs.hpp"
#include "price/pair_costs.hpp"
#include "price/price_math.hpp"

namespace atomo::codec {
namespace {

/// Bins of equal keys, in ascending order; pairs of amplitude 0 cost nothing. Returns those in use.
std::size_t fill_pair_bins(const PairLayer& pairs, std::span<const double> amplitudes,
                           std::span<PriceBin> bins, Bytes scratch) noexcept {
  Carver carver(scratch);
  const auto keys = carver.take<std::uint16_t>(pairs.count);
  const std::uint64_t weight = pair_weight(pairs.view);
  std::size_t count = 0;
  for (const double a : amplitudes) {
    if (a > 0) keys[count++] = static_cast<std::uint16_t>(amplitude_key(a));
  }
  std::sort(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(count));
  std::size_t used = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i == 0 || keys[i] != keys[i - 1]) bins[used++] = {0, 0, keys[i]};
    bins[used - 1].count += 1;
    bins[used - 1].weight += weight;
  }
  return used;
}

std::size_t pair_bins_scratch(const PairLayer& pairs) noexcept {
  Carver carver;
  carver.take<std::uint16_t>(pairs.count);
  return carver.bytes();
}

}  // namespace

std::size_t DitheredForm::max_body_bytes() const noexcept {
  std::size_t bytes = layer.is_sketch() ? kPairBytesField : 0;
  if (layer.has_pairs()) bytes += max_pairs_body_bytes(layer.pairs);
  if (layer.has_atoms()) bytes += format::max_body_bytes(layer.atoms);
  return bytes;
}

std::size_t DitheredForm::scratch_bytes() const noexcept {
  std::size_t bytes = 0;
  const auto need = [&](std::size_t own) { bytes = std::max(bytes, own); };
  if (layer.has_pairs()) {
    const MatrixShape& view = layer.pairs.view;
    need(layer.is_sketch() ? cpu::sketch_workspace_bytes(view, layer.pairs.count)
                           : cpu::svd_workspace_bytes(view));
    need(pair_bins_scratch(layer.pairs));
    need(cpu::encode_workspace_bytes(layer.pairs.count));
  }
  if (layer.is_sketch()) {  // the rows that are kept, and then their entries
    Carver carver;
    carver.take_bytes(cpu::encode_workspace_bytes(layer.atoms.count));
    carver.take_bytes(cpu::sketch_workspace_bytes(layer.pairs.view, layer.pairs.count));
    need(carver.bytes());
  }
  if (layer.has_atoms()) {
    need(cpu::analyse_workspace_bytes(layer.atoms));
    need(cpu::encode_workspace_bytes(layer.atoms.count));
  }
  return bytes;
}

void DitheredForm::carve_price_input(PreparedForm& form, Carver& carver) const noexcept {
  form.costs = carver.take<PriceCosts>(2);
  form.pair_bins = carver.take<PriceBin>(layer.pairs.count);
  form.atom_bins = carver.take<PriceBin>(layer.has_atoms() ? max_price_bins(layer.atoms) : 0);
}

void DitheredForm::carve_state(PreparedForm& form, Carver& carver) const noexcept {
  const MatrixShape& view = layer.pairs.view;
  form.amplitudes = carver.take<double>(layer.pairs.count);
  form.pairs.sigma = form.amplitudes;
  form.pairs.shorter = carver.take<float>(layer.pairs.count * view.shorter());
  form.pairs.longer = carver.take<float>(layer.pairs.count * view.longer());
  form.residual = carver.take<float>(layer.is_sketch() ? layer.atoms.elements() : 0);
  form.rms = carver.take<double>(layer.atoms.count);
}

Status DitheredForm::prepare(const LayerInput& in, std::span<const double> row_rms,
                             PreparedForm& form, FormInput& input, Bytes scratch) const noexcept {
  input = {};
  if (layer.is_sketch()) {
    if (row_rms.empty()) {
      cpu::atom_amplitudes(in.x, layer.atoms, form.rms.data(), in.executor);
      row_rms = form.rms;
    }
    const MatrixShape& view = layer.pairs.view;
    form.rank = std::clamp<std::size_t>(in.rank, 1, layer.pairs.count);
    std::fill(form.amplitudes.begin(), form.amplitudes.end(), 0.0);
    cpu::SingularPairs found{form.pairs.shorter.first(form.rank * view.shorter()),
                             form.pairs.longer.first(form.rank * view.longer()),
                             form.pairs.sigma.first(form.rank)};
    const Status s = cpu::sketch(in.x, view, {form.rank, iterations}, in.key, row_rms, found,
                                 form.residual, form.rms, in.executor, scratch);
    if (failed(s)) return s;
    form.pairs.exponent = found.exponent;
    price_pairs(form, input, scratch);
    cpu::AtomAnalysis found_rows;
    const Status binned =
        cpu::bin_amplitudes(layer.atoms, form.rms.data(), form.atom_bins, scratch, found_rows);
    if (!failed(binned)) price_atoms(found_rows, form, input);
    return binned;
  }
  if (layer.has_pairs()) {
    const Status s = cpu::svd(in.x, layer.pairs.view, form.pairs, scratch);
    if (!failed(s)) price_pairs(form, input, scratch);
    return s;
  }
  if (!layer.has_atoms()) return Status::ok;
  cpu::AtomAnalysis found;
  const Status s =
      cpu::analyse(in.x, layer.atoms, form.rms.data(), form.atom_bins, scratch, in.executor, found);
  if (!found.finite) return Status::non_finite;
  if (!failed(s)) price_atoms(found, form, input);
  return s;
}

void DitheredForm::price_pairs(PreparedForm& form, FormInput& input, Bytes scratch) const noexcept {
  const PairLayer& pairs = layer.pairs;
  const double unit = pair_amplitude(pairs.view);
  for (double& a : form.amplitudes) a *= unit;
  form.costs[0] = price::costs_of(selection, pair_costs(pairs.view));
  const std::size_t used = fill_pair_bins(pairs, form.amplitudes, form.pair_bins, scratch);
  input.pairs = {form.pair_bins.first(used), form.costs.data(), pairs.count,
                 *std::max_element(form.amplitudes.begin(), form.amplitudes.end())};
}

void DitheredForm::price_atoms(const cpu::AtomAnalysis& found, PreparedForm& form,
                               FormInput& input) const noexcept {
  form.costs[1] = price::costs_of(selection, price_costs(layer.atoms));
  input.atoms = {found.bins, &form.costs[1], layer.atoms.count, found.max_rms};
}

Status DitheredForm::write_rows(const LayerInput& in, float price, const PreparedForm& form,
                                Bytes scratch, Bytes body, cpu::AtomBody& atoms) const noexcept {
  Carver carver(scratch);
  const Bytes marks = carver.take_bytes(cpu::encode_workspace_bytes(layer.atoms.count));
  cpu::DrawnAtoms drawn;
  Status s = cpu::draw_atoms(layer.atoms, form.rms.data(), price, in.key, marks, drawn, selection);
  if (failed(s) || drawn.kept == 0) return s;
  const Bytes rest =
      carver.take_bytes(cpu::sketch_workspace_bytes(layer.pairs.view, layer.pairs.count));
  s = cpu::residual_rows(in.x, layer.pairs.view, form.pairs, drawn.marks(), form.residual.data(),
                         in.executor, rest);
  if (failed(s)) return s;
  return cpu::write_atoms(form.residual.data(), cpu::AtomPlaces::kept, layer.atoms, drawn, in.key,
                          in.executor, body, atoms);
}

Status DitheredForm::write(const LayerInput& in, float price, const PreparedForm& form,
                           const FormInput& input, Bytes scratch, Bytes body,
                           std::size_t& bytes) const noexcept {
  bytes = 0;
  const double largest = std::max(input.pairs.max_rms, input.atoms.max_rms);
  if (largest == 0) return Status::ok;
  if (price < price_of_code(min_price_code(largest))) return Status::unsupported;
  const std::size_t field = layer.is_sketch() ? kPairBytesField : 0;
  std::size_t of_pairs = 0;
  if (layer.has_pairs()) {
    const Status s =
        cpu::encode_pairs(form.pairs, layer.pairs, form.amplitudes, price, in.key, in.executor,
                          body.subspan(field), scratch, of_pairs, selection);
    if (failed(s)) return s;
  }
  cpu::AtomBody atoms;
  if (input.atoms.max_rms > 0) {
    const Bytes out = body.subspan(field + of_pairs);
    const Status s = layer.is_sketch()
                         ? write_rows(in, price, form, scratch, out, atoms)
                         : cpu::encode_atoms(in.x, layer.atoms, form.rms.data(), price, in.key,
                                             in.executor, out, scratch, atoms, selection);
    if (failed(s)) return s;
  }
  if (of_pairs + atoms.bytes == 0) return Status::ok;
  if (layer.is_sketch()) store_le(body.data(), static_cast<std::uint32_t>(of_pairs));
  bytes = field + of_pairs + atoms.bytes;
  return Status::ok;
}

}  // namespace atomo::codec
