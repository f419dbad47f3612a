// The matrix products of a step, and what happens to the sums of each. Both drivers use these.
#pragma once
#include "attention.cuh"
#include "delta.cuh"
#include "feed.cuh"
#include "finish.cuh"
#include "flat.cuh"
#include "linear.cuh"
#include "router.cuh"

// The residual that o adds (in layer 0: the embedding), or that down adds.
__device__ __forceinline__ float residual(const Args& args, const Shared& shared, bool before_o, int layer, u32 epoch,
                                          int row, int at) {
  if (before_o && layer == 0) return low(args.embed[(long long)shared.token[row] * D_MODEL + at]);
  const u64* from = args.x + (((before_o ? MAX_ROWS : 0) + row) * D_MODEL + at) / 2;
  u64 word = receive_pair(from, before_o ? epoch - 1 : epoch);
  float value = at & 1 ? second_of(word) : first_of(word);
  if (DOWN_PARTS > 1 && before_o) {
    word = receive_pair(from + MAX_ROWS * D_MODEL / 2, epoch - 1);
    value += at & 1 ? second_of(word) : first_of(word);
  }
  return value;
}

#if FLAT
// Do the same threads own the same rows of o and of down, so that the residual can stay in a register?
constexpr bool SAME_ROWS = O::OVER == Down::OVER && Down::PARTS == 1;
#else
constexpr bool SAME_ROWS = true;
__device__ __forceinline__ Range tiles_of(const Shape&, const Range& units) { return units; }
#endif
// In a flat cut a tile of down may be split between two CTAs. The first of them adds the residual.
__device__ __forceinline__ bool second_part(const Shape& s, const Range& units, int tile) {
  return DOWN_PARTS > 1 && s.phase == Down::ID && tile * s.blocks < units.first;
}
// Fetches the residual of this thread's row before waiting for the input activations. Steps of one row.
__device__ __forceinline__ void fetch_residual(const Args& args, const Shared& shared, int layer, u32 epoch,
                                               const Shape& s, const Range& units, float& kept_residual) {
  const Range tiles = tiles_of(s, units);
  const int tile = tiles.first + (threadIdx.x >> 5);
  if (DOWN_PARTS > 1) kept_residual = 0;
  if (tile < tiles.last && !second_part(s, units, tile))
    kept_residual = residual(args, shared, s.phase == O::ID, layer, epoch, 0,
                             min(tile * TILE + (int)(threadIdx.x & 15), D_MODEL - 1));
}

