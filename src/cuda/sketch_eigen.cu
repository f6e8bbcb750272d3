// SPDX-License-Identifier: Apache-2.0
/// The eigenvectors of the small matrices of sketches.
///
/// Mathematics: cyclic Jacobi rotations in f32. A sweep annihilates every pair of a tournament's
/// rounds, whose pairs are disjoint. The last sweep is one that met no entry above 2^-16 of the largest
/// eigenvalue, and leaves entries of about the square of that, or the twelfth. Whatever has been
/// reached is orthogonal to the rounding of f32, and what the pairs lack for that the residual has.
///
/// Mapping. A block a layer. The tournament's seats stand still and its players move one seat on
/// each round, so that a thread has the four entries where its two pairs of seats meet: it reads
/// them from its own place and writes them where their players sit next. The first warp is a round
/// ahead: it works out for itself the entry at which two players meet as a pair next, and the
/// angle, while the others apply the angles of this round. One barrier a round. Rotations are
/// written down, and a second launch makes the eigenvectors of them: what they do to one entry of
/// all vectors depends on no other, so a warp takes one through all rounds, a lane a pair of seats,
/// while its block of 8 fetches those that follow.
///
/// Traffic: r^2 values read and written, 8 bytes each, and some 50 r^3 operations, in blocks beside
/// each other: the time is that of the largest rank, not the matrices'.
///
/// Ranks above 64 go through a tridiagonal form (sketch_tridiagonal.cu), of which two to four leaves of up to 64 rows
/// are diagonalised here, side by side, and joined again (sketch_join.cu).
///
/// Shared memory: 17,168 bytes for rotations, 18,432 for eigenvectors. Determinism: no sum is shared.
/// Alignment: all stands in the workspace.

#include "cuda/sketch.cuh"

