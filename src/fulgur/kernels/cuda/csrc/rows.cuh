// Packed weights times the rows of a step. Rows are few, so the time goes into reading the weights, and every SM has to
// read an equal amount.
//
// The building blocks are those of wide.cuh; the work is cut differently. A quad is 64 outputs (four tiles of 16) times
// all columns of a split. The quads of all splits, or of all experts' tiles, form one sequence. Every CTA has an equal
// stretch of it and goes through it in pieces of up to `wide` quads. How a stretch is cut changes no sum. A stage holds
// 128 columns of a piece; missing rows are not copied, since their results are never stored.
#pragma once
#include "wide.cuh"

constexpr int QUAD = 4;  // tiles
constexpr int MOST_STAGES = 8;

template <int FORMAT, int TOKENS>
struct RowsMemory {
  static constexpr int X = TOKENS * COLUMNS * 2, STAGING = 2 * (TOKENS < 16 ? TOKENS : 16) * 132 * 4;
  static __device__ __forceinline__ u32 stage(const Product& p) {
    return X + (p.wide * QUAD * Packed<FORMAT>::BYTES + 1023) / 1024 * 1024;
  }
};

// The pieces of this CTA, one after the other. `runs`: splits, or tiles of experts' rows.
struct Stretch {
  int all, at, last;      // quads of a run; the next quad and the end, over all runs
  int quad, quads;        // first quad of the piece, and how many
  int begin, end, split;  // blocks
  int first, count, expert;
  __device__ __forceinline__ Stretch(const Product& p, int runs) {
    all = (p.matrix_tiles + QUAD - 1) / QUAD;
    const int total = all * runs;
    at = (int)((long long)total * blockIdx.x / gridDim.x);
    last = (int)((long long)total * (blockIdx.x + 1) / gridDim.x);
    find(p);
  }
  __device__ __forceinline__ bool more() const { return at < last; }
  __device__ __forceinline__ void next(const Product& p) {
    at += quads;
    find(p);
  }
  __device__ __forceinline__ void find(const Product& p) {
    if (at >= last) return;
    const int run = at / all;
    quad = at - run * all;
    quads = min(min(last - at, all - quad), p.wide);
    split = first = expert = 0, count = p.n, begin = 0, end = p.blocks;
    if (p.tiles) {
      const Tile t = p.tiles[run];
      first = t.first, count = t.count, expert = t.expert;
    } else {
      split = run, begin = p.blocks * split / p.splits, end = p.blocks * (split + 1) / p.splits;
    }
  }
};

template <int FORMAT>
__device__ __forceinline__ void fetch_weights(const Product& p, const Stretch& s, int block, u32 to, u32 gate) {
  constexpr int BYTES = Packed<FORMAT>::BYTES;
  const int lane = threadIdx.x & 31, tiles = s.quads * QUAD;
  if (lane == 0) gate_expect(gate, tiles * BYTES);
  __syncwarp();
  if (lane >= tiles) return;
  const int tile = min(s.quad * QUAD + lane, p.matrix_tiles - 1);  // beyond the end: results are not stored
  copy_run_once(to + lane * BYTES, p.weights + s.expert * p.copy_bytes + ((long long)tile * p.blocks + block) * BYTES,
                BYTES, gate);
}

template <int FORMAT, int TOKENS>
__device__ __forceinline__ void load_rows(const Product& p, u32 stages, u32 gates) {
  typedef RowsMemory<FORMAT, TOKENS> M;
  const int thread = threadIdx.x - CONSUMERS, piece = thread & 15, low = thread >> 4;
  const u32 to = stages + piece / 8 * (TOKENS * 128) + low * 128 + ((piece & 7) ^ low) * 16, size = M::stage(p);
  u32 stage = 0, parity = 1;
  // The weights of a single matrix are known before the predecessor ends, whose results are the other operand.
  int ahead = 0;
  if (!p.tiles && thread < 32)
    for (Stretch s(p, p.splits); s.more() && ahead < p.stages; s.next(p))
      for (int block = s.begin; block < s.end && ahead < p.stages; ++block, ++ahead)
        fetch_weights<FORMAT>(p, s, block, stages + ahead * size + M::X, gates + ahead * 16);
  wait_for_predecessor();
  for (Stretch s(p, p.tiles ? *p.tile_count : p.splits); s.more(); s.next(p)) {
    u32 from[TOKENS / 8];  // byte offsets of this thread's rows: every eighth row
#pragma unroll
    for (int i = 0; i < TOKENS / 8; ++i) {
      const int row = s.first + min(low + 8 * i, s.count - 1);
      from[i] = (p.rows ? p.rows[row] : row) * p.blocks * (2 * COLUMNS);
    }
    const char* x = (const char*)p.x + piece * 16 + s.begin * (2 * COLUMNS);
    for (int block = s.begin; block < s.end; ++block) {
      const u32 base = stage * size, full = gates + stage * 16;
      gate_wait(full + 8, parity);
      if (thread < 32) {
        if (ahead > 0)
          --ahead;
        else
          fetch_weights<FORMAT>(p, s, block, stages + base + M::X, full);
      }
#pragma unroll
      for (int i = 0; i < TOKENS / 8; ++i)
        if (low + 8 * i < s.count) copy16(to + base + i * 1024, x + from[i]);
      copies_arrive(full);
      x += 2 * COLUMNS;
      if (++stage == p.stages) stage = 0, parity ^= 1;
    }
  }
}

