// Choosing the next token from a row of logits: bias, penalties, a grammar's mask, temperature, min-p, top-k, top-p,
// and log-probabilities. Two kernels behind a step, for all its rows. `engine/sample.py` is the same on the host, and
// chooses the same tokens: scores are the same operations in the same order, masses are sums of integers (noise.cuh).
//
// `scan_logits`: a CTA a slice of the vocabulary. It changes the logits and leaves the slice's best token, or the
// highest few that top-k can need. `choose_token`: a CTA a row. It finds where the kept tokens end and takes the best
// of them with its noise. In a run of many steps it also sets up the next one and tells the host.
#include "noise.cuh"
#include "wide_ptx.cuh"

constexpr int SCAN = 256, EACH = 8, SLICE = SCAN * EACH;  // threads, tokens of a thread, tokens of a CTA
constexpr int CHOOSE = 256, CHOOSE_ALL = 512;             // threads of a row, where few tokens are looked at, or all
constexpr int RING = 4096, TOLD = 512, ALTERNATIVES = 100, RECORD = 2 + 2 * ALTERNATIVES;  // as in sampling.py
constexpr int NEVER = 0x7fffffff, FEW = 128;
constexpr int BINS = 1024;            // of the mass of all tokens: 32 for a factor of 2
constexpr u32 NOTHING = 0x007fffffu;  // the key of -infinity

struct SampleRow {
  u32* counts;        // by token: how often it was generated, in the highest bit whether it was seen; null: no penalty
  const float* bias;  // by token; null: none
  const u32* mask;    // a bit a token that the grammar allows; null: all
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

struct Part {  // what a slice leaves
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
  float* told;           // pinned [TOLD][RECORD]: log-probability, number of alternatives, tokens and theirs
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
  // Over a block; valid in warp 0. `room` holds two words a warp.
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

// Sums of a block, valid in all threads. Rooms alternate: one barrier a sum.
__device__ __forceinline__ u32 block_count(u32 v, u32* room) {
  for (int step = 16; step; step >>= 1) v += __shfl_xor_sync(~0u, v, step);
  if ((threadIdx.x & 31) == 0) room[threadIdx.x / 32] = v;
  __syncthreads();
  u32 sum = 0;
  for (int i = 0; i < SCAN / 32; ++i) sum += room[i];
  return sum;
}

// The highest key that at least `wanted` of a block's keys reach. Two bits a turn; counts share words. `room` [32].
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

// The `wanted` highest of a slice's values, equal ones by the lower token; returns how many there are.
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
    } else {  // not all of them: tokens in order
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

// Where the kept tokens of a row end: tokens with a higher key are kept, and those with this key up to token `last`.
struct Border {
  u32 key;
  int last;
  __device__ __forceinline__ bool keeps(u32 k, int token) const { return k > key || (k == key && token <= last); }
};

// What a token counts for: itself for top-k, its weight for top-p.
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
struct All {  // in memory; nothing is kept beside
  const float* at;
  int n;
  u64* bins;    // in shared memory
  Listed room;  // for the tokens of one of them
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

// The sum of a block, in every thread. Two rooms by turns: one barrier a sum.
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

// Where tokens measure `wanted`, if those above all of these measure `over`, and these the rest at least.
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
  // Of equal tokens, only as many as are wanted.
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
// share `part` of all.
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
  const u64 total = block_sum<THREADS>(mine, room.sums[0]);
  if (part > 0.) wanted = (double)total * part;
  if (total == 0 || (double)total < wanted) return {NOTHING, NEVER};  // all of them measure less
  return border_among<THREADS>(e, before, m, wanted, 0, room);
}

// The same for the share `part` of the mass.
template <int THREADS>
__device__ __forceinline__ Border cut_mass(const Listed& e, const Border& before, const Measure& m, double part,
                                           Room& room) {
  return cut<THREADS>(e, before, m, 0., part, room);
}
// Of all tokens: their mass by bins of the scaled logit, then the tokens of the bin in which the kept ones end. Both
// follow the order of the keys, and the sums are of integers, so the border is the same.
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

// Where top-k leaves few tokens: they are gathered, and each finds the mass of those before it. False if too many are
// equal.
__device__ __forceinline__ bool choose_of_few(const Listed& e, const SampleRow& r, float highest, Winner& winner,
                                              Room& room) {
  const int thread = threadIdx.x;
  const Measure m{highest, r.sharpness, r.floor, true};
  u32 key[EACH];
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    const int i = j * CHOOSE + thread;
    key[j] = i < e.n ? key_of(e.value(i)) : 0;
  }
  u32 border = border_of(key, r.top_k, room.words);
  if (border < NOTHING + 1) border = NOTHING + 1;
  if (thread == 0) room.count = 0;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < EACH; ++j)
    if (key[j] >= border) {  // with all that equal the last: ranks tell which of them count
      const u32 place = atomicAdd(&room.count, 1u);
      if (place < FEW) room.few[place] = e.at[j * CHOOSE + thread];
    }
  __syncthreads();
  const u32 count = room.count;
  if (count > FEW) return false;
  bool mine = thread < count;
  const uint2 own = room.few[mine ? thread : 0];
  const float value = __uint_as_float(own.x);
  const u32 own_key = key_of(value);
  int rank = 0;
#pragma unroll 1
  for (u32 i = 0; i < count; ++i) {
    const u32 other = key_of(__uint_as_float(room.few[i].x));
    rank += other > own_key || (other == own_key && room.few[i].y < own.y);
  }
  mine &= rank < r.top_k && m.scaled(value) >= m.floor;
  const u32 weight = mine ? m.of(value) : 0;
  if (thread < FEW) e.counts[thread] = weight;
  __syncthreads();
  u64 total = 0, before = 0;
#pragma unroll 1
  for (u32 i = 0; i < count; ++i) {
    const u32 other = key_of(__uint_as_float(room.few[i].x));
    total += e.counts[i];
    if (other > own_key || (other == own_key && room.few[i].y < own.y)) before += e.counts[i];
  }
  if (mine && (r.top_p >= 1. || (double)before < (double)total * r.top_p))
    winner.offer(scored(r, mix(r.seed + (u64)r.position), value, (int)own.y), (int)own.y);
  return true;
}