namespace atomo::cuda {
namespace {

constexpr float kNegligible = 0x1p-26f, kSmall = 0x1p-16f;

/// Threads that find rotations: a warp for the angles, and one for every two pairs of up to kSharedRank players.
constexpr unsigned kMeetings = 512, kEigenThreads = kLanes + kMeetings;
constexpr std::uint32_t kSeatedPairs = kSharedRank / 2;
static_assert(kSeatedPairs == kLanes && kSeatedPairs * (kSeatedPairs - 1) / 2 <= kMeetings);

/// An even number: the one too many is a zero row and column that nothing rotates.
__device__ constexpr std::uint32_t players_of(std::uint32_t rank) { return (rank + 1) / 2 * 2; }

struct Pair {
  std::uint32_t ahead, behind;
};
struct Eigen {
  float meetings[2][4 *
                    kMeetings];  ///< the four entries of two pairs of seats, of even and odd rounds
  SketchTurn turns[2][kSeatedPairs];
  std::uint32_t ends[2];  ///< whether the round is the last
  std::uint32_t sweeps;
  float values[kSharedRank];  ///< eigenvalues
};

/// Pair `number` of a round among `players`, an even number: each meets each once in the
/// players - 1 rounds.
__device__ Pair draw_pair(std::uint32_t players, std::uint32_t round, std::uint32_t number) {
  const std::uint32_t others = players - 1;
  const auto around = [=](std::uint32_t i) { return i < others ? i : i - others; };
  return {number == 0 ? others : around(round + number), around(round + others - number)};
}

/// Rotates the pair's entries `ahead` and `behind` so that the one between them vanishes, if that is not
/// negligible; whether it was not small. `unit`: one over the largest. `falls`: the player behind is the lower one.
__device__ __forceinline__ bool find_rotation(float unit, bool falls, float& ahead, float& behind,
                                              float& between, SketchTurn& by) {
  const float off = between * unit;
  by = {1, 0};
  if (!(fabsf(off) > kNegligible)) return false;
  const float low = falls ? behind : ahead, high = falls ? ahead : behind;
  const float apart = (high - low) * unit, twice = apart < 0 ? -2 * off : 2 * off;
  const float wide = fabsf(apart) + sqrtf((apart * apart) + (twice * twice));
  const float inverse = 1 / sqrtf((wide * wide) + (twice * twice));
  const float sine = twice * inverse, moved = (twice / wide) * between;
  by = {wide * inverse, falls ? -sine : sine};
  ahead = falls ? high + moved : low - moved;
  behind = falls ? low - moved : high + moved;
  between = 0;
  return fabsf(off) > kSmall;
}

__device__ void rotate(SketchTurn by, float& ahead, float& behind) {
  const float x = ahead, y = behind;
  ahead = (by.cosine * x) - (by.sine * y);
  behind = (by.sine * x) + (by.cosine * y);
}

/// The four entries where pairs a < b meet.
struct Meeting {
  float v[2][2];  ///< by the side of a, then of b
  __device__ void rotate_both(SketchTurn a, SketchTurn b) {
    rotate(a, v[0][0], v[1][0]);
    rotate(a, v[0][1], v[1][1]);
    rotate(b, v[0][0], v[0][1]);
    rotate(b, v[1][0], v[1][1]);
  }
};

/// One of the two seats of a pair; side 0 is ahead.
struct Seat {
  std::uint32_t pair, side;
};
/// Where the player sits in the next round.
__device__ Seat next_seat(std::uint32_t count, Seat seat) {
  if (seat.side == 0) {
    if (seat.pair == 0) return seat;
    return seat.pair == 1 ? Seat{0, 1} : Seat{seat.pair - 1, 0};
  }
  return seat.pair + 1 < count ? Seat{seat.pair + 1, 1} : Seat{seat.pair, 0};
}
/// Where the player that sits there next comes from.
__device__ Seat last_seat(std::uint32_t count, Seat seat) {
  if (seat.side == 0) {
    if (seat.pair == 0) return seat;
    return seat.pair + 1 < count ? Seat{seat.pair + 1, 0} : Seat{seat.pair, 1};
  }
  return seat.pair == 0 ? Seat{1, 0} : Seat{seat.pair - 1, 1};
}
/// The same of what lanes have at the seats of their pairs.
__device__ void move_players(std::uint32_t count, float& ahead, float& behind) {
  if (count == 1) return;
  const float before = __shfl_down_sync(kAllLanes, ahead, 1);
  const float after = __shfl_up_sync(kAllLanes, behind, 1);
  const float own = behind;
  behind = lane() == 0 ? before : after;
  ahead = lane() == 0 ? ahead : lane() + 1 < count ? before : own;
}
/// The place of the entry where two seats of different pairs meet. Meeting m of `count` pairs is that of pair
/// m mod count with the one m / count + 1 further on.
__device__ std::uint32_t place_of(std::uint32_t count, Seat a, Seat b) {
  const std::uint32_t on = b.pair > a.pair ? b.pair - a.pair : b.pair + count - a.pair;
  const std::uint32_t back = count - on;
  return on < back || (on == back && a.pair < b.pair)
             ? (2 * a.side + b.side) * kMeetings + (on - 1) * count + a.pair
             : (2 * b.side + a.side) * kMeetings + (back - 1) * count + b.pair;
}

/// Entries of two pairs, where they are and where they will be.
struct Places {
  static constexpr std::uint32_t kNone = ~0u;  ///< they meet as a pair
  std::uint32_t from[2][2], to[2][2];

  __device__ Places(std::uint32_t count, std::uint32_t a, std::uint32_t b) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const Seat x{a, i / 2}, y{b, i % 2};
      const Seat next_x = next_seat(count, x), next_y = next_seat(count, y);
      from[i / 2][i % 2] = place_of(count, x, y);
      to[i / 2][i % 2] = next_x.pair == next_y.pair ? kNone : place_of(count, next_x, next_y);
    }
  }
  __device__ void begin(const Meeting& own, float* meetings) const {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) meetings[from[i / 2][i % 2]] = own.v[i / 2][i % 2];
  }
  __device__ Meeting read(const float* meetings) const {
    Meeting own;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) own.v[i / 2][i % 2] = meetings[from[i / 2][i % 2]];
    return own;
  }
  __device__ void write(const Meeting& own, float* meetings) const {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
      if (to[i / 2][i % 2] != kNone) meetings[to[i / 2][i % 2]] = own.v[i / 2][i % 2];
  }
};

