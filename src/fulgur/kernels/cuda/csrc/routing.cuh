// Which experts the rows of a step use. Every CTA that is about to multiply with them finds them from the router's
// logits.
#pragma once
#include "step.cuh"

constexpr int MOST_ROWS = 8, MOST_CHOSEN = 16, MOST_EXPERTS = 512, MOST_DISTINCT = MOST_ROWS * MOST_CHOSEN;

struct Routing {                                 // the experts of a step's rows
  alignas(16) int mine[MOST_ROWS][MOST_CHOSEN];  // by row and choice; -1: none
  int expert[MOST_DISTINCT];                     // the distinct ones
  signed char choice[MOST_DISTINCT][MOST_ROWS];  // which of a row's experts it is; -1: none
  float weight[MOST_ROWS][MOST_CHOSEN];
  int distinct;
};

struct Router {
  Routing* to;                              // what was chosen is kept here
  const float *logits, *bias;               // [row, stride]; [expert] or null
  int stride, experts, top, shared_expert;  // softmax over `top` of `experts`; one more logit is the shared expert's
  int over_all, pad;                        // softmax over all of them
};

__device__ __forceinline__ float warp_sum(float v) {
  for (int mask = 16; mask; mask >>= 1) v += __shfl_xor_sync(~0u, v, mask);
  return v;
}
// Maps floats to integers of the same order; 0 is below all of them.
__device__ __forceinline__ u32 sortable(float v) {
  const u32 bits = __float_as_uint(v), made = bits ^ ((u32)((int)bits >> 31) | 0x80000000u);
  return made ? made : 1;
}

// A warp chooses a row's experts. Ties go to the lowest number. For a single row this also completes the list of
// distinct experts.
template <int EACH>  // logits of a lane
__device__ __forceinline__ void choose_experts(const Router& p, Routing& r, int row) {
  const int lane = threadIdx.x & 31, chosen = p.top + p.shared_expert;
  const float* logits = p.logits + (long long)row * p.stride;
  float logit[EACH];
  u32 key[EACH];
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int expert = i * 32 + lane;
    logit[i] = expert < p.experts ? __ldcg(logits + expert) + (p.bias ? p.bias[expert] : 0.f) : -INF;
  }
  const float shared_logit = p.shared_expert ? __ldcg(logits + p.experts) : 0.f;
#pragma unroll
  for (int i = 0; i < EACH; ++i) key[i] = i * 32 + lane < p.experts ? sortable(logit[i]) : 0;
  float own = -INF;
  int mine = -1;
#pragma unroll 1
  for (int k = 0; k < p.top; ++k) {
    u32 best = key[0];
#pragma unroll
    for (int i = 1; i < EACH; ++i) best = max(best, key[i]);
    const u32 highest = warp_max_bits(best);
    u32 last = 0;  // the lowest expert with this logit, as its distance from the end
#pragma unroll
    for (int i = EACH - 1; i >= 0; --i)
      if (key[i] == highest) last = MOST_EXPERTS - (i * 32 + lane);
    const int expert = MOST_EXPERTS - (int)warp_max_bits(last);
    if (lane == k) own = __uint_as_float(highest ^ (~(u32)((int)highest >> 31) | 0x80000000u)), mine = expert;
#pragma unroll
    for (int i = 0; i < EACH; ++i)
      if (expert == i * 32 + lane) key[i] = 0;
  }
  const float peak = __shfl_xor_sync(~0u, own, lane);  // of lane 0
  const float weight = natural_power(own - peak);
  float all = weight;
  if (p.over_all) {
    all = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) all += natural_power(logit[i] - peak);
  }
  all = warp_sum(all);
  if (lane == p.top && p.shared_expert) mine = p.experts;
  if (lane >= MOST_CHOSEN) return;
  r.mine[row][lane] = mine;
  r.weight[row][lane] = lane < p.top ? quotient(weight, all) : sigmoid(shared_logit);
  if (row) return;
  r.expert[lane] = mine, r.choice[lane][0] = (signed char)lane;
  if (lane == 0) r.distinct = chosen;
}
__device__ __forceinline__ void choose_experts(const Router& p, Routing& r, int row) {
  if (p.experts <= 128)
    choose_experts<4>(p, r, row);
  else if (p.experts <= 256)
    choose_experts<8>(p, r, row);
  else
    choose_experts<16>(p, r, row);
}

// For several rows: lists the distinct experts in the order in which rows first chose them. Call after a barrier, with
// all `threads`, at least 128. `leads`: a bit for each of 128 choices, set if it is its expert's first.
__device__ __forceinline__ void list_experts(Routing& r, u32* leads, int count, int threads) {
  const int i = threadIdx.x, row = i / MOST_CHOSEN;
  for (int j = i; j < MOST_DISTINCT * MOST_ROWS / 4; j += threads) ((u32*)&r.choice[0][0])[j] = ~0u;
  int expert = -1, first = i;
  if (i < MOST_DISTINCT) {
    if (row < count) expert = (&r.mine[0][0])[i];
#pragma unroll 4
    for (int j = 0; j < count * MOST_CHOSEN; j += 4) {
      const uint4 others = *(const uint4*)(&r.mine[0][0] + j);
      if ((int)others.w == expert) first = min(first, j + 3);
      if ((int)others.z == expert) first = min(first, j + 2);
      if ((int)others.y == expert) first = min(first, j + 1);
      if ((int)others.x == expert) first = min(first, j);
    }
    const u32 bits = lanes_with(expert >= 0 && first == i);
    if ((i & 31) == 0) leads[i / 32] = bits;
  }
  __syncthreads();
  if (i == 0) r.distinct = count_bits(leads[0]) + count_bits(leads[1]) + count_bits(leads[2]) + count_bits(leads[3]);
  if (expert >= 0) {
    int place = count_bits(leads[first / 32] & ((1u << (first & 31)) - 1));
    for (int j = 0; j < first / 32; ++j) place += count_bits(leads[j]);
    if (first == i) r.expert[place] = expert;
    r.choice[place][row] = (signed char)(i % MOST_CHOSEN);
  }
  __syncthreads();
}
