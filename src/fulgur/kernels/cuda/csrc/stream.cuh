// The weight stream: every warp reads its own fixed sequence of pieces through a private ring in shared memory.
//
// Which pieces a warp needs, and in which order, does not depend on activations and is the same in every layer: its
// slices of its CTA's units, phase by phase. Each warp writes this sequence down once as a list of runs. The feeder
// warps (feed.cuh) copy along these lists, up to SLOTS pieces ahead of the arithmetic, across units, phases, layers and
// steps. So memory stays busy while the CTA waits for activations or computes a norm.
//
// A piece is a block of 16 x 128 weights with its scales, or a part of one, contiguous in memory. Each slot has an
// mbarrier that its copy completes. A slot may be refilled as soon as the warp has loaded the piece into registers.
#pragma once
#include "common.cuh"

struct alignas(8) Run {
  u32 at;  // in units of 16 bytes, from the start of the layer or of the head
  unsigned short pieces;
  unsigned char phase;   // M::ID
  unsigned char choice;  // with experts: row * EXPERTS_PER_ROW + index of the row's expert
};
struct alignas(16) Slot {
  u64 gate;       // an mbarrier
  u32 within;     // offset of the piece from the slot's first byte
  u32 predicted;  // the piece belongs to predicted experts
};
// What a warp needs to know to multiply its slices of a matrix. For steps of one row it is computed once per launch,
// not in every layer.
struct alignas(16) Cut {
  // For `wgmma`, shared addresses: the operand's terms (as the instruction takes them) and their scales.
  u32 terms, scales;
  u32 slices;                                // shared address of the warp's slice of sums
  unsigned short rounds;                     // units of its team of KW warps
  unsigned char steps;                       // blocks of the longest slice
  unsigned char kw_bits : 4, shortfall : 4;  // as in Shape; by how many blocks its own slice is shorter
};
struct alignas(16) Output {
  u64* to;   // word of the first row of its first tile; null: no tile, or its sums are not sent
  u32 sums;  // shared address of that tile's slices
  unsigned char rows, shift, expert, pad;  // rows to send, 2^shift per word; index of the row's expert
};
struct Task {
  Cut cut;
  Output output;
};
struct alignas(16) Ring {               // of one warp, after its slots; its tasks follow
  u32 taken;                            // pieces that the warp has read
  unsigned short layer_runs, all_runs;  // runs of a layer; with those of the head
  u32 choices;                          // bit i: its gate/up runs include the row's i-th expert
};
// Layout in shared memory: the runs of all warps; slots, ring and tasks of all warps; the bytes of all slots.
constexpr int RUNS_BYTES = WARPS * MAX_RUNS * 8,
              TASKS_BYTES = MAX_ROWS == 1 && !FLAT ? MATRICES * (int)sizeof(Task) : 0;
constexpr int WARP_BYTES = SLOTS * 16 + (int)sizeof(Ring) + TASKS_BYTES, SLOTS_BYTES = WARPS * WARP_BYTES;
__device__ __forceinline__ Run* runs_of(char* memory, int warp) { return (Run*)memory + warp * MAX_RUNS; }
__device__ __forceinline__ Slot* slots_at(char* memory, int warp) {
  return (Slot*)(memory + RUNS_BYTES + warp * WARP_BYTES);
}
__device__ __forceinline__ Ring* ring_at(char* memory, int warp) { return (Ring*)(slots_at(memory, warp) + SLOTS); }
__device__ __forceinline__ u32 bytes_at(char* memory, int warp) {
  return shared_address(memory) + RUNS_BYTES + SLOTS_BYTES + warp * SLOTS * SLOT_BYTES;
}

static_assert(SHARED_BYTES + SLICE_BYTES + AREA_BYTES + RUNS_BYTES + SLOTS_BYTES + WARPS * SLOTS * SLOT_BYTES ==
                  LAUNCH_BYTES,
              "header.py and these sources divide shared memory alike");

// The consumer end of a ring. The feeders may start after the block barrier that follows `open_all` or `open_one`.
struct Stream {
  u32 bytes, slots;   // shared addresses
  int slot;           // the next slot to read
  u32 parity, taken;  // of the mbarrier phase that completes it; pieces read

