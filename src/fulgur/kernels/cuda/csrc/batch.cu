// A step of many rows between its products (wide.cuh): every row is a token of its own, at its own place of its own
// sequence. Rows are few, so a CTA has one row, or one head of it: latency counts, not work.
//
// Products over few rows are cut along their columns, so that all SMs read weights; whoever reads the sums adds their
// parts up in order. Sums therefore do not depend on which CTA is first, nor on the other rows of the step. Launches
// depend on each other (programmatic dependent launch): a product fetches its first weights before it waits.
#include "attend.cuh"
#include "wide.cuh"

constexpr int ROW_THREADS = 1024;

__device__ __forceinline__ float row_sum(float v, float* room) {  // of a CTA
  for (int mask = 16; mask; mask >>= 1) v += __shfl_xor_sync(~0u, v, mask);
  if ((threadIdx.x & 31) == 0) room[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < ROW_THREADS / 32; ++i) sum += room[i];
  __syncthreads();
  return sum;
}

// The residual of a row grows by the parts of a product, or by what its experts made; then its norm.
struct StepNorm {
  const StepRows* rows;
  const bf16* embed;   // the residual begins here; null: it goes on
  const float* parts;  // [split, row, width]; null: none
  const bf16* y;       // [sorted row, width]; null: no experts
  const int* place;    // [row, top]
  float* x;            // [row, width]
  const float* weight;
  bf16 *out, *plain;  // [row, stride] in `ordered` columns; plain, without the weight, may be null
  int n, width, stride, splits, top;
  float eps;
};
KERNEL(step_norm, 1024, StepNorm) {
  SHARED_MEMORY(memory);
  let_successor_start();
  wait_for_predecessor();
  float* room = (float*)memory;  // [32], then the row
  float* x = room + 32;
  const int row = blockIdx.x, thread = threadIdx.x;
  const long long at = (long long)row * p.width;
  if (row >= p.rows->count) return;
  float squares = 0;
  for (int i = thread; i < p.width; i += ROW_THREADS) {
    float v = p.embed ? bf16_at(p.embed + (long long)p.rows->token[row] * p.width + i) : p.x[at + i];
#pragma unroll 8
    for (int s = 0; s < p.splits; ++s) v += p.parts[(long long)s * p.n * p.width + at + i];
#pragma unroll 8
    for (int k = 0; k < p.top; ++k) v += bf16_at(p.y + (long long)p.place[row * p.top + k] * p.width + i);
    p.x[at + i] = x[i] = v;
    squares += v * v;
  }
  const float factor = rsqrtf(row_sum(squares, room) / p.width + p.eps);
  for (int i = 2 * thread; i < p.stride; i += 2 * ROW_THREADS) {
    const int column = ordered_column(i);
    const bool inside = column < p.width;
    const float a = inside ? x[column] * factor : 0.f, b = inside ? x[column + 1] * factor : 0.f;
    const long long to = (long long)row * p.stride + i;
    *(u32*)(p.out + to) = inside ? pack_bf16(a * p.weight[column], b * p.weight[column + 1]) : 0;
    if (p.plain) *(u32*)(p.plain + to) = pack_bf16(a, b);
  }
}

// The experts of all rows: chosen by falling logit, then rows sorted by expert and cut into tiles. One CTA, a warp a
// row.
struct StepRoute {
  const StepRows* rows;
  const float* parts;  // [split, row, stride]: of the router's logits
  int *row, *place;    // of every sorted row its row; of every choice its sorted row
  float* share;        // of every sorted row
  Tile* tiles;
  int* tile_count;
  int n, splits, stride, experts, top, tokens, normalise, pad;
};
KERNEL(step_route, 1024, StepRoute) {
  SHARED_MEMORY(memory);
  let_successor_start();
  wait_for_predecessor();
  int* chosen = (int*)memory;                 // [64 * 16]
  float* share = (float*)(chosen + 64 * 16);  // [64 * 16]
  int* starts = (int*)(share + 64 * 16);      // [257]
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, thread = threadIdx.x, count = p.rows->count;
  for (int row = warp; row < count; row += 32) {
    float logit[8];
    float highest = 0, all = 0, kept = 0, mine = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int expert = lane + 32 * j;
      logit[j] = expert < p.experts ? 0.f : -INF;
      const float* from = p.parts + (long long)row * p.stride + expert;
      if (expert < p.experts)
#pragma unroll 16
        for (int s = 0; s < p.splits; ++s) logit[j] += from[(long long)s * p.n * p.stride];
    }
    for (int k = 0; k < p.top; ++k) {
      float best = -INF;
      int which = p.experts;
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (logit[j] > best) best = logit[j], which = lane + 32 * j;
      for (int mask = 16; mask; mask >>= 1) {
        const float other = __shfl_xor_sync(~0u, best, mask);
        const int whose = __shfl_xor_sync(~0u, which, mask);
        if (other > best || (other == best && whose < which)) best = other, which = whose;
      }
      which = min(which, p.experts - 1);  // logits that are not numbers: some expert
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
        if (which == lane + 32 * j) logit[j] = -INF;
    }
    if (lane < p.top) share[row * p.top + lane] = quotient(mine, p.normalise ? kept : all);
  }
  for (int i = thread; i <= p.experts; i += 1024) starts[i] = 0;
  __syncthreads();
  const int choices = count * p.top;
  for (int i = thread; i < choices; i += 1024) atomicAdd(&starts[chosen[i] + 1], 1);
  __syncthreads();
  if (warp == 0) {  // sums of rows before each expert, and of tiles
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
  for (int i = thread; i < choices; i += 1024) {  // the place of a choice: equal experts in the order they came
    const int expert = chosen[i];
    int place = starts[expert];
    for (int j = 0; j < i; ++j) place += chosen[j] == expert;
    p.row[place] = i / p.top, p.place[i] = place, p.share[place] = share[i];
  }
}
