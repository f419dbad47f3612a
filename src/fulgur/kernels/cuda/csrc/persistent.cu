// The persistent driver: one cooperative launch of one CTA per SM runs many decode steps.
//
// All CTAs go through the same phases. They wait only for the values they read (exchange.cuh); the one barrier of the
// grid ends a step. The weight stream runs ahead across phases, layers and steps. The first keys and values of the next
// attention are prefetched into L2.
#include "phases.cuh"

__constant__ Shape SHAPES[] = {
    SHAPE_OF(Qkv),
#if HAS_ROUTER
    SHAPE_OF(Router),
#endif
#if EXPERTS
    SHAPE_OF(Fold),
#endif
    SHAPE_OF(O),      SHAPE_OF(GateUp), SHAPE_OF(Down), SHAPE_OF(Head),
};

constexpr int BEFORE_ATTENTION = HAS_ROUTER ? 1 : 0;  // the phase before attention: the router, or qkv
// Does this CTA multiply a part of the router, with the copy of the residual that qkv's norm keeps?
__device__ __forceinline__ bool routes(const Shared& shared) {
  return KEEPS_RAW && shared.units[BEFORE_ATTENTION].first < shared.units[BEFORE_ATTENTION].last;
}

// setmaxnreg: every thread starts with 96 registers, or 80 if there are prediction warps. A prediction warp holds all
// logits.
constexpr bool MANY_LOGITS = PREDICTION && EXPERTS > 256;
constexpr int COMPUTE_REGISTERS = MANY_LOGITS ? 96 : 104,
              FEEDER_REGISTERS = MANY_LOGITS  ? 48
                                 : PREDICTION ? 40
                                              : 56,
              PREDICTOR_REGISTERS = MANY_LOGITS ? 48 : 24;

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1) decode_persistent(const __grid_constant__ Args args) {
  SHARED_MEMORY(memory);
  Shared& shared = *(Shared*)memory;
  char* area = area_of(memory);
  Stream stream;
  if (threadIdx.x < THREADS) {
    load_state(shared, args);
    stream.open_all(area + AREA_BYTES, rows_of(shared));
    if (threadIdx.x == 0) ready_feeder(shared, 0);
    if (threadIdx.x < MATRICES) shared.units[threadIdx.x] = units_of(SHAPES[threadIdx.x], rows_of(shared));
  }
  __syncthreads();
  if (shared.done) return;
#if PREDICTION
  if (threadIdx.x >= FEEDING_THREADS) {
    give_registers<PREDICTOR_REGISTERS>();
    if (threadIdx.x < FEEDING_THREADS + 32)
      predict_experts(args, shared);
    else if (threadIdx.x < FEEDING_THREADS + 64)
      weight_experts(shared);
    return;
  }
#endif
  if (threadIdx.x >= THREADS) {
    give_registers<FEEDER_REGISTERS>();
    Feeder().run(args, shared, area + AREA_BYTES, args.weights, true, __ldcg(&args.state->steps) > 1);
    return;
  }
  take_registers<COMPUTE_REGISTERS>();
  const int rows = rows_of(shared);
#pragma unroll 1
  for (int id = 0; id < MATRICES; ++id) prepare_task(area + AREA_BYTES, args, memory, SHAPES[id], shared.units[id]);
  __syncwarp();
  int layer = 0;
  u32 epoch = shared.epoch;  // counts the layers of this launch
  float kept_residual = 0;
  int id = Qkv::ID;
#pragma unroll 1
  for (;;) {
    const Shape& s = SHAPES[id];
    const bool starts = id == Qkv::ID, ffn = id == GateUp::ID, ends = id == Head::ID;
    const bool router = HAS_ROUTER && id == BEFORE_ATTENTION;  // only a few CTAs have units of it
    const Range units = shared.units[id];
    if (!router || units.first < units.last) {
      // The operand: a norm of the residual (the router: the residual itself), or a vector that is copied.
#if DELTA_LAYERS
      if (starts && !attends(layer)) delta_prefetch(args, shared, layer);
#endif
      if (starts && attends(layer)) attention_prefetch(args, shared, layer);
      if (ends && blockIdx.x == 0 && threadIdx.x == 0 && ((volatile Mailbox*)args.mailbox)->cancel)
        args.state->done = 1;
      if (KEEPS_RAW && router) {
        block_barrier();  // some warp may still be adding slices of qkv
      } else if (starts || ffn || ends || router) {
        const Residual residual{router ? nullptr : norm_of(args, layer, ffn ? FFN_NORM_AT : 0), !ffn && layer == 0,
                                args.x + (ffn ? 0 : MAX_ROWS * D_MODEL / 2), ffn ? epoch : epoch - 1};
        operand_norm(area, shared, args, residual, rows, s, ffn, nullptr, starts && routes(shared),
                     starts ? side_of(args, layer) : nullptr);
#if EXPERTS
        if (ffn) {
          mark(args, shared, NORM_FFN);
          const u32 layers = epoch - shared.epoch + 1;
          // Nothing else is waited for: the feeders may go to full depth.
          if (thread_index() == 0) store_relaxed(shared_address(&shared.multiplying), GateUp::ID);
#if PREDICTION
          if (settle_experts(shared, layers)) {
            mark_mispredicted(args, shared);
            stream.drop_predicted(shared.mispredicted);
          }
#else
          rank_experts(args, shared, slices_of(memory), false);
          if (thread_index() == 0) store_release(shared_address(&shared.layers_routed), layers);
#endif
        }
#endif
#if DELTA_LAYERS
        if (ends && args.hidden) keep_hidden(args, shared, epoch);
#endif
        if (!router) mark(args, shared, starts ? NORM_QKV : ends ? NORM_HEAD : EXPERTS ? ROUTE : NORM_FFN);
      } else {
        const bool heads = id == O::ID;
        if (!SAME_ROWS && rows == 1) fetch_residual(args, shared, layer, epoch, s, units, kept_residual);
        operand_copy(area, vector_for(args, heads, heads && !attends(layer)), rows, epoch, s);
        mark(args, shared, heads ? COPY_O : COPY_DOWN);
      }
      Phase{stream, args, shared, memory, rows, layer, epoch, id, s, units, &kept_residual}.run();
      mark(args, shared,
           starts           ? QKV
           : ffn            ? GATE_UP
           : ends           ? HEAD
           : id == O::ID    ? PROJECT_O
           : id == Down::ID ? DOWN
                            : ROUTER);
    }
    if (PREDICTION && starts && threadIdx.x == 0)
      store_relaxed(shared_address(&shared.layers_projected), epoch - shared.epoch + 1);
    if (id == BEFORE_ATTENTION) {
#if DELTA_LAYERS
      if (!attends(layer))
        delta_net(args, shared, memory, layer, epoch);
      else
#endif
        attention(args, shared, memory, layer, epoch);
      mark(args, shared, JOIN);
    }
    if (id == Down::ID) {
      ++epoch;
      id = ++layer == LAYERS ? Head::ID : Qkv::ID;
    } else if (!ends) {
      id = id == BEFORE_ATTENTION ? O::ID : id + 1;  // the fold runs with o
    } else {
      const int step = (int)(epoch - shared.epoch) / LAYERS;
      if (threadIdx.x == 0) {
        arrive(args.counters);
        await(args.counters, step * CTAS);
      }
      block_barrier();
      mark(args, shared, WAIT_CHOOSE);
      choose(args, shared);
      if (DELTA_LAYERS && blockIdx.x == 0 && threadIdx.x == 0) args.known[shared.slot] = shared.position[0];
      const int steps = __ldcg(&args.state->steps);
      bool done = step == steps || __ldcg(&args.state->done) || (steps > 1 && is_stop(args.state, shared.token[0]));
      if (blockIdx.x == 0 && threadIdx.x == 0 && !__ldcg(&args.state->sampled)) publish(args, shared, done);
      if (done) break;
      block_barrier();
      if (threadIdx.x == 0) {
        shared.position[0] += 1;
        shared.first[0] = shared.position[0];
        shared.produced += 1;
        shared.fold = 1;
      }
      block_barrier();
      mark(args, shared, CHOOSE);
      layer = 0;
      id = Qkv::ID;
    }
  }
  if (threadIdx.x == 0) store_release(shared_address(&shared.finished), 1);
}
