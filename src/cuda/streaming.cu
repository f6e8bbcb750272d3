// SPDX-License-Identifier: Apache-2.0
/// Streamed steps: what is kept of layers, and the controller.
///
/// Mathematics: price_controller.hpp. At the end of a step the price that would have met the whole
/// budget is searched among the layers that came, then, the controller having counted what their
/// bodies took, the price that meets the next step's share of it less what is owed; both by the searches of whole messages
/// (price.cu, grid_form.cu, coordinate_price.cu) over kept amplitudes, histograms and entries.
///
/// Mapping.
///   keep   a thread a word: from the workspace of a layer's message into the memory of the steps
///   open   one block: which layers came, a thread each; what their budgets, heads and bodies add
///          up to; the largest amplitude and the lowest grid; the searches begin anew; what the
///          sketches have learnt counts from now on
///   learn  one warp, a lane a pool, behind each of the two searches
/// Budgets are f64 and added in the order of the layers, by a warp a pool that reads 32 at a time.
///
/// Traffic: keep reads and writes 8 bytes an atom, which is 256 entries or a row, and 255 KiB a
/// layer with a histogram, or 4 bytes an entry of a small one with a grid. The end of a step reads
/// these as the search of a whole message does, twice, and 40 bytes a layer.
///
/// Shared memory: 40 bytes in open. Determinism: integers, and f64 in one order. Alignment: only
/// memory of the library is touched, and the layer's tensor, aligned to its entries.

#include "cuda/streaming.cuh"

#include "cuda/grid_form.cuh"
#include "format/container_rules.hpp"
#include "price/budget.hpp"
#include "price/coordinate_levels.hpp"
#include "price/price_controller.hpp"
#include "price/price_math.hpp"
#include "price/sketch_rank.hpp"

