// The phases of a step that multiply a matrix: what each does with its sums. Both drivers call these.
#pragma once
#include "attention.cuh"
#include "finish.cuh"
#include "linear.cuh"
#include "router.cuh"

// One matrix product of a step and its results to where the next phase reads them.
__device__ __forceinline__ void phase(Stream& stream, const Args& args, Shared& shared, char* memory, int rows, const Shape& s) {
  const bool residual = s.phase == O::ID || s.phase == Down::ID;
  // The residual that a thread will add to is asked for before the product, where that is one value a thread.
  Share share(s, rows);
  const int units = share.last - share.first, mine = share.first * TILE + (int)threadIdx.x;
  const bool early = residual && rows == 1 && units * TILE <= THREADS && units <= SLICE_ROUNDS * (WARPS >> s.kw_bits);
  float before = 0;
  if (early && (int)threadIdx.x < units * TILE && mine < D_MODEL) before = load(args.x + mine);
  Best best;
  linear(stream, memory, rows, s, [&](int unit, int column, int r, float sum, float pair) {
    const int which = unit / s.tiles, tile = unit - which * s.tiles;      // which: the split, the row, or the row's expert
    int at = tile * TILE + r;
    if (residual) {
      int row = s.row_units ? which : column;
      float* x = args.x + row * D_MODEL + at;
      if (at < D_MODEL) *x = (early ? before : load(x)) + sum;
    } else if (s.phase == Qkv::ID) {
      if (at < QKV_ROWS) args.qkv[((long long)which * MAX_ROWS + column) * QKV_ROWS + at] = sum;
#if EXPERTS
    } else if (s.phase == Router::ID) {
      if (at < EXPERTS) args.router[(which * MAX_ROWS + column) * EXPERTS + at] = sum;
#endif
    } else if (s.phase == Gate_up::ID) {
      // A tile holds 8 gate rows and their 8 up rows: SwiGLU, times the expert's share.
      float value = quotient(sum, 1.f + exponential(-sum)) * pair;
      int row = column, to = tile * 8 + r;
      if (to >= FFN) return;
#if EXPERTS
      row = which / CHOSEN;
      value *= shared.share[row][which % CHOSEN];
      to += which % CHOSEN * (Down::COPY_BLOCKS * BLOCK);
#endif
      args.h[(long long)row * (Down::BLOCKS * BLOCK) + to] = to_bf16(value);
    } else if (at < VOCAB) {
      if (args.logits) args.logits[(long long)column * VOCAB + at] = sum;
      best.offer(shared.sharpness > 0.f ? drawn(shared, column, sum, at) : sum, at);
    }
  });
  if (s.phase == Head::ID) {
    __syncthreads();
    store_candidates(args, memory, rows, best);
  }
}

__device__ __forceinline__ const float* norm_of(const Args& args, int layer, int at) {
  return args.norms + (long long)layer * NORM_STRIDE + at;
}
