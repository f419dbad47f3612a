// Attention over many keys: the part of a split that is in the cache whatever the step's other rows are.
//
// Four warps, a quad, take a block of 64 keys, so a CTA works on four blocks at a time. Each quad keeps its own
// maximum, sum and weighted values; quads wait for each other only once all keys have been read. In the loop of
// attention.cuh all warps work on one block: that is quicker for few keys, but takes three barriers of the CTA per
// block. The number of loads in flight is bounded by registers, of which the rest of the step leaves few.
//
// Keys and values go from memory straight into the registers of the matrix instruction. A warp computes the scores of
// 16 keys (16 keys x 8 queries, dimensions in the order of a lane's loads). The quad's warps exchange them, and each
// sums a quarter of the dimensions of all 64 values (dimensions x 8 queries, 16 keys at a time). For this a lane loads
// DIMS dimensions of four keys and pairs those of two keys.
//
// Which keys are read here depends on the row's position alone, so a row has the same bits in every step.
#pragma once
#include "cache.cuh"
#include "exchange.cuh"

constexpr bool HAS_LONG = GROUP <= 8 && (HEAD_DIM == 64 || HEAD_DIM == 128);
constexpr int WARPGROUPS = WARPS / 4,
              LONG_KEYS = 8 * HEAD_DIM;  // a split with fewer keys is faster in the loop of blocks
constexpr int DIMS = HEAD_DIM / 32, VALUE_TILES = (DIMS + 1) / 2;  // of a lane; of a warp
constexpr int VALUE_BYTES = KV_FP8 ? 1 : 2, HEAD_BYTES = HEAD_DIM * VALUE_BYTES;
constexpr int FIRST_QUAD_BARRIER = 3;

// Keys begin .. long_end() - 1 of a split are read here: none from `end` on, and none of the last 64, which may include
// the step's own rows.
__device__ __forceinline__ int long_end(int position, int begin, int end) {
  const int stop = min(end, max(position - (KV_BLOCK - 1), 0)) / KV_BLOCK * KV_BLOCK;
  return HAS_LONG && stop - begin >= LONG_KEYS ? stop : begin;
}

// Lies where attention.cuh keeps a block's values and scores.
struct LongScratch {
  float peak[WARPGROUPS + 1][8], total[WARPGROUPS + 1][8];  // the last entry: what the loop of blocks found
  union {
    float score[WARPGROUPS][8][KV_BLOCK + 8];  // [query][key]; the 8 avoid bank conflicts
    float sum[WARPGROUPS][HEAD_DIM][8];        // weighted values, [dimension][query]
  };
};

// A head's keys in a block of the cache, and their exponents (with KV_FP8). Values lie `to_values` further on.
struct KeysAt {
  const char* keys;
  const unsigned char* exponents;
  __device__ __forceinline__ KeysAt(const Args& args, int layer, int head, int number) {
    const long long slot = ((place_of(layer) * 2 * args.kv_blocks + number) * KV_HEADS + head) * KV_BLOCK;
    keys = (const char*)args.kv + slot * HEAD_BYTES;
    exponents = args.exponents + slot;
  }
  static __device__ __forceinline__ long long to_values(const Args& args) {
    return args.kv_blocks * (KV_HEADS * KV_BLOCK);  // in tokens
  }
};

// A warp's 16 keys of a block: r and r + 8, dimensions in the order of a lane's loads.
struct WarpKeys {
  static constexpr int LOADS = HEAD_BYTES < 64 ? 1 : HEAD_BYTES / 64;
  uint4 top[LOADS], bottom[LOADS];
  u32 exponents[2];

  __device__ __forceinline__ void load(const char* keys, const unsigned char* from) {
    const int lane = threadIdx.x & 31, r = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      top[i] = load16(keys + r * HEAD_BYTES + i * 64 + t * 16);
      bottom[i] = load16(keys + (r + 8) * HEAD_BYTES + i * 64 + t * 16);
    }
    if (KV_FP8) exponents[0] = __ldcg(from + r), exponents[1] = __ldcg(from + r + 8);
  }
  // Scores for queries 2 t and 2 t + 1.
  __device__ __forceinline__ void multiply(float (&dots)[4], const bf16* queries) const {
    const int lane = threadIdx.x & 31, r = lane >> 2, t = lane & 3;
    const bf16* q = queries + r * (HEAD_DIM + 8) + t * (16 / VALUE_BYTES);
#pragma unroll
    for (int i = 0; i < 4; ++i) dots[i] = 0;
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      if constexpr (KV_FP8) {
        const u32 k[4] = {top[i].x, top[i].y, top[i].z, top[i].w},
                  l[4] = {bottom[i].x, bottom[i].y, bottom[i].z, bottom[i].w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const uint2 x = *(const uint2*)(q + i * 64 + 4 * w);
          u32 a[4];
          widen_codes(k[w], cache_factor(exponents[0], exponents[0]), a[0], a[2]);
          widen_codes(l[w], cache_factor(exponents[1], exponents[1]), a[1], a[3]);
          mma(dots, a[0], a[1], a[2], a[3], x.x, x.y);
        }
      } else {
        const uint4 x = *(const uint4*)(q + i * 32);
        mma(dots, top[i].x, bottom[i].x, top[i].y, bottom[i].y, x.x, x.y);
        mma(dots, top[i].z, bottom[i].z, top[i].w, bottom[i].w, x.z, x.w);
      }
    }
  }
};