namespace atomo::cuda {
namespace {

using format::LayerRecord;

// ---- keep

struct KeptRange {
  const std::uint32_t* from = nullptr;
  std::uint32_t* to = nullptr;
  std::uint64_t words = 0;
};

struct KeepJob {
  static constexpr unsigned kRanges = 5;
  KeptRange ranges[kRanges];
  float* entries = nullptr;  ///< takes the layer's values; or null
  KeptLayer* layer = nullptr;
};

__global__ void keep_layer(Frame frame, KeepJob job) {
  const std::uint64_t thread = warp_in_grid() * kLanes + lane();
  const std::uint64_t threads = warps_in_grid() * kLanes;
  for (const KeptRange& range : job.ranges) {
    for (std::uint64_t i = thread; i < range.words; i += threads) range.to[i] = range.from[i];
  }
  if (job.entries != nullptr) {
    const Entries x = frame.entries(0);
    for (std::uint64_t i = thread; i < frame.info(0).n; i += threads) job.entries[i] = x(i);
  }
  if (thread != 0) return;
  const LayerState& layer = frame.layer(0);
  job.layer->seen =
      (layer.flags & LayerRecord::kNonFinite) != 0 ? KeptLayer::kNothing : KeptLayer::kBody;
  job.layer->bytes = layer.bytes;
}

// ---- open

/// By a whole warp: nothing is found yet.
__device__ void restart_search(const Frame& frame, const StepPlan& plan) {
  if (lane() < 2) frame.pool(static_cast<PoolNumber>(lane())) = {};
  if (lane() == 0) frame.state().notices = 0;
  if (plan.grid_pool.count == 0) return;
  coordinate::GridSearch& search = *frame(plan.grid_pool.search);
  for (auto& totals : search.totals) totals[lane()] = 0;
  for (auto& worth : search.worth) worth[lane()] = 0;
  if (lane() == 0) search.any = 0;
}

/// A whole warp adds up the budgets, in bits, of the pool's layers that came.
__device__ double budget_of(const Frame& frame, const StepPlan& plan, std::uint32_t pool) {
  const StepLayer* const layers = frame(plan.layers);
  const KeptLayer* const kept = frame(plan.kept);
  double bits = 0;
  for (std::uint32_t first = 0; first < plan.frame.count; first += kLanes) {
    const std::uint32_t i = first + lane();
    const bool came = i < plan.frame.count && layers[i].pool == pool && kept[i].seen != 0;
    const double own = came ? layers[i].budget_bits : 0.0;
    for (unsigned k = 0; k < kLanes; ++k) bits += __shfl_sync(kAllLanes, own, static_cast<int>(k));
  }
  return bits;
}

struct StepSums {
  unsigned long long fixed_bits[2], bytes[2];
  unsigned bodies[2];
};

/// What a layer brings; without a body it takes no part in the searches.
__device__ void restore_layer(const Frame& frame, const StepPlan& plan, std::uint32_t i,
                              StepSums& sums) {
  const StepLayer& layer = frame(plan.layers)[i];
  const KeptLayer& kept = frame(plan.kept)[i];
  const bool body = kept.seen == KeptLayer::kBody;
  LayerState& state = frame.layer(i);
  state.flags = body ? 0 : std::uint32_t{LayerRecord::kNonFinite};
  state.x = frame(layer.entries);
  if (kept.seen == 0 || layer.pool == StepLayer::kNoPool) return;
  atomicAdd(&sums.fixed_bits[layer.pool], static_cast<unsigned long long>(layer.fixed_bits));
  if (!body) return;
  atomicAdd(&sums.bytes[layer.pool], static_cast<unsigned long long>(kept.bytes));
  atomicOr(&sums.bodies[layer.pool], 1u);
}

/// Sets what the search of atoms begins with.
__device__ void open_demand(const Frame& frame, const atoms::Plan& plan, std::uint32_t priced) {
  const PricedLayer& of = frame(plan.price.layers)[priced];
  const bool tried = of.grid != PricedLayer::kNoGrid && frame(plan.price.grids)[of.grid].tried != 0;
  if (tried && of.price == 0)
    coordinate::enter_search(frame, plan.price, of.grid, frame.info(of.layer).n);
  if ((frame.layer(of.layer).flags & LayerRecord::kNonFinite) != 0) return;
  PriceTotals& totals = *frame(plan.price.totals);
  for (std::uint32_t j = of.first; j < of.first + of.jobs; ++j)
    atomicMax(&totals.largest, frame(plan.price.demands)[j].largest);
  if (tried) atomicMax(&totals.min_grid_code, frame(plan.price.grids)[of.grid].lowest);
}

/// Bits that a share of the budget leaves for bodies.
__device__ double bits_for_bodies(const StepPool& step, double share) {
  return price::body_budget(share * step.budget, step.fixed);
}

__global__ void __launch_bounds__(kScanThreads) open_step(Frame frame, StepPlan plan) {
  StepSums& sums = shared<StepSums>();
  if (threadIdx.x < 2)
    sums.fixed_bits[threadIdx.x] = sums.bytes[threadIdx.x] = sums.bodies[threadIdx.x] = 0;
  if (warp_in_block() == 0) restart_search(frame, plan);
  const bool prices_atoms = plan.atom_pool.price.count > 0;
  if (prices_atoms && threadIdx.x == 0) {
    PriceTotals& totals = *frame(plan.atom_pool.price.totals);
    totals.largest = 0;
    totals.min_grid_code = 0;
    totals.looks = 0;
  }
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < plan.frame.count; i += kScanThreads)
    restore_layer(frame, plan, i, sums);
  const double budget = warp_in_block() < 2 ? budget_of(frame, plan, warp_in_block()) : 0.0;
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < plan.frame.count; i += kScanThreads) {
    frame(plan.kept)[i].seen = 0;
    frame(plan.ranks)[i] = frame(plan.next_ranks)[i];  // of the step that begins
  }
  for (std::uint32_t i = threadIdx.x; prices_atoms && i < plan.atom_pool.price.count;
       i += kScanThreads)
    open_demand(frame, plan.atom_pool, i);
  if (warp_in_block() >= 2 || lane() != 0) return;
  const unsigned pool = warp_in_block();
  StepPool step;
  step.actual = 8.0 * static_cast<double>(sums.bytes[pool]);
  step.budget = budget;
  step.fixed = static_cast<double>(sums.fixed_bits[pool]);
  step.bodies = sums.bodies[pool];
  frame(plan.pools)[pool] = step;
  frame.pool(static_cast<PoolNumber>(pool)).budget_256 =
      price::budget_cost_256(bits_for_bodies(step, 1));
}