// Where the sums of a unit go. `column` is a row of the step.
struct Target {
  u64* to;              // word of the first row; null: not sent
  int at, row, expert;  // first row of the tile in the matrix; row of the step; index of its expert
  int rows, shift;      // rows to send, 2^shift per word
};
__device__ __forceinline__ Target target_of(const Args& args, const Shape& s, const Range& units, int unit,
                                            int column) {
  // `which`: the split of K, the row of the step, or the row's expert that the unit belongs to.
  const int id = s.phase, which = (int)(((float)unit + 0.5f) * s.per_tile), tile = unit - which * s.tiles;
  Target t{nullptr, tile * TILE, column, 0, TILE, 1};
  if (id == O::ID || id == Down::ID) {  // two neighbours share a word
    if (MAX_ROWS > 1 && s.row_units) t.row = which;
    int row = t.row;  // of x: after o, after down, the second part of down
    if (id == Down::ID) row += second_part(s, units, tile) ? 2 * MAX_ROWS : MAX_ROWS;
    t.to = args.x + (row * D_MODEL + t.at) / 2;
    t.rows = min(TILE, D_MODEL - t.at);
  } else if (id == Qkv::ID) {
    t.to = args.qkv + (column * QKV_ROWS + t.at) / 2;
    t.rows = min(TILE, QKV_ROWS - t.at);
#if EXPERTS
  } else if (is_small(id)) {
    const int part = which + (id == Fold::ID ? ROUTER_PARTS : 0);  // the fold: graph driver only
    t.to = args.router + (part * MAX_ROWS + column) * ROUTER_ROWS + t.at;
    t.rows = min(TILE, ROUTER_ROWS - t.at);
    t.shift = 0;
#endif
  } else if (id == GateUp::ID) {  // a tile holds 8 gate rows and their 8 up rows
    int to = tile * 8;
#if EXPERTS
    t.row = MAX_ROWS > 1 ? which / EXPERTS_PER_ROW : 0;
    t.expert = which - t.row * EXPERTS_PER_ROW;
    to += t.expert * (Down::COPY_BLOCKS * BLOCK);
#endif
    t.to = args.h + (t.row * (Down::BLOCKS * BLOCK) + to) / 2;
    t.rows = 8;
  }
  return t;
}
// Prepares a warp's task for a matrix (stream.cuh), for steps of one row. Only the warp itself reads it.
__device__ __forceinline__ void prepare_task(char* rings, const Args& args, char* memory, const Shape& s,
                                             const Range& units) {
  if constexpr (TASKS_BYTES > 0) {
    const int warp = threadIdx.x >> 5;
    const Range tiles = tiles_of(s, units);
    Task task{cut_of(memory, s, units), {}};
    if (tiles.first + warp < tiles.last) {
      const Target t = target_of(args, s, units, tiles.first + warp, 0);
      const u32 sums = shared_address(slices_of(memory)) + (warp << s.kw_bits) * (TILE * 4);
      task.output = Output{t.to, sums, (unsigned char)t.rows, (unsigned char)t.shift, (unsigned char)t.expert, 0};
    }
    ((Task*)(ring_at(rings, warp) + 1))[s.phase] = task;
  }
}

// A thread's own row of a tile.
struct Place {
  u64* to;               // word to send the sum to; null: another thread sends it, or nobody
  int row, at;           // row of the step; row of the matrix
  float factor;          // the norm's; multiplies the sum
  float routing_weight;  // of the expert; for gate and up
};

// One matrix product of a step: multiply, add up the slices of every tile, send the results. All products run through
// this one copy of the code, so `id` is a variable. `linear` calls `place`, `store`, `work_beside` and
// `finish_one_tile`.
struct Phase {
  using Place = ::Place;
  Stream& stream;
  const Args& args;
  Shared& shared;
  char* memory;
  int rows, layer;
  u32 epoch;
  int id;  // kept in a register: the shape lies in memory
  const Shape& s;
  const Range& units;
  // Where a thread keeps the residual of its row: from o to down to the next o (SAME_ROWS), or from `fetch_residual` to
  // here. Null: nothing is kept (the graph driver).
  float* kept_residual;
  bool keeps_residual = false;  // `kept_residual` is in use
  Best best = {};               // the head's: the best token of this thread's rows so far

  __device__ __forceinline__ void run() {
    const Range tiles = tiles_of(s, units);
    keeps_residual = kept_residual && rows == 1 && tiles.last - tiles.first <= WARPS;  // at most one value per thread
    if (SAME_ROWS && id == O::ID && layer == 0 && keeps_residual)
      fetch_residual(args, shared, 0, epoch, s, units, *kept_residual);
    if (threadIdx.x == 0) store_relaxed(shared_address(&shared.multiplying), id);
    linear(*this);
    if (EXPERTS && !COPY_IN_FP8 && folds()) block_barrier();  // the next operand overwrites the fold's
    if (threadIdx.x == 0) store_relaxed(shared_address(&shared.multiplying), NO_PHASE);
    if (id == Head::ID) {
      block_barrier();
      store_candidates(args, memory, rows, best);
    }
  }

