// `scan_logits`: bias, penalties and mask over a slice of the vocabulary; its best token, or the highest few.
#pragma once
#include "sample.cuh"

// The `wanted` highest of a slice's values, ties by the lower token; returns how many there are.
__device__ __forceinline__ int highest_of(const float (&value)[EACH], int first, int wanted, uint2* out, u32* room) {
  u32 key[EACH];
  for (int j = 0; j < EACH; ++j) key[j] = key_of(value[j]);
  u32 border = border_of(key, wanted, room);
  if (border < NOTHING) border = NOTHING;
  int above = 0, equal = 0;
  for (int j = 0; j < EACH; ++j) above += key[j] > border, equal += border > NOTHING && key[j] == border;
  above = (int)block_count(above, room + 32);
  equal = (int)block_count(equal, room + 40);
  const int spare = wanted - above;
  u32* next = room + 48;  // places: above, equal
  if (threadIdx.x == 0) next[0] = 0, next[1] = (u32)above;
  __syncthreads();
  for (int j = 0; j < EACH; ++j) {
    const bool higher = key[j] > border, same = border > NOTHING && key[j] == border;
    int place = -1;
    if (higher) place = (int)atomicAdd(&next[0], 1u);
    if (equal <= spare) {
      if (same) place = (int)atomicAdd(&next[1], 1u);
    } else {  // not all of them fit: the lowest tokens first
      const u32 lanes = lanes_with(same);
      const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
      if (lane == 0) room[56 + warp] = count_bits(lanes);
      __syncthreads();
      int rank = above, all = 0;
      for (int w = 0; w < SCAN / 32; ++w) {
        if (w < warp) rank += (int)room[56 + w];
        all += (int)room[56 + w];
      }
      rank += (int)next[2 + (j & 1)] * (j > 0) + count_bits(lanes & ((1u << lane) - 1));
      if (same && rank < wanted) place = rank;
      if (threadIdx.x == 0) next[2 + ((j + 1) & 1)] = (j > 0 ? next[2 + (j & 1)] : 0) + (u32)all;
      __syncthreads();
    }
    if (place >= 0) out[place] = make_uint2(__float_as_uint(value[j]), first + j * SCAN + threadIdx.x);
  }
  __syncthreads();
  return above + (equal < spare ? equal : spare);
}

KERNEL(scan_logits, 256, Sample) {
  SHARED_MEMORY(memory);
  u32* room = (u32*)memory;  // [64]
  if (p.ended && __ldcg(p.ended)) return;
  const int row = blockIdx.x / p.slices, slice = blockIdx.x % p.slices, thread = threadIdx.x;
  const SampleRow r = p.rows[row];
  const float* logits = p.logits + (long long)r.logits * p.stride;
  const int first = slice * SLICE;
  const u64 noise = mix(r.seed + (u64)r.position);
  const bool narrow = narrows(r);
  float raw[EACH], value[EACH];
  Winner winner;
  float highest = -INF, raw_highest = -INF;
  for (int j = 0; j < EACH; ++j) {
    const int token = first + j * SCAN + thread;
    const bool inside = token < p.vocab;
    float v = raw[j] = inside ? __ldcg(logits + token) : -INF;
    if (inside && r.counts) {
      const u32 held = __ldcg(r.counts + token);
      u32 count = held & 0x7fffffffu;
      for (int i = 0; i < r.extras; ++i) count += p.extra[r.extra + i] == token;
      if (r.repetition != 1.f && (held >> 31 || count)) v = v > 0.f ? v / r.repetition : v * r.repetition;
      if (count) v = v - (r.frequency * (float)count + r.presence);
    }
    if (inside && r.bias && r.bias[token] != 0.f) v = v + r.bias[token];
    if (inside && r.mask && !(r.mask[token >> 5] >> (token & 31) & 1)) v = -INF;
    value[j] = v;
    if (v > highest) highest = v;
    if (raw[j] > raw_highest) raw_highest = raw[j];
    if (v > -INF && !narrow) winner.offer(scored(r, noise, v, token), token);
    if (inside && narrow && !r.kept) p.work[(long long)row * p.vocab + token] = v;
  }
  Part part = {};
  const long long at = (long long)row * p.slices + slice;
  winner.across<SCAN>(room);
  part.score = winner.score, part.token = winner.token;
  Winner top;
  top.offer(highest, 0);
  top.across<SCAN>(room);
  part.highest = top.score;
  if (narrow && r.kept) part.kept = highest_of(value, first, r.kept, p.best + at * p.most, room);
  if (r.alternatives >= 0) {
    Winner most;
    most.offer(raw_highest, 0);
    most.across<SCAN>(room);
    if (thread == 0) room[0] = __float_as_uint(most.score);
    __syncthreads();
    raw_highest = __uint_as_float(room[0]);
    __syncthreads();
    float sum = 0;
    for (int j = 0; j < EACH; ++j)
      if (raw[j] > -INF) sum += power2((raw[j] - raw_highest) * 1.44269504f);
    for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
    if ((thread & 31) == 0) room[thread / 32] = __float_as_uint(sum);
    __syncthreads();
    sum = 0;
    for (int i = 0; i < SCAN / 32; ++i) sum += __uint_as_float(room[i]);
    __syncthreads();
    part.raw_highest = raw_highest, part.raw_sum = sum;
    if (r.alternatives) part.raw_kept = highest_of(raw, first, r.alternatives, p.likely + at * p.most, room);
  }
  if (thread == 0) p.parts[at] = part;
}
