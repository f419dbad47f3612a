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

template <int FORMAT, class S>
__device__ __forceinline__ void multiply_block(float (&acc)[4], const S& stream, u32 operand) {
  float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};
  if constexpr (FORMAT == BF16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint4 x = shared16(operand + i * 64);
      uint4 a = shared16(stream.chunk(2 * i)), b = shared16(stream.chunk(2 * i + 1));
      mma(even, a.x, a.y, a.z, a.w, x.x, x.y);
      mma(odd, b.x, b.y, b.z, b.w, x.z, x.w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i] += even[i] + odd[i];
  } else if constexpr (FORMAT == FP8 || FORMAT == FP8_ROWS) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint4 x = shared16(operand + i * 64);
      uint4 w = shared16(stream.chunk(i));
      u32 a0, a1, a2, a3;
      widen_fp8(w.x, a0, a1);
      widen_fp8(w.y, a2, a3);
      mma(even, a0, a1, a2, a3, x.x, x.y);
      widen_fp8(w.z, a0, a1);
      widen_fp8(w.w, a2, a3);
      mma(odd, a0, a1, a2, a3, x.z, x.w);
    }
    int lane = threadIdx.x & 31;
    u32 record = stream.chunk(4) - lane * 16;
    float top, bottom;
    if (FORMAT == FP8) {
      top = __uint_as_float(shared4(record));
      bottom = __uint_as_float(shared4(record + 4));
    } else {
      top = __uint_as_float(shared4(record + (lane >> 2) * 4));
      bottom = __uint_as_float(shared4(record + (lane >> 2) * 4 + 32));
    }
    acc[0] = fmaf(top, even[0] + odd[0], acc[0]);
    acc[1] = fmaf(top, even[1] + odd[1], acc[1]);
    acc[2] = fmaf(bottom, even[2] + odd[2], acc[2]);
    acc[3] = fmaf(bottom, even[3] + odd[3], acc[3]);
  } else {
    int lane = threadIdx.x & 31;
    u32 record = stream.chunk(2) - lane * 16 + (lane >> 2) * 2;
    constexpr int GROUPS = FORMAT == INT4_64 ? 2 : 1;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint4 w = shared16(stream.chunk(half));
      u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint4 x = shared16(operand + (half * 2 + j) * 64);
        u32 p = words[2 * j], q = words[2 * j + 1];
        mma(even, widen_int4(p, 0), widen_int4(p, 1), widen_int4(p, 2), widen_int4(p, 3), x.x, x.y);
        mma(odd, widen_int4(q, 0), widen_int4(q, 1), widen_int4(q, 2), widen_int4(q, 3), x.z, x.w);
      }
      if (half + 1 == 2 || GROUPS == 2) {
        u32 at = record + (GROUPS == 2 ? half * 32 : 0);
        float top = from_half(shared2(at)), bottom = from_half(shared2(at + 16));
        acc[0] = fmaf(top, even[0] + odd[0], acc[0]);
        acc[1] = fmaf(top, even[1] + odd[1], acc[1]);
        acc[2] = fmaf(bottom, even[2] + odd[2], acc[2]);
        acc[3] = fmaf(bottom, even[3] + odd[3], acc[3]);
#pragma unroll
        for (int i = 0; i < 4; ++i) even[i] = odd[i] = 0;
      }
    }
  }
}

// `epilogue(unit, row, r, sum, pair)`: rows r of a tile and of the step, summed over K; `pair` is row r + 8 when PAIRED
// (a gate and its up row), and r then runs over 0..7.
template <class M, bool PAIRED, class S, class Epilogue>
__device__ inline void linear(S& stream, char* memory, int rows, Epilogue epilogue) {
  constexpr int TEAMS = WARPS / M::KW;
  const char* operand = area_of(memory);
  float* slices = slices_of(memory);                         // [unit of the batch][warp of the unit][row][16]
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  int team = warp / M::KW, member = warp % M::KW;
  int first = M::first(blockIdx.x, rows), last = M::first(blockIdx.x + 1, rows);
  int rounds = (last - first + TEAMS - 1) / TEAMS, batch = SLICE_ROUNDS / (M::COPIES > 1 ? 1 : rows);
  const int columns = M::COPIES > 1 ? 1 : rows;              // experts are a row's own: one column at a time
  for (int begin = 0; begin < rounds; begin += batch) {
    int stop = min(begin + batch, rounds);
    for (int round = begin; round < stop; ++round) {
      int unit = first + round * TEAMS + team;
      if (unit >= last) continue;
      int split = M::SPLIT > 1 ? unit / M::TILES : 0;
      int row = g < columns ? g : 0;
      if (M::COPIES > 1) row = unit / (M::TILES * (M::JOINED ? 1 : M::CHOSEN_COPIES));
      u32 x = shared_address(operand) + row * OPERAND_STRIDE + t * 16;
      float acc[4] = {0, 0, 0, 0};
      int block_end = M::slice(split, member + 1);
#pragma unroll 1
      for (int block = M::slice(split, member); block < block_end; ++block) {
        stream.template acquire<M::CHUNKS>();
        if (M::RECORD) __syncwarp();
        multiply_block<M::FORMAT>(acc, stream, x + block * 256);
        stream.template release<M::CHUNKS>();
      }
      float* to = slices + (((round - begin) * TEAMS + team) * M::KW + member) * columns * TILE;
      if (2 * t < columns) {
        to[2 * t * TILE + g] = acc[0];
        to[2 * t * TILE + g + 8] = acc[2];
      }
      if (2 * t + 1 < columns) {
        to[(2 * t + 1) * TILE + g] = acc[1];
        to[(2 * t + 1) * TILE + g + 8] = acc[3];
      }
    }
    __syncthreads();
    constexpr int R = PAIRED ? 8 : 16;
    int units = min((stop - begin) * TEAMS, last - first - begin * TEAMS);
    int padded = columns > 4 ? 8 : columns > 2 ? 4 : columns;     // a thread always has the same column
    for (int i = threadIdx.x; i < units * padded * R; i += THREADS) {
      int r = i % R, column = i / R % padded, u = i / R / padded;
      if (column >= columns) continue;
      float sum = 0, pair = 0;
#pragma unroll
      for (int k = 0; k < M::KW; ++k) {
        const float* from = slices + ((u * M::KW + k) * columns + column) * TILE + r;
        sum += from[0];
        if (PAIRED) pair += from[8];
      }
      epilogue(first + begin * TEAMS + u, column, r, sum, pair);
    }
    __syncthreads();
  }
}
