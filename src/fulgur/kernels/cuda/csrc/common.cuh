// What the sources of the decode kernels share: launch arguments, the record that a CTA keeps in shared memory,
// barriers and reductions. `constants.h` is generated from the plan of one model on one GPU (header.py).
//
// Terms. A row is one token of a step. A tile is 16 rows of a matrix, a block 16 x 128 of its weights. A unit is what a
// CTA is assigned: one tile (of one expert, of one split of K). A slice is the part of a unit's K that one warp
// multiplies. An epoch numbers a layer of a step; values that pass between CTAs carry it (exchange.cuh).
#pragma once
#include "ptx.cuh"
#include "constants.h"
#include "matrix.cuh"

using Qkv = Matrix<QkvConstants>;
using O = Matrix<OConstants>;
using GateUp = Matrix<GateUpConstants>;
using Down = Matrix<DownConstants>;
using Head = Matrix<HeadConstants>;
#if HAS_ROUTER
using Router = Matrix<RouterConstants>;
#endif
#if EXPERTS
using Fold = Matrix<FoldConstants>;
using Small = Fold;
#else
using Small = Qkv;
#endif
// The router and its fold are in bf16 whatever format the other matrices have. Their ids follow qkv's.
__device__ __forceinline__ bool is_small(int id) { return id > Qkv::ID && id < O::ID; }

// Threads per CTA: compute; compute + feeder; compute + feeder + expert-prediction.
constexpr int THREADS = 32 * WARPS, FEEDING_THREADS = THREADS + 32 * FEEDERS,
              ALL_THREADS = FEEDING_THREADS + 32 * PREDICTORS * PREDICTION;
constexpr int EXPERTS_OF_4 = (EXPERTS + 3) / 4 * 4;
// EXPERTS_PER_ROW includes the shared expert, the last choice of every row.
constexpr int ROUTED = EXPERTS_PER_ROW - SHARED_EXPERT;
constexpr int GROUP = HEADS / KV_HEADS;                      // query heads per key/value head
constexpr int GATES_AT = (HEADS + 2 * KV_HEADS) * HEAD_DIM;  // rows of qkv: queries, keys, values, gates

// A layer's index among the layers of its kind: 0, 1, 2 ... for attention, -1, -2, -3 ... for gated delta nets.
#if DELTA_LAYERS
__constant__ short PLACES[LAYERS] = LAYER_PLACES;
__device__ __forceinline__ int place_of(int layer) { return PLACES[layer]; }
__device__ __forceinline__ bool attends(int layer) { return PLACES[layer] >= 0; }
#else
__device__ __forceinline__ int place_of(int layer) { return layer; }
__device__ __forceinline__ bool attends(int) { return true; }
#endif

// Written by the host before a launch, kept up to date by the device between steps. Every CTA reads it at the start of
// a step.
struct State {
  int rows;         // rows of this step
  int steps;        // decode steps left in this launch
  int done;         // set by a stop token, the host's cancel flag or the last step; later steps do nothing
  int produced;     // tokens written to the ring in this run
  int stops;        // stop tokens in use
  int epoch;        // of layer 0 of the first step
  int sampled;      // sample.cu chooses the token, reports it and sets up the next step
  int slot;         // recurrent layers: index of the sequence's state
  float sharpness;  // 1 / temperature; 0: argmax
  u32 seed[2];      // of the sampling noise, low half first
  int token[MAX_ROWS];
  int position[MAX_ROWS];
  int first[MAX_ROWS];  // position of the first row of the same sequence in this step
  int table[MAX_ROWS];  // row of the block tables
  int stop[16];
};