  // Where row r of a unit's tile goes, and what its sum is multiplied by.
  __device__ __forceinline__ Place place(int unit, int column, int r) const {
    const Target t = target_of(args, s, units, unit, column);
    const int lane = threadIdx.x & 31;
    Place p{nullptr, t.row, t.at + r, 1.f, 1.f};
    if (t.to && lane < t.rows && !(lane & t.shift)) p.to = t.to + (lane >> t.shift);
    if (id == Qkv::ID || id == GateUp::ID || id == Head::ID) p.factor = inverse_of(shared, p.row);
#if EXPERTS
    if (id == GateUp::ID) p.routing_weight = routing_weight(t.row, t.expert, p.factor);
#endif
    return p;
  }

  __device__ __forceinline__ void store(const Place& p, int column, float sum) {
    sum *= p.factor;
    if (id == GateUp::ID)
      send_swiglu(p, sum);
    else if (id == Head::ID)
      offer_token(p, column, sum);
    else if (is_small(id))
      send_router_logit(p, sum);
    else
      send_sum(p, sum);
  }

  // Gate and up: SwiGLU times the routing weight. Lane ^ 8 holds the up row.
  __device__ __forceinline__ void send_swiglu(const Place& p, float sum) const {
    float value = quotient(sum, 1.f + exponential(-sum)) * __shfl_xor_sync(~0u, sum, 8);
#if EXPERTS
    value *= p.routing_weight;
#endif
    float neighbour = __shfl_xor_sync(~0u, value, 1);
    if (p.to) send(p.to, pack_bf16(value, neighbour), epoch);
  }
  __device__ __forceinline__ void send_router_logit(const Place& p, float sum) const {
    if (p.to) send(p.to, __float_as_uint(sum), epoch);
  }
  // The head: a logit of token `p.at`.
  __device__ __forceinline__ void offer_token(const Place& p, int column, float sum) {
    if ((threadIdx.x & 16) || p.at >= VOCAB) return;
    if (args.logits) args.logits[(long long)column * VOCAB + p.at] = sum;
    best.offer(shared.sharpness > 0.f ? perturbed(shared, column, sum, p.at) : sum, p.at);
  }
  // qkv, o and down; the residual is added to the last two.
  __device__ __forceinline__ void send_sum(const Place& p, float sum) const {
    if (id != Qkv::ID) sum = add_residual(p, sum);
    float neighbour = __shfl_xor_sync(~0u, sum, 1);
    if (p.to) send_pair(p.to, sum, neighbour, epoch);
  }
  __device__ __forceinline__ float add_residual(const Place& p, float sum) const {
    if (keeps_residual)
      sum += *kept_residual;
    else if (p.at < D_MODEL && !second_part(s, units, p.at / TILE))
      sum += residual(args, shared, id == O::ID, layer, epoch, p.row, p.at);
    if (SAME_ROWS && keeps_residual) *kept_residual = as_sent(sum);
    return sum;
  }

  // The router's fold multiplies the same heads as o, so the persistent driver runs it with o.
  __device__ __forceinline__ bool folds() const { return EXPERTS && kept_residual && id == O::ID; }
  // Runs once the slices are written, while the first warps add them up. In o, the last warps multiply this CTA's unit
  // of the fold and send its logits. In qkv of a hybrid, the last warp sends the sums of this CTA's router rows.
  __device__ __forceinline__ void work_beside() const {
#if EXPERTS && DELTA_LAYERS
    if (id == Qkv::ID && threadIdx.x >> 5 == WARPS - 1) send_router_rows(args, shared, rows, epoch);
#endif
#if EXPERTS
    static_assert(Fold::KW <= WARPS / 2, "the fold's warps must not be the adding warps");
    const Range fold = shared.units[Fold::ID];
    const int warp = threadIdx.x >> 5, first = WARPS - Fold::KW, columns = MAX_ROWS == 1 ? 1 : rows,
              r = threadIdx.x & 31;
    if (!folds() || fold.first == fold.last || warp < first) return;
    float* folded = slices_of(memory) + SLICE_ROUNDS * WARPS * TILE;
    multiply_units<Fold>(stream, memory, folded, SHAPE_OF(Fold), fold, 0, 1, columns, Fold::KW);
    barrier_of<32 * Fold::KW>(2);
    const int split = fold.first / Fold::TILES, at = fold.first % Fold::TILES * TILE + r;
#pragma unroll 1
    for (int column = warp - first; column < columns; column += Fold::KW) {
      const float sum = added(folded + column * TILE, columns * TILE, Fold::KW_BITS);
      if (r < TILE && at < ROUTER_ROWS)
        send(args.router + ((ROUTER_PARTS + split) * MAX_ROWS + column) * ROUTER_ROWS + at, __float_as_uint(sum),
             epoch);
    }
#endif
  }

