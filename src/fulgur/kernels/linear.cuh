// A matrix times up to 8 rows: weights stream through the ring, 16 rows x 16 columns x 8 rows an instruction.
//
// KW warps share a tile of 16 rows by cutting K into slices; a slice is summed in fp32 block by block (two chains of
// instructions, even and odd steps, added per scale group), the slices of a tile meet in shared memory and are added in
// ascending order. A result thus never depends on the number of rows or on timing. Narrow weights become bf16 in
// registers, exactly; scales multiply the sums. Several tiles are reduced at a time to keep block barriers rare.
#pragma once
#include "operand.cuh"
#include "stream.cuh"

// Four fp8 e4m3 to two bf16 pairs: moving exponent and mantissa into place makes a number 2^120 too small.
__device__ __forceinline__ void widen_fp8(u32 w, u32& even, u32& odd) {
  u32 e = ((w << 8) & 0x80008000u) | ((w << 4) & 0x07f007f0u);
  u32 o = (w & 0x80008000u) | ((w >> 4) & 0x07f007f0u);
  even = fma_bf16x2(e, 0x7b807b80u, 0x80008000u);
  odd = fma_bf16x2(o, 0x7b807b80u, 0x80008000u);
}
// A nibble v under the mantissa of 128 is the bf16 128 + v; v = q + 8.
__device__ __forceinline__ u32 widen_int4(u32 w, int i) {
  return fma_bf16x2(((w >> (4 * i)) & 0x000f000fu) | 0x43004300u, 0x3f803f80u, 0xc308c308u);
}

// Rows 0-7 and 8-15 of a tile have their own scale; a product with 1 is exact.
__device__ __forceinline__ void scaled(float (&acc)[4], const float (&even)[4], const float (&odd)[4], float top, float bottom) {
  acc[0] = fmaf(top, even[0] + odd[0], acc[0]);
  acc[1] = fmaf(top, even[1] + odd[1], acc[1]);
  acc[2] = fmaf(bottom, even[2] + odd[2], acc[2]);
  acc[3] = fmaf(bottom, even[3] + odd[3], acc[3]);
}

template <class M> __device__ __forceinline__ void multiply_block(float (&acc)[4], Stream& stream, u32 operand) {
  constexpr int FORMAT = M::FORMAT, CHUNKS = M::PIECE_BYTES / CHUNK;
  constexpr int GROUPS = FORMAT == INT4_64 ? 2 : 1;
  const u32 lane = threadIdx.x & 31;
  uint4 x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = shared16(operand + i * 64);
  float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0}, top[GROUPS], bottom[GROUPS];
#pragma unroll
  for (int piece = 0; piece < M::PIECES; ++piece) {
    u32 at = stream.acquire();
    uint4 w[CHUNKS];
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i) w[i] = shared16(at + i * CHUNK + lane * 16);
    if (piece + 1 == M::PIECES) {
      u32 record = at + M::PIECE_BYTES;
      if constexpr (FORMAT == FP8) {
        top[0] = __uint_as_float(shared4(record));
        bottom[0] = __uint_as_float(shared4(record + 4));
      } else if constexpr (FORMAT == FP8_ROWS) {
        top[0] = __uint_as_float(shared4(record + (lane >> 2) * 4));
        bottom[0] = __uint_as_float(shared4(record + (lane >> 2) * 4 + 32));
      } else if constexpr (FORMAT == INT4 || FORMAT == INT4_64) {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
          top[g] = from_half(shared2(record + g * 32 + (lane >> 2) * 2));
          bottom[g] = from_half(shared2(record + g * 32 + (lane >> 2) * 2 + 16));
        }
      }
    }
    stream.release();
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i) {
      const int n = piece * CHUNKS + i;
      if constexpr (FORMAT == BF16) {
        uint4 v = x[n / 2];
        if (n % 2 == 0) mma(even, w[i].x, w[i].y, w[i].z, w[i].w, v.x, v.y);
        else mma(odd, w[i].x, w[i].y, w[i].z, w[i].w, v.z, v.w);
      } else if constexpr (FORMAT == FP8 || FORMAT == FP8_ROWS) {
        u32 a0, a1, a2, a3;
        widen_fp8(w[i].x, a0, a1);
        widen_fp8(w[i].y, a2, a3);
        mma(even, a0, a1, a2, a3, x[n].x, x[n].y);
        widen_fp8(w[i].z, a0, a1);
        widen_fp8(w[i].w, a2, a3);
        mma(odd, a0, a1, a2, a3, x[n].z, x[n].w);
      } else {
        u32 words[4] = {w[i].x, w[i].y, w[i].z, w[i].w};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          u32 p = words[2 * j], q = words[2 * j + 1];
          uint4 v = x[2 * n + j];
          mma(even, widen_int4(p, 0), widen_int4(p, 1), widen_int4(p, 2), widen_int4(p, 3), v.x, v.y);
          mma(odd, widen_int4(q, 0), widen_int4(q, 1), widen_int4(q, 2), widen_int4(q, 3), v.z, v.w);
        }
        if (GROUPS == 2) {
          scaled(acc, even, odd, top[n], bottom[n]);
#pragma unroll
          for (int k = 0; k < 4; ++k) even[k] = odd[k] = 0;
        }
      }
    }
  }
  if constexpr (FORMAT == BF16) scaled(acc, even, odd, 1.f, 1.f);
  else if constexpr (GROUPS == 1) scaled(acc, even, odd, top[0], bottom[0]);
}