// Pinned host memory. The device writes tokens and their count; the host writes cancel.
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
  bf16* kv;             // [layer][key, value][block][kv head][64][head_dim]; with KV_FP8 codes of 8 bits (cache.cuh)
  const float* rope;    // [context][cos half, sin half]
  // Buffers of words that pass between CTAs (exchange.cuh). A word holds one float, two floats of 24 bits, or two bf16.
  u64* x;             // [after o, after down][rows][d / 2]: the residual
  u64* qkv;           // [rows][QKV_ROWS / 2]
  u64* partial;       // attention: [row][kv head][split][GROUP][head_dim], then maximum and sum
  u64* attended;      // [rows][O blocks * 64]: the heads' outputs
  u64* router;        // [ROUTER_PARTS, split of fold][rows][ROUTER_ROWS]: parts of the router's logits
  u64* h;             // [rows][DOWN blocks * 64]: the result of SwiGLU
  float* best;        // [cta][rows] value, then [cta][rows] index
  float* logits;      // [rows][vocab] or null
  const int* tables;  // [sequences][table_width]
  u32* counters;      // 0: arrivals at the barrier that ends a step
  State* state;
  Mailbox* mailbox;
  u64* marks;  // [cta][MARKS] cycles spent in each part of a step; null unless built with PROFILE
  long long kv_blocks;
  int table_width;
  int layer;                 // the graph driver's layer; the persistent driver counts by itself
  unsigned char* exponents;  // [layer][key, value][block][kv head][64]; null unless KV_FP8
  // Hybrids (side.cuh, delta.cuh).
  const bf16* side;  // [layer][SIDE_ROWS][d]: rows of the router, then those that produce b and a
  u64* squares;      // [rows][value head][DELTA_PARTS]: sums of squares of parts of a head
  float* states;     // [slot][layer][STATE_FLOATS]
  int* known;        // [slot]: tokens that the state holds
  float* hidden;     // [slot][HIDDEN][d]: residuals after the final norm, for the drafting head; null: none
  long long slot_floats;
};

static_assert(sizeof(Args) == ARGS_SIZE && sizeof(State) == STATE_SIZE && sizeof(Mailbox) == MAILBOX_SIZE,
              "as in records.py");

__device__ __forceinline__ float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ float exponential(float v) { return power2(v * 1.4426950408889634f); }

// Barrier of the compute threads. (__syncthreads is the barrier of all threads of a CTA.)
__device__ __forceinline__ void block_barrier() { barrier_of<THREADS>(1); }

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int i = 16; i; i >>= 1) v += __shfl_xor_sync(~0u, v, i);
  return v;
}
// Maps floats to unsigned integers of the same order, and back.
__device__ __forceinline__ u32 ordered(float v) {
  const u32 bits = __float_as_uint(v);
  return bits ^ ((u32)((int)bits >> 31) | 0x80000000u);
}
__device__ __forceinline__ float unordered(u32 bits) {
  return __uint_as_float(bits ^ (~(u32)((int)bits >> 31) | 0x80000000u));
}
__device__ __forceinline__ float warp_max(float v) { return unordered(warp_max_bits(ordered(v))); }

// One CTA's units of a matrix: first .. last - 1. (In a flat cut: blocks.)
struct Range {
  int first, last;
};

// A CTA's shared memory holds, in this order: this record; the slices (partial sums of tiles, still to be added); an
// area for the operand of a matrix product or the scratch of attention; the rings of weights (stream.cuh). Fields are
// ordered by alignment, as records.py describes them.
constexpr int SLICE_BYTES = (SLICE_ROUNDS * WARPS + FOLD_SLICES) * TILE * 4;
struct Shared {
  // Sums of squares by warp, for a row's RMSNorm. Must come first: `finish_one_tile` finds them by the record's
  // address.
  alignas(16) float sums[MAX_ROWS][WARPS];
#if EXPERTS
  alignas(16) float logit[MAX_ROWS][EXPERTS_OF_4];  // router logits, before the division by the root mean square
  float shared_logit[MAX_ROWS];                     // the shared expert's
#endif
  u64 last_mark;
  Range units[MATRICES];
#if EXPERTS
  // By warp: the lowest logit of the predicted experts and the highest of the others, as `ordered` integers.
  alignas(8) uint2 bounds[(EXPERTS + 31) / 32];
#endif
  int token[MAX_ROWS], position[MAX_ROWS], first[MAX_ROWS], table[MAX_ROWS];
  int rows, done, produced, epoch;
  // Read by the feeders: how many layers have known experts; how many have predicted experts; the phase that multiplies
  // now; whether to stop (1, or FAILED).
  u32 layers_routed, layers_predicted, multiplying, finished;
  u32 layers_weighted;   // how many layers have known routing weights
  u32 mispredicted;      // bit i: the i-th predicted expert of the last layer was wrong
  u32 layers_projected;  // read by the prediction warp: how many layers' qkv this CTA has multiplied
  float sharpness;
  u32 seed[2];
  int slot, fold;  // recurrent layers: index of the sequence's state; logged tokens to fold into it
#if DELTA_LAYERS
  float side[MAX_ROWS][SIDE][WARPS];  // this CTA's router and gate rows (side.cuh): sums by warp
#endif
#if EXPERTS
  int expert[MAX_ROWS][EXPERTS_PER_ROW];
  // By rank: predicted before attention, chosen after it.
  int predicted[MAX_ROWS][EXPERTS_PER_ROW], chosen[MAX_ROWS][EXPERTS_PER_ROW];
  float routing_weight[EXPERTS_PER_ROW];  // of the first row's experts, from a prediction warp (predict.cuh)
  signed char place[EXPERTS_OF_4];        // an expert's index in `predicted`; -1: none
#endif
};
// The factor of a row's RMSNorm; valid after the barrier that follows its sums. It scales the sums of the product
// instead of the operand, so the product does not wait for it.
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

