// Where top-k, top-p and min-p cut: the fewest highest tokens that reach a number or a mass.
#pragma once
#include "sample.cuh"

// Where the kept tokens of a row end: tokens with a higher key are kept, and those with this key up to token `last`.
struct Border {
  u32 key;
  int last;
  __device__ __forceinline__ bool keeps(u32 k, int token) const { return k > key || (k == key && token <= last); }
};

// What a token counts: 1 for top-k, its weight for top-p.
struct Measure {
  float highest, sharpness, floor;
  bool mass;
  __device__ __forceinline__ float scaled(float v) const { return (v - highest) * sharpness; }
  __device__ __forceinline__ u32 of(float v) const { return mass ? (u32)weight_of(scaled(v)) : 1; }
};

struct Listed {  // in shared memory: the lists of all slices, and what each token counts for
  uint2* at;
  u32* counts;
  int n;
  __device__ __forceinline__ float value(int i) const { return __uint_as_float(at[i].x); }
  __device__ __forceinline__ int token(int i) const { return (int)at[i].y; }
  __device__ __forceinline__ void prepare(int i, u32 count) const { counts[i] = count; }
  __device__ __forceinline__ u32 count(int i, const Measure&, const Border&) const { return counts[i]; }
};
struct All {  // in global memory; what a token counts is recomputed, not stored
  const float* at;
  int n;
  u64* bins;    // in shared memory
  Listed room;  // for the tokens of one bin
  __device__ __forceinline__ float value(int i) const { return __ldcg(at + i); }
  __device__ __forceinline__ int token(int i) const { return i; }
  __device__ __forceinline__ void prepare(int, u32) const {}
  __device__ __forceinline__ u32 count(int i, const Measure& m, const Border& before) const {
    const float v = value(i);
    const u32 key = key_of(v);
    return key > NOTHING && before.keeps(key, i) && m.scaled(v) >= m.floor ? m.of(v) : 0;
  }
};

struct Room {  // shared memory of choose_token
  u64 sums[2][32];
  u32 token, count;
  int cancel;
  float value;
  u32 words[64];
  uint2 few[FEW];
  u64 total, above;  // of all tokens, of those in higher bins
  int bin;
};

// The sum over a block, in every thread. Callers alternate two rooms, so a sum needs only one barrier.
template <int THREADS>
__device__ __forceinline__ u64 block_sum(u64 v, u64* room) {
  u32 low = (u32)v & 0xfffffu, high = (u32)(v >> 20);  // halves whose sums over a warp fit
  for (int step = 16; step; step >>= 1) {
    low += __shfl_xor_sync(~0u, low, step);
    high += __shfl_xor_sync(~0u, high, step);
  }
  if ((threadIdx.x & 31) == 0) room[threadIdx.x / 32] = ((u64)high << 20) + low;
  __syncthreads();
  u64 sum = 0;
#pragma unroll
  for (int i = 0; i < THREADS / 32; ++i) sum += room[i];
  return sum;
}

// The border at which tokens measure `wanted`. Those above all of `e` measure `over`; `e` measures at least the rest.
template <int THREADS, class Elements>
__device__ __forceinline__ Border border_among(const Elements& e, const Border& before, const Measure& m, double wanted,
                                               u64 over, Room& room) {
  const int thread = threadIdx.x;
  u32 border = 0;
  u64 above = over, mine;  // of keys over the border
#pragma unroll 1
  for (int bit = 31; bit >= 0; --bit) {
    const u32 trial = border | 1u << bit;
    mine = 0;
#pragma unroll 1
    for (int i = thread; i < e.n; i += THREADS)
      if (key_of(e.value(i)) >= trial) mine += e.count(i, m, before);
    const u64 sum = over + block_sum<THREADS>(mine, room.sums[~bit & 1]);
    if ((double)sum >= wanted)
      border = trial;
    else
      above = sum;
  }
  // Of tokens that equal the border, only as many as are needed.
  const u32 bits = border & 0x80000000u ? border ^ 0x80000000u : ~border;
  const u64 each = m.of(__uint_as_float(bits));
  u64 need = (u64)((wanted - (double)above) / (double)each);
  while ((double)(above + need * each) < wanted) ++need;
  while (need > 1 && (double)(above + (need - 1) * each) >= wanted) --need;
  int last = 0;  // the highest token with fewer than `need` equal ones before it
  mine = 0;
#pragma unroll 1
  for (int i = thread; i < e.n; i += THREADS)
    if (key_of(e.value(i)) == border) mine += e.count(i, m, before);
  if (block_sum<THREADS>(mine, room.sums[0]) <= need * each) return {border, NEVER};
#pragma unroll 1
  for (int bit = 20; bit >= 0; --bit) {
    mine = 0;
#pragma unroll 1
    for (int i = thread; i < e.n; i += THREADS)
      if (key_of(e.value(i)) == border && e.token(i) < last + (1 << bit)) mine += e.count(i, m, before);
    if (block_sum<THREADS>(mine, room.sums[~bit & 1]) < need * each) last += 1 << bit;
  }
  return {border, last};
}

