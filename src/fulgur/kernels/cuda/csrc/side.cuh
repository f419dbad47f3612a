// The rows of the router and of the delta nets' gates, in a hybrid: too few for a product of their own, and their
// results are needed early.
//
// Every CTA multiplies a few of them with the residual while that passes through its registers for qkv's norm: the rows
// of b and a that its own parts of the states need, whose sums never leave the CTA, and an equal number of the router's
// rows, whose sums it sends. The norms' weights are folded into the rows. Sums are added over a thread's columns, then
// a warp's lanes, then the warps.
#pragma once
#include "exchange.cuh"

constexpr int PER_THREAD = (D_MODEL / 4 + THREADS - 1) / THREADS;  // float4 of a row per thread
__device__ __forceinline__ bool in_row(int at) { return D_MODEL % (4 * THREADS) == 0 || at < D_MODEL; }

#if DELTA_LAYERS
constexpr int V_HEADS = VALUES / V_DIM, HEAD_UNITS = V_DIM / DELTA_COLUMNS, DELTA_UNITS = V_HEADS * HEAD_UNITS;
static_assert(SIDE_ROWS == ROUTER_ROWS + 2 * V_HEADS && WARPS == 16, "half a warp adds the sums of all warps");

// The index of this CTA's i-th row; -1: none.
__device__ __forceinline__ int side_row(int i) {
  const int cta = opaque((int)blockIdx.x);
  if (i < SIDE_ROUTER) {
    const int row = cta * SIDE_ROUTER + i;
    return row < ROUTER_ROWS ? row : -1;
  }
  const int unit = cta + (i - SIDE_ROUTER) / 2 * CTAS;
  return unit < DELTA_UNITS ? ROUTER_ROWS + (i - SIDE_ROUTER) % 2 * V_HEADS + unit / HEAD_UNITS : -1;
}
__device__ __forceinline__ const bf16* side_of(const Args& args, int layer) {
  return args.side + (long long)layer * SIDE_ROWS * D_MODEL;
}

struct SideRows {
  uint2 w[SIDE][PER_THREAD];

  // Called before the wait for the residual. Without rows it sets zeros, so that no older value stays live.
  __device__ __forceinline__ void load(const bf16* rows, int thread) {
#pragma unroll
    for (int i = 0; i < SIDE; ++i) {
      const int row = side_row(i);
#pragma unroll
      for (int k = 0; k < PER_THREAD; ++k) {
        const int at = (k * THREADS + thread) * 4;
        w[i][k] = make_uint2(0, 0);
        if (rows && row >= 0 && in_row(at)) w[i][k] = *(const uint2*)(rows + row * D_MODEL + at);
      }
    }
  }
  __device__ __forceinline__ void multiply(const float4 (&v)[PER_THREAD], float (*sums)[WARPS], int thread) const {
#pragma unroll
    for (int i = 0; i < SIDE; ++i) {
      float sum = 0;
#pragma unroll
      for (int k = 0; k < PER_THREAD; ++k) {
        sum = fmaf(v[k].x, low(w[i][k].x), sum), sum = fmaf(v[k].y, high(w[i][k].x), sum);
        sum = fmaf(v[k].z, low(w[i][k].y), sum), sum = fmaf(v[k].w, high(w[i][k].y), sum);
      }
      sum = warp_sum(sum);
      if ((thread & 31) == 0) sums[i][thread >> 5] = sum;
    }
  }
};

// The sum of row `first` in the first half of a warp, of the next row in the second half.
__device__ __forceinline__ float two_sums(const float (*sums)[WARPS], int first) {
  const int lane = (int)thread_index() & 31;
  float sum = sums[first + (lane >> 4)][lane & 15];
#pragma unroll
  for (int i = 8; i; i >>= 1) sum += __shfl_xor_sync(~0u, sum, i);
  return sum;
}
// b and a of the head that the CTA's unit number `turn` belongs to, before the norm's factor. By a whole warp.
__device__ __forceinline__ float2 gates_of(const Shared& shared, int row, int turn) {
  const float sum = two_sums(shared.side[row], SIDE_ROUTER + 2 * turn), other = __shfl_xor_sync(~0u, sum, 16);
  return (thread_index() & 16) ? float2{other, sum} : float2{sum, other};
}
#if EXPERTS
// The first part of the router's logits, by a whole warp.
__device__ __forceinline__ void send_router_rows(const Args& args, const Shared& shared, int rows, u32 epoch) {
  const int lane = (int)thread_index() & 31;
#pragma unroll 1
  for (int row = 0; row < rows; ++row)
#pragma unroll
    for (int i = 0; i < SIDE_ROUTER; i += 2) {
      const float sum = two_sums(shared.side[row], i);  // (an odd last row is followed by one of a gate)
      const int mine = i + (lane >> 4), at = (int)blockIdx.x * SIDE_ROUTER + mine;
      if ((lane & 15) == 0 && mine < SIDE_ROUTER && at < ROUTER_ROWS)
        send(args.router + row * ROUTER_ROWS + at, __float_as_uint(sum), epoch);
    }
}
#endif
#else
__device__ __forceinline__ const bf16* side_of(const Args&, int) { return nullptr; }
#endif