// Gives up a wait that never ends (the grid is not resident all at once) after some seconds. In the persistent driver
// the thread exits and the feeders trap (feed.cuh): with a trap in their own code, the compiler would give the compute
// warps no more registers than every thread starts with.
constexpr u32 FAILED = 2;  // `finished`
__device__ __forceinline__ void count_spin(u32& spins) {
  if (++spins <= PATIENCE) return;
#if PERSISTENT
  SHARED_MEMORY(everything);
  store_relaxed(shared_address(&((Shared*)everything)->finished), FAILED);
  leave();
#else
  __trap();
#endif
}
// The grid barrier is a monotonic counter: one thread of each CTA adds 1 with release, then polls with acquire until
// the counter reaches `goal`. It is never reset within a launch.
__device__ __forceinline__ void await(const u32* counter, u32 goal) {
  for (u32 spins = 0; (int)(load_acquire(counter) - goal) < 0;) count_spin(spins);
}

// Called by one thread before the feeders start; a barrier of all threads must follow.
constexpr u32 NO_PHASE = ~0u;
__device__ __forceinline__ void ready_feeder(Shared& shared, u32 routed) {
  shared.layers_routed = shared.layers_predicted = shared.layers_projected = shared.layers_weighted = routed;
  shared.multiplying = NO_PHASE;
  shared.finished = 0;
}

// Copies the step's rows from global to shared memory. Ends with a block barrier.
__device__ inline void load_state(Shared& shared, const Args& args) {
  const State* state = args.state;
  if (threadIdx.x < MAX_ROWS) {
    shared.token[threadIdx.x] = __ldcg(&state->token[threadIdx.x]);
    shared.position[threadIdx.x] = __ldcg(&state->position[threadIdx.x]);
    shared.first[threadIdx.x] = __ldcg(&state->first[threadIdx.x]);
    shared.table[threadIdx.x] = __ldcg(&state->table[threadIdx.x]);
  }
#if EXPERTS
  for (int i = threadIdx.x; i < MAX_ROWS * EXPERTS_PER_ROW; i += THREADS)
    // Valid indices even if logits are NaN; the shared expert is always the last choice.
    shared.expert[0][i] = shared.predicted[0][i] = shared.chosen[0][i] = i % EXPERTS_PER_ROW < ROUTED ? 0 : EXPERTS;
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
    shared.slot = __ldcg(&state->slot);
    if (DELTA_LAYERS) shared.fold = __ldcg(&state->position[0]) - __ldcg(args.known + shared.slot);
  }
  block_barrier();
}

// With MAX_ROWS == 1 this is a compile-time constant.
__device__ __forceinline__ int rows_of(const Shared& shared) { return MAX_ROWS == 1 ? 1 : shared.rows; }

// Profiling: one thread of every CTA adds the cycles since the last mark to a part of the step. header.py names the
// parts.
__device__ __forceinline__ void mark(const Args& args, Shared& shared, Part part) {
#if PROFILE
  if (threadIdx.x) return;
  u64 now = cycles();
  add_later(args.marks + blockIdx.x * MARKS + part, now - shared.last_mark);
  shared.last_mark = now;
#endif
}
__device__ __forceinline__ void mark_mispredicted(const Args& args, const Shared& shared) {
#if PROFILE
  if (threadIdx.x) return;
  add_later(args.marks + blockIdx.x * MARKS + WRONG_LAYERS, 1);
  add_later(args.marks + blockIdx.x * MARKS + WRONG_EXPERTS, count_bits(shared.mispredicted));
#endif
}