  __device__ static int warp() { return threadIdx.x >> 5; }
  // Via the ring's address: deriving the shared-memory base again would take longer than the load.
  __device__ __forceinline__ u32 task(int id) const {
    return slots + SLOTS * 16 + (int)sizeof(Ring) + id * (int)sizeof(Task);
  }
  __device__ __forceinline__ Cut cut(int id) const {
    const uint4 v = shared16(task(id));
    return Cut{v.x,
               v.y,
               v.z,
               (unsigned short)v.w,
               (unsigned char)(v.w >> 16),
               (unsigned char)(v.w >> 24 & 15),
               (unsigned char)(v.w >> 28)};
  }
  __device__ __forceinline__ Output output(int id) const {
    const uint4 v = shared16(task(id) + sizeof(Cut));
    return Output{(u64*)((u64)v.y << 32 | v.x), v.z, (unsigned char)v.w, (unsigned char)(v.w >> 8),
                  (unsigned char)(v.w >> 16),   0};
  }

#if FLAT
  template <class M>
  __device__ static int list(Run* to, int n, int) {
    const int end = M::first_block(blockIdx.x + 1);
#pragma unroll 1
    for (int chunk = M::first_block(blockIdx.x); chunk < end; chunk += WARPS * M::BLOCKS) {
      const int blocks = min(end - chunk, WARPS * M::BLOCKS);
      const int block = chunk + (warp() * blocks >> WARP_BITS), stop = chunk + ((warp() + 1) * blocks >> WARP_BITS);
      long long offset = (M::ID == Head::ID ? 0 : M::OFFSET) + (long long)block * M::BLOCK_BYTES;
      if (block < stop) to[n++] = Run{(u32)(offset / 16), (unsigned short)((stop - block) * M::PIECES), M::ID, 0};
    }
    return n;
  }
#else
  template <class M>
  __device__ static int list(Run* to, int n, int rows, int shift = 0) {
    const int end = M::first(blockIdx.x + 1, rows), place = (warp() + shift) % WARPS;
#pragma unroll 1
    for (int unit = M::first(blockIdx.x, rows) + place / M::KW; unit < end; unit += WARPS / M::KW) {
      int split = M::SPLIT > 1 ? unit / M::TILES : 0, tile = unit % M::TILES;
      int block = M::slice(split, place % M::KW), stop = M::slice(split, place % M::KW + 1);
#pragma unroll 1
      while (block < stop) {  // joined experts follow each other along K: a run ends where an expert does
        int expert = M::JOINED ? block / M::COPY_BLOCKS : 0,
            upto = M::JOINED ? min(stop, (expert + 1) * M::COPY_BLOCKS) : stop;
        long long offset = (M::ID == Head::ID ? 0 : M::OFFSET) +
                           (long long)(tile * M::COPY_BLOCKS + block - expert * M::COPY_BLOCKS) * M::BLOCK_BYTES;
        int choice = M::JOINED ? unit / M::TILES * M::CHOSEN_COPIES + expert : M::COPIES > 1 ? unit / M::TILES : 0;
        to[n++] = Run{(u32)(offset / 16), (unsigned short)((upto - block) * M::PIECES), M::ID, (unsigned char)choice};
        block = upto;
      }
    }
    return n;
  }
#endif

  __device__ void prepare(char* memory) {
    bytes = bytes_at(memory, warp());
    slots = shared_address(slots_at(memory, warp()));
    slot = 0;
    parity = taken = 0;
    int lane = threadIdx.x & 31;
    if (lane < SLOTS) gate_init(slots + lane * 16);
  }
  // All lanes write the same values.
  __device__ static void written(char* memory, int layer_runs, int all_runs) {
    u32 choices = 0;
#if PREDICTION
    __syncwarp();
    for (int i = 0; i < layer_runs; ++i)
      if (runs_of(memory, warp())[i].phase == GateUp::ID) choices |= 1u << runs_of(memory, warp())[i].choice;
#endif
    *ring_at(memory, warp()) = Ring{0, (unsigned short)layer_runs, (unsigned short)all_runs, choices};
  }
  // The whole model, from layer 0.
  __device__ void open_all(char* memory, int rows) {
    prepare(memory);
    Run* to = runs_of(memory, warp());
    int n = list<Qkv>(to, 0, rows);
#if HAS_ROUTER
    n = list<Router>(to, n, rows);
#endif
    n = list<O>(to, n, rows);
#if EXPERTS
    n = list<Fold>(to, n, rows, Fold::KW);
#endif
    n = list<GateUp>(to, n, rows);
    n = list<Down>(to, n, rows);
    written(memory, n, list<Head>(to, n, rows));
  }
  // One phase of one layer.
  template <class M>
  __device__ void open_one(char* memory, int rows) {
    prepare(memory);
    int n = list<M>(runs_of(memory, warp()), 0, rows);
    written(memory, n, n);
  }

  // Waits for the next piece and returns its shared address. Call `release` once the warp has read it; one call may
  // cover several pieces.
  __device__ __forceinline__ u32 acquire() {
    gate_wait(slots + slot * 16, parity);
    u32 within = SHIFTED ? shared4(slots + slot * 16 + 8) : 0;
    const u32 at = bytes + slot * SLOT_BYTES + within;
    advance();
    return at;
  }
  __device__ __forceinline__ void advance() {
    ++taken;
    if (++slot == SLOTS) {
      slot = 0;
      parity ^= 1;
    }
  }
  // Called before the experts' products when some predictions were wrong. If one of this warp's was, all of its
  // predicted pieces are dropped; the feeder sends the right ones after them.
  __device__ __forceinline__ void drop_predicted(u32 wrong) {
    if (!(shared4(slots + SLOTS * 16 + 8) & wrong)) return;
    for (;;) {
      gate_wait(slots + slot * 16, parity);
      if (!shared4(slots + slot * 16 + 12)) return;
      advance();
      release();
    }
  }
  // A warp's accesses to shared memory are in order: when the feeder sees the count, the pieces have been read.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) store_relaxed(slots + SLOTS * 16, taken);
  }
};
