// A matrix times up to 8 rows. Weights stream through the rings; a warp multiplies one block of 16 x 128 at a time.
//
// KW warps share a tile of 16 rows by cutting K into slices. A slice is summed in fp32 block by block; the slices of a
// tile meet in shared memory and are added in a fixed order. So a result never depends on the number of rows or on
// timing. Several tiles are reduced at a time to keep block barriers rare.
//
// On Hopper, fp8 and 4-bit weights go to the tensor cores as fp8 (`multiply_slices`). Elsewhere they are widened to
// bf16 in registers, exactly, and multiplied with bf16 activations, as bf16 weights are everywhere (`multiply_units`).
// Scales multiply the sums.
#pragma once
#include "fp8.cuh"
#include "operand.cuh"
#include "stream.cuh"

// Splits eight 4-bit weights (sign and magnitude) into e4m3 codes of 1/512 of their value. `first`: bits 0-2 and 7 of
// every byte. `second`: bits 4-6, with the sign in bit 3 of the next byte.
__device__ __forceinline__ void codes_of(u32 w, u32& first, u32& second) {
  // `opaque` keeps the computation here: between two `wgmma`, it would prevent them from overlapping.
  first = (u32)opaque((int)(w & 0x87878787u));
  second = (u32)opaque((int)((w >> 4 | w << 28) & 0x87878787u));
}
// Rows 0-7 and 8-15 of a tile have their own scale. Multiplying by 1 is exact.
__device__ __forceinline__ void scaled(float (&acc)[4], const float (&even)[4], const float (&odd)[4], float top,
                                       float bottom) {
  acc[0] = fmaf(top, even[0] + odd[0], acc[0]);
  acc[1] = fmaf(top, even[1] + odd[1], acc[1]);
  acc[2] = fmaf(bottom, even[2] + odd[2], acc[2]);
  acc[3] = fmaf(bottom, even[3] + odd[3], acc[3]);
}

// A block's weights and scales in registers. 4-bit codes become fp8 codes.
template <class M>
struct Block {
  static constexpr int FORMAT = M::FORMAT, CHUNKS = M::PIECE_BYTES / CHUNK, GROUPS = FORMAT == INT4_64 ? 2 : 1;
  static constexpr bool NIBBLES = FORMAT == INT4 || FORMAT == INT4_64;
  static constexpr int SLABS = FORMAT == BF16 ? 8 : 4;  // of 16 or 32 columns
  uint4 w[SLABS];
  float top[GROUPS], bottom[GROUPS];  // scales of rows g and g + 8

  __device__ __forceinline__ void load(Stream& stream, int piece) {
    const u32 lane = threadIdx.x & 31, at = stream.acquire();
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i) {
      uint4 v = shared16(at + i * CHUNK + lane * 16);
      const int n = piece * CHUNKS + i;
      if constexpr (NIBBLES) {
        codes_of(v.x, w[2 * n].x, w[2 * n + 1].x);
        codes_of(v.y, w[2 * n].y, w[2 * n + 1].y);
        codes_of(v.z, w[2 * n].z, w[2 * n + 1].z);
        codes_of(v.w, w[2 * n].w, w[2 * n + 1].w);
      } else {
        w[n] = v;
      }
    }
    if (piece + 1 == M::PIECES) {
      const u32 record = at + M::PIECE_BYTES;
      if constexpr (FORMAT == FP8) {
        top[0] = __uint_as_float(shared4(record));
        bottom[0] = __uint_as_float(shared4(record + 4));
      } else if constexpr (FORMAT == FP8_ROWS) {
        top[0] = __uint_as_float(shared4(record + (lane >> 2) * 4));
        bottom[0] = __uint_as_float(shared4(record + (lane >> 2) * 4 + 32));
      } else if constexpr (NIBBLES) {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
          top[g] = from_half(shared2(record + g * 32 + (lane >> 2) * 2));
          bottom[g] = from_half(shared2(record + g * 32 + (lane >> 2) * 2 + 16));
        }
      }
    }
  }
};

template <class M>
__device__ __forceinline__ void multiply_block(float (&acc)[4], Stream& stream, u32 operand) {
  using B = Block<M>;
  uint4 x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = shared16(operand + i * 64);
  B b;
  float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};
