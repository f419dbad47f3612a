// The phases of a step that multiply a matrix: what each does with its sums. Both drivers call these.
#pragma once
#include "attention.cuh"
#include "feed.cuh"
#include "finish.cuh"
#include "flat.cuh"
#include "linear.cuh"
#include "router.cuh"

// The residual in front of o (layer 0: the embedding) and of down.
__device__ __forceinline__ float residual(const Args& args, const Shared& shared, bool before_o, int layer, u32 epoch,
                                          int row, int at) {
  if (before_o && layer == 0) return low(args.embed[(long long)shared.token[row] * D_MODEL + at]);
  const u64* from = args.x + (((before_o ? MAX_ROWS : 0) + row) * D_MODEL + at) / 2;
  u64 word = receive_pair(from, before_o ? epoch - 1 : epoch, args.state);
  float value = at & 1 ? second_of(word) : first_of(word);
  if (DOWN_PARTS > 1 && before_o) {
    word = receive_pair(from + MAX_ROWS * D_MODEL / 2, epoch - 1, args.state);
    value += at & 1 ? second_of(word) : first_of(word);
  }
  return value;
}

#if FLAT
// Are the rows of o and of down, and the residuals that are added to them, those of the same threads?
constexpr bool SAME_ROWS = O::OVER == Down::OVER && Down::PARTS == 1;
#else
constexpr bool SAME_ROWS = true;
__device__ __forceinline__ Share tiles_of(const Shape&, const Share& share) { return share; }
#endif
// The part of a tile's sum that this CTA makes: the residual is added to the first.
__device__ __forceinline__ bool second_part(const Shape& s, const Share& share, int tile) {
  return DOWN_PARTS > 1 && s.phase == Down::ID && tile * s.blocks < share.first;
}
// Otherwise they are fetched before the values are waited for that the product is of. One row.
__device__ __forceinline__ void hold(const Args& args, const Shared& shared, int layer, u32 epoch, const Shape& s,
                                     const Share& share, float& held) {
  const Share tiles = tiles_of(s, share);
  const int tile = tiles.first + (threadIdx.x >> 5);
  if (DOWN_PARTS > 1) held = 0;
  if (tile < tiles.last && !second_part(s, share, tile))
    held = residual(args, shared, s.phase == O::ID, layer, epoch, 0,
                    min(tile * TILE + (int)(threadIdx.x & 15), D_MODEL - 1));
}

// Where the sums of a unit go, `column` a row of the step.
struct Target {
  u64* to;              // the word of the first row; null: they are not sent
  int at, row, expert;  // the first row, of the matrix; the row of the step; which of its experts
  int rows, shift;      // rows that are sent, 2^shift a word
};
__device__ __forceinline__ Target target_of(const Args& args, const Shape& s, const Share& share, int unit,
                                            int column) {
  const int id = s.phase, which = (int)(((float)unit + 0.5f) * s.per_tile),
            tile = unit - which * s.tiles;  // the split, the row, or the row's expert
  Target t{nullptr, tile * TILE, column, 0, TILE, 1};
  if (id == O::ID || id == Down::ID) {  // two neighbours go out as one word
    if (MAX_ROWS > 1 && s.row_units) t.row = which;
    int row = t.row;  // of x: after o, after down, the second part of down
    if (id == Down::ID) row += second_part(s, share, tile) ? 2 * MAX_ROWS : MAX_ROWS;
    t.to = args.x + (row * D_MODEL + t.at) / 2;
    t.rows = min(TILE, D_MODEL - t.at);
  } else if (id == Qkv::ID) {
    t.to = args.qkv + (column * QKV_ROWS + t.at) / 2;
    t.rows = min(TILE, QKV_ROWS - t.at);
#if EXPERTS
  } else if (id == Router::ID || id == Fold::ID) {
    const int part = which + (id == Fold::ID ? Router::SPLIT : 0);  // the fold: in the graph driver
    t.to = args.router + (part * MAX_ROWS + column) * EXPERTS + t.at;
    t.rows = min(TILE, EXPERTS - t.at);
    t.shift = 0;
#endif
  } else if (id == GateUp::ID) {  // a tile holds 8 gate rows and their 8 up rows
    int to = tile * 8;
#if EXPERTS
    t.row = MAX_ROWS > 1 ? which / CHOSEN : 0;
    t.expert = which - t.row * CHOSEN;
    to += t.expert * (Down::COPY_BLOCKS * BLOCK);
#endif
    t.to = args.h + (t.row * (Down::BLOCKS * BLOCK) + to) / 2;
    t.rows = 8;
  }
  return t;
}
// A warp's task of a matrix (stream.cuh), for steps of one row. It reads no other's.
__device__ __forceinline__ void prepare_task(char* rings, const Args& args, char* memory, const Shape& s,
                                             const Share& share) {
  if constexpr (TASKS_BYTES > 0) {
    const int warp = threadIdx.x >> 5;
    const Share tiles = tiles_of(s, share);
    Task task{cut_of(memory, s, share), {}};
    if (tiles.first + warp < tiles.last) {
      const Target t = target_of(args, s, share, tiles.first + warp, 0);
      const u32 sums = shared_address(slices_of(memory)) + (warp << s.kw_bits) * (TILE * 4);
      task.aim = Aim{t.to, sums, (unsigned char)t.rows, (unsigned char)t.shift, (unsigned char)t.expert, 0};
    }
    ((Task*)(ring_at(rings, warp) + 1))[s.phase] = task;
  }
}