/// A symmetric matrix of `rank` rows, in full or tridiagonal. `players` are as many, or one too many, who has zeros that
/// nothing rotates.
struct Gram {
  const double* full;
  std::uint32_t stride;
  const float *diagonal, *beside;  ///< of a tridiagonal one
  std::uint32_t rank, players;

  __device__ float operator()(std::uint32_t row, std::uint32_t column) const {
    if (row >= rank || column >= rank) return 0;
    if (full != nullptr) return static_cast<float>(full[row * stride + column]);
    if (row == column) return diagonal[row];
    return row + 1 == column ? beside[row] : column + 1 == row ? beside[column] : 0.0f;
  }
};
/// What a block diagonalises: the Gram matrix, or a leaf of its tridiagonal form.
struct Leaf {
  std::uint32_t number, first, size;
};
__device__ Leaf leaf_of(const SketchState& state, std::uint32_t rank, std::uint32_t number) {
  if (rank <= kSharedRank) return {number, 0, number == 0 ? rank : 0};
  const Leaves leaves = leaves_of(state.directions);
  const std::uint32_t first = leaves.begin(number);
  return {number, first, leaves.begin(number + 1) - first};
}
__device__ SketchTurn* turns_of(const Frame& frame, const SketchJob& job, const Leaf& leaf) {
  return frame(job.turns) + leaf.number * most_turns(kSharedRank);
}

/// A lane of the warp that finds angles, one round ahead of the others: the pair at its seats.
class Lead {
 public:
  __device__ explicit Lead(const Gram& gram)
      : count_(gram.players / 2), pair_(lane() < count_ ? lane() : 0) {
    const Pair own = draw_pair(gram.players, 0, pair_);
    ahead_ = gram(own.ahead, own.ahead), behind_ = gram(own.behind, own.behind);
    between_ = gram(own.ahead, own.behind);
    float largest = behind_ > ahead_ ? behind_ : ahead_;
    for (unsigned step = kLanes / 2; step != 0; step /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, largest, static_cast<int>(step));
      largest = other > largest ? other : largest;
    }
    unit_ = largest > 0 ? 1 / largest : 0;
    if (count_ == 1) return;
    const Seat x = last_seat(count_, {pair_, 0}), y = last_seat(count_, {pair_, 1});
    const bool swapped = x.pair > y.pair;
    a_ = swapped ? y : x, b_ = swapped ? x : y;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
      from_[i / 2][i % 2] = place_of(count_, {a_.pair, i / 2}, {b_.pair, i % 2});
    to_ = place_of(count_, next_seat(count_, {pair_, 0}), next_seat(count_, {pair_, 1}));
  }

  /// The rotations of a round, and whether it is the last.
  __device__ void find(std::uint32_t round, Eigen& memory, SketchTurn* turns) {
    const std::uint32_t r = round_, last = 2 * count_ - 2;
    const bool falls = pair_ <= (r < last - r ? r : last - r);
    SketchTurn by;
    const bool large = find_rotation(unit_, falls, ahead_, behind_, between_, by);
    goes_on_ = goes_on_ || (large && lane() < count_);
    if (lane() < count_) memory.turns[round % 2][pair_] = turns[round * count_ + pair_] = by;
    ends_ = false;
    if (r == last) {
      ++sweeps_;
      ends_ = __any_sync(kAllLanes, goes_on_) == 0 || sweeps_ == kMostSweeps;
      goes_on_ = false;
    }
    round_ = r == last ? 0 : r + 1;
    if (lane() == 0) memory.ends[round % 2] = ends_ ? 1 : 0;
  }
  /// What the others read of that.
  [[nodiscard]] __device__ bool ends() const { return ends_; }
  /// Moves to the next round: what the entry between its players will be, and where this one's goes.
  __device__ void move_on(std::uint32_t round, Eigen& memory) {
    if (count_ == 1) return;
    const float* const meetings = memory.meetings[round % 2];
    const SketchTurn* const turns = memory.turns[round % 2];
    if (lane() < count_) memory.meetings[(round + 1) % 2][to_] = between_;
    Meeting next;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) next.v[i / 2][i % 2] = meetings[from_[i / 2][i % 2]];
    next.rotate_both(turns[a_.pair], turns[b_.pair]);
    const float of_ahead = b_.side == 0 ? next.v[0][0] : next.v[0][1];
    const float of_behind = b_.side == 0 ? next.v[1][0] : next.v[1][1];
    between_ = a_.side == 0 ? of_ahead : of_behind;
    move_players(count_, ahead_, behind_);
  }
  /// Behind the last round.
  __device__ void put(Eigen& memory) const {
    if (lane() >= count_) return;
    const Pair own = draw_pair(2 * count_, 2 * count_ - 2, pair_);
    memory.values[own.ahead] = ahead_, memory.values[own.behind] = behind_;
    if (pair_ == 0) memory.sweeps = sweeps_;
  }

 private:
  std::uint32_t count_, pair_;
  float unit_, ahead_, behind_, between_;
  bool goes_on_ = false, ends_ = false;
  std::uint32_t sweeps_ = 0, round_ = 0;  ///< of this sweep
  Seat a_{}, b_{};                        ///< where those come from that meet next
  std::uint32_t from_[2][2] = {}, to_ = 0;
};