// The dimension of row r (or r + 8: `second`) of tile i in a warp's quarter. The cache holds codes of four dimensions
// in the order 0, 2, 1, 3.
__device__ __forceinline__ int dimension_of(int i, int second, int r) {
  if (KV_FP8 && DIMS == 2) return r / 2 * 4 + (r & 1) + 2 * second;
  return DIMS * r + 2 * i + second;
}
// A warp's quarter of the dimensions of 16 values. A lane has DIMS dimensions of keys 2 t, 2 t + 1, 2 t + 8 and 2 t
// + 9.
struct WarpValues {
  static constexpr int WORDS = (DIMS * VALUE_BYTES + 3) / 4;
  u32 v[4][WORDS];
  u32 exponents[2];

  __device__ __forceinline__ void load(const char* values, const unsigned char* from) {
    const int lane = threadIdx.x & 31, r = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const char* at = values + (2 * t + (i & 1) + (i >> 1) * 8) * HEAD_BYTES + r * (DIMS * VALUE_BYTES);
      if constexpr (DIMS * VALUE_BYTES == 8) {
        const uint2 both = __ldcg((const uint2*)at);
        v[i][0] = both.x, v[i][1] = both.y;
      } else if constexpr (DIMS * VALUE_BYTES == 4) {
        v[i][0] = __ldcg((const u32*)at);
      } else {
        v[i][0] = __ldcg((const unsigned short*)at);
      }
    }
    if (KV_FP8)
#pragma unroll
      for (int i = 0; i < 2; ++i) exponents[i] = __ldcg((const unsigned short*)(from + 2 * t + 8 * i));
  }
  // `weights`: the softmax weights of these keys for query r.
  __device__ __forceinline__ void add(float (&acc)[VALUE_TILES][4], const u32 (&weights)[2]) const {
    if constexpr (KV_FP8) {
      u32 a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const u32 factor = cache_factor(exponents[i] & 255u, exponents[i] >> 8);
        widen_codes(__byte_perm(v[2 * i][0], v[2 * i + 1][0], 0x5410), factor, a[0][2 * i], a[1][2 * i]);
        if (DIMS == 4)
          widen_codes(__byte_perm(v[2 * i][0], v[2 * i + 1][0], 0x7632), factor, a[0][2 * i + 1], a[1][2 * i + 1]);
      }
      if constexpr (DIMS == 4) {
#pragma unroll
        for (int i = 0; i < 2; ++i) mma(acc[i], a[i][0], a[i][1], a[i][2], a[i][3], weights[0], weights[1]);
      } else {
        mma(acc[0], a[0][0], a[1][0], a[0][2], a[1][2], weights[0], weights[1]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < VALUE_TILES; ++i)
        mma(acc[i], __byte_perm(v[0][i], v[1][i], 0x5410), __byte_perm(v[0][i], v[1][i], 0x7632),
            __byte_perm(v[2][i], v[3][i], 0x5410), __byte_perm(v[2][i], v[3][i], 0x7632), weights[0], weights[1]);
    }
  }
};

// A quad prefetches a block of keys, or of values, into L2.
__device__ __forceinline__ void prefetch_lines(const char* from) {
  constexpr int LINES = KV_BLOCK * HEAD_BYTES / 128;
#pragma unroll
  for (int i = threadIdx.x & 127; i < LINES; i += 128) prefetch_l2(from + i * 128);
}

