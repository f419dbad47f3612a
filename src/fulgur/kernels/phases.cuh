// The phases of a step that multiply a matrix: what each does with its sums. Both drivers call these.
#pragma once
#include "attention.cuh"
#include "finish.cuh"
#include "linear.cuh"
#include "router.cuh"

__device__ inline void phase_qkv(Stream& stream, const Args& args, char* memory, int rows) {
  linear<Qkv, false>(stream, memory, rows, [&](int unit, int row, int r, float sum, float) {
    int split = Qkv::SPLIT > 1 ? unit / Qkv::TILES : 0, at = unit % Qkv::TILES * TILE + r;
    if (at < Qkv::ROWS) args.qkv[((long long)split * MAX_ROWS + row) * QKV_ROWS + at] = sum;
  });
}

// The residual that a thread will add to is asked for before the product; with few rows that is one value a thread.
template <class M> __device__ inline void phase_residual(Stream& stream, const Args& args, char* memory, int rows) {
  int first = M::first(blockIdx.x, rows), units = M::first(blockIdx.x + 1, rows) - first;
  bool single = rows == 1 && units * TILE <= THREADS && units <= SLICE_ROUNDS * (WARPS / M::KW);
  float early = 0;
  int mine = (first + (int)threadIdx.x / TILE) % M::TILES * TILE + threadIdx.x % TILE;
  if (single && (int)threadIdx.x < units * TILE && mine < D_MODEL) early = load(args.x + mine);
  linear<M, false>(stream, memory, rows, [&](int unit, int column, int r, float sum, float) {
    int row = M::COPIES > 1 ? unit / M::TILES : column, at = unit % M::TILES * TILE + r;
    if (at < D_MODEL) args.x[row * D_MODEL + at] = (single ? early : load(args.x + row * D_MODEL + at)) + sum;
  });
}

#if EXPERTS
__device__ inline void phase_router(Stream& stream, const Args& args, char* memory, int rows) {
  linear<Router, false>(stream, memory, rows, [&](int unit, int row, int r, float sum, float) {
    int split = Router::SPLIT > 1 ? unit / Router::TILES : 0, at = unit % Router::TILES * TILE + r;
    if (at < EXPERTS) args.router[(split * MAX_ROWS + row) * EXPERTS + at] = sum;
  });
}
#endif

// A tile holds 8 gate rows and their 8 up rows: SwiGLU, times the expert's share.
__device__ inline void phase_gate_up(Stream& stream, const Args& args, const Shared& shared, char* memory, int rows) {
  linear<Gate_up, true>(stream, memory, rows, [&](int unit, int column, int r, float gate, float up) {
    int at = unit % Gate_up::TILES * 8 + r, row = column;
    if (at >= FFN) return;
    float value = quotient(gate, 1.f + exponential(-gate)) * up;
#if EXPERTS
    int which = unit / Gate_up::TILES;
    row = which / CHOSEN;
    value *= shared.share[row][which % CHOSEN];
    at += which % CHOSEN * (Down::COPY_BLOCKS * BLOCK);
#endif
    args.h[(long long)row * (Down::BLOCKS * BLOCK) + at] = to_bf16(value);
  });
}

__device__ inline void phase_head(Stream& stream, const Args& args, char* memory, int rows) {
  Best best;
  const Shared& shared = *(const Shared*)memory;
  linear<Head, false>(stream, memory, rows, [&](int unit, int row, int r, float sum, float) {
    int at = unit * TILE + r;
    if (at >= VOCAB) return;
    if (args.logits) args.logits[(long long)row * VOCAB + at] = sum;
    best.offer(shared.sharpness > 0.f ? drawn(shared, row, sum, at) : sum, at);
  });
  store_candidates(args, memory, rows, best);
}

__device__ __forceinline__ const float* norm_of(const Args& args, int layer, int at) {
  return args.norms + (long long)layer * NORM_STRIDE + at;
}
