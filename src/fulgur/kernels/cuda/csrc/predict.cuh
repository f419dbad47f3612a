// Expert prediction. A dedicated warp predicts a layer's experts before attention; they are settled after it.
//
// The router's logits are the sum of a part from the residual before attention and a part from what attention adds
// (plan.py). The first part is known when attention begins, and alone it names most of the experts. The gate/up weights
// of these experts are copied into the rings at a slow pace (PREDICTION_PACE) while memory would otherwise be idle.
// When all logits are known and a ring holds a wrong expert, its right weights are copied after the predicted ones,
// which the warp drops. A second warp computes the routing weights while gate and up are multiplied.
#pragma once
#include "router.cuh"

#if PREDICTION
constexpr int EXPERTS_PER_LANE = (EXPERTS + 31) / 32;
constexpr int WORDS = EXPERTS_PER_LANE > 4 ? 2 : EXPERTS_PER_LANE;  // that a lane waits for together
constexpr u32 NAP = 1000;                                           // ns

// The experts with the highest logits: lane i returns the one of rank i. Destroys the logits.
__device__ __forceinline__ int highest(u32 (&left)[EXPERTS_PER_LANE]) {
  int mine = 0;
#pragma unroll 1
  for (int rank = 0; rank < ROUTED; ++rank) {
    u32 best = 0;
#pragma unroll
    for (int i = 0; i < EXPERTS_PER_LANE; ++i) best = max(best, left[i]);
    best = warp_max_bits(best);
#pragma unroll
    for (int i = 0; i < EXPERTS_PER_LANE; ++i) left[i] = left[i] == best ? 0 : left[i];
    if ((int)(thread_index() & 31) == rank) mine = TAG - (__float_as_uint(unordered(best)) & TAG);
  }
  return mine;
}

// Waits for the parts of the logits that do not depend on attention, and adds them up. Polls one word first: 132 warps
// that poll all words would slow L2 for everyone.
__device__ __forceinline__ void add_parts(float (&sum)[EXPERTS_PER_LANE], const Args& args, u32 epoch) {
#pragma unroll 1
  for (int part = 0; part < ROUTER_PARTS; ++part) {
    const int lane = (int)thread_index() & 31;
    const u64* from = args.router + part * ROUTER_ROWS;
    while (lanes_with(!has_epoch(load_word(from), epoch))) nap(NAP);
#pragma unroll
    for (int begin = 0; begin < EXPERTS_PER_LANE; begin += WORDS) {
      u64 words[WORDS];
      for (;;) {
        bool here = true;
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
          const int e = (begin + i) * 32 + lane;
          words[i] = e < EXPERTS ? load_word(from + e) : 0;
          here &= e >= EXPERTS || has_epoch(words[i], epoch);
        }
        if (lanes_with(here) == ~0u) break;
      }
#pragma unroll
      for (int i = 0; i < WORDS; ++i)
        if (begin + i < EXPERTS_PER_LANE) sum[begin + i] += __uint_as_float((u32)words[i]);
    }
  }
}

// The prediction warp. Runs until `shared.finished`, with 24 registers.
__device__ inline void predict_experts(const Args& args, Shared& shared) {
#pragma unroll 1
  for (;;) {
    while (lanes_with((int)(load_acquire_shared(shared_address(&shared.layers_projected)) - shared.layers_predicted) <=
                      0)) {
      if (lanes_with(load_acquire_shared(shared_address(&shared.finished)))) return;
      nap(NAP);
    }
    float sum[EXPERTS_PER_LANE] = {};
    add_parts(sum, args, shared.epoch + shared.layers_predicted);
    int lane = (int)thread_index() & 31;
    u32 logit[EXPERTS_PER_LANE];
#pragma unroll
    for (int i = 0; i < EXPERTS_PER_LANE; ++i) {
      const int e = i * 32 + lane;
      logit[i] = e < EXPERTS ? ordered(Logits::tagged(sum[i], e)) : 0;
      if (e < EXPERTS) shared.place[e] = -1;
    }
    const int mine = highest(logit);
    __syncwarp();
    lane = (int)thread_index() & 31;
    if (lane < ROUTED) {
      shared.predicted[0][lane] = mine;
      shared.place[mine] = lane;
    }
    __syncwarp();
    if (lane == 0) store_release(shared_address(&shared.layers_predicted), shared.layers_predicted + 1);
    __syncwarp();
  }
}

