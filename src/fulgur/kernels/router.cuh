// Routing: the experts of each row and their shares, found by every CTA for itself from the router's logits.
//
// An expert's rank is the number of experts with a higher logit (or an equal one and a lower index): comparisons by several
// threads an expert, no sorting. Shares are softmax probabilities, over the chosen ones if the model normalises them.
#pragma once
#include "exchange.cuh"

#if EXPERTS
constexpr int RANKERS = EXPERTS <= THREADS / 8 ? 8 : EXPERTS <= THREADS / 4 ? 4 : EXPERTS <= THREADS / 2 ? 2 : 1;

// `known()` is called by all threads when the experts of all rows are in shared memory.
template <class Known> __device__ inline void route(const Args& args, Shared& shared, u32 epoch, Known known) {
#pragma unroll 1
  for (int row = 0; row < rows_of(shared); ++row) {
    float* logit = shared.logit[row];
    if (threadIdx.x < EXPERTS) {
      constexpr int PARTS = Router::SPLIT + Fold::SPLIT;
      const u64* from = args.router + row * EXPERTS + threadIdx.x;
      u64 words[PARTS];
      for (u32 spins = 0;; count_spin(spins, args.state)) {
        bool here = true;
#pragma unroll
        for (int i = 0; i < PARTS; ++i) words[i] = load_word(from + i * (MAX_ROWS * EXPERTS));
#pragma unroll
        for (int i = 0; i < PARTS; ++i) here &= is_of(words[i], epoch);
        if (here) break;
      }
      float sum = 0;
#pragma unroll
      for (int i = 0; i < PARTS; ++i) sum += __uint_as_float((u32)words[i]);
      logit[threadIdx.x] = sum;
    }
    if (threadIdx.x < CHOSEN) shared.expert[row][threadIdx.x] = 0;    // stays only where logits are not numbers
    block_barrier();
    int mine = threadIdx.x / RANKERS, rank = 0;
    if (mine < EXPERTS) {
      float value = logit[mine];
#pragma unroll 8
      for (int e = threadIdx.x % RANKERS; e < EXPERTS; e += RANKERS) {
        float other = logit[e];
        rank += other > value || (other == value && e < mine);
      }
    }
#pragma unroll
    for (int step = 1; step < RANKERS; step <<= 1) rank += __shfl_xor_sync(~0u, rank, step);
    if (mine < EXPERTS && threadIdx.x % RANKERS == 0 && rank < CHOSEN) shared.expert[row][rank] = mine;
    block_barrier();
  }
  known();
}

// After `route` and the norm of the same residual: the shares, to be read after the next block barrier.
__device__ inline void share_experts(Shared& shared) {
  const int row = threadIdx.x / CHOSEN, mine = threadIdx.x % CHOSEN;
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
