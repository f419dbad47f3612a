// The persistent driver: one cooperative launch, one CTA a multiprocessor, many decode steps.
//
// All CTAs walk through the same phases; a grid barrier stands between a phase and the next that reads it. The weight stream
// runs ahead across barriers. An arrival comes as soon as a phase's stores are done, the wait as late as possible: norm
// weights, keys and values of the next attention and, while experts are unknown, the next layer's weights are drawn
// in between.
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
  mark(args, shared, CHOOSE);
  for (int step = 0;; ++step) {
#pragma unroll 1
    for (int layer = 0; layer < LAYERS; ++layer) {
      attention_prefetch(args, shared, layer);
      operand_norm(area, shared, args, norm_of(args, layer, ATTN_NORM_AT), layer ? nullptr : shared.token, rows, [&] {
        if (layer) grid.wait_all();
        mark(args, shared, WAIT_QKV);
      });
      mark(args, shared, NORM_QKV);
      phase_qkv(stream, args, memory, rows);
      grid.arrive_all();
      mark(args, shared, QKV);
      grid.wait_all();
      mark(args, shared, WAIT_ATTENTION);
      attention(args, shared, area, layer, [&] {
        if (threadIdx.x == 0) arrive(args.counters + 32);
      });
      mark(args, shared, JOIN);
      grid.wait_heads(rows * KV_HEADS);
      mark(args, shared, WAIT_O);
      operand_copy(area, args.attended, O::COPY_BLOCKS * BLOCK, rows);
      phase_residual<O>(stream, args, memory, rows);
      grid.arrive_all();
      mark(args, shared, PROJECT_O);
      operand_norm(area, shared, args, norm_of(args, layer, FFN_NORM_AT), nullptr, rows, [&] {
        grid.wait_all();
        mark(args, shared, WAIT_FFN);
      });
      mark(args, shared, NORM_FFN);
#if EXPERTS
      phase_router(stream, args, memory, rows);
      grid.arrive_all();
      prefetch_next_layer(args, layer);
      mark(args, shared, ROUTER);
      grid.wait_all();
      mark(args, shared, WAIT_ROUTE);
      route(args, shared, [&] { stream.resume(); });
      mark(args, shared, ROUTE);
#endif
      phase_gate_up(stream, args, shared, memory, rows);
      grid.arrive_all();
      mark(args, shared, GATE_UP);
      grid.wait_all();
      mark(args, shared, WAIT_DOWN);
      operand_copy(area, args.h, Down::BLOCKS * BLOCK, rows);
      phase_residual<Down>(stream, args, memory, rows);
      grid.arrive_all();
      mark(args, shared, DOWN);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0 && ((volatile Mailbox*)args.mailbox)->cancel) args.state->done = 1;
    operand_norm(area, shared, args, norm_of(args, LAYERS, 0), nullptr, rows, [&] {
      grid.wait_all();
      mark(args, shared, WAIT_HEAD);
    });
    phase_head(stream, args, memory, rows);
    grid.arrive_all();
    mark(args, shared, HEAD);
    grid.wait_all();
    mark(args, shared, WAIT_CHOOSE);
    choose(args, shared);
    bool done = step + 1 == steps || __ldcg(&args.state->done) || (steps > 1 && is_stop(args.state, shared.token[0]));
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
  }
  stream.drain();
}
