// The feeders: four warps of a CTA that keep the rings of the compute warps full, one lane per ring.
//
// How much is in flight matters as much as how far ahead it is. Every load on the GPU queues behind the copies in
// flight: with 32 KB per SM a value passes from CTA to CTA in 1.6 µs at 85% of the memory bandwidth, with 128 KB in 8
// µs at all of it. So a ring has few pieces in flight (SHALLOW) while its CTA waits for activations, and more (DEEP) of
// the phase that multiplies now. Beyond 128 KB memory itself slows down, and CTAs no longer get equal bandwidth.
//
// When a ring is full, the feeder prefetches up to AHEAD further pieces into L2, one every PACE cycles, so that no
// queue builds up. (Dense models only.)
//
// The experts of a layer are not known until half of it has run. For them a ring waits for `shared.layers_routed`, or
// continues slowly with predicted experts (predict.cuh).
#pragma once
#include "stream.cuh"

constexpr int RINGS = WARPS / FEEDERS;  // rings per feeder warp

// A position in a ring's sequence of pieces.
struct Cursor {
  const char *base, *at;     // the layer's weights; the next piece
  int index, layer, layers;  // the next run; the current layer; layers begun since the launch
  int left, size, piece;     // pieces left in the run; bytes of each; index of the next within its block
  u32 phase;                 // of the run
  u32 passed;                // pieces so far
  int first_predicted;       // the first run of this layer that holds predicted experts; -1: none

  __device__ __forceinline__ void begin(const char* first, bool whole) {
    base = first;
    index = layers = left = piece = 0;
    layer = whole ? 0 : LAYERS;
    passed = 0;
    first_predicted = -1;
  }
};

struct Feeder {
  const char* weights;
  const Shared* shared;
  const Run* runs;
  Slot* slots;
  u32 bytes, ring;  // shared addresses
  int layer_runs, all_runs;
  int to, from;  // slots: where the next piece goes; where the next copy completes
  u32 arrived;   // pieces whose copies have completed
  u32 parity;    // of the mbarrier phase that completes `from`
  bool wrap;     // layer 0 of the next step follows the head

  // Moves to the next run, across phases and layers. `left` stays 0 if there is none or its expert is not known yet.
  __device__ __forceinline__ void next(Cursor& c) {
#pragma unroll 1
    while (c.index == (c.layer < LAYERS ? layer_runs : all_runs)) {
      if (PREDICTION && c.first_predicted >= 0) return;  // a layer ends only when its experts are known
      if (c.layer < LAYERS && ++c.layer < LAYERS) {
        c.base += LAYER_STRIDE;
        c.index = 0;
        ++c.layers;
      } else if (c.layer == LAYERS && c.index < all_runs) {
        c.base = weights + Head::OFFSET;
      } else if (wrap) {
        c.base = weights;
        c.index = c.layer = 0;
        ++c.layers;
      } else {
        return;
      }
    }
    Run run = runs[c.index];
    long long copy = 0;
#if EXPERTS
    if (run.phase == GateUp::ID || run.phase == Down::ID) {
      const int* expert = shared->expert[run.choice / EXPERTS_PER_ROW];
      if ((int)load_acquire_shared(shared_address(&shared->layers_routed)) <= c.layers) {
#if PREDICTION
        if (run.phase == Down::ID || (int)load_acquire_shared(shared_address(&shared->layers_predicted)) <= c.layers)
          return;
        expert = shared->predicted[0];
        if (c.first_predicted < 0) c.first_predicted = c.index;
#else
        return;
#endif
      }
      copy = expert[run.choice % EXPERTS_PER_ROW] * (run.phase == Down::ID ? Down::COPY_BYTES : GateUp::COPY_BYTES);
    }
#endif
    c.phase = run.phase;
    c.at = c.base + (long long)run.at * 16 + copy;
    c.left = run.pieces;
    c.size = Qkv::PIECE_BYTES + (UNEVEN ? 0 : Qkv::RECORD);
    if (HEAD_DIFFERS && run.phase == Head::ID) c.size = Head::PIECE_BYTES + (UNEVEN ? 0 : Head::RECORD);
    if (ROUTER_DIFFERS && is_small(run.phase)) c.size = Small::PIECE_BYTES + (UNEVEN ? 0 : Small::RECORD);
    ++c.index;
  }
  // If a block with scales is cut into several pieces, the last one carries the scales.
  __device__ __forceinline__ int length_of(Cursor& c) {
    if (!UNEVEN) return c.size;
    int pieces = Qkv::PIECES, record = Qkv::RECORD;
    if (HEAD_DIFFERS && c.phase == Head::ID) pieces = Head::PIECES, record = Head::RECORD;
    if (ROUTER_DIFFERS && is_small(c.phase)) pieces = Small::PIECES, record = Small::RECORD;
    bool last = c.piece + 1 == pieces;
    c.piece = last ? 0 : c.piece + 1;
    return c.size + (last ? record : 0);
  }
  // The experts are known now. If one of this ring's predictions was wrong, all its experts are copied again, and the
  // warp drops the predicted pieces (stream.cuh).
  __device__ __forceinline__ void settle(Cursor& c) {
    if (shared4(ring + 8) & shared->mispredicted) {
      c.index = c.first_predicted;
      c.left = c.piece = 0;
    }
    c.first_predicted = -1;
  }
  __device__ __forceinline__ void issue(Cursor& c) {
    int length = length_of(c);
    // Blocks with scales may begin anywhere in a 128-byte line. The copy keeps that offset, so whole lines are copied.
    u32 within = SHIFTED ? (u32)(u64)c.at & 127 : 0;
    if (SHIFTED) slots[to].within = within;
    if (PREDICTION) slots[to].predicted = c.first_predicted >= 0;
    copy_piece(bytes + to * SLOT_BYTES + within, c.at, length, shared_address(&slots[to].gate));
    c.at += length;
    --c.left;
    ++c.passed;
    to = to + 1 == SLOTS ? 0 : to + 1;
  }
  // One step of the L2 prefetch: catch up with the copies, or prefetch one piece more.
  __device__ __forceinline__ void prefetch_ahead(Cursor& c, u32 issued, u32& rested) {
    if (c.left == 0) next(c);
    int behind = (int)(issued - c.passed);
    if (c.left == 0 || -behind >= AHEAD) return;
    u32 now = clock_low();
    if (behind <= 0 && now - rested < PACE) return;
    int pieces = max(1, min(behind, c.left));
    if (behind <= 0) {
      prefetch_piece(c.at, c.size);
      rested = now;
    }
    c.at += pieces * c.size;
    c.left -= pieces;
    c.passed += pieces;
  }