// How a matrix is cut, as values: the persistent driver runs all of its phases through one copy of the code below, which
// then stays in the instruction cache.
struct Shape {
  int phase, tiles, units;      // units of a step over one row
  int kw_bits, cut_bits;        // logarithms of the warps that share a unit, and of these times the splits of K
  int blocks;                   // along K, of all slices
  int row_units;                // with experts: the units of one row; otherwise 0
};
#define SHAPE_OF(M) Shape{M::ID, M::TILES, M::UNITS, M::KW_BITS, M::CUT_BITS, M::BLOCKS, M::COPIES > 1 ? M::UNITS : 0}

struct Share {                  // what one CTA does of a matrix
  int first, last;
  __device__ Share(const Shape& s, int rows) {
    int units = s.row_units ? rows * s.units : s.units;
    first = (int)blockIdx.x * units / CTAS;
    last = ((int)blockIdx.x + 1) * units / CTAS;
  }
};

// Rounds begin..stop of this warp's units, each 1 / KW of K; the sums go to the slices in shared memory.
template <class M>
__device__ __forceinline__ void multiply_units(Stream& stream, char* memory, const Shape& s, const Share& share, int begin, int stop,
                                               int columns) {
  float* slices = slices_of(memory);                         // [unit of the batch][warp of the unit][row][16]
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  int team = warp >> s.kw_bits, member = warp & ((1 << s.kw_bits) - 1), teams = WARPS >> s.kw_bits;
#pragma unroll 1
  for (int round = begin; round < stop; ++round) {
    int unit = share.first + round * teams + team;
    if (unit >= share.last) break;
    int split = s.cut_bits > s.kw_bits ? unit / s.tiles : 0, slice = (split << s.kw_bits) + member;
    int row = MAX_ROWS == 1 ? 0 : s.row_units ? unit / s.row_units : g < columns ? g : 0;
    u32 x = shared_address(area_of(memory)) + row * OPERAND_STRIDE + t * 16;
    float acc[4] = {0, 0, 0, 0};
    int block_end = (slice + 1) * s.blocks >> s.cut_bits;
#pragma unroll 1
    for (int block = slice * s.blocks >> s.cut_bits; block < block_end; ++block) multiply_block<M>(acc, stream, x + block * 256);
    float* to = slices + ((((round - begin) * teams + team) << s.kw_bits) + member) * columns * TILE;
    if (2 * t < columns) {
      to[2 * t * TILE + g] = acc[0];
      to[2 * t * TILE + g + 8] = acc[2];
    }
    if (MAX_ROWS > 1 && 2 * t + 1 < columns) {
      to[(2 * t + 1) * TILE + g] = acc[1];
      to[(2 * t + 1) * TILE + g + 8] = acc[3];
    }
  }
}

// `store(unit, row, r, sum, pair)`: rows r of a tile and of the step, summed over K. Gate and up rows share a tile: there `pair`
// is row r + 8, and r runs over 0..7. The caller has a block barrier before the slices are written again.
template <class Store>
__device__ __forceinline__ void linear(Stream& stream, char* memory, int rows, const Shape& s, Store store) {
  const float* slices = slices_of(memory);
  const Share share(s, rows);
  const int columns = MAX_ROWS == 1 || s.row_units ? 1 : rows;     // experts are a row's own: one column at a time
  const int teams = WARPS >> s.kw_bits, kw = 1 << s.kw_bits, batch = SLICE_ROUNDS / columns;
  const int rounds = (share.last - share.first + teams - 1) >> (WARP_BITS - s.kw_bits);
  const int row_bits = s.phase == Gate_up::ID ? 3 : 4;
#pragma unroll 1
  for (int begin = 0; begin < rounds; begin += batch) {
    int stop = min(begin + batch, rounds);
    if (begin) block_barrier();
#if EXPERTS
    if (ROUTER_DIFFERS && s.phase == Router::ID) multiply_units<Router>(stream, memory, s, share, begin, stop, columns);
    else
#endif
    if (HEAD_DIFFERS && s.phase == Head::ID) multiply_units<Head>(stream, memory, s, share, begin, stop, columns);
    else multiply_units<Qkv>(stream, memory, s, share, begin, stop, columns);
    block_barrier();
    int units = min((stop - begin) * teams, share.last - share.first - begin * teams);
    int column_bits = columns > 4 ? 3 : columns > 2 ? 2 : columns > 1;     // a thread always has the same column
#pragma unroll 1
    for (int i = threadIdx.x; i < units << (column_bits + row_bits); i += THREADS) {
      int r = i & ((1 << row_bits) - 1), column = (i >> row_bits) & ((1 << column_bits) - 1), u = i >> (row_bits + column_bits);
      if (column >= columns) continue;
      const float* from = slices + ((u << s.kw_bits) * columns + column) * TILE + r;
      float sum = 0, pair = 0;
#pragma unroll 4
      for (int k = 0; k < kw; ++k) {
        sum += from[k * columns * TILE];
        pair += from[k * columns * TILE + 8];      // of no meaning, but there, where rows are not paired
      }
      store(share.first + begin * teams + u, column, r, sum, pair);
    }
  }
}