// ---- learn

/// Behind the search of the price that would have met the whole budget: what the next has to meet.
__global__ void count_bodies(Frame frame, StepPlan plan, price::StepPrices prices,
                             price::StepShares shares) {
  const unsigned p = lane();
  double target = 0;
  if (p < 2) {
    StepPool& step = frame(plan.pools)[p];
    price::ControllerState& learnt = frame(plan.learnt)->pools[p];
    const float given = p == 0 ? prices.given[0] : prices.given[1];
    step.used = prices.predicted ? learnt.price : given;
    step.plain = frame.pool(static_cast<PoolNumber>(p)).price;
    step.overspent = frame.pool(static_cast<PoolNumber>(p)).unpaid;
    if (step.bodies != 0) {
      price::count_step(learnt, step.used, step.plain, step.actual,
                        bits_for_bodies(step, shares.now), bits_for_bodies(step, 1));
      target = bits_for_bodies(step, shares.next) / price::payment(learnt, shares.next);
    }
  }
  __syncwarp();
  restart_search(frame, plan);
  __syncwarp();
  if (p < 2) frame.pool(static_cast<PoolNumber>(p)).budget_256 = price::budget_cost_256(target);
}

/// Behind that search: the price of the next step, which the pool of atoms then has.
__global__ void predict(Frame frame, StepPlan plan, Status* status) {
  const unsigned p = lane();
  if (p < 2) {
    const StepPool& step = frame(plan.pools)[p];
    price::LearntPrices& learnt = *frame(plan.learnt);
    PoolPrice& pool = frame.pool(static_cast<PoolNumber>(p));
    if (step.bodies != 0) price::predict_price(learnt.pools[p], step.plain, pool.price);
    learnt.used[p] = step.used;
    pool.price = learnt.pools[p].price;
  }
  if (p != 0 || status == nullptr) return;
  const StepPool* const steps = frame(plan.pools);
  const bool overspent = (steps[kAtomsPool].overspent | steps[kGridPool].overspent) != 0;
  *status =
      static_cast<Status>(frame.state().notices) | (overspent ? Status::overspent : Status::ok);
}

// ---- the plan

/// The grid of a layer has its entries, not a histogram.
bool lists_entries(const LayerPlan& layer) {
  return layer.n > 0 && layer.n <= coordinate::kListed &&
         (coordinate::has_grid(layer) || layer.kind.method == MethodId::coordinate);
}

void make_plan(std::span<const LayerPlan> layers, std::span<const backend::StreamedLayer> streamed,
               Layout& layout, StepPlan& plan) {
  const std::vector<std::uint16_t> kind_of(layers.size());
  plan_frame(layers, kind_of, 1, {}, layout, plan.frame);
  plan_prices(layers, layout, plan.atom_pool);
  plan_prices(layers, layout, plan.grid_pool);
  TableMaker<StepLayer> table(layout, layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    StepLayer layer;
    if (lists_entries(layers[i])) layer.entries = layout.scratch<float>(layers[i].n);
    if (streamed[i].pool == price::Pool::atoms) layer.pool = kAtomsPool;
    if (streamed[i].pool == price::Pool::grid) layer.pool = kGridPool;
    layer.budget_bits = streamed[i].budget_bits;
    layer.fixed_bits = static_cast<std::uint64_t>(streamed[i].fixed_bits);
    table.add(layer);
  }
  plan.layers = table.table();
  plan.kept = layout.zeroed<KeptLayer>(layers.size());
  plan.pools = layout.zeroed<StepPool>(2);
  plan.learnt = layout.zeroed<price::LearntPrices>(1);
  plan.ranks = layout.scratch<price::RankState>(layers.size());
  plan.next_ranks = layout.scratch<price::RankState>(layers.size());
}

/// The layers with a budget as f32: kept entries are.
struct BudgetedLayers {
  std::vector<LayerPlan> layers;

