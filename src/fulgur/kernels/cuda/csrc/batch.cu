// What a step of many rows does between its products (rows.cuh). Every row is a separate token, at its own position in
// its own sequence. Rows are few, so a CTA has one row, or one head of a row: latency counts, not throughput.
//
// Products over few rows are cut along their columns, so that all SMs read weights; the reader of the sums adds their
// parts in order. So sums depend neither on which CTA is first nor on the other rows of the step. With programmatic
// dependent launch, a product fetches its first weights before it waits for its predecessor.
#include "attend.cuh"
#include "wide.cuh"

__device__ __forceinline__ float row_sum(float v, float* room, int warps) {  // of a CTA
  for (int mask = 16; mask; mask >>= 1) v += __shfl_xor_sync(~0u, v, mask);
  if ((threadIdx.x & 31) == 0) room[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0;
#pragma unroll 8
  for (int i = 0; i < warps; ++i) sum += room[i];
  return sum;
}
__device__ __forceinline__ void add(float4& v, float4 by) { v.x += by.x, v.y += by.y, v.z += by.z, v.w += by.w; }
__device__ __forceinline__ float4 four_at(const bf16* p) {
  const uint2 bits = *(const uint2*)p;
  return make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
                     __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u));
}
// Stores four columns at their places in `ordered` columns; `column`, a multiple of 4, is the first.
__device__ __forceinline__ void put_ordered(bf16* row, int column, float4 v) {
  const int at = (column & ~31) | (column >> 2 & 1) << 4 | (column >> 3 & 3) << 1;
  *(u32*)(row + at) = pack_bf16(v.x, v.y), *(u32*)(row + at + 8) = pack_bf16(v.z, v.w);
}

