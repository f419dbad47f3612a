// Choosing the next token from a row of logits: bias, penalties, a grammar's mask, temperature, min-p, top-k, top-p,
// and log-probabilities. Two kernels after a step, for all its rows. `engine/sample.py` does the same on the host and
// chooses the same tokens: scores take the same operations in the same order, and masses are sums of integers
// (noise.cuh).
//
// `scan_logits`, a CTA per slice of the vocabulary, adjusts the logits and stores the slice's best token, or the
// highest few that top-k can need. `choose_token`, a CTA per row, finds the border of the kept tokens and takes the
// best of them after adding noise. In a run of many steps it also sets up the next step and reports the token to the
// host.
#include "sample_cut.cuh"
#include "sample_scan.cuh"

// For a top-k that leaves few tokens: gathers them, then each thread finds the mass of those before its own. Returns
// false if too many are equal.
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
    if (key[j] >= border) {  // including all that equal the last: ranks decide which of them count
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

// Reports the most likely tokens and their log-probabilities, best first.
template <int THREADS>
__device__ __forceinline__ void write_alternatives(const Listed& e, int wanted, float lse, float* logprobs,
                                                   Room& room) {
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
  ((int*)logprobs)[2 + 2 * rank] = (int)mine.y;
  logprobs[3 + 2 * rank] = __uint_as_float(mine.x) - lse;
}

// Ends a step of a run: sets the state of the next step, writes the ring, decides whether to go on. By one thread.
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
  if (thread == 0) room.token = winner.token < p.vocab ? winner.token : 0;  // NaN logits: any valid token
  __syncthreads();
  const int token = (int)room.token;
  if (r.alternatives >= 0) {
    const int at = p.ended ? *p.state_produced % LOGPROB_RECORDS : row;
    float* logprobs = p.logprobs + at * RECORD;
    if (thread < 32) {
      const float lse = log_sum(p, parts);
      if (thread == 0) {
        room.value = lse;
        logprobs[0] = p.logits[(long long)r.logits * p.stride + token] - lse;
        ((int*)logprobs)[1] = min(r.alternatives, p.vocab);
      }
    }
    __syncthreads();
    if (r.alternatives)
      write_alternatives<THREADS>(gather<THREADS>(p, p.likely, row, r.alternatives, true, list), r.alternatives,
                                  room.value, logprobs, room);
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
// For steps in which some row needs more tokens than the slices' lists hold.
KERNEL(choose_among_all, 512, Sample) {
  SHARED_MEMORY(memory);
  choose<CHOOSE_ALL>(p, memory);
}