  // `memory` starts after the area. Runs until `shared.finished` and until no copy is in flight: a CTA must not exit
  // earlier.
  __device__ __forceinline__ void run(const Args& args, const Shared& s, char* memory, const char* first, bool whole,
                                      bool wrap_) {
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
    to = from = 0;
    arrived = parity = 0;
    wrap = wrap_ && all_runs;
    Cursor copies, ahead;
    copies.begin(first, whole);
    ahead.begin(first, whole);
    u32 rested = 0;
    const int shallow = (SHALLOW + WARPS - 1 - of) / WARPS, deep = (DEEP + WARPS - 1 - of) / WARPS;
    for (;;) {
      const bool over = load_acquire_shared(shared_address(&s.finished));
      if (!any_lane(!over || arrived != copies.passed)) break;
      if (arrived != copies.passed && gate_done(shared_address(&slots[from].gate), parity)) {
        ++arrived;
        if (++from == SLOTS) {
          from = 0;
          parity ^= 1;
        }
      }
      if (over) continue;
      if (PREDICTION && copies.first_predicted >= 0) {
        if ((int)load_acquire_shared(shared_address(&s.layers_routed)) > copies.layers)
          settle(copies);
        else if (clock_low() - rested < PREDICTION_PACE)
          continue;
      }
      const u32 taken = load_acquire_shared(ring);
      bool full = copies.passed - taken >= SLOTS;
      if (!full && copies.left == 0) next(copies);
      full |= copies.left == 0;
      const u32 flying = copies.passed - arrived, multiplying = load_acquire_shared(shared_address(&s.multiplying));
      const int most = copies.phase == multiplying ? deep : shallow;
      if (!full && (int)flying < most) {
        issue(copies);
        // Issue a second piece at once: checking all conditions again takes longer than the copy.
        if (copies.left && (int)flying + 1 < most && copies.passed - taken < SLOTS &&
            !(PREDICTION && copies.first_predicted >= 0))
          issue(copies);
        if (PREDICTION) rested = clock_low();
      } else if (AHEAD && !UNEVEN && whole && full && flying == 0)
        prefetch_ahead(ahead, copies.passed, rested);
    }
    if (load_acquire_shared(shared_address(&s.finished)) == FAILED) __trap();
  }
};