  // Turns slices into results where every warp has at most one tile. A single warp takes ten cycles per instruction of
  // straight-line code, so as little as possible follows the barrier: the rest was computed in advance
  // (`prepare_task`).
  __device__ __forceinline__ void finish_one_tile() {
    const Cut cut = stream.cut(id);
    const Output output = stream.output(id);
    const int thread = (int)thread_index(), lane = thread & 31, bits = cut.kw_bits;
    const u32 from = opaque(output.sums + ((lane >> 4 << (bits - 1)) * TILE + (lane & 15)) * 4);
    const u32 record = cut.slices - (thread >> 5) * (TILE * 4) - SHARED_BYTES;
    Place p{nullptr, 0, (units.first + (thread >> 5)) * TILE + (lane & 15), 1.f, 1.f};
    if (lane < output.rows && !(lane & output.shift)) p.to = output.to + (lane >> output.shift);
    if (id == Qkv::ID || id == GateUp::ID) p.factor = inverse_at(record);
#if EXPERTS
    if (id == GateUp::ID && (PREDICTION || output.to)) p.routing_weight = routing_weight(0, output.expert, p.factor);
#endif
    block_barrier();
    work_beside();
    if (output.to) store(p, 0, bits == 4 ? added_at<8>(from) : bits == 3 ? added_at<4>(from) : added_at<2>(from));
  }

#if EXPERTS
  // The routing weight of one of a row's experts, by a whole warp.
  __device__ __forceinline__ float routing_weight(int row, int which, float inverse) const {
#if PREDICTION
    return await_routing_weight(shared, which, epoch - shared.epoch + 1);
#else
    return routing_weight_of(shared, row, which, inverse);
#endif
  }
#endif
};

#if !FLAT
__device__ __forceinline__ Range units_of(const Shape& s, int rows) {
  int units = s.row_units ? rows * s.units : s.units;
  return Range{first_unit(blockIdx.x, units), first_unit(blockIdx.x + 1, units)};
}
#endif

#if DELTA_LAYERS
// Called before the head's product: stores the rows' residuals after the final norm for the drafting head. Every CTA
// stores a part.
__device__ __forceinline__ void keep_hidden(const Args& args, const Shared& shared, u32 epoch) {
  constexpr int PAIRS = (D_MODEL / 2 + CTAS - 1) / CTAS;
#pragma unroll 1
  for (int i = (int)thread_index(); i < PAIRS * rows_of(shared); i += THREADS) {
    const int row = i / PAIRS, at = opaque((int)blockIdx.x) * PAIRS + i % PAIRS;
    if (at >= D_MODEL / 2) continue;
    const u64 word = receive_pair(args.x + (MAX_ROWS + row) * (D_MODEL / 2) + at, epoch - 1);
    const float2 weight = ((const float2*)(args.norms + (long long)LAYERS * NORM_STRIDE))[at];
    const float inverse = inverse_of(shared, row);
    const long long place = (long long)shared.slot * HIDDEN + shared.position[row] % HIDDEN;
    ((float2*)(args.hidden + place * D_MODEL))[at] =
        float2{first_of(word) * inverse * weight.x, second_of(word) * inverse * weight.y};
  }
}
#endif

__device__ __forceinline__ const float* norm_of(const Args& args, int layer, int at) {
  return args.norms + (long long)layer * NORM_STRIDE + at;
}
