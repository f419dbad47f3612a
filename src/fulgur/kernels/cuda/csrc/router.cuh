// Routing: every CTA finds the experts of each row and their routing weights from the router's logits.
//
// An expert's rank is the number of experts with a higher logit: several threads per expert compare, nothing is sorted.
// The last 8 bits of a logit are replaced by the expert's number, so that no two are equal and one comparison is
// enough. Routing weights are softmax probabilities, over the chosen experts only if the model normalises them. A
// shared expert is the last of every row's choice; its weight is the sigmoid of its own logit.
#pragma once
#include "exchange.cuh"

#if EXPERTS
static_assert(EXPERTS_PER_ROW < 32, "one lane per expert");
constexpr u32 TAG = EXPERTS <= 256 ? 255 : 511;  // the bits of a logit that hold the expert's number
constexpr int RANKERS = EXPERTS <= THREADS / 8 ? 8 : EXPERTS <= THREADS / 4 ? 4 : EXPERTS <= THREADS / 2 ? 2 : 1;

// A row's logits in flight: each thread holds one expert's. They are received together with the residual (operand.cuh):
// once the experts are known, their weights are copied at full speed, and any later load would queue behind them.
struct Logits {
  static constexpr int PARTS = ROUTER_PARTS + Fold::SPLIT;
  u64 words[PARTS];

  __device__ __forceinline__ void load(const Args& args, int row, int expert) {
#pragma unroll
    for (int i = 0; i < PARTS; ++i) words[i] = load_word(args.router + (i * MAX_ROWS + row) * ROUTER_ROWS + expert);
  }
  __device__ __forceinline__ bool here(u32 epoch) const {
    bool all = true;
#pragma unroll
    for (int i = 0; i < PARTS; ++i) all &= has_epoch(words[i], epoch);
    return all;
  }
  // The sum of all parts, or of the first `parts`: those of the router itself, without attention.
  __device__ __forceinline__ float sum(int parts = PARTS) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PARTS; ++i)
      if (i < parts) sum += __uint_as_float((u32)words[i]);
    return sum;
  }
  static __device__ __forceinline__ float tagged(float sum, int expert) {
    return __uint_as_float((__float_as_uint(sum) & ~TAG) | (TAG - expert));
  }
};

// Writes the experts of the first ROUTED ranks to `to`, by rank. Returns true for one thread of each.
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
  const bool chosen = mine < EXPERTS && thread % RANKERS == 0 && rank < ROUTED;
  if (chosen) to[rank] = mine;
  return chosen;
}

// The final order of a row's experts, by one warp. Experts that were predicted keep their place, so that the weights
// already copied are the right ones; the others fill the gaps by rank. `wrong` gets a bit for each gap. Every driver
// uses this order, since sums are added in it.
__device__ __forceinline__ void order_experts(const int* predicted, const int* chosen, int* expert, u32& wrong) {
  const int lane = threadIdx.x & 31, mine = min(lane, ROUTED - 1);
  bool stays = false, known = false;  // the prediction for this place is right; the expert of this rank was predicted
#pragma unroll
  for (int i = 0; i < ROUTED; ++i) {
    stays |= predicted[mine] == chosen[i];
    known |= chosen[mine] == predicted[i];
  }
  const u32 kept = lanes_with(lane < ROUTED && stays);
  u32 added = lanes_with(lane < ROUTED && !known);
  wrong = ~kept & ((1u << ROUTED) - 1);
  if (lane >= ROUTED) return;
  for (int gaps = lane - count_bits(kept & ((1u << lane) - 1)); gaps > 0; --gaps) added &= added - 1;
  expert[lane] = stays ? predicted[lane] : chosen[min(count_bits((added & ~(added - 1)) - 1), ROUTED - 1)];
}

// Finds the experts of all rows; call after the barrier that follows the logits. `early`: shared memory for the logits
// without attention, [rows][EXPERTS_OF_4]; `there`: they have been written already. Ends with a block barrier.
__device__ inline void rank_experts(const Args& args, Shared& shared, float* early, bool there) {
  const int thread = (int)thread_index(), rows = rows_of(shared);
  if (!there) {
    for (int row = 0; row < rows && thread < EXPERTS_OF_4; ++row) {
      Logits logits;
      if (thread < EXPERTS) logits.load(args, row, thread);  // all have arrived
      early[row * EXPERTS_OF_4 + thread] = thread < EXPERTS ? Logits::tagged(logits.sum(ROUTER_PARTS), thread) : -INF;
    }
    block_barrier();
  }
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    rank(early + row * EXPERTS_OF_4, shared.predicted[row]);
    rank(shared.logit[row], shared.chosen[row]);
  }
  block_barrier();
  const int row = thread >> 5;
  u32 wrong;
  if (row < rows) order_experts(shared.predicted[row], shared.chosen[row], shared.expert[row], wrong);
  block_barrier();
}
static_assert(MAX_ROWS <= WARPS && MAX_ROWS * EXPERTS_OF_4 * 4 <= SLICE_BYTES,
              "one warp per row; logits overlay the slices");

// The routing weight of one of a row's experts, by a whole warp. `inverse` is the factor of the row's RMSNorm. Every
// driver adds in this order.
__device__ __forceinline__ float routing_weight_of(const Shared& shared, int row, int which, float inverse) {
  constexpr int TERMS = NORM_TOPK ? ROUTED : EXPERTS, LANES = TERMS > 16 ? 32 : TERMS > 8 ? 16 : 8;
  const float* logit = shared.logit[row];
  const int* expert = shared.expert[row];
  const float peak = logit[expert[0]], own = SHARED_EXPERT && which == ROUTED ? peak : logit[expert[which]];
  float total = 0;
#pragma unroll 1
  for (int i = threadIdx.x & (LANES - 1); i < TERMS; i += LANES)
    total += exponential((logit[NORM_TOPK ? expert[i] : i] - peak) * inverse);
#pragma unroll
  for (int i = LANES / 2; i; i >>= 1) total += __shfl_xor_sync(~0u, total, i);
  if (SHARED_EXPERT && which == ROUTED) return quotient(1.f, 1.f + exponential(-shared.shared_logit[row] * inverse));
  return quotient(exponential((own - peak) * inverse), total);
}
#endif
