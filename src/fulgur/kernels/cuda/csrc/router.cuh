// Routing: the experts of each row and their shares, found by every CTA for itself from the router's logits.
//
// An expert's rank is the number of experts with a higher logit: comparisons by several threads an expert, no sorting.
// The last 8 bits of a logit give way to the expert's number, so that no two are equal and one comparison is enough.
// Shares are softmax probabilities, over the chosen ones if the model normalises them.
#pragma once
#include "exchange.cuh"

#if EXPERTS
static_assert(CHOSEN < 32, "a lane an expert");
constexpr int RANKERS = EXPERTS <= THREADS / 8 ? 8 : EXPERTS <= THREADS / 4 ? 4 : EXPERTS <= THREADS / 2 ? 2 : 1;

// A row's logits on their way: a thread has one expert's. They are received with the residual (operand.cuh): when the
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
  // Of all parts, or of those that attention has no share in.
  __device__ __forceinline__ float sum(int expert, int parts = PARTS) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PARTS; ++i)
      if (i < parts) sum += __uint_as_float((u32)words[i]);
    return numbered(sum, expert);
  }
  static __device__ __forceinline__ float numbered(float sum, int expert) {
    return __uint_as_float((__float_as_uint(sum) & ~255u) | (255u - expert));
  }
};

// The experts that have the first ranks, by rank. True for one thread of each.
__device__ __forceinline__ bool rank(const float* logit, int* to) {
  const int thread = (int)thread_index(), mine = thread / RANKERS;
  int rank = 0;
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
  const bool chosen = mine < EXPERTS && thread % RANKERS == 0 && rank < CHOSEN;
  if (chosen) to[rank] = mine;
  return chosen;
}

// The order of a row's experts, by a warp: where the guess was right it is the guess's, so that weights that were
// copied on it (guess.cuh) are those that are needed; the others come in its gaps by their rank. `wrong`: a bit for
// each gap. Every driver has this order: sums are added in it.
__device__ __forceinline__ void order_experts(const int* guess, const int* chosen, int* expert, u32& wrong) {
  const int lane = threadIdx.x & 31, mine = min(lane, CHOSEN - 1);
  bool stays = false, known = false;  // the guess of this place is right; the one of this rank was guessed
#pragma unroll
  for (int i = 0; i < CHOSEN; ++i) {
    stays |= guess[mine] == chosen[i];
    known |= chosen[mine] == guess[i];
  }
  const u32 kept = lanes_with(lane < CHOSEN && stays);
  u32 added = lanes_with(lane < CHOSEN && !known);
  wrong = ~kept & ((1u << CHOSEN) - 1);
  if (lane >= CHOSEN) return;
  for (int gaps = lane - count_bits(kept & ((1u << lane) - 1)); gaps > 0; --gaps) added &= added - 1;
  expert[lane] = stays ? guess[lane] : chosen[min(count_bits((added & ~(added - 1)) - 1), CHOSEN - 1)];
}

// After the barrier behind the logits of all rows: the experts. `early`: shared memory for the logits without
// attention, [rows][EXPERTS_OF_4]; they may be there. Ends with a block barrier.
__device__ inline void rank_experts(const Args& args, Shared& shared, float* early, bool there) {
  const int thread = (int)thread_index(), rows = rows_of(shared);
  if (!there) {
    for (int row = 0; row < rows && thread < EXPERTS_OF_4; ++row) {
      Logits logits;
      if (thread < EXPERTS) logits.load(args, row, thread);  // all have arrived
      early[row * EXPERTS_OF_4 + thread] = thread < EXPERTS ? logits.sum(thread, Router::SPLIT) : -INF;
    }
    block_barrier();
  }
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    rank(early + row * EXPERTS_OF_4, shared.guess[row]);
    rank(shared.logit[row], shared.chosen[row]);
  }
  block_barrier();
  const int row = thread >> 5;
  u32 wrong;
  if (row < rows) order_experts(shared.guess[row], shared.chosen[row], shared.expert[row], wrong);
  block_barrier();
}
static_assert(MAX_ROWS <= WARPS && MAX_ROWS * EXPERTS_OF_4 * 4 <= SLICE_BYTES, "a warp a row; logits where slices lie");

// The share of one of a row's experts, by a whole warp; `inverse` of the row's root mean square. Every driver adds up
// in this order.
__device__ __forceinline__ float expert_share(const Shared& shared, int row, int which, float inverse) {
  constexpr int TERMS = NORM_TOPK ? CHOSEN : EXPERTS, LANES = TERMS > 16 ? 32 : TERMS > 8 ? 16 : 8;
  const float* logit = shared.logit[row];
  const int* expert = shared.expert[row];
  const float peak = logit[expert[0]];
  float total = 0;
#pragma unroll 1
  for (int i = threadIdx.x & (LANES - 1); i < TERMS; i += LANES)
    total += exponential((logit[NORM_TOPK ? expert[i] : i] - peak) * inverse);
#pragma unroll
  for (int i = LANES / 2; i; i >>= 1) total += __shfl_xor_sync(~0u, total, i);
  return quotient(exponential((logit[expert[which]] - peak) * inverse), total);
}
#endif
