// The graph driver: one kernel per phase, captured once into a CUDA graph with programmatic dependent launch.
//
// A kernel fills its rings with weights before it waits for the previous kernel. This is the plain path: every phase
// can be inspected alone, and it runs where a cooperative launch cannot.
#include "phases.cuh"

#define KERNEL extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1)

__device__ __forceinline__ void finish(Shared& shared) {
  if (threadIdx.x == 0) store_release(shared_address(&shared.finished), 1);
}

// Starts the feeders, then loads the state: weights that are known in advance are in flight before the state is read.
// Returns false for threads that have nothing (more) to do.
template <class M>
__device__ inline bool begin(Stream& stream, const Args& args, Shared& shared, char* memory) {
  char* rings = area_of(memory) + AREA_BYTES;
  let_successor_start();
  if (threadIdx.x >= THREADS) {
    __syncthreads();
    const char* first = args.weights + (M::ID == Head::ID ? M::OFFSET : args.layer * LAYER_STRIDE);
    Feeder().run(args, shared, rings, first, false, false);
    return false;
  }
  if (threadIdx.x == 0) ready_feeder(shared, 1);
  if (M::COPIES == 1) {
    stream.open_one<M>(rings, 1);
    __syncthreads();
  }
  wait_for_predecessor();
  load_state(shared, args);
  if (shared.done) {
    finish(shared);
    if (M::COPIES > 1) __syncthreads();
  }
  return !shared.done;
}

__device__ __forceinline__ void run(Stream& stream, const Args& args, Shared& shared, char* memory, const Shape& s) {
  const Range units = units_of(s, rows_of(shared));
  prepare_task(area_of(memory) + AREA_BYTES, args, memory, s, units);
  __syncwarp();
  Phase{stream,  args, shared, memory, rows_of(shared), args.layer, shared.epoch + args.layer,
        s.phase, s,    units,  nullptr}
      .run();
}

KERNEL step_qkv(const __grid_constant__ Args args) {
  SHARED_MEMORY(memory);
  Shared& shared = *(Shared*)memory;
  Stream stream;
  if (!begin<Qkv>(stream, args, shared, memory)) return;
  attention_prefetch(args, shared, args.layer);
  operand_norm(area_of(memory), shared, args,
               {norm_of(args, args.layer, ATTN_NORM_AT), args.layer == 0, args.x + MAX_ROWS * D_MODEL / 2,
                shared.epoch + args.layer - 1},
               rows_of(shared), SHAPE_OF(Qkv), false);
  run(stream, args, shared, memory, SHAPE_OF(Qkv));
  finish(shared);
}

// May use all registers: the sums of GROUP heads stay in them.
extern "C" __global__ void __launch_bounds__(THREADS, 1) step_attention(const __grid_constant__ Args args) {
  SHARED_MEMORY(memory);
  Shared& shared = *(Shared*)memory;
  let_successor_start();
  wait_for_predecessor();
  load_state(shared, args);
  if (!shared.done) attention(args, shared, memory, args.layer, shared.epoch + args.layer);
}

KERNEL step_o(const __grid_constant__ Args args) {
  SHARED_MEMORY(memory);
  Shared& shared = *(Shared*)memory;
  Stream stream;
  if (!begin<O>(stream, args, shared, memory)) return;
  operand_copy(area_of(memory), vector_for(args, true), rows_of(shared), shared.epoch + args.layer, SHAPE_OF(O));
  run(stream, args, shared, memory, SHAPE_OF(O));
  finish(shared);
}

#if EXPERTS
KERNEL step_router(const __grid_constant__ Args args) {
  SHARED_MEMORY(memory);
  Shared& shared = *(Shared*)memory;
  Stream stream;
  if (!begin<Router>(stream, args, shared, memory)) return;
  operand_norm(area_of(memory), shared, args,
               {nullptr, args.layer == 0, args.x + MAX_ROWS * D_MODEL / 2, shared.epoch + args.layer - 1},
               rows_of(shared), SHAPE_OF(Router), false);
  run(stream, args, shared, memory, SHAPE_OF(Router));
  finish(shared);
}

