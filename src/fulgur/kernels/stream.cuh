// The stream of weights: every warp reads its own fixed sequence of 512-byte chunks through a private ring in shared memory.
//
// Which chunks a warp needs, in which order, is known before any activation is: phase by phase, its slices of the units of
// its CTA. So the copies run SLOTS chunks ahead of the arithmetic, across units, phases, layers and grid barriers, and the
// memory system stays busy while a barrier or a norm is waited for. Only the experts of a layer are not known before
// its router has run: there the stream stalls and is opened again (`resume`) as soon as they are.
//
// Every lane copies the 16 bytes that it alone reads back, so that no barrier is needed; a scale record is read across lanes
// and needs __syncwarp. One group is committed per chunk, also when there is nothing to copy: then "all but the newest
// SLOTS - n groups are complete" always means that the next n chunks are there.
#pragma once
#include "common.cuh"

struct Cursor {
  const char* at;
  int left;       // chunks left in the current run of blocks
  int sub;        // chunk within the block
  int phase, layer, unit, block, block_end;
  bool entered;   // the unit is one of this phase
  bool routed;    // the experts of `layer` are known
  bool stalled;
};

template <int SLOTS> struct Stream {
  static_assert((SLOTS & (SLOTS - 1)) == 0, "slots are counted with a mask");
  const char* weights;
  const Shared* shared;
  u32 ring;                 // shared address of this lane's 16 bytes in slot 0 of this warp
  int slot;                 // next to be read; the next to be written is SLOTS behind the newest, the same one
  int rows, last_phase, last_layer, wrap;   // wrap: the persistent driver goes on with layer 0 of the next step
  Cursor c;

  __device__ static int warp() { return threadIdx.x >> 5; }
  __device__ static int lane() { return threadIdx.x & 31; }

  __device__ void open(const Args& args, const Shared* s, char* memory, int first_phase, int first_layer, int last, int last_l,
                       int wrap_, int n, bool routed) {
    weights = args.weights;
    shared = s;
    ring = shared_address(memory) + warp() * SLOTS * CHUNK + lane() * 16;
    slot = 0;
    rows = n;
    last_phase = last;
    last_layer = last_l;
    wrap = wrap_;
    c = Cursor{nullptr, 0, 0, first_phase, first_layer, 0, 0, 0, false, routed, false};
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
    c.left = (upto - c.block) * M::CHUNKS;
    c.sub = 0;
    c.block = upto;
  }

  // Copy the next chunk, if there is one, into slot `to` (as a ring index).
  __device__ __forceinline__ void issue(int to) {
    if (c.left == 0 && !c.stalled) advance();
    if (c.left) {
      u32 target = ring + (to & (SLOTS - 1)) * CHUNK;
      int chunks, record;
      shape(chunks, record);
      if (c.sub + 1 < chunks || record == 0) {
        copy_async16(target, c.at + lane() * 16);
        c.at += CHUNK;
      } else {
        if (lane() * 16 < record) copy_async16(target, c.at + lane() * 16);
        c.at += record;
      }
      c.sub = c.sub + 1 == chunks ? 0 : c.sub + 1;
      --c.left;
    }
    copy_commit();
  }
  // Chunks of a block and bytes of its scales, in the phase being copied. Most models have one format throughout.
  __device__ __forceinline__ void shape(int& chunks, int& record) const {
    chunks = Qkv::CHUNKS;
    record = Qkv::RECORD;
    if (HEAD_DIFFERS && c.phase == Head::ID) {
      chunks = Head::CHUNKS;
      record = Head::RECORD;
    }
#if EXPERTS
    if (ROUTER_DIFFERS && c.phase == Router::ID) {
      chunks = Router::CHUNKS;
      record = Router::RECORD;
    }
#endif
  }
  __device__ void fill() {
    for (int i = 0; i < SLOTS; ++i) issue(slot + i);
  }
  // The experts of the current layer stand in shared memory: go on from the router's end. The ring is empty here.
  __device__ void resume() {
    c.routed = true;
    if (c.stalled && c.phase == Gate_up::ID) {
      c.stalled = false;
      fill();
    }
  }

  // The next N chunks have arrived. Read them with `chunk`, then give them back with `release`.
  template <int N> __device__ __forceinline__ void acquire() { copy_wait<SLOTS - N>(); }
  __device__ __forceinline__ u32 chunk(int i) const { return ring + ((slot + i) & (SLOTS - 1)) * CHUNK; }
  template <int N> __device__ __forceinline__ void release() {
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < N; ++i) issue(slot + i);
    slot += N;
  }
};
