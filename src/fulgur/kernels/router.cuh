// Routing: the experts of each row and their shares, found by every CTA for itself from the router's logits.
//
// An expert's rank is the number of experts with a higher logit: comparisons by several threads an expert, no sorting. The last 8 bits
// of a logit give way to the expert's number, so that no two are equal and one comparison is enough. Shares are softmax probabilities,
// over the chosen ones if the model normalises them.
#pragma once
#include "exchange.cuh"

#if EXPERTS
constexpr int RANKERS = EXPERTS <= THREADS / 8 ? 8 : EXPERTS <= THREADS / 4 ? 4 : EXPERTS <= THREADS / 2 ? 2 : 1;

// A row's logits on their way: a thread has one expert's. They are asked for together with the residual (operand.cuh): when the
// experts are known their weights come at full speed, and whatever is waited for then waits behind them.
struct Logits {
  static constexpr int PARTS = Router::SPLIT + Fold::SPLIT;
  u64 words[PARTS];

  __device__ __forceinline__ void load(const Args& args, int row, int expert) {
#pragma unroll
    for (int i = 0; i < PARTS; ++i) words[i] = load_word(args.router + (i * MAX_ROWS + row) * EXPERTS + expert);
  }
  __device__ __forceinline__ bool here(u32 epoch) const {
    bool all = true;
#pragma unroll
    for (int i = 0; i < PARTS; ++i) all &= is_of(words[i], epoch);
    return all;
  }
  __device__ __forceinline__ float sum(int expert) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PARTS; ++i) sum += __uint_as_float((u32)words[i]);
    return __uint_as_float((__float_as_uint(sum) & ~255u) | (255u - expert));
  }
};

// After the barrier behind the logits of all rows: the experts, to be read after the next.
__device__ inline void rank_experts(Shared& shared) {
  const int thread = (int)thread_index();
#pragma unroll 1
  for (int row = 0; row < rows_of(shared); ++row) {
    const float* logit = shared.logit[row];
    int mine = thread / RANKERS, rank = 0;
    if (mine < EXPERTS) {
      float value = logit[mine];
#pragma unroll
      for (int e = thread % RANKERS * 4; e < EXPERTS_OF_4; e += RANKERS * 4) {
        float4 others = *(const float4*)(logit + e);
        rank += (others.x > value) + (others.y > value) + (others.z > value) + (others.w > value);
      }
    }
#pragma unroll
    for (int step = 1; step < RANKERS; step <<= 1) rank += __shfl_xor_sync(~0u, rank, step);
    if (mine < EXPERTS && thread % RANKERS == 0 && rank < CHOSEN) shared.expert[row][rank] = mine;
  }
}

// After another: the shares, to be read after a third.
__device__ inline void share_experts(Shared& shared) {
  const int thread = (int)thread_index(), row = thread / CHOSEN, mine = thread % CHOSEN;
  if (row >= rows_of(shared)) return;
  const float* logit = shared.logit[row];
  const int* expert = shared.expert[row];
  float peak = logit[expert[0]], inverse = inverse_of(shared, row), total = 0;
  if (NORM_TOPK)
    for (int i = 0; i < CHOSEN; ++i) total += exponential((logit[expert[i]] - peak) * inverse);
  else
    for (int e = 0; e < EXPERTS; ++e) total += exponential((logit[e] - peak) * inverse);
  shared.share[row][mine] = quotient(exponential((logit[expert[mine]] - peak) * inverse), total);
}
#endif
