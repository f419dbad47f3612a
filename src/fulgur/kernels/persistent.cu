// The persistent driver: one cooperative launch, one CTA a multiprocessor, many decode steps.
//
// All CTAs walk through the same phases; a grid barrier stands between a phase and the next that reads it. The weight stream
// runs ahead across barriers. An arrival comes as soon as a phase's stores are done, the wait as late as possible: norm
// weights and keys and values of the next attention are drawn in between. With experts, attention leaves the memory idle (only o
// can be drawn then): the next layer's projections go to L2 meanwhile.
#include "phases.cuh"

struct Grid {
  const Args& args;
  u32 all = 0, heads = 0;
  __device__ Grid(const Args& a) : args(a) {}
  __device__ void arrive_all() {
    __syncthreads();
    all += CTAS;
    if (threadIdx.x == 0) arrive(args.counters);
  }
  __device__ void wait_all() {
    if (threadIdx.x == 0) await(args.counters, all, args.state);
    __syncthreads();
  }
  __device__ void wait_heads(int arrivals) {
    heads += arrivals;
    if (threadIdx.x == 0) await(args.counters + 32, heads, args.state);
    __syncthreads();
  }
};

#if EXPERTS
// The part of the next layer's projections that this CTA will stream, into L2.
__device__ inline void prefetch_next_layer(const Args& args, int layer) {
  if (layer + 1 == LAYERS) return;
  constexpr long long UNIT = (long long)Qkv::COPY_BLOCKS * Qkv::BLOCK_BYTES;
  int first = Qkv::first(blockIdx.x, 1), last = Qkv::first(blockIdx.x + 1, 1);
  const char* from = args.weights + Qkv::OFFSET + (layer + 1) * LAYER_STRIDE;
  if (Qkv::SPLIT > 1) first /= Qkv::SPLIT, last /= Qkv::SPLIT;
#pragma unroll 1
  for (long long at = first * UNIT + threadIdx.x * 128; at < last * UNIT; at += THREADS * 128) prefetch_l2(from + at);
}
#endif

__constant__ Shape SHAPES[] = {
    SHAPE_OF(Qkv), SHAPE_OF(O),
#if EXPERTS
    SHAPE_OF(Router),
#endif
    SHAPE_OF(Gate_up), SHAPE_OF(Down), SHAPE_OF(Head),
};
constexpr int AFTER_ATTENTION = O::ID + 1;      // the phase that begins with the feed-forward norm

extern "C" __global__ void __launch_bounds__(THREADS, 1) decode_persistent(const __grid_constant__ Args args) {
  SHARED_MEMORY(memory);
  Shared& shared = *(Shared*)memory;
  char* area = area_of(memory);
  Grid grid(args);
  load_state(shared, args.state);
  if (shared.done) return;
  const int rows = rows_of(shared), steps = __ldcg(&args.state->steps);
  Stream stream;
  stream.open_all(args, &shared, area + AREA_BYTES, steps > 1, rows);
  int layer = 0, step = 0;
  Shape s = SHAPES[Qkv::ID];
#pragma unroll 1
  for (;;) {
    // What the product is of: a norm of the residual, or a vector that is there already. Its weights before the barrier.
    const bool starts = s.phase == Qkv::ID, ends = s.phase == Head::ID;
    if (starts) attention_prefetch(args, shared, layer);
    if (ends && blockIdx.x == 0 && threadIdx.x == 0 && ((volatile Mailbox*)args.mailbox)->cancel) args.state->done = 1;
    if (starts || s.phase == AFTER_ATTENTION || ends) {
      const float* weight = norm_of(args, layer, starts || ends ? 0 : FFN_NORM_AT);
      operand_norm(area, shared, args, weight, starts && layer == 0 ? shared.token : nullptr, rows, [&] {
        if (!starts || layer) grid.wait_all();
        mark(args, shared, starts ? WAIT_QKV : ends ? WAIT_HEAD : WAIT_FFN);
      });
      mark(args, shared, starts ? NORM_QKV : NORM_FFN);
    } else {
      if (s.phase == O::ID) grid.wait_heads(rows * KV_HEADS);
      else grid.wait_all();
      mark(args, shared, s.phase == O::ID ? WAIT_O : s.phase == Down::ID ? WAIT_DOWN : WAIT_ROUTE);
#if EXPERTS
      if (s.phase == Gate_up::ID) {
        route(args, shared, [&] { stream.resume(); });
        mark(args, shared, ROUTE);
      } else
#endif
      operand_copy(area, s.phase == O::ID ? args.attended : args.h, (s.phase == O::ID ? O::BLOCKS : Down::BLOCKS) * BLOCK, rows);
    }
    phase(stream, args, shared, memory, rows, s);
    grid.arrive_all();
    mark(args, shared, starts ? QKV : s.phase == O::ID ? PROJECT_O : s.phase == Down::ID ? DOWN : ends ? HEAD
                       : s.phase == Gate_up::ID ? GATE_UP : ROUTER);
    if (starts) {
#if EXPERTS
      prefetch_next_layer(args, layer);
#endif
      grid.wait_all();
      mark(args, shared, WAIT_ATTENTION);
      attention(args, shared, area, layer, [&] {
        if (threadIdx.x == 0) arrive(args.counters + 32);
      });
      mark(args, shared, JOIN);
    }
    if (s.phase == Down::ID) {
      s = SHAPES[++layer == LAYERS ? Head::ID : Qkv::ID];
    } else if (!ends) {
      s = SHAPES[s.phase + 1];
    } else {
      grid.wait_all();
      mark(args, shared, WAIT_CHOOSE);
      choose(args, shared);
      bool done = ++step == steps || __ldcg(&args.state->done) || (steps > 1 && is_stop(args.state, shared.token[0]));
      if (blockIdx.x == 0 && threadIdx.x == 0) publish(args, shared, done);
      if (done) break;
      __syncthreads();
      if (threadIdx.x == 0) {
        shared.position[0] += 1;
        shared.first[0] = shared.position[0];
        shared.produced += 1;
      }
      __syncthreads();
      mark(args, shared, CHOOSE);
      layer = 0;
      s = SHAPES[Qkv::ID];
    }
  }
  stream.drain();
}