/// Finds the rotations that make the matrix diagonal, round by round, and its eigenvalues.
__device__ __forceinline__ void diagonalise_seated(const Gram& gram, Eigen& memory,
                                                   SketchTurn* turns) {
  const std::uint32_t count = gram.players / 2, meeting = threadIdx.x - kLanes;
  const bool leads = threadIdx.x < kLanes, own = !leads && meeting < count * (count - 1) / 2;
  const std::uint32_t x = own ? meeting % count : 0, on = own ? meeting / count + 1 : 1;
  const std::uint32_t y = x + on < count ? x + on : x + on - count;
  const std::uint32_t a = x < y ? x : y, b = x < y ? y : x;
  const Places places(count, a, b);
  if (own) {
    const Pair first = draw_pair(gram.players, 0, a), second = draw_pair(gram.players, 0, b);
    const Meeting met{{{gram(first.ahead, second.ahead), gram(first.ahead, second.behind)},
                       {gram(first.behind, second.ahead), gram(first.behind, second.behind)}}};
    places.begin(met, memory.meetings[0]);
  }
  Lead lead(gram);
  if (leads) lead.find(0, memory, turns);
  for (std::uint32_t round = 0;; ++round) {
    __syncthreads();
    if (leads ? lead.ends() : memory.ends[round % 2] != 0) break;
    if (leads) {
      lead.move_on(round, memory);
      lead.find(round + 1, memory, turns);
    } else if (own) {
      Meeting met = places.read(memory.meetings[round % 2]);
      met.rotate_both(memory.turns[round % 2][a], memory.turns[round % 2][b]);
      places.write(met, memory.meetings[(round + 1) % 2]);
    }
  }
  if (leads) lead.put(memory);
}

/// From a matrix to its rotations and the places of its eigenvalues: descending.
__global__ void __launch_bounds__(kEigenThreads, 1) find_eigen(Frame frame, SketchPlan plan) {
  const std::uint32_t number = blockIdx.x / plan.leaves;
  const SketchJob& job = frame(plan.jobs)[number];
  SketchState& state = frame(plan.states)[number];
  const std::uint32_t rank = sketch_rank(frame, job);
  const Leaf leaf = leaf_of(state, rank, blockIdx.x % plan.leaves);
  if (leaf.size == 0) return;
  auto& memory = shared<Eigen>();
  const bool whole = rank <= kSharedRank;
  const Gram gram{whole ? frame(job.gram) : nullptr, rank,      frame(job.diagonal) + leaf.first,
                  frame(job.beside) + leaf.first,    leaf.size, players_of(leaf.size)};
  diagonalise_seated(gram, memory, turns_of(frame, job, leaf));
  __syncthreads();
  if (threadIdx.x == 0) state.sweeps[leaf.number] = memory.sweeps;
  for (std::uint32_t k = threadIdx.x; k < leaf.size; k += kEigenThreads) {
    const float value = memory.values[k];
    std::uint32_t place = leaf.first;
    for (std::uint32_t j = 0; j < leaf.size; ++j) {
      const float other = memory.values[j];
      place += other > value || (other == value && j < k) ? 1 : 0;
    }
    frame(job.order)[leaf.first + k] = place;
    if (!whole) frame(job.values)[place] = static_cast<double>(value);
  }
}

