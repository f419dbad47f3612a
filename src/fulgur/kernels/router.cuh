// Routing: the experts of each row and their shares, found by every CTA for itself from the router's logits.
//
// An expert's rank is the number of experts with a higher logit (or an equal one and a lower index): comparisons by several
// threads an expert, no sorting. Shares are softmax probabilities, over the chosen ones if the model normalises them.
#pragma once
#include "exchange.cuh"

#if EXPERTS
constexpr int RANKERS = EXPERTS <= THREADS / 8 ? 8 : EXPERTS <= THREADS / 4 ? 4 : EXPERTS <= THREADS / 2 ? 2 : 1;

// `known(row)` is called by all threads when the experts of the last row are in shared memory; the shares follow, and are
// there after the next block barrier.
template <class Known> __device__ inline void route(const Args& args, Shared& shared, u32 epoch, Known known) {
  for (int row = 0; row < rows_of(shared); ++row) {
    if (threadIdx.x < EXPERTS) {
      float sum = 0;
#pragma unroll
      for (int s = 0; s < Router::SPLIT; ++s) sum += __uint_as_float(receive(args.router + (s * MAX_ROWS + row) * EXPERTS + threadIdx.x, epoch, args.state));
      shared.logit[row & 1][threadIdx.x] = sum;
    }
    if (threadIdx.x < CHOSEN) shared.expert[row][threadIdx.x] = 0;    // stays only where logits are not numbers
    block_barrier();
    const float* logit = shared.logit[row & 1];
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
    if (row + 1 == rows_of(shared)) known();
    if (threadIdx.x < CHOSEN) {
      float peak = logit[shared.expert[row][0]], total = 0;
      if (NORM_TOPK)
        for (int i = 0; i < CHOSEN; ++i) total += exponential(logit[shared.expert[row][i]] - peak);
      else
        for (int e = 0; e < EXPERTS; ++e) total += exponential(logit[e] - peak);
      shared.share[row][threadIdx.x] = quotient(exponential(logit[shared.expert[row][threadIdx.x]] - peak), total);
    }
  }
}
#endif