  BudgetedLayers(std::span<const LayerPlan> all, std::span<const backend::StreamedLayer> streamed) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      LayerPlan layer = all[i];
      layer.kind.dtype = DType::f32;
      if (streamed[i].pool == price::Pool::none) layer.n = layer.min_limit_bytes = 0;
      layers.push_back(layer);
    }
  }
};

template <typename T>
const T* in(std::span<const std::byte> tables, Table<T> table) {
  return reinterpret_cast<const T*>(tables.data() + table.at);
}
template <typename T>
Scratch<T> behind(Scratch<T> place, std::uint64_t count) {
  return {place.at + count * sizeof(T)};
}

/// The part of a layer's kept places that coordinates have, as `job` of `plan`.
void place_grid(const coordinate::Plan& plan, const coordinate::Job& job, std::uint64_t number,
                KeptPlaces& places) {
  places.grid = behind(plan.states, number);
  if (job.counts != coordinate::kNoCounts)
    places.counts = behind(plan.counts, std::uint64_t{job.counts} * price::kMagnitudeBins);
}

template <typename T>
void add_range(const Frame& frame, Scratch<T> from, const Frame& steps, Scratch<T> to,
               std::uint64_t count, KeptRange*& next) {
  static_assert(sizeof(T) % sizeof(std::uint32_t) == 0);
  if (to.at == 0) return;
  *next++ = {reinterpret_cast<const std::uint32_t*>(frame(from)),
             reinterpret_cast<std::uint32_t*>(steps(to)), count * (sizeof(T) / 4)};
}

}  // namespace

Streaming::Streaming(std::span<const LayerPlan> layers,
                     std::span<const backend::StreamedLayer> streamed, std::size_t cap_room)
    : cap_room_(cap_room) {
  for (const LayerPlan& layer : layers)
    reserve_ = std::max<std::uint64_t>(reserve_, layer.min_limit_bytes);
  const BudgetedLayers budgeted(layers, streamed);
  Layout counted;
  make_plan(budgeted.layers, streamed, counted, plan_);
  std::vector<std::byte> tables(counted.table_bytes());
  Layout placed(tables, counted);
  make_plan(budgeted.layers, streamed, placed, plan_);
  tables_ = on_device(tables, "the tables of a model's steps");
  memory_ = device_bytes(placed.workspace_bytes());
  check(cudaMemset(memory_.get(), 0, placed.workspace_bytes()), "the memory of a model's steps");
  set_places({in(tables, plan_.layers), layers.size()}, tables);
  set_first_ranks();
  set_first_limits(streamed, tables);
  wait_for_set_up("the memory of a model's steps");
}

std::vector<KeptPlaces> find_places(const atoms::Plan& atoms, const coordinate::Plan& grid,
                                    std::size_t layers, std::span<const std::byte> tables) {
  std::vector<KeptPlaces> all(layers);
  const PricePlan& price = atoms.price;
  for (std::uint32_t p = 0; p < price.count; ++p) {
    const PricedLayer& of = in(tables, price.layers)[p];
    const PriceJob* const jobs = in(tables, price.jobs) + of.first;
    KeptPlaces& places = all[of.layer];
    places.amplitudes = jobs->amplitudes;
    places.jobs = of.jobs;
    for (std::uint32_t j = 0; j < of.jobs; ++j) places.atoms += jobs[j].atoms;
    places.demands = behind(price.demands, of.first);
    if (of.min_limit_bytes != 0) places.limit = behind(atoms.cap.limits, p);
    if (of.grid == PricedLayer::kNoGrid) continue;
    places.offer = behind(price.grids, of.grid);
    place_grid(atoms.grids, in(tables, atoms.grids.jobs)[of.grid], of.grid, places);
  }
  for (std::uint32_t j = 0; j < grid.count; ++j) {
    const coordinate::Job& job = in(tables, grid.jobs)[j];
    place_grid(grid, job, j, all[job.layer]);
  }
  return all;
}

