// The experts of a layer: first a guess, by a warp beside those that compute, then the truth.
//
// The router's logits are a part of the residual before attention, and one of what attention adds (plan.py). The first
// part is known when attention begins, and alone it names most of the experts. Their gate and up weights come into the
// rings on this guess, slowly (GUESS_PACE), while memory would stand still. When all logits are there and an expert of
// a ring was guessed wrongly, the ring's right weights come behind what it has of the guess, and that is dropped. A
// second warp finds the experts' shares while they are multiplied.
#pragma once
#include "router.cuh"

#if GUESSES
constexpr int EXPERTS_PER_LANE = (EXPERTS + 31) / 32;
constexpr u32 NAP = 1000;  // ns

// The experts of the highest logits: lane i has the one of rank i. The logits are used up.
__device__ __forceinline__ int highest(u32 (&left)[EXPERTS_PER_LANE]) {
  int mine = 0;
#pragma unroll 1
  for (int rank = 0; rank < CHOSEN; ++rank) {
    u32 best = 0;
#pragma unroll
    for (int i = 0; i < EXPERTS_PER_LANE; ++i) best = max(best, left[i]);
    best = warp_max_bits(best);
#pragma unroll
    for (int i = 0; i < EXPERTS_PER_LANE; ++i) left[i] = left[i] == best ? 0 : left[i];
    if ((int)(thread_index() & 31) == rank) mine = 255 - (__float_as_uint(unordered(best)) & 255);
  }
  return mine;
}

// Adds the parts of every expert's logit that attention has no share in, when they are there. One word first: 132 warps
// that ask for all of them again and again keep L2 from those who are waited for.
__device__ __forceinline__ void add_parts(float (&sum)[EXPERTS_PER_LANE], const Args& args, u32 epoch) {
#pragma unroll 1
  for (int part = 0; part < Router::SPLIT; ++part) {
    const int lane = (int)thread_index() & 31;
    const u64* from = args.router + part * EXPERTS;
    while (lanes_with(!is_of(load_word(from), epoch))) nap(NAP);
    u64 words[EXPERTS_PER_LANE];
    for (;;) {
      bool here = true;
#pragma unroll
      for (int i = 0; i < EXPERTS_PER_LANE; ++i) {
        const int e = i * 32 + lane;
        words[i] = e < EXPERTS ? load_word(from + e) : 0;
        here &= e >= EXPERTS || is_of(words[i], epoch);
      }
      if (lanes_with(here) == ~0u) break;
    }
#pragma unroll
    for (int i = 0; i < EXPERTS_PER_LANE; ++i) sum[i] += __uint_as_float((u32)words[i]);
  }
}

// The warp beside those that compute. Until `shared.finished`. It has 24 registers.
__device__ inline void guess_experts(const Args& args, Shared& shared) {
#pragma unroll 1
  for (;;) {
    while (lanes_with((int)(load_acquire_shared(shared_address(&shared.projected)) - shared.guessed) <= 0)) {
      if (lanes_with(load_acquire_shared(shared_address(&shared.finished)))) return;
      nap(NAP);
    }
    float sum[EXPERTS_PER_LANE] = {};
    add_parts(sum, args, shared.epoch + shared.guessed);
    int lane = (int)thread_index() & 31;
    u32 logit[EXPERTS_PER_LANE];
#pragma unroll
    for (int i = 0; i < EXPERTS_PER_LANE; ++i) {
      const int e = i * 32 + lane;
      logit[i] = e < EXPERTS ? ordered(Logits::numbered(sum[i], e)) : 0;
      if (e < EXPERTS) shared.place[e] = -1;
    }
    const int mine = highest(logit);
    __syncwarp();
    lane = (int)thread_index() & 31;
    if (lane < CHOSEN) {
      shared.guess[0][lane] = mine;
      shared.place[mine] = lane;
    }
    __syncwarp();
    if (lane == 0) store_release(shared_address(&shared.guessed), shared.guessed + 1);
    __syncwarp();
  }
}

// Another such warp: the shares of the experts, which are asked for when gate and up have been multiplied. Until
// `shared.finished`.
__device__ inline void weigh_experts(Shared& shared) {
  const int lane = (int)thread_index() & 31;
#pragma unroll 1
  for (;;) {
    while (lanes_with((int)(load_acquire_shared(shared_address(&shared.routed)) - shared.weighed) <= 0)) {
      if (lanes_with(load_acquire_shared(shared_address(&shared.finished)))) return;
      nap(NAP);
    }
    const float share = expert_share(shared, 0, min(lane, CHOSEN - 1), inverse_of(shared, 0));
    if (lane < CHOSEN) shared.share[lane] = share;
    __syncwarp();
    if (lane == 0) store_release(shared_address(&shared.weighed), shared.weighed + 1);
    __syncwarp();
  }
}
__device__ __forceinline__ float weighed_share(const Shared& shared, int which, u32 layers) {
  while ((int)(load_acquire_shared(shared_address(&shared.weighed)) - layers) < 0) nap(20);
  return shared.share[which];
}

// In front of the barrier behind the logits, by the threads that have one each: a guess is right if the lowest logit of
// its experts is above the highest of the others.
__device__ __forceinline__ void compare_guess(Shared& shared, u32 layers) {
  const int thread = (int)thread_index();
  if (thread >= (EXPERTS + 31) / 32 * 32) return;
  const bool there = (int)(load_acquire_shared(shared_address(&shared.guessed)) - layers) >= 0;
  const u32 logit = thread < EXPERTS ? ordered(shared.logit[0][thread]) : 0;
  const bool guessed = thread < EXPERTS && shared.place[thread] >= 0;
  const u32 lowest = ~warp_max_bits(guessed ? ~logit : 0), highest = warp_max_bits(guessed ? 0 : logit);
  if ((thread & 31) == 0) shared.bounds[thread >> 5] = make_uint2(there ? lowest : 0, highest);
  if (there && thread < CHOSEN) shared.expert[0][thread] = shared.guess[0][thread];
}
// After it: the truth, in the order of the guess. The feeders are told. Was any guess wrong?
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
    while ((int)(load_acquire_shared(shared_address(&shared.guessed)) - layers) < 0) nap(20);
    block_barrier();
    if (thread < 32) order_experts(shared.guess[0], shared.chosen[0], shared.expert[0], wrong);
    if (thread == 0) shared.wrong = wrong;
    block_barrier();
  } else if (thread == 0) {
    shared.wrong = 0;
  }
  if (thread == 0) store_release(shared_address(&shared.routed), layers);
  return any;
}
#endif
