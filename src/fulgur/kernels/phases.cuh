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

// Where a thread's sum of a tile goes.
struct Place {
  u64* to;                 // a word; null: another thread sends it, or nobody
  int row, at;             // of the step; of the matrix
  float factor;            // of the sum
  int expert;              // which of the row's
};

// One matrix product of a step, its results on their way to whoever reads them. `held`: where a thread keeps the residual of its
// row from o to down to the next o (SAME_ROWS), or from `hold` to here; null if nothing is kept.
__device__ __forceinline__ void phase(Stream& stream, const Args& args, Shared& shared, char* memory, int rows, int layer, u32 epoch,
                                      const Shape& s, const Share& share, float* held) {
  const int warp = threadIdx.x >> 5;
  const Share tiles = tiles_of(s, share);
  const bool holds = held && rows == 1 && tiles.last - tiles.first <= WARPS;      // at most a value a thread
  if (holds && SAME_ROWS && s.phase == O::ID && layer == 0) hold(args, shared, 0, epoch, s, share, *held);
  Best best;
  if (threadIdx.x == 0) store_relaxed(shared_address(&shared.multiplying), s.phase);
#if EXPERTS
  // The router's fold is a product of the same heads: in the persistent driver some warps multiply a block of it first.
  Share fold{0, 0};
  if (held && s.phase == O::ID) fold = shared.shares[Fold::ID];
  float* folded = slices_of(memory) + SLICE_ROUNDS * WARPS * TILE;
  if (fold.first < fold.last) multiply_units<Fold>(stream, memory, folded, SHAPE_OF(Fold), fold, 0, 1, MAX_ROWS == 1 ? 1 : rows);
#endif
  auto place = [&](int unit, int column, int r) {
    const int id = fresh(s.phase);
    const bool adds = id == O::ID || id == Down::ID;
    const int which = (int)(((float)unit + 0.5f) * s.per_tile), tile = unit - which * s.tiles;     // the split, the row, or the row's expert
    const bool twin = threadIdx.x & 16;      // the other half of the warp sends it
    Place p{nullptr, column, tile * TILE + r, 1.f, 0};
    if (adds || id == Qkv::ID) {              // two neighbours go out as one word
      if (MAX_ROWS > 1 && adds && s.row_units) p.row = which;
      if (!twin && r % 2 == 0 && p.at < (adds ? D_MODEL : QKV_ROWS))
        p.to = adds ? args.x + (((id == O::ID ? 0 : second_part(s, share, tile) ? 2 * MAX_ROWS : MAX_ROWS) + p.row) * D_MODEL + p.at) / 2
                    : args.qkv + ((which * MAX_ROWS + column) * QKV_ROWS + p.at) / 2;
#if EXPERTS
    } else if (id == Router::ID || id == Fold::ID) {
      const int part = which + (id == Fold::ID ? Router::SPLIT : 0);      // the fold: in the graph driver
      if (!twin && p.at < EXPERTS) p.to = args.router + (part * MAX_ROWS + column) * EXPERTS + p.at;
#endif
    } else if (id == Gate_up::ID) {     // a tile holds 8 gate rows and their 8 up rows; two neighbours go out as one word
      int to = tile * 8 + r;
#if EXPERTS
      p.row = MAX_ROWS > 1 ? which / CHOSEN : 0;
      p.expert = which - p.row * CHOSEN;
      to += p.expert * (Down::COPY_BLOCKS * BLOCK);
#endif
      if (!twin && r < 8 && r % 2 == 0) p.to = args.h + (p.row * (Down::BLOCKS * BLOCK) + to) / 2;
    }
    if (id == Qkv::ID || id == Gate_up::ID || id == Head::ID) p.factor = inverse_of(shared, p.row);
    return p;
  };
  auto store = [&](const Place& p, int column, int r, float sum, float pair) {
    const int id = fresh(s.phase);
    const bool adds = id == O::ID || id == Down::ID;
    if (adds || id == Qkv::ID) {
      sum *= p.factor;
      if (adds && p.at < D_MODEL) {
        if (holds) sum += *held;
        else if (!second_part(s, share, p.at / TILE)) sum += residual(args, shared, id == O::ID, layer, epoch, p.row, p.at);
        if (SAME_ROWS && holds) *held = passed(sum);
      }
      float neighbour = __shfl_xor_sync(~0u, sum, 1);
      if (p.to) send_pair(p.to, sum, neighbour, epoch);
#if EXPERTS
    } else if (id == Router::ID || id == Fold::ID) {
      if (p.to) send(p.to, __float_as_uint(sum), epoch);
#endif
    } else if (id == Gate_up::ID) {      // SwiGLU, times the expert's share
      sum *= p.factor;
      float value = quotient(sum, 1.f + exponential(-sum)) * (pair * p.factor);
#if EXPERTS
      value *= shared.share[p.row][p.expert];
#endif
      float neighbour = __shfl_xor_sync(~0u, value, 1);
      if (p.to) send(p.to, pack_bf16(value, neighbour), epoch);
    } else if (!(threadIdx.x & 16) && p.at < VOCAB) {
      sum *= p.factor;
      if (args.logits) args.logits[(long long)column * VOCAB + p.at] = sum;
      best.offer(shared.sharpness > 0.f ? drawn(shared, column, sum, p.at) : sum, p.at);
    }
  };
  linear<Place>(stream, memory, rows, s, share, place, store, [&] {
#if EXPERTS
    const int column = warp - WARPS / 2, r = threadIdx.x & 31, columns = MAX_ROWS == 1 ? 1 : rows;      // by warps that seldom add
    if (fold.first == fold.last || column < 0 || column >= columns) return;
    float sum = added(folded + column * TILE, columns * TILE, Fold::KW_BITS);
    int split = fold.first / Fold::TILES, at = fold.first % Fold::TILES * TILE + r;
    if (r < TILE && at < EXPERTS)
      send(args.router + ((Router::SPLIT + split) * MAX_ROWS + column) * EXPERTS + at, __float_as_uint(sum), epoch);
#endif
  });
  if (threadIdx.x == 0) store_relaxed(shared_address(&shared.multiplying), NO_PHASE);
  if (s.phase == Head::ID) {
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