// A thread's own row of a tile.
struct Place {
  u64* to;       // the word to send the sum to; null: another thread sends it, or nobody
  int row, at;   // of the step; of the matrix
  float factor;  // the norm's, which multiplies the sum
  float share;   // the expert's, for gate and up
};

// One matrix product of a step: multiply, add up the slices of every tile, send the results to whoever reads them. All
// products run through this one copy of the code, so `id` is a variable. `linear` calls `place`, `store`,
// `multiply_fold` and `finish_one_tile`.
struct Phase {
  using Place = ::Place;
  Stream& stream;
  const Args& args;
  Shared& shared;
  char* memory;
  int rows, layer;
  u32 epoch;
  int id;  // the phase's, in a register: its shape lies in memory
  const Shape& s;
  const Share& share;
  // Where a thread keeps the residual of its row, from o to down to the next o (SAME_ROWS) or from `hold` to here.
  // Null: nothing is kept (the graph driver).
  float* held;
  bool holds = false;  // it keeps one now
  Best best = {};      // the head's: the best token so far of this thread's rows

  __device__ __forceinline__ void run() {
    const Share tiles = tiles_of(s, share);
    holds = held && rows == 1 && tiles.last - tiles.first <= WARPS;  // at most a value a thread
    if (SAME_ROWS && id == O::ID && layer == 0 && holds) hold(args, shared, 0, epoch, s, share, *held);
    if (threadIdx.x == 0) store_relaxed(shared_address(&shared.multiplying), id);
    linear(*this);
    if (EXPERTS && !COPY_IN_FP8 && folds()) block_barrier();  // the next operand would lie where the fold's does
    if (threadIdx.x == 0) store_relaxed(shared_address(&shared.multiplying), NO_PHASE);
    if (id == Head::ID) {
      block_barrier();
      store_candidates(args, memory, rows, best);
    }
  }

  // Where row r of a unit's tile goes, and what its sum is multiplied by.
  __device__ __forceinline__ Place place(int unit, int column, int r) const {
    const Target t = target_of(args, s, share, unit, column);
    const int lane = threadIdx.x & 31;
    Place p{nullptr, t.row, t.at + r, 1.f, 1.f};
    if (t.to && lane < t.rows && !(lane & t.shift)) p.to = t.to + (lane >> t.shift);
    if (id == Qkv::ID || id == GateUp::ID || id == Head::ID) p.factor = inverse_of(shared, p.row);
#if EXPERTS
    if (id == GateUp::ID) p.share = share_of_expert(t.row, t.expert, p.factor);
#endif
    return p;
  }

  __device__ __forceinline__ void store(const Place& p, int column, float sum) {
    sum *= p.factor;
    if (id == GateUp::ID)
      send_swiglu(p, sum);
    else if (id == Head::ID)
      offer_token(p, column, sum);
#if EXPERTS
    else if (id == Router::ID || id == Fold::ID)
      send_router_logit(p, sum);
#endif
    else
      send_sum(p, sum);
  }