#pragma unroll
  for (int piece = 0; piece < M::PIECES; ++piece) {
    b.load(stream, piece);
    stream.release();
#pragma unroll
    for (int n = piece * B::SLABS / M::PIECES; n < (piece + 1) * B::SLABS / M::PIECES; ++n) {
      if constexpr (M::FORMAT == BF16) {
        uint4 v = x[n / 2];
        if (n % 2 == 0)
          mma(even, b.w[n].x, b.w[n].y, b.w[n].z, b.w[n].w, v.x, v.y);
        else
          mma(odd, b.w[n].x, b.w[n].y, b.w[n].z, b.w[n].w, v.z, v.w);
      } else {
        u32 a0, a1, a2, a3;
        widen_fp8(b.w[n].x, a0, a2);
        widen_fp8(b.w[n].y, a1, a3);
        mma(even, a0, a1, a2, a3, x[n].x, x[n].y);
        widen_fp8(b.w[n].z, a0, a2);
        widen_fp8(b.w[n].w, a1, a3);
        mma(odd, a0, a1, a2, a3, x[n].z, x[n].w);
        if (n % (B::SLABS / B::GROUPS) == B::SLABS / B::GROUPS - 1) {
          const int group = n * B::GROUPS / B::SLABS;
          const float unit = B::NIBBLES ? 512.f : 1.f;
          scaled(acc, even, odd, b.top[group] * unit, b.bottom[group] * unit);
#pragma unroll
          for (int k = 0; k < 4; ++k) even[k] = odd[k] = 0;
        }
      }
    }
  }
  if constexpr (M::FORMAT == BF16) scaled(acc, even, odd, 1.f, 1.f);
}

template <class M>
__device__ __forceinline__ int split_of(const Shape& s, int unit) {
  return M::SPLITS && s.cut_bits > s.kw_bits ? (int)(((float)unit + 0.5f) * s.per_tile) : 0;
}

// Writes a warp's sums of a tile to shared memory: [row of the step][16].
__device__ __forceinline__ void keep_sums(float* to, const float (&acc)[4], int columns) {
  const int g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3;
  if (2 * t < columns) {
    to[2 * t * TILE + g] = acc[0];
    to[2 * t * TILE + g + 8] = acc[2];
  }
  if (MAX_ROWS > 1 && 2 * t + 1 < columns) {
    to[(2 * t + 1) * TILE + g] = acc[1];
    to[(2 * t + 1) * TILE + g + 8] = acc[3];
  }
}

// Multiplies rounds begin .. stop - 1 of this warp's units, 1 / KW of K each, and writes the sums to `slices`: [unit of
// the batch][warp of the unit][row][16]. The first unit belongs to the first warps, or to the last `shift` ones.
template <class M>
__device__ __forceinline__ void multiply_units(Stream& stream, char* memory, float* slices, const Shape& s,
                                               const Range& units, int begin, int stop, int columns, int shift = 0) {
  const int thread = (int)thread_index(), warp = ((thread >> 5) + shift) & (WARPS - 1), lane = thread & 31,
            g = lane >> 2, t = lane & 3;
  int team = warp >> s.kw_bits, member = warp & ((1 << s.kw_bits) - 1), teams = WARPS >> s.kw_bits;
#pragma unroll 1
  for (int round = begin; round < stop; ++round) {
    int unit = units.first + round * teams + team;
    if (unit >= units.last) break;
    int slice = (split_of<M>(s, unit) << s.kw_bits) + member;
    int row = MAX_ROWS == 1 ? 0 : s.row_units ? unit / s.row_units : g < columns ? g : 0;
    u32 x = shared_address(area_of(memory)) + BF16_AT + row * OPERAND_STRIDE + t * 16;
    float acc[4] = {0, 0, 0, 0};
    int block_end = (slice + 1) * s.blocks >> s.cut_bits;
#pragma unroll 1
    for (int block = slice * s.blocks >> s.cut_bits; block < block_end; ++block)
      multiply_block<M>(acc, stream, x + block * 256);
    float* to = slices + ((((round - begin) * teams + team) << s.kw_bits) + member) * columns * TILE;
    keep_sums(to, acc, columns);
  }
}

// The same with `wgmma`, whose second operand is the two-term form of operand.cuh, one row of the step at a time. The
// four warps of a warpgroup work on the same unit and step through K together (KW is at least 4). A warp with a shorter
// slice multiplies its last block again and ignores the result. Lanes with t == warp % 4 hold the sums of the warp's
// own columns, the others those of its neighbours.
//
// Multiplies N blocks and waits once for their instructions. The warp has `left` of them (all, if slices are EVEN).
template <class M, int N>
__device__ __forceinline__ void multiply_codes(float (&acc)[MAX_ROWS][2], Block<M> (&b)[2], Stream& stream, u32 terms,
                                               u32 scales, int left, int columns) {
  using B = Block<M>;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    if (EVEN || n < left)
#pragma unroll
      for (int piece = 0; piece < M::PIECES; ++piece) b[n].load(stream, piece);
    // Release both blocks at once if the ring holds them: a release between the loads takes longer than the loads.
    if (n + 1 == N || SLOTS < N * M::PIECES) stream.release();
  }