KERNEL step_fold(const __grid_constant__ Args args) {
  SHARED_MEMORY(memory);
  Shared& shared = *(Shared*)memory;
  Stream stream;
  if (!begin<Fold>(stream, args, shared, memory)) return;
  operand_copy(area_of(memory), vector_for(args, true), rows_of(shared), shared.epoch + args.layer, SHAPE_OF(O));
  run(stream, args, shared, memory, SHAPE_OF(Fold));
  finish(shared);
}
#endif

// The experts are known only after the previous kernels: find them, then open the stream.
template <class M>
__device__ inline void open_experts(Stream& stream, const Args& args, Shared& shared, char* memory) {
#if EXPERTS
  rank_experts(args, shared, slices_of(memory), true);
  stream.open_one<M>(area_of(memory) + AREA_BYTES, shared.rows);
  __syncthreads();
#endif
}

// The early logits (without attention) lie where slices will. Padding experts get -infinity and are never chosen.
__device__ __forceinline__ void pad_early(const Shared& shared, char* memory) {
  if (EXPERTS < EXPERTS_OF_4 && threadIdx.x >= EXPERTS && threadIdx.x < EXPERTS_OF_4)
    for (int row = 0; row < rows_of(shared); ++row) slices_of(memory)[row * EXPERTS_OF_4 + threadIdx.x] = -INF;
}

KERNEL step_gate_up(const __grid_constant__ Args args) {
  SHARED_MEMORY(memory);
  Shared& shared = *(Shared*)memory;
  Stream stream;
  if (!begin<GateUp>(stream, args, shared, memory)) return;
  pad_early(shared, memory);
  operand_norm(area_of(memory), shared, args,
               {norm_of(args, args.layer, FFN_NORM_AT), false, args.x, shared.epoch + args.layer}, rows_of(shared),
               SHAPE_OF(GateUp), true, slices_of(memory));
  open_experts<GateUp>(stream, args, shared, memory);
  run(stream, args, shared, memory, SHAPE_OF(GateUp));
  finish(shared);
}

KERNEL step_down(const __grid_constant__ Args args) {
  SHARED_MEMORY(memory);
  Shared& shared = *(Shared*)memory;
  Stream stream;
  if (!begin<Down>(stream, args, shared, memory)) return;
#if EXPERTS
  for (int row = 0; row < rows_of(shared) && threadIdx.x < EXPERTS; ++row) {
    Logits logits;
    logits.load(args, row, threadIdx.x);
    shared.logit[row][threadIdx.x] = Logits::tagged(logits.sum(), threadIdx.x);
    slices_of(memory)[row * EXPERTS_OF_4 + threadIdx.x] = Logits::tagged(logits.sum(ROUTER_PARTS), threadIdx.x);
  }
  pad_early(shared, memory);
  block_barrier();
#endif
  open_experts<Down>(stream, args, shared, memory);
  operand_copy(area_of(memory), vector_for(args, false), rows_of(shared), shared.epoch + args.layer, SHAPE_OF(Down));
  run(stream, args, shared, memory, SHAPE_OF(Down));
  finish(shared);
}

KERNEL step_head(const __grid_constant__ Args args) {
  SHARED_MEMORY(memory);
  Shared& shared = *(Shared*)memory;
  Stream stream;
  if (!begin<Head>(stream, args, shared, memory)) return;
  operand_norm(area_of(memory), shared, args,
               {norm_of(args, LAYERS, 0), false, args.x + MAX_ROWS * D_MODEL / 2, shared.epoch + LAYERS - 1},
               rows_of(shared), SHAPE_OF(Head), false);
  run(stream, args, shared, memory, SHAPE_OF(Head));
  finish(shared);
}

// One CTA: choose the tokens, write the ring, prepare the state of the next step.
KERNEL step_finish(const __grid_constant__ Args args) {
  SHARED_MEMORY(memory);
  Shared& shared = *(Shared*)memory;
  let_successor_start();
  wait_for_predecessor();
  load_state(shared, args);
  if (shared.done || __ldcg(&args.state->sampled)) return;
  choose(args, shared);
  if (threadIdx.x) return;
  State* state = args.state;
  int left = state->steps - 1, many = state->steps > 1 || state->produced > 0;
  bool done = left <= 0 || ((volatile Mailbox*)args.mailbox)->cancel || (many && is_stop(state, shared.token[0]));
  publish(args, shared, done);
  state->steps = left;
  state->done = done;
  state->produced += shared.rows;
  state->token[0] = shared.token[0];
  state->position[0] += 1;
  state->first[0] = state->position[0];
}
