// The GPU engine's ground: the arguments of a step, the record a CTA keeps in shared memory, a wait for the grid, sums.
//
// `constants.h` is generated from the plan of one model on one GPU (kernels/cuda/header.py).
#pragma once
#include "ptx.cuh"
#include "constants.h"
#include "matrix.cuh"

using Qkv = Matrix<QkvConstants>;
using O = Matrix<OConstants>;
using GateUp = Matrix<GateUpConstants>;
using Down = Matrix<DownConstants>;
using Head = Matrix<HeadConstants>;
#if EXPERTS
using Router = Matrix<RouterConstants>;
using Fold = Matrix<FoldConstants>;
#endif

// That compute; with those behind them that bring the weights; with those that guess.
constexpr int THREADS = 32 * WARPS, FEEDING_THREADS = THREADS + 32 * FEEDERS,
              ALL_THREADS = FEEDING_THREADS + 32 * GUESSERS * GUESSES;
constexpr int TILE = 16, BLOCK = 128, CHUNK = 512, KV_BLOCK = 64;
constexpr int EXPERTS_OF_4 = (EXPERTS + 3) / 4 * 4;
constexpr int GROUP = HEADS / KV_HEADS;  // query heads that share a key/value head
constexpr int QKV_ROWS = (HEADS + 2 * KV_HEADS) * HEAD_DIM;

// What the host tells a launch and what the launch keeps between steps. Read at the start of a step by every CTA.
struct State {
  int rows;         // rows of this step
  int steps;        // decode steps left in this launch
  int done;         // set by a stop token, the host's cancel flag or the last step; later steps do nothing
  int produced;     // tokens written to the ring in this run
  int stops;        // stop tokens in use
  int error;        // a wait that never ended
  int epoch;        // of layer 0 of the first step
  float sharpness;  // 1 / temperature, or 0 for the argmax
  u32 seed[2];      // of the draws, low half first
  int token[MAX_ROWS];
  int position[MAX_ROWS];
  int first[MAX_ROWS];  // position of the first row of the same sequence in this step
  int table[MAX_ROWS];  // row of the block tables
  int stop[16];
};

// Pinned host memory: the device writes tokens and their count, the host writes cancel.
struct Mailbox {
  int count;
  int cancel;
  int finished;
  int pad[13];
  int token[RING];
};

struct Args {
  const char* weights;  // the arena, laid out by the plan
  const float* norms;   // per layer: attention norm, feed-forward norm, q norm, k norm, qkv bias; then the final norm
  const bf16* embed;    // [vocab, d]
  bf16* kv;             // [layer][key, value][block][kv head][64][head_dim]
  const float* rope;    // [context][cos half, sin half]
  // Words (exchange.cuh) of a float, of two of 24 bits or of two bf16.
  u64* x;             // [after o, after down][rows][d / 2]: the residual
  u64* qkv;           // [rows][QKV_ROWS / 2]
  u64* partial;       // attention: [row][kv head][split][GROUP][head_dim], then maximum and sum
  u64* attended;      // [rows][O blocks * 64]
  u64* router;        // [split of router, split of fold][rows][experts]
  u64* h;             // [rows][DOWN blocks * 64]
  float* best;        // [cta][rows] value, then [cta][rows] index
  float* logits;      // [rows][vocab] or null
  const int* tables;  // [sequences][table_width]
  u32* counters;      // 0: arrivals at the barrier that ends a step
  State* state;
  Mailbox* mailbox;
  u64* marks;  // [cta][32] cycles spent in each part of a step; null unless built with PROFILE
  long long kv_blocks;
  int table_width;
  int layer;  // the graph driver's layer; the persistent driver counts by itself
};

static_assert(sizeof(Args) == ARGS_SIZE && sizeof(State) == STATE_SIZE && sizeof(Mailbox) == MAILBOX_SIZE,
              "as in records.py");

__device__ __forceinline__ float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ float exponential(float v) { return power2(v * 1.4426950408889634f); }

// Barriers are monotonic counters: an arrival is a release-add by one thread, a wait polls with acquire until the goal.
// Nothing is reset inside a launch. A wait that never ends (a grid that is not resident at once) traps after seconds.
__device__ __forceinline__ void await(const u32* counter, u32 goal, State* state) {
  u32 spins = 0;
  while ((int)(load_acquire(counter) - goal) < 0)
    if (++spins > PATIENCE) {
      state->error = 1;
      __trap();
    }
}

// The barrier of the threads that compute. With all threads of a CTA, the feeders too: __syncthreads.
__device__ __forceinline__ void block_barrier() { barrier_of<THREADS>(1); }

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int i = 16; i; i >>= 1) v += __shfl_xor_sync(~0u, v, i);
  return v;
}
// Integers in the order of floats: negative ones are turned round. And back.
__device__ __forceinline__ u32 ordered(float v) {
  const u32 bits = __float_as_uint(v);
  return bits ^ ((u32)((int)bits >> 31) | 0x80000000u);
}
__device__ __forceinline__ float unordered(u32 bits) {
  return __uint_as_float(bits ^ (~(u32)((int)bits >> 31) | 0x80000000u));
}
__device__ __forceinline__ float warp_max(float v) { return unordered(warp_max_bits(ordered(v))); }

// What one CTA does of a matrix: units.
struct Share {
  int first, last;
};

