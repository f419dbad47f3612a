// The stream of weights: every warp reads its own fixed sequence of pieces through a private ring in shared memory.
//
// Which pieces a warp needs, in which order, is known before any activation is: phase by phase, its slices of the units of
// its CTA. So the copies run SLOTS pieces ahead of the arithmetic, across units, phases, layers and grid barriers, and the
// memory system stays busy while a barrier or a norm is waited for. Only the experts of a layer are not known before
// its router has run: there the stream stalls and is opened again (`resume`) as soon as they are.
//
// A piece is a block of 16 x 128 weights with its scales, or a part of one; it lies contiguous in memory. Each slot has a
// gate that its copy completes; a slot is filled again as soon as the warp has the piece in registers.
#pragma once
#include "common.cuh"

struct Cursor {
  const char* at;
  int left;       // pieces left in the current run of blocks
  int piece;      // within the block
  int phase, layer, unit, block, block_end;
  bool entered;   // the unit is one of this phase
  bool routed;    // the experts of `layer` are known
  bool stalled;
};

constexpr int GATES_BYTES = WARPS * SLOTS * 8;

struct Stream {
  const char* weights;
  const Shared* shared;
  u32 ring, gates;          // shared addresses of this warp's first slot and its gate
  int slot, to;             // the next to be read, the next to be filled
  int held;                 // pieces copied or on their way, not yet read
  u32 parity;               // of the phase that completes `slot`
  int rows, last_phase, last_layer, wrap;   // wrap: the persistent driver goes on with layer 0 of the next step
  Cursor c;

  __device__ static int warp() { return threadIdx.x >> 5; }
  __device__ static int lane() { return threadIdx.x & 31; }

  __device__ void open(const Args& args, const Shared* s, char* memory, int first_phase, int first_layer, int last, int last_l,
                       int wrap_, int n, bool routed) {
    weights = args.weights;
    shared = s;
    gates = shared_address(memory) + warp() * SLOTS * 8;
    ring = shared_address(memory) + GATES_BYTES + warp() * SLOTS * SLOT_BYTES;
    slot = to = held = parity = 0;
    rows = n;
    last_phase = last;
    last_layer = last_l;
    wrap = wrap_;
    c = Cursor{nullptr, 0, 0, first_phase, first_layer, 0, 0, 0, false, routed, false};
    if (lane() < SLOTS) gate_init(gates + lane() * 8);
    __syncwarp();
    fill();
  }

  // The next contiguous run of blocks, in whichever phase it lies; with none, `stalled` is set.
  __device__ void advance() {
    while (!c.stalled) {
      if (EXPERTS && c.phase == Gate_up::ID && !c.routed) {
        c.stalled = true;
        return;
      }
      bool found;
      switch (c.phase) {
        case Qkv::ID: found = find<Qkv>(); break;
        case O::ID: found = find<O>(); break;
#if EXPERTS
        case Router::ID: found = find<Router>(); break;
#endif
        case Gate_up::ID: found = find<Gate_up>(); break;
        case Down::ID: found = find<Down>(); break;
        default: found = find<Head>();
      }
      if (found) return;
      next_phase();
    }
  }
  __device__ void next_phase() {
    c.entered = false;
    if (c.phase == last_phase && c.layer == last_layer) {
      c.stalled = !wrap;
      c.phase = Qkv::ID;
      c.layer = 0;
    } else if (c.phase == Down::ID) {
      bool end = c.layer + 1 == LAYERS;
      c.phase = end ? Head::ID : Qkv::ID;
      c.layer = end ? 0 : c.layer + 1;
      c.routed = false;
    } else {
      ++c.phase;
    }
  }
  // The next run of this phase, unit by unit of this warp. False: the phase has no more.
  template <class M> __device__ bool find() {
    int end = M::first(blockIdx.x + 1, rows);
    if (!c.entered) {
      c.entered = true;
      c.unit = M::first(blockIdx.x, rows) + warp() / M::KW;
      slice<M>(end);
    }
    while (c.unit < end) {
      if (c.block < c.block_end) {
        run_as<M>();
        return true;
      }
      c.unit += WARPS / M::KW;
      slice<M>(end);
    }
    return false;
  }
  template <class M> __device__ void slice(int end) {
    if (c.unit >= end) return;
    int split = M::SPLIT > 1 ? c.unit / M::TILES : 0;
    c.block = M::slice(split, warp() % M::KW);
    c.block_end = M::slice(split, warp() % M::KW + 1);
  }
  template <class M> __device__ void run_as() {
    int tile = c.unit % M::TILES, copy = 0, block = c.block, upto = c.block_end;
#if EXPERTS
    if (M::COPIES > 1) {
      int row = c.unit / M::TILES;
      if (M::JOINED) {      // the experts follow each other along K: a run ends where an expert does
        int e = c.block / M::COPY_BLOCKS;
        copy = shared->expert[row][e];
        block -= e * M::COPY_BLOCKS;
        upto = min(upto, (e + 1) * M::COPY_BLOCKS);
      } else {
        copy = shared->expert[row / CHOSEN][row % CHOSEN];
      }
    }
#endif
    c.at = weights + M::OFFSET + (M::ID == Head::ID ? 0 : c.layer * LAYER_STRIDE) + copy * M::COPY_BYTES +
           (long long)(tile * M::COPY_BLOCKS + block) * M::BLOCK_BYTES;
    c.left = (upto - c.block) * M::PIECES;
    c.piece = 0;
    c.block = upto;
  }

  // Copy the next piece, if there is one, into the next slot.
  __device__ __forceinline__ void issue() {
    if (c.left == 0 && !c.stalled) advance();
    if (c.left == 0) return;
    int pieces, bytes, record;
    shape(pieces, bytes, record);
    if (c.piece + 1 == pieces) bytes += record;
    c.piece = c.piece + 1 == pieces ? 0 : c.piece + 1;
    copy_piece(ring + to * SLOT_BYTES, c.at, bytes, gates + to * 8);
    c.at += bytes;
    --c.left;
    ++held;
    to = to + 1 == SLOTS ? 0 : to + 1;
  }
  // Pieces of a block, bytes of a piece and of the scales behind the last, in the phase being copied. Most models have one
  // format throughout.
  __device__ __forceinline__ void shape(int& pieces, int& bytes, int& record) const {
    pieces = Qkv::PIECES;
    bytes = Qkv::PIECE_BYTES;
    record = Qkv::RECORD;
    if (HEAD_DIFFERS && c.phase == Head::ID) {
      pieces = Head::PIECES;
      bytes = Head::PIECE_BYTES;
      record = Head::RECORD;
    }
#if EXPERTS
    if (ROUTER_DIFFERS && c.phase == Router::ID) {
      pieces = Router::PIECES;
      bytes = Router::PIECE_BYTES;
      record = Router::RECORD;
    }
#endif
  }
  __device__ void fill() {
#pragma unroll 1
    for (int i = 0; i < SLOTS; ++i) issue();
  }
  // The experts of the current layer stand in shared memory: go on from the router's end. The ring is empty here.
  __device__ void resume() {
    c.routed = true;
    if (c.stalled && c.phase == Gate_up::ID) {
      c.stalled = false;
      fill();
    }
  }

  // The next piece has arrived at this shared address. `release` when the warp has read it.
  __device__ __forceinline__ u32 acquire() const {
    gate_wait(gates + slot * 8, parity);
    return ring + slot * SLOT_BYTES;
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
