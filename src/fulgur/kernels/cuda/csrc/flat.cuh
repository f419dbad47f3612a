// The flat cut, for dense models in bf16 (plan.py). A CTA's blocks, counted through all tiles, are one contiguous
// stretch. Its warps divide it evenly, up to WARPS tiles at a time. A warp's part may begin and end inside a tile, so
// it produces one or two partial sums: segments. The segments of a tile meet in shared memory and are added in
// ascending order of K, as slices are elsewhere.
//
// The cut depends only on the matrix and the number of CTAs, so a result never depends on the number of rows or on
// timing.
#pragma once
#include "linear.cuh"

#if FLAT
constexpr int SEGMENTS = 2;  // per warp, for up to WARPS tiles

__device__ __forceinline__ int tile_of(const Shape& s, int block) { return (int)(((float)block + 0.5f) * s.per_block); }

// The tiles that a CTA has blocks of.
__device__ __forceinline__ Range tiles_of(const Shape& s, const Range& units) {
  return units.first == units.last ? Range{0, 0} : Range{tile_of(s, units.first), tile_of(s, units.last - 1) + 1};
}

__device__ __forceinline__ Range units_of(const Shape& s, int) {
  auto first = [&](int cta) {
    return s.phase == Qkv::ID      ? Qkv::first_block(cta)
           : s.phase == O::ID      ? O::first_block(cta)
           : s.phase == GateUp::ID ? GateUp::first_block(cta)
           : s.phase == Down::ID   ? Down::first_block(cta)
                                   : Head::first_block(cta);
  };
  return Range{first(blockIdx.x), first(blockIdx.x + 1)};
}

// Multiplies this warp's segments of chunks begin .. stop - 1 into shared memory.
__device__ __forceinline__ void multiply_segments(Stream& stream, char* memory, const Shape& s, const Range& units,
                                                  int begin, int stop, int columns) {
  const int thread = (int)thread_index(), warp = thread >> 5, lane = thread & 31, g = lane >> 2, t = lane & 3;
  const u32 x =
      shared_address(area_of(memory)) + BF16_AT + (MAX_ROWS > 1 && g < columns ? g : 0) * OPERAND_STRIDE + t * 16;
  float* to = slices_of(memory) + warp * columns * TILE;  // [chunk of the batch][segment][warp][row][16]
#pragma unroll 1
  for (int chunk = begin; chunk < stop; ++chunk, to += SEGMENTS * WARPS * columns * TILE) {
    const int first = units.first + chunk * (s.blocks << WARP_BITS), n = min(units.last - first, s.blocks << WARP_BITS);
    int at = first + (warp * n >> WARP_BITS), tile = tile_of(s, at) * s.blocks;
    const int end = first + ((warp + 1) * n >> WARP_BITS);
    float* segment = to;
#pragma unroll 1
    for (;;) {  // a warp without blocks writes zeros
      float acc[4] = {0, 0, 0, 0};
      const int upto = min(end, tile + s.blocks);
      u32 operand = x + (at - tile) * 256;
#pragma unroll 1
      for (; at < upto; ++at, operand += 256) multiply_block<Qkv>(acc, stream, operand);
      keep_sums(segment, acc, columns);
      if (at >= end) break;
      tile = at;
      segment += WARPS * columns * TILE;
    }
  }
}

// The segments of a tile that this half of the warp adds: the first, and the others after it.
struct Segments {
  const float *first, *from;
  int mine;

  __device__ __forceinline__ void find(const float* slices, const Shape& s, const Range& units, int begin, int index,
                                       int tile, int columns) {
    const int chunk = index >> WARP_BITS, start = units.first + chunk * (s.blocks << WARP_BITS);
    const int n = min(units.last - start, s.blocks << WARP_BITS);
    const int low = max(tile * s.blocks - start, 0), high = min((tile + 1) * s.blocks - start, n) - 1;
    // The warp that has block b is the last w with w * n / WARPS <= b.
    const float inverse = quotient(1.f, (float)n);
    const int w0 = (int)(((float)((low + 1) << WARP_BITS) - 0.5f) * inverse),
              w1 = (int)(((float)((high + 1) << WARP_BITS) - 0.5f) * inverse);
    const bool begun = start + (w0 * n >> WARP_BITS) <
                       tile * s.blocks;  // the warp began in the previous tile: this is its second segment
    const int half = threadIdx.x >> 4 & 1, middle = (w1 - w0 + 2) >> 1;
    mine = half ? w1 - w0 + 1 - middle : middle;
    from = slices + ((chunk - begin) * (SEGMENTS * WARPS) + w0 + half * middle) * columns * TILE;
    first = from + (begun && !half ? WARPS * columns * TILE : 0);
  }
  __device__ __forceinline__ float sum(int stride) const {
    float total = mine > 0 ? *first : 0;
#pragma unroll
    for (int k = 1; k < WARPS / 2; ++k)
      if (k < mine) total += from[k * stride];
    return total + __shfl_xor_sync(~0u, total, 16);
  }
};

// As in linear.cuh; a unit is a tile.
template <class Phase>
__device__ __forceinline__ void linear(Phase& phase) {
  Stream& stream = phase.stream;
  char* memory = phase.memory;
  const int rows = phase.rows;
  const Shape& s = phase.s;
  const Range& units = phase.units;
  const int columns = MAX_ROWS == 1 ? 1 : rows;
  const int column_bits = columns > 4 ? 3 : columns > 2 ? 2 : columns > 1;  // a warp always has the same column
  const Range tiles = tiles_of(s, units);
  const int chunks = (tiles.last - tiles.first + WARPS - 1) >> WARP_BITS;
  const int warp = threadIdx.x >> 5, r = threadIdx.x & 15, column = warp & ((1 << column_bits) - 1);
  int begin = 0;
#pragma unroll 1
  do {
    const int stop = ONE_BATCH ? chunks : min(begin + SLICE_ROUNDS / SEGMENTS / columns, chunks);
    if (begin) block_barrier();
    multiply_segments(stream, memory, s, units, begin, stop, columns);
    const float* slices = slices_of(memory) + column * TILE + r;
    const int count = min(tiles.last - tiles.first, stop << WARP_BITS) - (begin << WARP_BITS);
    const bool adds = column < columns && warp < count << column_bits;
    int unit = (begin << WARP_BITS) + (warp >> column_bits);
    typename Phase::Place to{};  // uninitialised it would be live through all phases
    Segments segments;
    if (adds) {
      to = phase.place(tiles.first + unit, column, r);
      segments.find(slices, s, units, begin, unit, tiles.first + unit, columns);
    }
    block_barrier();
#pragma unroll 1
    for (int i = warp; adds && i < count << column_bits; i += WARPS) {
      if (i != warp) {
        unit = (begin << WARP_BITS) + (i >> column_bits);
        to = phase.place(tiles.first + unit, column, r);
        segments.find(slices, s, units, begin, unit, tiles.first + unit, columns);
      }
      float sum = segments.sum(columns * TILE);
      phase.store(to, column, sum);
    }
    if (!ONE_BATCH) begin = stop;
  } while (!ONE_BATCH && begin < chunks);
}
#endif
