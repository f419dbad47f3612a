// What both kernels of sample.cu share: a row's parameters, the result of a slice of its logits, the best of many
// tokens.
#pragma once
#include "noise.cuh"
#include "wide_ptx.cuh"

constexpr int SCAN = 256, EACH = 8, SLICE = SCAN * EACH;  // threads, tokens of a thread, tokens of a CTA
constexpr int CHOOSE = 256, CHOOSE_ALL = 512;             // threads per row: if few tokens are looked at; if all are
// As in sampling.py.
constexpr int RING = 4096, LOGPROB_RECORDS = 512, ALTERNATIVES = 100, RECORD = 2 + 2 * ALTERNATIVES;
constexpr int NEVER = 0x7fffffff, FEW = 128;
constexpr int BINS = 1024;            // of the mass of all tokens: 32 per factor of 2
constexpr u32 NOTHING = 0x007fffffu;  // the key of -infinity

struct SampleRow {
  u32* counts;        // by token: how often it was generated; highest bit: whether it was seen; null: no penalty
  const float* bias;  // by token; null: none
  const u32* mask;    // a bit per token, set if the grammar allows it; null: all
  double top_p;
  u64 seed;
  float sharpness;  // 1 / temperature; 0: the likeliest token
  float floor;      // ln(min_p)
  float repetition, frequency, presence;
  int position;               // of the token that is chosen
  int top_k;                  // 0: all
  int kept;                   // tokens of a slice that are enough for top_k; 0: all are looked at
  int alternatives;           // -1: no log-probabilities
  int logits;                 // row of the logits
  int extra, extras, commit;  // tokens that are not in `counts` yet; the first `commit` of them are added to it
  int pad;
};

struct Part {  // the result of a slice
  float score;
  int token;
  float highest;               // after penalties and mask
  int kept;                    // of `best`
  float raw_highest, raw_sum;  // of the model's own logits: sum of exponentials
  int raw_kept, pad;
};

struct Sample {
  const float* logits;  // [row, stride]
  float* work;          // [row, vocab]: changed logits, where all are looked at
  SampleRow* rows;
  const int* extra;
  Part* parts;           // [row, slice]
  uint2 *best, *likely;  // [row, slice, most]: value and token; of changed and of the model's own logits
  float* logprobs;       // pinned [LOGPROB_RECORDS][RECORD]: log-probability, number of alternatives, tokens and theirs
  int* tokens;           // pinned [row]
  // A run of many steps:
  int* ended;  // null: one step
  int *state_token, *state_position, *state_first, *state_produced, *state_done;
  u32* counter;
  int* mailbox;  // count, cancel, finished, from 16 on the ring
  const int* stop;
  int stops, limit, vocab, slices, most;
  int stride;  // of the logits
};

__device__ __forceinline__ u32 key_of(float v) {  // of the same order; -0 counts as 0
  const u32 bits = __float_as_uint(v + 0.f);
  return bits ^ ((u32)((int)bits >> 31) | 0x80000000u);
}
__device__ __forceinline__ bool narrows(const SampleRow& r) {
  return r.sharpness > 0.f && (r.top_k > 0 || r.top_p < 1. || r.floor > -INF);
}
__device__ __forceinline__ float scored(const SampleRow& r, u64 noise, float v, int token) {
  return r.sharpness > 0.f ? v * r.sharpness + gumbel(noise, token) : v;
}

struct Winner {
  float score = -INF;
  int token = NEVER;
  __device__ __forceinline__ void offer(float s, int t) {
    if (s > score || (s == score && t < token)) score = s, token = t;
  }
  // Reduces over a block; valid in warp 0. `room` holds two words per warp.
  template <int THREADS>
  __device__ __forceinline__ void across(u32* room) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
#pragma unroll 1
    for (int round = 0; round < 2; ++round) {
      for (int step = 16; step; step >>= 1) {
        const float s = __shfl_xor_sync(~0u, score, step);
        const int t = __shfl_xor_sync(~0u, token, step);
        offer(s, t);
      }
      if (round) return;
      if (lane == 0) room[2 * warp] = __float_as_uint(score), room[2 * warp + 1] = token;
      __syncthreads();
      const bool mine = lane < THREADS / 32;
      score = mine ? __uint_as_float(room[2 * lane]) : -INF, token = mine ? (int)room[2 * lane + 1] : NEVER;
      __syncthreads();
    }
  }
};

// The sum over a block, valid in all threads. Callers alternate rooms, so a sum needs only one barrier.
__device__ __forceinline__ u32 block_count(u32 v, u32* room) {
  for (int step = 16; step; step >>= 1) v += __shfl_xor_sync(~0u, v, step);
  if ((threadIdx.x & 31) == 0) room[threadIdx.x / 32] = v;
  __syncthreads();
  u32 sum = 0;
  for (int i = 0; i < SCAN / 32; ++i) sum += room[i];
  return sum;
}

// The highest key that at least `wanted` of a block's keys reach. Finds two bits per iteration; counts share words.
// `room` [32].
__device__ __forceinline__ u32 border_of(const u32 (&key)[EACH], u32 wanted, u32* room) {
  u32 border = 0;
#pragma unroll 1
  for (int bit = 30; bit >= 0; bit -= 2) {
    const u32 unit = 1u << bit;
    u32 low = 0, high = 0;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      low += (key[j] >= border + unit) | (u32)(key[j] >= border + 2 * unit) << 16;
      high += key[j] >= border + 3 * unit;
    }
    u32* at = room + (bit >> 1 & 1) * 16;
    for (int step = 16; step; step >>= 1) {
      low += __shfl_xor_sync(~0u, low, step);
      high += __shfl_xor_sync(~0u, high, step);
    }
    if ((threadIdx.x & 31) == 0) at[threadIdx.x / 32] = low, at[8 + threadIdx.x / 32] = high;
    __syncthreads();
    low = high = 0;
#pragma unroll
    for (int i = 0; i < SCAN / 32; ++i) low += at[i], high += at[8 + i];
    border += high >= wanted ? 3 * unit : low >> 16 >= wanted ? 2 * unit : (low & 0xffff) >= wanted ? unit : 0;
  }
  return border;
}