// Multiplies one piece; a warpgroup has PARTS of its quads, from `mine` on. A warpgroup without any multiplies the last
// quad again and stores nothing.
template <int FORMAT, int TOKENS, int EPILOGUE, int PARTS>
__device__ __forceinline__ void multiply_piece(const Product& p, const Stretch& s, int mine, u32 stages, u32 gates,
                                               u32 v, u32& stage, u32& parity) {
  typedef RowsMemory<FORMAT, TOKENS> M;
  const int warp = threadIdx.x / 32;
  const u32 size = M::stage(p);
  float c[PARTS][TOKENS / 2], scale[PARTS][2];  // of rows g and g + 8, still to be applied to the sums
#pragma unroll
  for (int i = 0; i < PARTS; ++i) {
    scale[i][0] = scale[i][1] = 1;
#pragma unroll
    for (int j = 0; j < TOKENS / 2; ++j) c[i][j] = 0;
  }
  const u32 first = M::X + (min(mine, s.quads - 1) * QUAD + (warp & 3)) * Packed<FORMAT>::BYTES;
  for (int block = s.begin; block < s.end; ++block) {
    const u32 base = stages + stage * size, full = gates + stage * 16;
    u32 at[PARTS];
#pragma unroll
    for (int i = 0; i < PARTS; ++i) at[i] = base + first + i * QUAD * Packed<FORMAT>::BYTES;
    gate_wait(full, parity);
    show_to_wide();
    multiply_block<FORMAT, TOKENS, PARTS>(base, at, c, scale);
    if ((threadIdx.x & 31) == 0) gate_arrive(full + 8);
    if (++stage == p.stages) stage = 0, parity ^= 1;
  }
  const int columns = mine < s.quads ? PARTS * 16 * QUAD : 0;
  store_sums<TOKENS, EPILOGUE, PARTS>(p, c, scale, v, (s.quad + mine) * (16 * QUAD), columns, s.first, s.count, s.split,
                                      s.expert);
}

template <int FORMAT, int TOKENS, int EPILOGUE>
__device__ __forceinline__ void multiply_rows(const Product& p, u32 stages, u32 gates, u32 staging) {
  const int group = threadIdx.x / 128;
  const u32 v = staging + group * (RowsMemory<FORMAT, TOKENS>::STAGING / 2);
  u32 stage = 0, parity = 0;
  wait_for_predecessor();
  for (Stretch s(p, p.tiles ? *p.tile_count : p.splits); s.more(); s.next(p)) {
    const int half = (s.quads + 1) / 2, mine = group * half;  // the first half is the first warpgroup's
    if (s.quads - mine > 1 && half > 1)
      multiply_piece<FORMAT, TOKENS, EPILOGUE, 2>(p, s, mine, stages, gates, v, stage, parity);
    else
      multiply_piece<FORMAT, TOKENS, EPILOGUE, 1>(p, s, mine, stages, gates, v, stage, parity);
  }
}

template <int FORMAT, int TOKENS, int EPILOGUE>
__device__ __forceinline__ void rows_product(const Product& p, char* memory) {
  typedef RowsMemory<FORMAT, TOKENS> M;
  let_successor_start();
  const u32 stages = (shared_address(memory) + 1023) / 1024 * 1024;
  const u32 staging = stages + p.stages * M::stage(p), gates = staging + M::STAGING;
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      gate_init_count(gates + i * 16, PRODUCERS + 1);       // full
      gate_init_count(gates + i * 16 + 8, CONSUMERS / 32);  // empty
    }
    gates_ready();
  }
  __syncthreads();
  if (threadIdx.x >= CONSUMERS) {
    give_registers<56>();
    load_rows<FORMAT, TOKENS>(p, stages, gates);
  } else {
    take_registers<224>();
    multiply_rows<FORMAT, TOKENS, EPILOGUE>(p, stages, gates, staging);
  }
}