// Attends to keys begin .. stop - 1 of a head, in the blocks of `table`. Leaves weighted sums, maxima and totals of
// every quad in the scratch. Ends with a block barrier. `queries` [8][HEAD_DIM + 8] in shared memory.
__device__ inline void attend_long(const Args& args, LongScratch& s, const bf16* queries, const int* table, int layer,
                                   int head, int begin, int stop) {
  const float scale = 1.4426950408889634f * rsqrtf((float)HEAD_DIM);
  const int thread = (int)thread_index(), lane = thread & 31, r = lane >> 2, t = lane & 3;
  const int quad = thread >> 7, quarter = thread >> 5 & 3;
  float (*score)[KV_BLOCK + 8] = s.score[quad];
  float peak = -INF, total = 0;  // of query r; `total` is this lane's part
  float acc[VALUE_TILES][4];     // queries 2 t and 2 t + 1
#pragma unroll
  for (int i = 0; i < VALUE_TILES; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) acc[i][j] = 0;
  int block = begin / KV_BLOCK + quad;
  const int end = stop / KV_BLOCK;
  int number = table[block], next = table[min(block + WARPGROUPS, end - 1)];
#pragma unroll 1
  for (; block < end; block += WARPGROUPS) {
    // Load the keys first, since they are waited for; prefetch the values into L2 after them. Addresses are recomputed
    // for every block (`opaque`): kept, they would take registers.
    const KeysAt at(args, opaque(layer), head, number);
    const long long to_values = KeysAt::to_values(args);
    WarpKeys keys;
    keys.load(at.keys + quarter * 16 * HEAD_BYTES, at.exponents + quarter * 16);
    prefetch_lines(at.keys + to_values * HEAD_BYTES);
    number = next;
    next = table[min(block + 2 * WARPGROUPS, end - 1)];
    float dots[4];
    keys.multiply(dots, queries);
    barrier_of<128>(FIRST_QUAD_BARRIER + quad);  // the previous scores have been read
#pragma unroll
    for (int i = 0; i < 4; ++i) score[2 * t + (i & 1)][quarter * 16 + r + (i >> 1) * 8] = dots[i];
    const char* from = at.keys + to_values * HEAD_BYTES + quarter * (HEAD_BYTES / 4);
    const unsigned char* exponents = at.exponents + to_values;
    WarpValues values[2];  // 16 are added while the next 16 arrive
#pragma unroll
    for (int i = 0; i < 2; ++i) values[i].load(from + 16 * i * HEAD_BYTES, exponents + 16 * i);
    if (block + WARPGROUPS < end) prefetch_lines(KeysAt(args, opaque(layer), head, number).keys);
    barrier_of<128>(FIRST_QUAD_BARRIER + quad);
    // Scores are read twice: registers are scarcer than time.
    float highest = -INF;
#pragma unroll
    for (int i = 0; i < KV_BLOCK / 8; ++i) {
      const float2 x = shared8(shared_address(&score[r][8 * i + 2 * t]));
      highest = fmaxf(highest, fmaxf(x.x, x.y));
    }
    highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
    highest = fmaxf(highest * scale, peak);
    const float shrink = power2(peak - highest);
    peak = highest;
    total *= shrink;
    const float first = lane_value(shrink, 8 * t), second = lane_value(shrink, 8 * t + 4);
#pragma unroll
    for (int i = 0; i < VALUE_TILES; ++i)
      acc[i][0] *= first, acc[i][1] *= second, acc[i][2] *= first, acc[i][3] *= second;
#pragma unroll
    for (int i = 0; i < KV_BLOCK / 16; ++i) {
      u32 weights[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 x = shared8(shared_address(&score[r][16 * i + 8 * half + 2 * t]));
        weights[half] = pack_bf16(power2(x.x * scale - peak), power2(x.y * scale - peak));
        total += low(weights[half]) + high(weights[half]);  // the sum uses the rounded weights, too
      }
      values[i % 2].add(acc, weights);
      if (i + 2 < KV_BLOCK / 16) values[i % 2].load(from + 16 * (i + 2) * HEAD_BYTES, exponents + 16 * (i + 2));
    }
  }
  total += __shfl_xor_sync(~0u, total, 1);
  total += __shfl_xor_sync(~0u, total, 2);
  block_barrier();  // sums lie where scores did
  if (quarter == 0 && t == 0) s.peak[quad][r] = peak, s.total[quad][r] = total;
#pragma unroll
  for (int i = 0; i < VALUE_TILES; ++i)
#pragma unroll
    for (int second = 0; second < 2; ++second)
      *(float2*)&s.sum[quad][quarter * (HEAD_DIM / 4) + dimension_of(i, second, r)][2 * t] =
          float2{acc[i][2 * second], acc[i][2 * second + 1]};
  block_barrier();
}
// Joins what the quads and the loop of blocks found for a query, in a fixed order: the maximum; relative to it the
// total, and a dimension's sum, to which the loop of blocks contributes `own`.
__device__ __forceinline__ float long_peak(const LongScratch& s, int query) {
  float peak = s.peak[0][query];
#pragma unroll
  for (int i = 1; i <= WARPGROUPS; ++i) peak = fmaxf(peak, s.peak[i][query]);
  return peak;
}
__device__ __forceinline__ float long_total(const LongScratch& s, int query, float peak) {
  float total = 0;
#pragma unroll
  for (int i = 0; i <= WARPGROUPS; ++i) total += power2(s.peak[i][query] - peak) * s.total[i][query];
  return total;
}
__device__ __forceinline__ float long_sum(const LongScratch& s, int query, int dimension, float peak, float own) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i <= WARPGROUPS; ++i)
    sum += power2(s.peak[i][query] - peak) * (i < WARPGROUPS ? s.sum[i][dimension][query] : own);
  return sum;
}
