// The phases of a step that multiply a matrix: what each does with its sums. Both drivers call these.
#pragma once
#include "attention.cuh"
#include "feed.cuh"
#include "finish.cuh"
#include "linear.cuh"
#include "router.cuh"

// The residual in front of o (layer 0: the embedding) and of down.
__device__ __forceinline__ float residual(const Args& args, const Shared& shared, bool before_o, int layer, u32 epoch, int row, int at) {
  if (before_o && layer == 0) return low(args.embed[(long long)shared.token[row] * D_MODEL + at]);
  u64 word = receive_pair(args.x + (((before_o ? MAX_ROWS : 0) + row) * D_MODEL + at) / 2, before_o ? epoch - 1 : epoch, args.state);
  return at & 1 ? second_of(word) : first_of(word);
}

// One matrix product of a step, its results on their way to whoever reads them. `held`: where a thread keeps the residual of its
// row from o to down to the next o, whose rows lie in the same CTAs and threads; null if nothing is kept from phase to phase.
__device__ __forceinline__ void phase(Stream& stream, const Args& args, Shared& shared, char* memory, int rows, int layer, u32 epoch,
                                      const Shape& s, float* held) {
  const bool adds = s.phase == O::ID || s.phase == Down::ID;
  u64* x = args.x + (s.phase == O::ID ? 0 : MAX_ROWS * D_MODEL / 2);
  const Share share(s, rows);
  const int warp = threadIdx.x >> 5;
  const bool holds = held && rows == 1 && share.last - share.first <= WARPS;      // at most a value a thread
  if (holds && s.phase == O::ID && layer == 0 && warp < share.last - share.first)
    *held = residual(args, shared, true, 0, epoch, 0, min((share.first + warp) * TILE + (int)(threadIdx.x & 15), D_MODEL - 1));
  Best best;
  if (threadIdx.x == 0) store_release(shared_address(&shared.multiplying), s.phase);
  linear(stream, memory, rows, s, [&](int unit, int column, int r, float sum, float pair) {
    const int which = (int)(((float)unit + 0.5f) * s.per_tile), tile = unit - which * s.tiles;     // the split, the row, or the row's expert
    const bool twin = threadIdx.x & 16;      // the other half of the warp sends it
    int at = tile * TILE + r;
    if (adds || s.phase == Qkv::ID) {      // two neighbours go out as one word
      int row = s.row_units ? which : column;
      if (adds && at < D_MODEL) {
        sum += holds ? *held : residual(args, shared, s.phase == O::ID, layer, epoch, row, at);
        if (holds) *held = passed(sum);
      }
      float neighbour = __shfl_xor_sync(~0u, sum, 1);
      if (twin || r % 2 || at >= (adds ? D_MODEL : QKV_ROWS)) return;
      send_pair(adds ? x + (row * D_MODEL + at) / 2 : args.qkv + ((which * MAX_ROWS + column) * QKV_ROWS + at) / 2, sum, neighbour, epoch);
#if EXPERTS
    } else if (s.phase == Router::ID || s.phase == Fold::ID) {
      const int part = which + (s.phase == Fold::ID ? Router::SPLIT : 0);
      if (!twin && at < EXPERTS) send(args.router + (part * MAX_ROWS + column) * EXPERTS + at, __float_as_uint(sum), epoch);
#endif
    } else if (s.phase == Gate_up::ID) {
      // A tile holds 8 gate rows and their 8 up rows: SwiGLU, times the expert's share. Two neighbours go out as one word.
      float value = quotient(sum, 1.f + exponential(-sum)) * pair;
      int row = column, to = tile * 8 + r;
#if EXPERTS
      row = which / CHOSEN;
      value *= shared.share[row][which % CHOSEN];
      to += which % CHOSEN * (Down::COPY_BLOCKS * BLOCK);
#endif
      float neighbour = __shfl_xor_sync(~0u, value, 1);
      if (!twin && r < 8 && r % 2 == 0) send(args.h + (row * (Down::BLOCKS * BLOCK) + to) / 2, pack_bf16(value, neighbour), epoch);
    } else if (!twin && at < VOCAB) {
      if (args.logits) args.logits[(long long)column * VOCAB + at] = sum;
      best.offer(shared.sharpness > 0.f ? drawn(shared, column, sum, at) : sum, at);
    }
  });
  if (threadIdx.x == 0) store_release(shared_address(&shared.multiplying), NO_PHASE);
  if (s.phase == Head::ID) {
    block_barrier();
    store_candidates(args, memory, rows, best);
  }
}

constexpr int SENT_FFN = (FFN + 7) / 8 * 8;      // values of h that one expert (or all of it) sends

__device__ __forceinline__ const float* norm_of(const Args& args, int layer, int at) {
  return args.norms + (long long)layer * NORM_STRIDE + at;
}
