// The end of a step: the best token of each row from all CTAs' candidates, the ring to the host, whether to continue.
#pragma once
#include "common.cuh"
#include "noise.cuh"

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

// Sampling with only a temperature, while the logits are computed. (sample.cu does all other sampling.)
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

// Writes the best token of every row to shared.token; all CTAs agree. Ends with a block barrier.
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
