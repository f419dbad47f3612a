// The persistent driver: one cooperative launch, one CTA a multiprocessor, many decode steps.
//
// All CTAs walk through the same phases. Nobody waits for anybody but for the values of a phase that come from others
// (exchange.cuh); only a step ends with a barrier of all. The weight stream runs ahead across phases, layers and steps. Keys and
// values of the next attention are drawn to L2 in time.
#include "phases.cuh"

__constant__ Shape SHAPES[] = {
    SHAPE_OF(Qkv), SHAPE_OF(O),
#if EXPERTS
    SHAPE_OF(Router),
#endif
    SHAPE_OF(Gate_up), SHAPE_OF(Down), SHAPE_OF(Head),
};
constexpr int AFTER_ATTENTION = O::ID + 1;      // the phase that begins with the feed-forward norm

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1) decode_persistent(const __grid_constant__ Args args) {
  SHARED_MEMORY(memory);
  Shared& shared = *(Shared*)memory;
  char* area = area_of(memory);
  const int steps = __ldcg(&args.state->steps);
  Stream stream;
  if (threadIdx.x < THREADS) {
    load_state(shared, args.state);
    stream.open_all(area + AREA_BYTES, rows_of(shared));
    if (threadIdx.x == 0) ready_feeder(shared, 0);
  }
  __syncthreads();
  if (shared.done) return;
  if (threadIdx.x >= THREADS) {
    give_registers<56>();
    Feeder().run(args, shared, area + AREA_BYTES, args.weights, true, steps > 1);
    return;
  }
  take_registers<104>();
  const int rows = rows_of(shared);
  int layer = 0, step = 0;
  u32 epoch = shared.epoch, arrivals = 0;
  float held = 0;
  Shape s = SHAPES[Qkv::ID];
#pragma unroll 1
  for (;;) {
    // What the product is of: a norm of the residual, or a vector that is there already.
    const bool starts = s.phase == Qkv::ID, ends = s.phase == Head::ID;
    if (starts) attention_prefetch(args, shared, layer);
    if (ends && blockIdx.x == 0 && threadIdx.x == 0 && ((volatile Mailbox*)args.mailbox)->cancel) args.state->done = 1;
    if (starts || s.phase == AFTER_ATTENTION || ends) {
      const bool ffn = s.phase == AFTER_ATTENTION;
      operand_norm(area, shared, args, norm_of(args, layer, ffn ? FFN_NORM_AT : 0), starts && layer == 0,
                   args.x + (ffn ? 0 : MAX_ROWS * D_MODEL / 2), ffn ? epoch : epoch - 1, rows,
                   SHAPES[ffn ? (int)Gate_up::ID : s.phase]);
      mark(args, shared, starts ? NORM_QKV : ends ? NORM_HEAD : NORM_FFN);
#if EXPERTS
    } else if (s.phase == Gate_up::ID) {
      route(args, shared, epoch, [&] {
        if (threadIdx.x == 0) store_release(shared_address(&shared.routed), step * LAYERS + layer + 1);
      });
      mark(args, shared, ROUTE);
#endif
    } else {
      const bool heads = s.phase == O::ID;
      operand_copy(area, heads ? args.attended : args.h, (heads ? O::BLOCKS : Down::BLOCKS) * BLOCK,
                   (heads ? O::COPY_BLOCKS : Down::COPY_BLOCKS) * BLOCK, heads ? HEADS * HEAD_DIM : SENT_FFN, rows, epoch, args.state,
                   s);
      mark(args, shared, heads ? COPY_O : COPY_DOWN);
    }
    phase(stream, args, shared, memory, rows, layer, epoch, s, &held);
    block_barrier();
    mark(args, shared, starts ? QKV : s.phase == O::ID ? PROJECT_O : s.phase == Down::ID ? DOWN : ends ? HEAD
                       : s.phase == Gate_up::ID ? GATE_UP : ROUTER);
    if (starts) {
      attention(args, shared, area, layer, epoch);
      mark(args, shared, JOIN);
    }
    if (s.phase == Down::ID) {
      ++epoch;
      s = SHAPES[++layer == LAYERS ? Head::ID : Qkv::ID];
    } else if (!ends) {
      s = SHAPES[s.phase + 1];
    } else {
      arrivals += CTAS;
      if (threadIdx.x == 0) {
        arrive(args.counters);
        await(args.counters, arrivals, args.state);
      }
      block_barrier();
      mark(args, shared, WAIT_CHOOSE);
      choose(args, shared);
      bool done = ++step == steps || __ldcg(&args.state->done) || (steps > 1 && is_stop(args.state, shared.token[0]));
      if (blockIdx.x == 0 && threadIdx.x == 0) publish(args, shared, done);
      if (done) break;
      block_barrier();
      if (threadIdx.x == 0) {
        shared.position[0] += 1;
        shared.first[0] = shared.position[0];
        shared.produced += 1;
      }
      block_barrier();
      mark(args, shared, CHOOSE);
      layer = 0;
      s = SHAPES[Qkv::ID];
    }
  }
  if (threadIdx.x == 0) store_release(shared_address(&shared.finished), 1);
}
