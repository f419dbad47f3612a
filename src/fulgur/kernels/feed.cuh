// The feeders: four warps of a CTA that keep the rings of the others full, a lane a ring.
//
// How much is on its way matters as much as how far ahead it goes. Every load of the GPU queues behind the copies that are on
// their way: with 32 KB of them a multiprocessor a value passes from CTA to CTA in 1.6 µs at 85% of the memory's speed, with
// 128 KB in 8 µs at all of it. So a ring has few pieces in flight (SHALLOW) while its CTA waits for values, and more (DEEP)
// of the very phase that it multiplies.
//
// Only the experts of a layer are not known before its router has run: there a ring waits for `shared.routed`.
#pragma once
#include "stream.cuh"

constexpr int RINGS = WARPS / FEEDERS;      // that one warp feeds
struct Feeder {
  const char* weights;
  const Shared* shared;
  const Run* runs;
  Slot* slots;
  u32 bytes, ring;          // shared addresses
  int layer_runs, all_runs;
  int to, from;             // the slots that the next piece goes to, that the next is expected in
  u32 issued, arrived;      // pieces
  u32 parity;               // of the phase that completes `from`
  int index, layer, layers; // where the copies are; layers begun since the launch
  const char *base, *at;    // the layer's weights, the next piece
  int left, size, piece;    // pieces left in the run, bytes of each, number of the next within its block
  u32 phase;                // of the run
  bool wrap, ended;         // wrap: after the head comes layer 0 of the next step

  // The next run, in whichever phase and layer it lies. None is left, or none known yet: `left` stays 0.
  __device__ __forceinline__ void next() {
#pragma unroll 1
    while (index == (layer < LAYERS ? layer_runs : all_runs)) {
      if (layer < LAYERS && ++layer < LAYERS) {
        base += LAYER_STRIDE;
        index = 0;
        ++layers;
      } else if (layer == LAYERS && index < all_runs) {
        base = weights + Head::OFFSET;
      } else if (wrap) {
        base = weights;
        index = layer = 0;
        ++layers;
      } else {
        ended = true;
        return;
      }
    }
    Run run = runs[index];
    long long copy = 0;
#if EXPERTS
    if (run.phase == Gate_up::ID || run.phase == Down::ID) {
      if ((int)load_acquire_shared(shared_address(&shared->routed)) <= layers) return;
      copy = shared->expert[run.choice / CHOSEN][run.choice % CHOSEN] *
             (run.phase == Down::ID ? Down::COPY_BYTES : Gate_up::COPY_BYTES);
    }
#endif
    phase = run.phase;
    at = base + (long long)run.at * 16 + copy;
    left = run.pieces;
    size = Qkv::PIECE_BYTES + (UNEVEN ? 0 : Qkv::RECORD);
    if (HEAD_DIFFERS && phase == Head::ID) size = Head::PIECE_BYTES + (UNEVEN ? 0 : Head::RECORD);
#if EXPERTS
    if (ROUTER_DIFFERS && phase == Router::ID) size = Router::PIECE_BYTES + (UNEVEN ? 0 : Router::RECORD);
#endif
    ++index;
  }
  // Where a block with scales comes in several pieces, the last brings them.
  __device__ __forceinline__ int with_record() {
    int pieces = Qkv::PIECES, record = Qkv::RECORD;
    if (HEAD_DIFFERS && phase == Head::ID) pieces = Head::PIECES, record = Head::RECORD;
#if EXPERTS
    if (ROUTER_DIFFERS && phase == Router::ID) pieces = Router::PIECES, record = Router::RECORD;
#endif
    bool last = piece + 1 == pieces;
    piece = last ? 0 : piece + 1;
    return last ? record : 0;
  }
  __device__ __forceinline__ void issue() {
    int length = size + (UNEVEN ? with_record() : 0);
    // Blocks with scales begin anywhere in a line of 128 bytes: so does their copy, and lines are copied whole.
    u32 within = SHIFTED ? (u32)(u64)at & 127 : 0;
    if (SHIFTED) slots[to].within = within;
    copy_piece(bytes + to * SLOT_BYTES + within, at, length, shared_address(&slots[to].gate));
    at += length;
    --left;
    ++issued;
    to = to + 1 == SLOTS ? 0 : to + 1;
  }

  // `memory`: behind the area. Until `shared.finished`, and until nothing is on its way any more: a CTA must not end before.
  __device__ __forceinline__ void run(const Args& args, const Shared& s, char* memory, const char* first, bool whole, bool wrap_) {
    const int lane = threadIdx.x & 31, of = (threadIdx.x - THREADS) / 32 * RINGS + lane;
    if (lane >= RINGS) return;
    weights = args.weights;
    shared = &s;
    runs = runs_of(memory, of);
    slots = slots_at(memory, of);
    bytes = bytes_at(memory, of);
    ring = shared_address(ring_at(memory, of));
    layer_runs = ring_at(memory, of)->layer_runs;
    all_runs = ring_at(memory, of)->all_runs;
    to = from = index = layers = left = piece = 0;
    issued = arrived = parity = 0;
    layer = whole ? 0 : LAYERS;
    base = first;
    wrap = wrap_;
    ended = all_runs == 0;
    const int shallow = (SHALLOW + WARPS - 1 - of) / WARPS, deep = (DEEP + WARPS - 1 - of) / WARPS;
    for (;;) {
      const bool over = load_acquire_shared(shared_address(&s.finished));
      if (!any_lane(!over || arrived != issued)) break;
      if (arrived != issued && gate_done(shared_address(&slots[from].gate), parity)) {
        ++arrived;
        if (++from == SLOTS) {
          from = 0;
          parity ^= 1;
        }
      }
      if (over || ended || issued - load_acquire_shared(ring) >= SLOTS) continue;
      if (left == 0) next();
      if (left && (int)(issued - arrived) < (phase == load_acquire_shared(shared_address(&s.multiplying)) ? deep : shallow)) issue();
    }
  }
};