#pragma unroll
  for (int row = 0; row < MAX_ROWS; ++row) {
    if (row && row >= columns) break;
    float sums[N][B::GROUPS][4];
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int n = 0; n < N; ++n)
        wgmma(sums[n][i * B::GROUPS / 4], b[n].w[i],
              terms + (row * OPERAND_STRIDE + n * STEP_BYTES + i * 2 * CORE_BYTES) / WGMMA_UNIT,
              i % (4 / B::GROUPS) > 0);
    wgmma_wait();
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int i = 0; i < B::GROUPS; ++i) wgmma_sums(sums[n][i]);
      if (!EVEN && n >= left) continue;
      const float scale = __uint_as_float(shared4(scales + row * OPERAND_STRIDE + n * 4));
#pragma unroll
      for (int i = 0; i < B::GROUPS; ++i) {
        acc[row][0] = fmaf(b[n].top[i] * scale, fmaf(sums[n][i][1], 0.0625f, sums[n][i][0]), acc[row][0]);
        acc[row][1] = fmaf(b[n].bottom[i] * scale, fmaf(sums[n][i][3], 0.0625f, sums[n][i][2]), acc[row][1]);
      }
    }
  }
}
// With `wgmma`, K is never split over CTAs.
__device__ __forceinline__ Cut cut_of(char* memory, const Shape& s, const Range& units) {
  const int warp = threadIdx.x >> 5, slice = warp & ((1 << s.kw_bits) - 1), first = slice * s.blocks >> s.cut_bits,
            teams = WARPS >> s.kw_bits;
  const u32 x = shared_address(area_of(memory));
  Cut cut{};
  if (WGMMA && s.unit != 0.f) {
    cut.terms = wgmma_operand(x + TERMS_AT + (slice >> 2) * s.steps * STEP_BYTES);
    cut.scales = x + first * 4;
    cut.steps = s.steps;
    cut.shortfall = s.steps - (((slice + 1) * s.blocks >> s.cut_bits) - first);
  }
  cut.slices = shared_address(slices_of(memory)) + warp * (TILE * 4);
  cut.rounds = max(units.last - units.first - (warp >> s.kw_bits) + teams - 1, 0) / teams;
  cut.kw_bits = s.kw_bits;
  return cut;
}
template <class M>
__device__ __forceinline__ void multiply_slices(Stream& stream, char* memory, int id, const Shape& s,
                                                const Range& units, int begin, int stop, int columns) {
  const Cut cut = MAX_ROWS == 1 ? stream.cut(id) : cut_of(memory, s, units);
  const int thread = (int)thread_index(), warp = thread >> 5, steps = cut.steps, length = steps - cut.shortfall,
            teams = WARPS >> cut.kw_bits;
  u32 to = cut.slices + (thread & 28) + (columns - 1) * warp * (TILE * 4);
  Block<M> b[2];
  // Uninitialised, they would be live through all phases: more registers, and spills that cost a sixth of the speed.
  if (!EVEN) b[0] = b[1] = {};
  int unit = units.first + begin * teams + (warp >> cut.kw_bits);
#pragma unroll 1
  for (int left = (ONE_BATCH ? cut.rounds : min((int)cut.rounds, stop)) - begin; left > 0;
       --left, unit += teams, to += WARPS * columns * (TILE * 4)) {
    const u32 x = MAX_ROWS > 1 && s.row_units ? unit / s.row_units * OPERAND_STRIDE : 0;
    u32 terms = cut.terms + x / WGMMA_UNIT, scales = cut.scales + x;
    float acc[MAX_ROWS][2] = {};
    int step = 0;
#pragma unroll 1
    for (; step + 1 < steps; step += 2, terms += 2 * STEP_BYTES / WGMMA_UNIT, scales += 8)
      multiply_codes<M, 2>(acc, b, stream, terms, scales, length - step, columns);
    if (step < steps) multiply_codes<M, 1>(acc, b, stream, terms, scales, length - step, columns);
    if ((thread & 3) == (warp & 3)) {
#pragma unroll
      for (int row = 0; row < MAX_ROWS; ++row) {
        if (row && row >= columns) break;
        put4(to + row * (TILE * 4), __float_as_uint(acc[row][0]));
        put4(to + row * (TILE * 4) + 32, __float_as_uint(acc[row][1]));
      }
    }
  }
}
template <class M>
__device__ __forceinline__ void multiply(Stream& stream, char* memory, int id, const Shape& s, const Range& units,
                                         int begin, int stop, int columns) {
  if constexpr (BY_WGMMA<M>)
    multiply_slices<M>(stream, memory, id, s, units, begin, stop, columns);
  else
    multiply_units<M>(stream, memory, slices_of(memory), s, units, begin, stop, columns);
}

