// The stream of weights: every warp reads its own fixed sequence of pieces through a private ring in shared memory.
//
// Which pieces a warp needs, in which order, is known before any activation is, and is the same in every layer: its slices of
// the units of its CTA, phase by phase. Each warp writes this down once as a list of runs. The copies go SLOTS pieces ahead
// of the arithmetic, across units, phases, layers and grid barriers, and the memory system stays busy while a barrier or a
// norm is waited for. Only the experts of a layer are not known before its router has run: there the stream stalls
// and goes on (`resume`) as soon as they are.
//
// A piece is a block of 16 x 128 weights with its scales, or a part of one; it lies contiguous in memory. Each slot has a
// gate that its copy completes; a slot is filled again as soon as the warp has the piece in registers.
#pragma once
#include "common.cuh"

struct alignas(8) Run {
  u32 at;                    // in 16 bytes, from the start of the layer or of the head
  unsigned short pieces;
  unsigned char phase;       // M::ID
  unsigned char choice;      // row * CHOSEN + which of its experts
};
constexpr int GATES_BYTES = WARPS * SLOTS * 8, RUNS_BYTES = WARPS * MAX_RUNS * 8;

struct Stream {
  const char* weights;
  const Shared* shared;
  const Run* runs;
  u32 ring, gates;          // shared addresses of this warp's first slot and its gate
  int slot, to;             // the next to be read, the next to be filled
  int held;                 // pieces copied or on their way, not yet read
  u32 parity;               // of the phase that completes `slot`
  u32 shift;                // lane i: where in slot i its piece begins
  int layer_runs, all_runs; // the runs of a layer, then those of the head
  int index, layer;         // where the copies are
  const char *base, *at;    // the layer's weights, the next piece
  int left, bytes, piece;   // pieces left in the run, bytes of each, number of the next within its block
  bool wrap, routed, stalled;   // wrap: after the head comes layer 0 of the next step

  __device__ static int warp() { return threadIdx.x >> 5; }
  __device__ static int lane() { return threadIdx.x & 31; }

  template <class M> __device__ int list(Run* to, int n, int rows) const {
    int end = M::first(blockIdx.x + 1, rows);
#pragma unroll 1
    for (int unit = M::first(blockIdx.x, rows) + warp() / M::KW; unit < end; unit += WARPS / M::KW) {
      int split = M::SPLIT > 1 ? unit / M::TILES : 0, tile = unit % M::TILES;
      int block = M::slice(split, warp() % M::KW), stop = M::slice(split, warp() % M::KW + 1);
#pragma unroll 1
      while (block < stop) {      // joined experts follow each other along K: a run ends where an expert does
        int expert = M::JOINED ? block / M::COPY_BLOCKS : 0, upto = M::JOINED ? min(stop, (expert + 1) * M::COPY_BLOCKS) : stop;
        long long offset = (M::ID == Head::ID ? 0 : M::OFFSET) +
                           (long long)(tile * M::COPY_BLOCKS + block - expert * M::COPY_BLOCKS) * M::BLOCK_BYTES;
        int choice = M::JOINED ? unit / M::TILES * M::CHOSEN_COPIES + expert : M::COPIES > 1 ? unit / M::TILES : 0;
        to[n++] = Run{(u32)(offset / 16), (unsigned short)((upto - block) * M::PIECES), M::ID, (unsigned char)choice};
        block = upto;
      }
    }
    return n;
  }

  __device__ void prepare(const Args& args, const Shared* s, char* memory, int first_layer, bool wrap_, bool routed_) {
    weights = args.weights;
    shared = s;
    runs = (const Run*)memory + warp() * MAX_RUNS;
    gates = shared_address(memory) + RUNS_BYTES + warp() * SLOTS * 8;
    ring = shared_address(memory) + RUNS_BYTES + GATES_BYTES + warp() * SLOTS * SLOT_BYTES;
    slot = to = held = parity = index = left = bytes = piece = shift = 0;
    layer = first_layer;
    base = weights + first_layer * LAYER_STRIDE;
    wrap = wrap_;
    routed = routed_;
    if (lane() < SLOTS) gate_init(gates + lane() * 8);
  }
  // The whole model, from layer 0.
  __device__ void open_all(const Args& args, const Shared* s, char* memory, bool wrap_, int rows) {
    prepare(args, s, memory, 0, wrap_, false);
    Run* to = (Run*)runs;
    int n = list<Qkv>(to, 0, rows);        // all lanes write the same
    n = list<O>(to, n, rows);
#if EXPERTS
    n = list<Router>(to, n, rows);
#endif
    n = list<Gate_up>(to, n, rows);
    layer_runs = list<Down>(to, n, rows);
    all_runs = list<Head>(to, layer_runs, rows);
    begin();
  }
  // One phase of one layer.
  template <class M> __device__ void open_one(const Args& args, const Shared* s, char* memory, int of_layer, int rows) {
    prepare(args, s, memory, of_layer, false, true);
    if (M::ID == Head::ID) base = weights + M::OFFSET;
    layer = LAYERS - 1;           // nothing follows
    layer_runs = all_runs = list<M>((Run*)runs, 0, rows);
    begin();
  }
  __device__ void begin() {
    stalled = all_runs == 0;
    __syncwarp();
    fill();
  }