void Streaming::set_places(std::span<const StepLayer> layers, std::span<const std::byte> tables) {
  places_ = find_places(plan_.atom_pool, plan_.grid_pool, layers.size(), tables);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    places_[i].any = layers[i].pool != StepLayer::kNoPool;
    places_[i].entries = layers[i].entries;
  }
}

Scratch<KeptLayer> Streaming::kept(std::size_t layer) const noexcept {
  return behind(plan_.kept, layer);
}

void Streaming::set_first_ranks() {
  const std::vector<price::RankState> first(places_.size());
  for (price::RankState* const to : {ranks(), next_ranks()})
    check(cudaMemcpy(to, first.data(), first.size() * sizeof first[0], cudaMemcpyHostToDevice),
          "the ranks of a model's sketches");
}

void Streaming::set_first_limits(std::span<const backend::StreamedLayer> streamed,
                                 std::span<const std::byte> tables) {
  if (plan_.atom_pool.cap.layers == 0) return;
  std::vector<std::uint64_t> limits;
  for (std::uint32_t p = 0; p < plan_.atom_pool.price.count; ++p)
    limits.push_back(streamed[in(tables, plan_.atom_pool.price.layers)[p].layer].limit);
  check(cudaMemcpy(frame()(plan_.atom_pool.cap.limits), limits.data(),
                   limits.size() * sizeof limits[0], cudaMemcpyHostToDevice),
        "the limits of a model's layers");
}

void Streaming::fill(std::size_t layer, const price::StepPrices& prices,
                     MessageCall& call) const noexcept {
  call.streamed = true;
  if (prices.predicted) call.predicted = learnt();
  for (unsigned p = 0; p < 2; ++p) call.given[p] = prices.given[p];
  const Scratch<std::uint64_t> limit = places_[layer].limit;
  if (limit.at != 0) call.limit = frame()(limit);
  call.ranks = {ranks() + layer, next_ranks() + layer, nullptr};
  call.cap = {0, reserve_, price::layers_log2(places_.size())};
}

void Streaming::keep(std::size_t layer, const Frame& message, const atoms::Plan& atoms,
                     const coordinate::Plan& grid, Queue& queue) const noexcept {
  constexpr std::uint64_t kWordsByWarp = 1024;
  const KeptPlaces& places = places_[layer];
  if (!places.any) return;
  const Frame steps = frame();
  const coordinate::Plan& coordinates = grid.empty() ? atoms.grids : grid;
  KeepJob job;
  KeptRange* next = job.ranges;
  add_range(message, atoms.amplitudes, steps, places.amplitudes, places.atoms, next);
  add_range(message, atoms.price.demands, steps, places.demands, places.jobs, next);
  add_range(message, atoms.price.grids, steps, places.offer, 1, next);
  add_range(message, coordinates.states, steps, places.grid, 1, next);
  add_range(message, coordinates.counts, steps, places.counts, price::kMagnitudeBins, next);
  std::uint64_t words = 0;
  for (const KeptRange& range : job.ranges) words += range.words;
  if (places.entries.at != 0) {
    job.entries = steps(places.entries);
    words += coordinate::kListed;
  }
  job.layer = steps(kept(layer));
  queue.launch_warps(keep_layer, divide_up(words, kWordsByWarp), message, job);
}

void Streaming::end_step(const price::StepPrices& prices, const price::StepShares& shares,
                         Status* status, Queue& queue) const noexcept {
  const Frame steps = frame();
  const bool prices_atoms = plan_.atom_pool.price.count > 0;
  const auto search = [&] {
    if (prices_atoms) search_prices(steps, plan_.atom_pool, queue);
    if (!plan_.grid_pool.empty()) search_steps(steps, plan_.grid_pool, queue);
  };
  queue.launch_blocks(open_step, 1, kScanThreads, 0, steps, plan_);
  search();
  queue.launch_blocks(count_bodies, 1, kLanes, 0, steps, plan_, prices, shares);
  search();
  queue.launch_blocks(predict, 1, kLanes, 0, steps, plan_, status);
  if (plan_.atom_pool.cap.layers > 0) share_room(steps, plan_.atom_pool, cap_room_, queue);
}

}  // namespace atomo::cuda