// Adds the slices of a row of a tile in order; they lie `stride` apart. The first half of a warp adds the first half of
// the slices, the second half the rest; all lanes get the sum.
__device__ __forceinline__ float added(const float* slices, int stride, int kw_bits) {
  const int half = threadIdx.x >> 4 & 1, middle = ((1 << kw_bits) + 1) >> 1,
            mine = half ? (1 << kw_bits) - middle : middle;
  const float* from = slices + half * middle * stride + (threadIdx.x & 15);
  float sum = 0;
#pragma unroll
  for (int k = 0; k < WARPS / 2; ++k)
    if (k < mine) sum += from[k * stride];
  return sum + __shfl_xor_sync(~0u, sum, 16);
}

// The same for N slices per half-warp. `at` is the shared address of the first.
template <int N>
__device__ __forceinline__ float added_at(u32 at) {
  float part[N], sum = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) part[k] = __uint_as_float(shared4(at + k * (TILE * 4)));
#pragma unroll
  for (int k = 0; k < N; ++k) sum += part[k];
  return sum + __shfl_xor_sync(~0u, sum, 16);
}

#if !FLAT
// The product of a phase (phases.cuh). For every row r of a tile and every row of the step, a whole warp calls
// `phase.store(phase.place(unit, row, r), row, sum)` with the sum over K; r is lane % 16, and lanes 16-31 repeat lanes
// 0-15. Destinations are computed while other warps still multiply. `phase.work_beside()` runs once the slices are
// written. The caller must have a block barrier before they are written again. `phase.finish_one_tile()` replaces all
// this where every warp has at most one tile.
template <class Phase>
__device__ __forceinline__ void linear(Phase& phase) {
  Stream& stream = phase.stream;
  char* memory = phase.memory;
  const int rows = phase.rows, id = phase.id;
  const Shape& s = phase.s;
  const Range& units = phase.units;
  const int columns = MAX_ROWS == 1 || s.row_units ? 1 : rows;  // experts belong to a row: one column at a time
  const int teams = WARPS >> s.kw_bits;
  const int rounds = (units.last - units.first + teams - 1) >> (WARP_BITS - s.kw_bits);
  const int column_bits = columns > 4 ? 3 : columns > 2 ? 2 : columns > 1;  // a warp always has the same column
  const int warp = threadIdx.x >> 5, r = threadIdx.x & 15;
  int begin = 0;
#pragma unroll 1
  do {
    const int stop = ONE_BATCH ? rounds : min(begin + SLICE_ROUNDS / columns, rounds);
    if (begin) block_barrier();
    if (ROUTER_DIFFERS && is_small(id))
      multiply<Small>(stream, memory, id, s, units, begin, stop, columns);
    else if (HEAD_DIFFERS && id == Head::ID)
      multiply<Head>(stream, memory, id, s, units, begin, stop, columns);
    else
      multiply<Qkv>(stream, memory, id, s, units, begin, stop, columns);
    if (LAYER_BATCH && id != Head::ID && s.kw_bits > 1 && units.last - units.first <= WARPS)
      return phase.finish_one_tile();
    const int count = min((stop - begin) * teams, units.last - units.first - begin * teams),
              column = warp & ((1 << column_bits) - 1);
    const bool adds = column < columns && warp < count << column_bits;
    typename Phase::Place to{};  // uninitialised it would be live through all phases
    if (adds) to = phase.place(units.first + begin * teams + (warp >> column_bits), column, r);
    block_barrier();
    if (stop == rounds) phase.work_beside();
#pragma unroll 1
    for (int i = warp; adds && i < count << column_bits; i += WARPS) {
      int u = i >> column_bits;
      if (i != warp) to = phase.place(units.first + begin * teams + u, column, r);
      float sum = added(slices_of(memory) + ((u << s.kw_bits) * columns + column) * TILE, columns * TILE, s.kw_bits);
      phase.store(to, column, sum);
    }
    if (!ONE_BATCH) begin = stop;
  } while (!ONE_BATCH && begin < rounds);
}
#endif