  // The next run, in whichever phase and layer it lies; with none, or none known yet, `stalled` is set.
  __device__ __forceinline__ void next() {
#pragma unroll 1
    while (index == (layer < LAYERS ? layer_runs : all_runs)) {
      if (layer < LAYERS && ++layer < LAYERS) {
        base += LAYER_STRIDE;
        index = 0;
        routed = false;
      } else if (layer == LAYERS && index < all_runs) {
        base = weights + Head::OFFSET;
      } else if (wrap) {
        base = weights;
        index = layer = 0;
        routed = false;
      } else {
        stalled = true;
        return;
      }
    }
    Run run = runs[index];
    long long copy = 0;
#if EXPERTS
    if (run.phase == Gate_up::ID || run.phase == Down::ID) {
      if (!routed) {
        stalled = true;
        return;
      }
      copy = shared->expert[run.choice / CHOSEN][run.choice % CHOSEN] *
             (run.phase == Down::ID ? Down::COPY_BYTES : Gate_up::COPY_BYTES);
    }
#endif
    at = base + (long long)run.at * 16 + copy;
    left = run.pieces;
    bytes = Qkv::PIECE_BYTES + (UNEVEN ? 0 : Qkv::RECORD);
    if (HEAD_DIFFERS && run.phase == Head::ID) bytes = Head::PIECE_BYTES + (UNEVEN ? 0 : Head::RECORD);
#if EXPERTS
    if (ROUTER_DIFFERS && run.phase == Router::ID) bytes = Router::PIECE_BYTES + (UNEVEN ? 0 : Router::RECORD);
#endif
    ++index;
  }
  // Copy the next piece, if there is one, into the next slot.
  __device__ __forceinline__ void issue() {
    if (left == 0) {
      if (!stalled) next();
      if (left == 0) return;
    }
    int size = bytes;
    if (UNEVEN) size += with_record();
    // Blocks with scales begin anywhere in a line of 128 bytes: so does their copy, and lines are copied whole.
    u32 within = SHIFTED ? (u32)(u64)at & 127 : 0;
    if (lane() == to) shift = within;
    copy_piece(ring + to * SLOT_BYTES + within, at, size, gates + to * 8);
    at += size;
    --left;
    ++held;
    to = to + 1 == SLOTS ? 0 : to + 1;
  }
  // Where a block with scales comes in several pieces, the last brings them.
  __device__ int with_record() {
    int phase = runs[index - 1].phase, pieces = Qkv::PIECES, record = Qkv::RECORD;
    if (HEAD_DIFFERS && phase == Head::ID) pieces = Head::PIECES, record = Head::RECORD;
#if EXPERTS
    if (ROUTER_DIFFERS && phase == Router::ID) pieces = Router::PIECES, record = Router::RECORD;
#endif
    bool last = piece + 1 == pieces;
    piece = last ? 0 : piece + 1;
    return last ? record : 0;
  }
  __device__ void fill() {
#pragma unroll 1
    for (int i = 0; i < SLOTS; ++i) issue();
  }
  // The experts of the current layer stand in shared memory: go on from the router's end. The ring is empty here.
  __device__ void resume() {
    routed = true;
    if (stalled && all_runs) {
      stalled = false;
      fill();
    }
  }

  // The next piece has arrived at this shared address. `release` when the warp has read it.
  __device__ __forceinline__ u32 acquire() const {
    u32 within = SHIFTED ? shuffle(shift, slot) : 0;
    gate_wait(gates + slot * 8, parity);
    return ring + slot * SLOT_BYTES + within;
  }
  __device__ __forceinline__ void release() {
    __syncwarp();
    drop();
    issue();
  }
  __device__ __forceinline__ void drop() {
    --held;
    if (++slot == SLOTS) {
      slot = 0;
      parity ^= 1;
    }
  }
  // Before a CTA ends: nothing may still be on its way into its shared memory.
  __device__ void drain() {
    while (held) {
      acquire();
      drop();
    }
  }
};
