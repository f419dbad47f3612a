// The end of a step: the best token of each row from all CTAs' candidates, the ring to the host, whether to continue.
#pragma once
#include "common.cuh"

struct Best {
  float value = -INF;
  int index = 0x7fffffff;
  __device__ __forceinline__ void offer(float v, int i) {
    if (v > value || (v == value && i < index)) {
      value = v;
      index = i;
    }
  }
  __device__ __forceinline__ void across_warp() {
#pragma unroll
    for (int step = 16; step; step >>= 1) {
      float v = __shfl_xor_sync(~0u, value, step);
      int i = __shfl_xor_sync(~0u, index, step);
      offer(v, i);
    }
  }
};

// Sampling with a temperature by the Gumbel-max trick: the argmax of logit / temperature + Gumbel noise is distributed
// as the softmax. The noise is a function of seed, position and token. `engine/gumbel.py` does the same operations in
// the same order, so host and device choose the same token.
constexpr u64 GOLDEN = 0x9E3779B97F4A7C15ull;
__device__ __forceinline__ u64 mix(u64 v) {
  v += GOLDEN;
  v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9ull;
  v = (v ^ (v >> 27)) * 0x94D049BB133111EBull;
  return v ^ (v >> 31);
}
// ln of a normal positive number. The library's differs from numpy's in the last bit.
__device__ __forceinline__ float natural_log(float x) {
  u32 bits = __float_as_uint(x);
  float exponent = (float)((int)(bits >> 23) - 127), m = __uint_as_float((bits & 0x7fffffu) | 0x3f800000u);
  if (m > 1.41421356f) {
    m = m * 0.5f;
    exponent = exponent + 1.f;
  }
  float f = m - 1.f, s = f / (2.f + f), z = s * s;
  float series = 1.f + z * (0.33333334f + z * (0.2f + z * (0.14285715f + z * 0.11111111f)));
  return exponent * 0.6931472f + (s + s) * series;
}
__device__ __forceinline__ float gumbel(u64 key, int token) {
  u32 bits = (u32)(mix(key + (u64)token * GOLDEN) >> 32);
  float v = ((float)bits + 0.5f) * 2.3283064e-10f;  // 2^-32
  v = fminf(v, 0.99999994f);
  // -ln(1 - v), accurate for small v: that is where unlikely tokens win.
  float waited = v < 0.0078125f ? v + v * v * (0.5f + v * 0.33333334f) : -natural_log(1.f - v);
  return -natural_log(waited);
}
__device__ __forceinline__ float perturbed(const Shared& shared, int row, float logit, int token) {
  u64 seed = (u64)shared.seed[1] << 32 | shared.seed[0];
  return logit * shared.sharpness + gumbel(mix(seed + (u64)(shared.position[row] + 1)), token);
}

// After the head: this CTA's best token per row. Each thread holds one for the column that `linear` gave it.
__device__ inline void store_candidates(const Args& args, char* memory, int rows, const Best& mine) {
  float* values = slices_of(memory);
  int* indices = (int*)(values + THREADS);
  values[threadIdx.x] = mine.value;
  indices[threadIdx.x] = mine.index;
  block_barrier();
  int padded = rows > 4 ? 8 : rows > 2 ? 4 : rows, row = threadIdx.x >> 5;
  if (row < rows) {
    Best best;
#pragma unroll 1
    for (int i = threadIdx.x & 31; i < THREADS; i += 32)
      if (i / 32 % padded == row) best.offer(values[i], indices[i]);
    best.across_warp();
    if ((threadIdx.x & 31) == 0) {
      args.best[blockIdx.x * MAX_ROWS + row] = best.value;
      ((int*)args.best)[(CTAS + blockIdx.x) * MAX_ROWS + row] = best.index;
    }
  }
  block_barrier();
}

// The best token of every row into shared.token; all CTAs agree. Ends with a block barrier.
__device__ inline void choose(const Args& args, Shared& shared) {
  int row = threadIdx.x >> 5;
  if (row < shared.rows) {
    Best best;
#pragma unroll 1
    for (int cta = threadIdx.x & 31; cta < CTAS; cta += 32)
      best.offer(load(args.best + cta * MAX_ROWS + row), __ldcg((const int*)args.best + (CTAS + cta) * MAX_ROWS + row));
    best.across_warp();
    // NaN logits leave no index: token 0 keeps every address valid.
    if ((threadIdx.x & 31) == 0) shared.token[row] = best.index < VOCAB ? best.index : 0;
  }
  block_barrier();
}

__device__ __forceinline__ bool is_stop(const State* state, int token) {
  int stops = __ldcg(&state->stops);
#pragma unroll 1
  for (int i = 0; i < stops; ++i)
    if (__ldcg(&state->stop[i]) == token) return true;
  return false;
}

// By one thread of the grid: writes the rows' tokens to the host, in order, then their count.
__device__ inline void publish(const Args& args, const Shared& shared, bool done) {
  volatile Mailbox* box = args.mailbox;
#pragma unroll 1
  for (int row = 0; row < shared.rows; ++row) box->token[(shared.produced + row) % RING] = shared.token[row];
  __threadfence_system();
  box->count = shared.produced + shared.rows;
  if (done) {
    __threadfence_system();
    box->finished = 1;
  }
}