template <int THREADS, class Elements>
__device__ __forceinline__ void choose_among(const Elements& e, const SampleRow& r, float highest, Winner& winner,
                                             Room& room) {
  Border kept{NOTHING, NEVER};
  Measure m{highest, r.sharpness, -INF, false};
  if (r.top_k > 0) kept = cut<THREADS>(e, kept, m, (double)r.top_k, 0., room);
  __syncthreads();
  m.floor = r.floor, m.mass = true;
  Border border = kept;
  if (r.top_p < 1.) border = cut_mass<THREADS>(e, kept, m, r.top_p, room);
  const u64 noise = mix(r.seed + (u64)r.position);
#pragma unroll 1
  for (int i = threadIdx.x; i < e.n; i += THREADS) {
    const float v = e.value(i);
    const u32 key = key_of(v);
    const int token = e.token(i);
    if (key > NOTHING && kept.keeps(key, token) && border.keeps(key, token) && m.scaled(v) >= m.floor)
      winner.offer(scored(r, noise, v, token), token);
  }
}

// The lists of all slices, one after another.
template <int THREADS>
__device__ __forceinline__ Listed gather(const Sample& p, const uint2* lists, int row, int each, bool raw, uint2* to) {
  const int n = p.slices * each;
#pragma unroll 1
  for (int i = threadIdx.x; i < n; i += THREADS) {
    const long long at = (long long)row * p.slices + i / each;
    const bool there = i % each < (raw ? p.parts[at].raw_kept : p.parts[at].kept);
    to[i] = there ? lists[at * p.most + i % each] : make_uint2(0xff800000u, NEVER);
  }
  __syncthreads();
  return {to, (u32*)(to + p.slices * p.most), n};
}

// ln of the sum of exponentials of the model's own logits; by warp 0.
__device__ __forceinline__ float log_sum(const Sample& p, const Part* parts) {
  const int lane = threadIdx.x & 31;
  float highest = -INF, sum = 0;
  for (int i = lane; i < p.slices; i += 32) highest = fmaxf(highest, parts[i].raw_highest);
  for (int step = 16; step; step >>= 1) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, step));
  for (int i = lane; i < p.slices; i += 32)
    sum += parts[i].raw_sum * power2((parts[i].raw_highest - highest) * 1.44269504f);
  for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
  return highest + natural_log(sum);
}

// The most likely tokens, best first.
template <int THREADS>
__device__ __forceinline__ void tell_alternatives(const Listed& e, int wanted, float lse, float* told, Room& room) {
  const Measure m{0.f, 0.f, -INF, false};
  const Border kept = cut<THREADS>(e, {NOTHING, NEVER}, m, (double)wanted, 0., room);
  if (threadIdx.x == 0) room.count = 0;
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < e.n; i += THREADS) {
    const u32 key = key_of(e.value(i));
    if (key > NOTHING && kept.keeps(key, e.token(i))) room.few[atomicAdd(&room.count, 1u)] = e.at[i];
  }
  __syncthreads();
  if (threadIdx.x >= room.count) return;
  const uint2 mine = room.few[threadIdx.x];
  const u32 key = key_of(__uint_as_float(mine.x));
  int rank = 0;