  // Gate and up: SwiGLU, times the expert's share. Lane ^ 8 has the up row.
  __device__ __forceinline__ void send_swiglu(const Place& p, float sum) const {
    float value = quotient(sum, 1.f + exponential(-sum)) * __shfl_xor_sync(~0u, sum, 8);
#if EXPERTS
    value *= p.share;
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
    best.offer(shared.sharpness > 0.f ? drawn(shared, column, sum, p.at) : sum, p.at);
  }
  // qkv; o and down, to which the residual is added.
  __device__ __forceinline__ void send_sum(const Place& p, float sum) const {
    if (id != Qkv::ID) sum = add_residual(p, sum);
    float neighbour = __shfl_xor_sync(~0u, sum, 1);
    if (p.to) send_pair(p.to, sum, neighbour, epoch);
  }
  __device__ __forceinline__ float add_residual(const Place& p, float sum) const {
    if (holds)
      sum += *held;
    else if (p.at < D_MODEL && !second_part(s, share, p.at / TILE))
      sum += residual(args, shared, id == O::ID, layer, epoch, p.row, p.at);
    if (SAME_ROWS && holds) *held = passed(sum);
    return sum;
  }

  // The router's fold is a product of the same heads as o: the persistent driver multiplies it with o.
  __device__ __forceinline__ bool folds() const { return EXPERTS && held && id == O::ID; }
  // When the slices of o are there: the last warps multiply a block of the fold and send its logits while the first add
  // up o.
  __device__ __forceinline__ void multiply_fold() const {
#if EXPERTS
    static_assert(Fold::KW <= WARPS / 2, "not by warps that add");
    const Share fold = shared.shares[Fold::ID];
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
      if (r < TILE && at < EXPERTS)
        send(args.router + ((Router::SPLIT + split) * MAX_ROWS + column) * EXPERTS + at, __float_as_uint(sum), epoch);
    }
#endif
  }

  // The way from the slices to the results where a warp has one tile at most. A warp that runs alone takes ten cycles
  // an instruction, so as few as can be stand behind the barrier: the rest was found before the first step
  // (`prepare_task`).
  __device__ __forceinline__ void finish_one_tile() {
    const Cut cut = stream.cut(id);
    const Aim aim = stream.aim(id);
    const int thread = (int)thread_index(), lane = thread & 31, bits = cut.kw_bits;
    const u32 from = fresh(aim.sums + ((lane >> 4 << (bits - 1)) * TILE + (lane & 15)) * 4);
    const u32 record = cut.slices - (thread >> 5) * (TILE * 4) - SHARED_BYTES;
    Place p{nullptr, 0, (share.first + (thread >> 5)) * TILE + (lane & 15), 1.f, 1.f};
    if (lane < aim.rows && !(lane & aim.shift)) p.to = aim.to + (lane >> aim.shift);
    if (id == Qkv::ID || id == GateUp::ID) p.factor = inverse_at(record);
#if EXPERTS
    if (id == GateUp::ID && (GUESSES || aim.to)) p.share = share_of_expert(0, aim.expert, p.factor);
#endif
    block_barrier();
    multiply_fold();
    if (aim.to) store(p, 0, bits == 4 ? added_at<8>(from) : bits == 3 ? added_at<4>(from) : added_at<2>(from));
  }

#if EXPERTS
  // Of one of a row's experts, by a whole warp.
  __device__ __forceinline__ float share_of_expert(int row, int which, float inverse) const {
#if GUESSES
    return weighed_share(shared, which, epoch - shared.epoch + 1);
#else
    return expert_share(shared, row, which, inverse);
#endif
  }
#endif
};

#if !FLAT
__device__ __forceinline__ Share share_of(const Shape& s, int rows) {
  int units = s.row_units ? rows * s.units : s.units;
  return Share{first_unit(blockIdx.x, units), first_unit(blockIdx.x + 1, units)};
}
#endif

constexpr int SENT_FFN = (FFN + 7) / 8 * 8;  // values of h that one expert (or all of it) sends

__device__ __forceinline__ const float* norm_of(const Args& args, int layer, int at) {
  return args.norms + (long long)layer * NORM_STRIDE + at;
}