// The second warp: computes the routing weights, which are needed once gate and up have been multiplied. Runs until
// `shared.finished`.
__device__ inline void weight_experts(Shared& shared) {
  const int lane = (int)thread_index() & 31;
#pragma unroll 1
  for (;;) {
    while (
        lanes_with((int)(load_acquire_shared(shared_address(&shared.layers_routed)) - shared.layers_weighted) <= 0)) {
      if (lanes_with(load_acquire_shared(shared_address(&shared.finished)))) return;
      nap(NAP);
    }
    const float weight = routing_weight_of(shared, 0, min(lane, EXPERTS_PER_ROW - 1), inverse_of(shared, 0));
    if (lane < EXPERTS_PER_ROW) shared.routing_weight[lane] = weight;
    __syncwarp();
    if (lane == 0) store_release(shared_address(&shared.layers_weighted), shared.layers_weighted + 1);
    __syncwarp();
  }
}
__device__ __forceinline__ float await_routing_weight(const Shared& shared, int which, u32 layers) {
  while ((int)(load_acquire_shared(shared_address(&shared.layers_weighted)) - layers) < 0) nap(20);
  return shared.routing_weight[which];
}

// Called before the barrier that follows the logits, by the threads that hold one logit each. A prediction is right if
// the lowest logit of its experts is above the highest of the others.
__device__ __forceinline__ void check_prediction(Shared& shared, u32 layers) {
  const int thread = (int)thread_index();
  if (thread >= (EXPERTS + 31) / 32 * 32) return;
  // Decided for the whole warp: lanes may arrive one after another, from different iterations of a wait.
  const bool there =
      lanes_with((int)(load_acquire_shared(shared_address(&shared.layers_predicted)) - layers) >= 0) == ~0u;
  const u32 logit = thread < EXPERTS ? ordered(shared.logit[0][thread]) : 0;
  const bool predicted = thread < EXPERTS && shared.place[thread] >= 0;
  const u32 lowest = ~warp_max_bits(predicted ? ~logit : 0), highest = warp_max_bits(predicted ? 0 : logit);
  if ((thread & 31) == 0) shared.bounds[thread >> 5] = make_uint2(there ? lowest : 0, highest);
  if (there && thread < ROUTED) shared.expert[0][thread] = shared.predicted[0][thread];
}
// After that barrier: settles the experts, in the order of the prediction, and notifies the feeders. Returns whether
// any prediction was wrong.
__device__ inline bool settle_experts(Shared& shared, u32 layers) {
  const int thread = (int)thread_index();
  u32 lowest = ~0u, highest = 0, wrong = 0;
#pragma unroll
  for (int i = 0; i < (EXPERTS + 31) / 32; ++i) {
    lowest = min(lowest, shared.bounds[i].x);
    highest = max(highest, shared.bounds[i].y);
  }
  const bool any = lowest <= highest;
  if (any) {
    rank(shared.logit[0], shared.chosen[0]);
    while ((int)(load_acquire_shared(shared_address(&shared.layers_predicted)) - layers) < 0) nap(20);
    block_barrier();
    if (thread < 32) order_experts(shared.predicted[0], shared.chosen[0], shared.expert[0], wrong);
    if (thread == 0) shared.mispredicted = wrong;
    block_barrier();
  } else if (thread == 0) {
    shared.mispredicted = 0;
  }
  if (thread == 0) store_release(shared_address(&shared.layers_routed), layers);
  return any;
}
#endif