#pragma unroll 1
  for (u32 i = 0; i < room.count; ++i) {
    const u32 other = key_of(__uint_as_float(room.few[i].x));
    rank += other > key || (other == key && room.few[i].y < mine.y);
  }
  ((int*)told)[2 + 2 * rank] = (int)mine.y;
  told[3 + 2 * rank] = __uint_as_float(mine.x) - lse;
}

// The end of a step of a run: the state of the next one, the ring, whether to go on. By one thread.
__device__ __forceinline__ void go_on(const Sample& p, SampleRow& r, int token, int cancel) {
  volatile int* box = p.mailbox;
  const int made = *p.state_produced + 1;
  bool done = made >= p.limit || cancel;
  for (int i = 0; i < p.stops; ++i) done |= p.stop[i] == token;
  box[16 + (made - 1) % RING] = token;
  __threadfence_system();
  box[0] = made;
  if (done) {
    __threadfence_system();
    box[2] = 1;
    *p.ended = *p.state_done = 1;
  }
  *p.state_produced = made;
  *p.state_token = token;
  *p.state_first = ++*p.state_position;
  *p.counter = 0;
  r.position += 1;
  if (r.counts) r.counts[token] = (r.counts[token] + 1) | 0x80000000u;
}

template <int THREADS>
__device__ __forceinline__ void choose(const Sample& p, char* memory) {
  Room& room = *(Room*)memory;
  u64* bins = (u64*)(memory + (sizeof(Room) + 15) / 16 * 16);
  uint2* list = (uint2*)(bins + (THREADS == CHOOSE_ALL ? BINS : 0));
  if (p.ended && __ldcg(p.ended)) return;
  const int row = blockIdx.x, thread = threadIdx.x;
  SampleRow& kept = p.rows[row];
  const SampleRow r = kept;
  const Part* parts = p.parts + (long long)row * p.slices;
  if (thread == 0) room.cancel = p.ended ? ((volatile int*)p.mailbox)[1] : 0;
  Winner winner, top;
  for (int i = thread; i < p.slices; i += THREADS) {
    top.offer(parts[i].highest, 0);
    if (parts[i].token != NEVER) winner.offer(parts[i].score, parts[i].token);
  }
  if (narrows(r)) {
    top.across<THREADS>(room.words);
    if (thread == 0) room.value = top.score;
    __syncthreads();
    const float highest = room.value;
    __syncthreads();
    if (THREADS == CHOOSE || r.kept) {
      const Listed listed = gather<THREADS>(p, p.best, row, r.kept, false, list);
      if (THREADS != CHOOSE || listed.n > EACH * CHOOSE || !choose_of_few(listed, r, highest, winner, room))
        choose_among<THREADS>(listed, r, highest, winner, room);
    } else
      choose_among<THREADS>(All{p.work + (long long)row * p.vocab, p.vocab, bins,
                                Listed{list, (u32*)(list + p.slices * p.most), p.slices * p.most}},
                            r, highest, winner, room);
  }
  winner.across<THREADS>(room.words);
  if (thread == 0) room.token = winner.token < p.vocab ? winner.token : 0;  // logits that are not numbers: some token
  __syncthreads();
  const int token = (int)room.token;
  if (r.alternatives >= 0) {
    const int at = p.ended ? *p.state_produced % TOLD : row;
    float* told = p.told + at * RECORD;
    if (thread < 32) {
      const float lse = log_sum(p, parts);
      if (thread == 0) {
        room.value = lse;
        told[0] = p.logits[(long long)r.logits * p.stride + token] - lse;
        ((int*)told)[1] = min(r.alternatives, p.vocab);
      }
    }
    __syncthreads();
    if (r.alternatives)
      tell_alternatives<THREADS>(gather<THREADS>(p, p.likely, row, r.alternatives, true, list), r.alternatives,
                                 room.value, told, room);
    __threadfence_system();
    __syncthreads();
  }
  if (thread) return;
  if (p.ended) {
    go_on(p, kept, token, room.cancel);
    return;
  }
  p.tokens[row] = token;
  if (r.counts)
    for (int i = 0; i < r.commit; ++i) {
      const int before = p.extra[r.extra + i];
      r.counts[before] = (r.counts[before] + 1) | 0x80000000u;
    }
}

KERNEL(choose_token, 256, Sample) {
  SHARED_MEMORY(memory);
  choose<CHOOSE>(p, memory);
}
// Where some row has more tokens to look at than slices hand on.
KERNEL(choose_among_all, 512, Sample) {
  SHARED_MEMORY(memory);
  choose<CHOOSE_ALL>(p, memory);
}