// The fewest of the highest tokens, among those within `before` and the floor, that measure at least `wanted`, or the
// fraction `part` of all.
template <int THREADS, class Elements>
__device__ __forceinline__ Border cut(const Elements& e, const Border& before, const Measure& m, double wanted,
                                      double part, Room& room) {
  const int thread = threadIdx.x;
  u64 mine = 0;
#pragma unroll 1
  for (int i = thread; i < e.n; i += THREADS) {
    const float v = e.value(i);
    const u32 key = key_of(v);
    const bool inside = key > NOTHING && before.keeps(key, e.token(i)) && m.scaled(v) >= m.floor;
    const u32 count = inside ? m.of(v) : 0;
    e.prepare(i, count);
    mine += count;
  }
  const u64 total = block_sum<THREADS>(mine, room.sums[1]);  // `border_among` begins with the other room
  if (part > 0.) wanted = (double)total * part;
  if (total == 0 || (double)total < wanted) return {NOTHING, NEVER};  // all of them measure less
  return border_among<THREADS>(e, before, m, wanted, 0, room);
}

// The same for the fraction `part` of the mass.
template <int THREADS>
__device__ __forceinline__ Border cut_mass(const Listed& e, const Border& before, const Measure& m, double part,
                                           Room& room) {
  return cut<THREADS>(e, before, m, 0., part, room);
}
// For all tokens: sums their mass in bins of the scaled logit, then looks at the tokens of the bin in which the kept
// ones end. Both follow the order of the keys, and the sums are of integers, so the border is the same.
__device__ __forceinline__ int bin_of(const Measure& m, float v) {
  return min((int)(m.scaled(v) * (-1.44269504f * (BINS / 32))), BINS - 1);
}
template <int THREADS>
__device__ __forceinline__ Border cut_mass(const All& e, const Border& before, const Measure& m, double part,
                                           Room& room) {
  const int thread = threadIdx.x;
  for (int i = thread; i < BINS; i += THREADS) e.bins[i] = 0;
  if (thread == 0) room.count = 0;
  __syncthreads();
#pragma unroll 4
  for (int i = thread; i < e.n; i += THREADS) {
    const u32 count = e.count(i, m, before);  // 0 where the scaled logit is not over -32 ln 2
    if (count) atomicAdd(&e.bins[bin_of(m, e.value(i))], (u64)count);
  }
  __syncthreads();
  if (thread < 32) {
    u64 sum = 0;
    for (int i = 0; i < BINS / 32; ++i) sum += e.bins[thread * (BINS / 32) + i];
    room.sums[0][thread] = sum;
  }
  __syncthreads();
  if (thread == 0) {
    u64 total = 0, above = 0;
    for (int i = 0; i < 32; ++i) total += room.sums[0][i];
    const double wanted = (double)total * part;
    int bin = 0;
    while (bin < BINS - BINS / 32 && (double)(above + room.sums[0][bin / (BINS / 32)]) < wanted)
      above += room.sums[0][bin / (BINS / 32)], bin += BINS / 32;
    while (bin < BINS - 1 && (double)(above + e.bins[bin]) < wanted) above += e.bins[bin++];
    room.total = total, room.above = above, room.bin = bin;
  }
  __syncthreads();
  if (room.total == 0) return {NOTHING, NEVER};
  const int bin = room.bin, most = e.room.n;
  const u64 above = room.above;
  const double wanted = (double)room.total * part;
#pragma unroll 4
  for (int i = thread; i < e.n; i += THREADS) {
    const u32 count = e.count(i, m, before);
    if (count && bin_of(m, e.value(i)) == bin) {
      const int place = (int)atomicAdd(&room.count, 1u);
      if (place < most) e.room.at[place] = make_uint2(__float_as_uint(e.value(i)), i), e.room.counts[place] = count;
    }
  }
  __syncthreads();
  const int found = (int)room.count;
  if (found > most) return border_among<THREADS>(e, before, m, wanted, 0, room);
  return border_among<THREADS>(Listed{e.room.at, e.room.counts, found}, before, m, wanted, above, room);
}