/// Rotations on their way to the warps of a block.
constexpr unsigned kVectorThreads = kEigenEntries * kLanes, kTurnsTogether = 2048;
struct Turned {
  SketchTurn turns[kTurnsTogether];
  float entry[kEigenEntries][kSharedRank];
};

/// A warp an entry of all vectors, unit vectors at first, through all rounds: a lane has those of its seats.
__global__ void __launch_bounds__(kVectorThreads) turn_eigenvectors(Frame frame, SketchPlan plan) {
  const UnitOf at = find_unit(frame, plan.eigen, blockIdx.x);
  const SketchJob& job = frame(plan.jobs)[at.job];
  const SketchState& state = frame(plan.states)[at.job];
  const std::uint32_t rank = sketch_rank(frame, job);
  constexpr std::uint32_t kUnits = kSharedRank / kEigenEntries;
  const auto unit = static_cast<std::uint32_t>(at.index);
  const Leaf leaf = leaf_of(state, rank, unit / kUnits);
  const std::uint32_t players = players_of(leaf.size), first = unit % kUnits * kEigenEntries;
  if (first >= leaf.size) return;
  auto& memory = shared<Turned>();
  float* const entry = memory.entry[warp_in_block()];
  const std::uint32_t own = first + warp_in_block(), count = players / 2;
  const std::uint32_t seats = lane() < count ? lane() : 0;
  const Pair pair = draw_pair(players, 0, seats);
  float ahead = pair.ahead == own ? 1.0f : 0.0f, behind = pair.behind == own ? 1.0f : 0.0f;
  const std::uint32_t rounds = state.sweeps[leaf.number] * (players - 1);
  const std::uint32_t together = kTurnsTogether / count;
  const SketchTurn* const turns = turns_of(frame, job, leaf);
  for (std::uint32_t begin = 0; begin < rounds; begin += together) {
    const std::uint32_t end = begin + together < rounds ? begin + together : rounds;
    __syncthreads();
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x; i < (end - begin) * count; i += kVectorThreads)
      memory.turns[i] = turns[begin * count + i];
    __syncthreads();
#pragma unroll 4
    for (std::uint32_t i = 0; i < end - begin; ++i) {
      rotate(memory.turns[i * count + seats], ahead, behind);
      move_players(count, ahead, behind);
    }
  }
  if (own >= leaf.size) return;
  // Whole sweeps bring all players back to their first seats.
  if (lane() < count) entry[pair.ahead] = ahead, entry[pair.behind] = behind;
  __syncwarp();
  double* const turn = frame(job.turn) + leaf.first + own;
  for (std::uint32_t k = lane(); k < leaf.size; k += kLanes)
    turn[frame(job.order)[leaf.first + k] * rank] = static_cast<double>(entry[k]);
}

}  // namespace

void find_eigenvectors(const Frame& frame, const SketchPlan& plan, Queue& queue) {
  if (plan.leaves > 1) find_tridiagonal(frame, plan, queue);
  queue.launch_blocks(find_eigen, plan.drawn.jobs * plan.leaves, kEigenThreads, 0, frame, plan);
  queue.launch_blocks(turn_eigenvectors, plan.eigen.units, kVectorThreads, 0, frame, plan);
  if (plan.leaves > 1) join_leaves(frame, plan, queue);
}

}  // namespace atomo::cuda