// Adds the parts of a product, or the outputs of its experts, to a row's residual, then computes its norm. A thread has
// four columns at a time. What no predecessor writes is read before the predecessor ends.
struct StepNorm {
  const StepRows* rows;
  const bf16* embed;   // the residual starts as the embedding; null: it is in `x`
  const float* parts;  // [split, row, width]; null: none
  const bf16* y;       // [sorted row, width]; null: no experts
  const int* place;    // [row, top]
  float* x;            // [row, width]
  const float* weight;
  bf16 *out, *plain;  // [row, stride] in `ordered` columns; plain, without the weight, may be null
  int n, width, stride, splits, top, threads;
  float eps;
};
KERNEL(step_norm, 1024, StepNorm) {
  SHARED_MEMORY(memory);
  let_successor_start();
  float* room = (float*)memory;  // [32], then the row
  float* x = room + 32;
  const int row = blockIdx.x, first = 4 * threadIdx.x, step = 4 * p.threads;
  const long long at = (long long)row * p.width;
  const bool there = row < p.rows->count;
  const int token = p.rows->token[row];
  float4 weight = first < p.width ? *(const float4*)(p.weight + first) : make_float4(0, 0, 0, 0);
  wait_for_predecessor();
  if (!there) return;
  float squares = 0;
  for (int i = first; i < p.width; i += step) {
    float4 v = p.embed ? four_at(p.embed + (long long)token * p.width + i) : *(const float4*)(p.x + at + i);
#pragma unroll 8
    for (int s = 0; s < p.splits; ++s) add(v, *(const float4*)(p.parts + (long long)s * p.n * p.width + at + i));
#pragma unroll 8
    for (int k = 0; k < p.top; ++k) add(v, four_at(p.y + (long long)p.place[row * p.top + k] * p.width + i));
    *(float4*)(p.x + at + i) = *(float4*)(x + i) = v;
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  const float factor = rsqrtf(row_sum(squares, room, p.threads / 32) / p.width + p.eps);
  for (int i = first; i < p.stride; i += step) {
    float4 v = make_float4(0, 0, 0, 0);
    if (i < p.width) {
      v = *(const float4*)(x + i);
      if (i != first) weight = *(const float4*)(p.weight + i);
      v.x *= factor, v.y *= factor, v.z *= factor, v.w *= factor;
    }
    const long long to = (long long)row * p.stride;
    if (p.plain) put_ordered(p.plain + to, i, v);
    put_ordered(p.out + to, i, make_float4(v.x * weight.x, v.y * weight.y, v.z * weight.z, v.w * weight.w));
  }
}

// Chooses the experts of all rows, by descending logit, then sorts rows by expert and cuts them into tiles. One CTA, a
// warp per row.
struct StepRoute {
  const StepRows* rows;
  const float* parts;     // [split, row, stride]: of the router's logits
  int *row, *place;       // the row of every sorted row; the sorted row of every choice
  float* routing_weight;  // of every sorted row
  Tile* tiles;
  int* tile_count;
  int n, splits, stride, experts, top, tokens, normalise, pad;
};
KERNEL(step_route, 1024, StepRoute) {
  SHARED_MEMORY(memory);
  let_successor_start();
  wait_for_predecessor();
  int* chosen = (int*)memory;                          // [64 * 16]
  float* routing_weight = (float*)(chosen + 64 * 16);  // [64 * 16]
  int* starts = (int*)(routing_weight + 64 * 16);      // [257]
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, thread = threadIdx.x, count = p.rows->count;
  for (int row = warp; row < count; row += 32) {
    float logit[8];  // a lane has experts 4 * lane .. + 3, and those 128 further on
    float highest = 0, all = 0, kept = 0, mine = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int expert = 128 * half + 4 * lane;
      float4 sum = make_float4(0, 0, 0, 0);
      if (expert < p.experts)
#pragma unroll 8
        for (int s = 0; s < p.splits; ++s)
          add(sum, *(const float4*)(p.parts + ((long long)s * p.n + row) * p.stride + expert));
      logit[4 * half] = expert < p.experts ? sum.x : -INF, logit[4 * half + 1] = expert + 1 < p.experts ? sum.y : -INF;
      logit[4 * half + 2] = expert + 2 < p.experts ? sum.z : -INF;
      logit[4 * half + 3] = expert + 3 < p.experts ? sum.w : -INF;
    }
    for (int k = 0; k < p.top; ++k) {
      float best = -INF;
      int which = p.experts;
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (logit[j] > best) best = logit[j], which = 4 * lane + (j & 3) + (j >> 2) * 128;
      for (int mask = 16; mask; mask >>= 1) {
        const float other = __shfl_xor_sync(~0u, best, mask);
        const int whose = __shfl_xor_sync(~0u, which, mask);
        if (other > best || (other == best && whose < which)) best = other, which = whose;
      }
      which = min(which, p.experts - 1);  // NaN logits: any valid expert
      if (k == 0) {
        highest = best;
#pragma unroll
        for (int j = 0; j < 8; ++j) all += power2((logit[j] - highest) * 1.44269504f);
        for (int mask = 16; mask; mask >>= 1) all += __shfl_xor_sync(~0u, all, mask);
      }
      const float weight = power2((best - highest) * 1.44269504f);
      kept += weight;
      if (lane == k) mine = weight, chosen[row * p.top + k] = which;
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (which == 4 * lane + (j & 3) + (j >> 2) * 128) logit[j] = -INF;
    }
    if (lane < p.top) routing_weight[row * p.top + lane] = quotient(mine, p.normalise ? kept : all);
  }
  for (int i = thread; i <= p.experts; i += 1024) starts[i] = 0;
  __syncthreads();
  const int choices = count * p.top;
  for (int i = thread; i < choices; i += 1024) atomicAdd(&starts[chosen[i] + 1], 1);
  __syncthreads();
  if (warp == 0) {  // for each expert, the rows and tiles of those before it
    int rows = 0, tiles = 0;
    for (int from = 0; from < p.experts; from += 32) {
      const int expert = from + lane, own = expert < p.experts ? starts[expert + 1] : 0,
                cut = (own + p.tokens - 1) / p.tokens;
      int before = 0, tile = 0, all = own, every = cut;
      for (int step = 1; step < 32; step <<= 1) {
        const int a = __shfl_xor_sync(~0u, all, step), b = __shfl_xor_sync(~0u, every, step);
        if (lane & step) before += a, tile += b;
        all += a, every += b;
      }
      __syncwarp();
      if (expert < p.experts) {
        starts[expert + 1] = rows + before + own;
        for (int t = 0; t < cut; ++t)
          p.tiles[tiles + tile + t] = Tile{expert, rows + before + t * p.tokens, min(own - t * p.tokens, p.tokens), 0};
      }
      rows += all, tiles += every;
    }
    if (lane == 0) *p.tile_count = tiles;
  }
  __syncthreads();
  for (int i = thread; i < choices; i += 1024) {  // the place of a choice; choices of one expert keep their order
    const int expert = chosen[i];
    int place = starts[expert];
#pragma unroll 4
    for (int j = 0; j < i; j += 4) {
      const uint4 c = *(const uint4*)(chosen + j);
      place += ((int)c.x == expert) + (j + 1 < i && (int)c.y == expert) + (j + 2 < i && (int)c.z == expert) +
               (j + 3 < i && (int)c.w == expert);
    }
    p.row[place] = i / p.top, p.place[i] = place, p.routing_weight[place] = routing_weight[i];
  }
}

// Prepares the rows of the next step: the same sequences, one position further, with the tokens just chosen.
struct StepAdvance {
  StepRows* rows;
  const int* tokens;  // by row
  char* chosen;       // the position of a row's next choice, every `stride` bytes
  int stride, pad;
};
KERNEL(step_advance, 64, StepAdvance) {
  wait_for_predecessor();
  const int row = threadIdx.x;
  if (row >= p.rows->count) return;
  p.rows->token[row] = p.tokens[row];
  p.rows->position[row] += 1;
  *(int*)(p.chosen + row * p.stride) += 1;
}