// Shared memory of a CTA, in this order: this record; the slices of tiles that wait to be added; an area that holds the
// operand of a matrix product or the scratch of attention; the gates and the ring of weights.
constexpr int SLICE_BYTES = (SLICE_ROUNDS * WARPS + FOLD_SLICES) * TILE * 4;
struct Shared {
  alignas(16) float sums[MAX_ROWS][WARPS];  // of squares, by warp: a row's norm. First: `phase` finds them by the
                                            // record's address
#if EXPERTS
  alignas(16) float logit[MAX_ROWS][EXPERTS_OF_4];  // not yet divided by the root mean square
#endif
  u64 last_mark;
  Share shares[MATRICES];
#if EXPERTS
  alignas(8) uint2 bounds[(EXPERTS + 31) / 32];  // by warp: the lowest logit of the guessed, the highest of the others;
                                                 // in the order of `ordered`
#endif
  int token[MAX_ROWS], position[MAX_ROWS], first[MAX_ROWS], table[MAX_ROWS];
  int rows, done, produced, epoch;
  u32 routed, guessed, multiplying,
      finished;   // for the feeders: layers whose experts are known and guessed, the phase at work, the end
  u32 weighed;    // layers whose experts' shares are known
  u32 wrong;      // a bit for each place of the last guess that was wrong
  u32 projected;  // for the warp that guesses: layers whose qkv this CTA has multiplied
  float sharpness;
  u32 seed[2];
#if EXPERTS
  int expert[MAX_ROWS][CHOSEN];
  int guess[MAX_ROWS][CHOSEN], chosen[MAX_ROWS][CHOSEN];  // by rank: without attention, and with it
  float share[CHOSEN];              // of the first row's experts, by a warp beside those that compute (guess.cuh)
  signed char place[EXPERTS_OF_4];  // of an expert in the guess; -1: none
#endif
};
// The factor of a row's RMSNorm, after the barrier behind its sums. It is the product that it multiplies: the weights
// need not wait for it.
__device__ __forceinline__ float inverse_at(u32 sums) {
  float total = 0;
#pragma unroll
  for (int i = 0; i < WARPS / 4; ++i) {
    const uint4 v = shared16(sums + i * 16);
    total += (__uint_as_float(v.x) + __uint_as_float(v.y)) + (__uint_as_float(v.z) + __uint_as_float(v.w));
  }
  return rsqrtf(total / D_MODEL + NORM_EPS);
}
__device__ __forceinline__ float inverse_of(const Shared& shared, int row) {
  return inverse_at(shared_address(shared.sums[row]));
}
static_assert(sizeof(Shared) == SHARED_SIZE && SHARED_SIZE <= SHARED_BYTES, "as in records.py");
__device__ __forceinline__ float* slices_of(char* memory) { return (float*)(memory + SHARED_BYTES); }
__device__ __forceinline__ char* area_of(char* memory) { return memory + SHARED_BYTES + SLICE_BYTES; }

// Before the feeders begin: by one thread, a barrier of all threads follows.
constexpr u32 NO_PHASE = ~0u;
__device__ __forceinline__ void ready_feeder(Shared& shared, u32 routed) {
  shared.routed = shared.guessed = shared.projected = shared.weighed = routed;
  shared.multiplying = NO_PHASE;
  shared.finished = 0;
}

// The step's rows, from global memory to shared. Ends with a block barrier.
__device__ inline void load_state(Shared& shared, const State* state) {
  if (threadIdx.x < MAX_ROWS) {
    shared.token[threadIdx.x] = __ldcg(&state->token[threadIdx.x]);
    shared.position[threadIdx.x] = __ldcg(&state->position[threadIdx.x]);
    shared.first[threadIdx.x] = __ldcg(&state->first[threadIdx.x]);
    shared.table[threadIdx.x] = __ldcg(&state->table[threadIdx.x]);
  }
#if EXPERTS
  for (int i = threadIdx.x; i < MAX_ROWS * CHOSEN; i += THREADS)
    shared.expert[0][i] = shared.guess[0][i] = shared.chosen[0][i] = 0;  // stays where logits are not numbers
  if (EXPERTS < EXPERTS_OF_4)
    for (int i = threadIdx.x; i < MAX_ROWS * EXPERTS_OF_4; i += THREADS) shared.logit[0][i] = -INF;
#endif
  if (threadIdx.x == 0) {
#if PROFILE
    shared.last_mark = cycles();
#endif
    shared.rows = __ldcg(&state->rows);
    shared.done = __ldcg(&state->done);
    shared.produced = __ldcg(&state->produced);
    shared.epoch = __ldcg(&state->epoch) + shared.produced * LAYERS;
    shared.sharpness = __ldcg(&state->sharpness);
    shared.seed[0] = __ldcg(&state->seed[0]);
    shared.seed[1] = __ldcg(&state->seed[1]);
  }
  block_barrier();
}

// With one row at most the compiler may know that it is one.
__device__ __forceinline__ int rows_of(const Shared& shared) { return MAX_ROWS == 1 ? 1 : shared.rows; }

// Where a step's time goes: cycles since the last mark, added up per part by one thread of every CTA. header.py names
// the parts.
__device__ __forceinline__ void mark(const Args& args, Shared& shared, Part part) {
#if PROFILE
  if (threadIdx.x) return;
  u64 now = cycles();
  add_later(args.marks + blockIdx.x * MARKS + part, now - shared.last_mark);
  shared.last_mark = now;
#endif
}
__device__ __forceinline__ void mark_wrong(const Args& args, const Shared& shared) {
#if PROFILE
  if (threadIdx.x) return;
  add_later(args.marks + blockIdx.x * MARKS + WRONG_LAYERS, 1);
  add_later(args.marks + blockIdx.x * MARKS + WRONG_EXPERTS, count_bits(shared.wrong));
#endif
}
