// The phases of a step that multiply a matrix: what each does with its sums. Both drivers call these.
#pragma once
#include "attention.cuh"
#include "feed.cuh"
#include "finish.cuh"
#include "flat.cuh"
#include "linear.cuh"
#include "router.cuh"

// The residual in front of o (layer 0: the embedding) and of down.
__device__ __forceinline__ float residual(const Args& args, const Shared& shared, bool before_o, int layer, u32 epoch, int row, int at) {
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
__device__ __forceinline__ void hold(const Args& args, const Shared& shared, int layer, u32 epoch, const Shape& s, const Share& share,
                                     float& held) {
  const Share tiles = tiles_of(s, share);
  const int tile = tiles.first + (threadIdx.x >> 5);
  if (DOWN_PARTS > 1) held = 0;
  if (tile < tiles.last && !second_part(s, share, tile))
    held = residual(args, shared, s.phase == O::ID, layer, epoch, 0, min(tile * TILE + (int)(threadIdx.x & 15), D_MODEL - 1));
}

// Where the sums of a unit go, `column` a row of the step.
struct Target {
  u64* to;                       // the word of the first row; null: they are not sent
  int at, row, expert;           // the first row, of the matrix; the row of the step; which of its experts
  int rows, shift;               // rows that are sent, 2^shift a word
};
__device__ __forceinline__ Target target_of(const Args& args, const Shape& s, const Share& share, int unit, int column) {
  const int id = s.phase, which = (int)(((float)unit + 0.5f) * s.per_tile), tile = unit - which * s.tiles;     // the split, the row, or the row's expert
  Target t{nullptr, tile * TILE, column, 0, TILE, 1};
  if (id == O::ID || id == Down::ID) {              // two neighbours go out as one word
    if (MAX_ROWS > 1 && s.row_units) t.row = which;
    t.to = args.x + (((id == O::ID ? 0 : second_part(s, share, tile) ? 2 * MAX_ROWS : MAX_ROWS) + t.row) * D_MODEL + t.at) / 2;
    t.rows = min(TILE, D_MODEL - t.at);
  } else if (id == Qkv::ID) {
    t.to = args.qkv + (column * QKV_ROWS + t.at) / 2;
    t.rows = min(TILE, QKV_ROWS - t.at);
#if EXPERTS
  } else if (id == Router::ID || id == Fold::ID) {
    const int part = which + (id == Fold::ID ? Router::SPLIT : 0);      // the fold: in the graph driver
    t.to = args.router + (part * MAX_ROWS + column) * EXPERTS + t.at;
    t.rows = min(TILE, EXPERTS - t.at);
    t.shift = 0;
#endif
  } else if (id == GateUp::ID) {     // a tile holds 8 gate rows and their 8 up rows
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
__device__ __forceinline__ void prepare_task(char* rings, const Args& args, char* memory, const Shape& s, const Share& share) {
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
  u64* to;                 // a word; null: another thread sends it, or nobody
  int row, at;             // of the step; of the matrix
  float factor;            // of the sum
  float share;             // of the expert
};

// One matrix product of a step, its results on their way to whoever reads them. `held`: where a thread keeps the residual of its
// row from o to down to the next o (SAME_ROWS), or from `hold` to here; null if nothing is kept. `id` is the phase's, in a
// register: its shape lies in memory.
__device__ __forceinline__ void phase(Stream& stream, const Args& args, Shared& shared, char* memory, int rows, int layer, u32 epoch,
                                      int id, const Shape& s, const Share& share, float* held) {
  [[maybe_unused]] const int warp = threadIdx.x >> 5;
  const Share tiles = tiles_of(s, share);
  const bool holds = held && rows == 1 && tiles.last - tiles.first <= WARPS;      // at most a value a thread
  if (SAME_ROWS && id == O::ID && layer == 0 && holds) hold(args, shared, 0, epoch, s, share, *held);
  Best best;
  if (threadIdx.x == 0) store_relaxed(shared_address(&shared.multiplying), id);
  const bool folds = EXPERTS && held && id == O::ID;
#if EXPERTS
  // Of one of a row's experts, by a whole warp.
  auto share_of_expert = [&](int row, int which, float inverse) {
#if GUESSES
    return weighed_share(shared, which, epoch - shared.epoch + 1);
#else
    return expert_share(shared, row, which, inverse);
#endif
  };
#endif
  auto place = [&](int unit, int column, int r) {
    const Target t = target_of(args, s, share, unit, column);
    const int lane = threadIdx.x & 31;
    Place p{nullptr, t.row, t.at + r, 1.f, 1.f};
    if (t.to && lane < t.rows && !(lane & t.shift)) p.to = t.to + (lane >> t.shift);
    if (id == Qkv::ID || id == GateUp::ID || id == Head::ID) p.factor = inverse_of(shared, p.row);
#if EXPERTS
    if (id == GateUp::ID) p.share = share_of_expert(t.row, t.expert, p.factor);
#endif
    return p;
  };
  auto store = [&](const Place& p, int column, float sum) {
    sum *= p.factor;
    if (id == GateUp::ID) {      // SwiGLU, times the expert's share; lane ^ 8 has the up row
      float value = quotient(sum, 1.f + exponential(-sum)) * __shfl_xor_sync(~0u, sum, 8);
#if EXPERTS
      value *= p.share;
#endif
      float neighbour = __shfl_xor_sync(~0u, value, 1);
      if (p.to) send(p.to, pack_bf16(value, neighbour), epoch);
    } else if (id == Head::ID) {
      if (!(threadIdx.x & 16) && p.at < VOCAB) {
        if (args.logits) args.logits[(long long)column * VOCAB + p.at] = sum;
        best.offer(shared.sharpness > 0.f ? drawn(shared, column, sum, p.at) : sum, p.at);
      }
#if EXPERTS
    } else if (id == Router::ID || id == Fold::ID) {
      if (p.to) send(p.to, __float_as_uint(sum), epoch);
#endif
    } else {
      if (id != Qkv::ID) {
        if (holds) sum += *held;
        else if (p.at < D_MODEL && !second_part(s, share, p.at / TILE)) sum += residual(args, shared, id == O::ID, layer, epoch, p.row, p.at);
        if (SAME_ROWS && holds) *held = passed(sum);
      }
      float neighbour = __shfl_xor_sync(~0u, sum, 1);
      if (p.to) send_pair(p.to, sum, neighbour, epoch);
    }
  };
  // The router's fold is a product of the same heads: in the persistent driver the last warps multiply a block of it while the first add up o.
  auto also = [&] {
#if EXPERTS
    static_assert(Fold::KW <= WARPS / 2, "not by warps that add");
    const Share fold = shared.shares[Fold::ID];
    const int first = WARPS - Fold::KW, columns = MAX_ROWS == 1 ? 1 : rows, r = threadIdx.x & 31;
    if (!folds || fold.first == fold.last || warp < first) return;
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
  };
  // A warp that runs alone takes ten cycles an instruction: behind the barrier are as few as can be.
  auto alone = [&] {
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
    also();
    if (aim.to) store(p, 0, bits == 4 ? added_at<8>(from) : bits == 3 ? added_at<4>(from) : added_at<2>(from));
  };
  linear<Place>(stream, memory, rows, id, s, share, place, store, also, alone);
  if (EXPERTS && !COPY_IN_FP8 && folds) block_barrier();      // the next operand would lie where the fold's does
  if (threadIdx.x == 0) store_relaxed(shared_address(&shared.multiplying), NO_PHASE);
  if (id == Head::ID) {
    block_barrier();
    store_candidates(args, memory, rows, best);
  }
}

#if !FLAT
__device__ __forceinline__ Share share_of(const Shape& s, int rows) {
  int units = s.row_units ? rows * s.units : s.units;
  return Share{first_unit(blockIdx.x, units), first_unit(blockIdx.x + 1, units)};
}
#endif

constexpr int SENT_FFN = (FFN + 7) / 8 * 8;      // values of h that one expert (or all of it) sends

__device__ __forceinline__ const float* norm_of(const Args& args, int layer, int at) {
  return args.norms + (long long)layer * NORM_STRIDE + at;
}
