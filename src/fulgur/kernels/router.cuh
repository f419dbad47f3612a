// Routing: the experts of each row and their shares, found by every CTA for itself from the router's logits.
//
// An expert's rank is the number of experts with a higher logit (or an equal one and a lower index): one pass of
// comparisons, no sorting. Shares are softmax probabilities, over the chosen ones if the model normalises them.
#pragma once
#include "common.cuh"

#if EXPERTS
__device__ inline void route(const Args& args, Shared& shared) {
  for (int row = 0; row < shared.rows; ++row) {
    if (threadIdx.x < EXPERTS) {
      float sum = 0;
#pragma unroll
      for (int s = 0; s < Router::SPLIT; ++s) sum += load(args.router + (s * MAX_ROWS + row) * EXPERTS + threadIdx.x);
      shared.logit[threadIdx.x] = sum;
    }
    if (threadIdx.x < CHOSEN) shared.expert[row][threadIdx.x] = 0;    // stays only where logits are not numbers
    __syncthreads();
    if (threadIdx.x < EXPERTS) {
      float mine = shared.logit[threadIdx.x];
      int rank = 0;
#pragma unroll 8
      for (int e = 0; e < EXPERTS; ++e) {
        float other = shared.logit[e];
        rank += other > mine || (other == mine && e < (int)threadIdx.x);
      }
      if (rank < CHOSEN) shared.expert[row][rank] = threadIdx.x;
    }
    __syncthreads();
    if (threadIdx.x < CHOSEN) {
      float peak = shared.logit[shared.expert[row][0]], total = 0;
      if (NORM_TOPK)
        for (int i = 0; i < CHOSEN; ++i) total += expf(shared.logit[shared.expert[row][i]] - peak);
      else
        for (int e = 0; e < EXPERTS; ++e) total += expf(shared.logit[e] - peak);
      shared.share[row][threadIdx.x] = expf(shared.logit[shared.expert[row][threadIdx.x]] - peak) / total;
    }
    __syncthreads();
  }
}
#endif
