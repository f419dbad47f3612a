// Attention of a step's rows: norm and RoPE of the new queries and keys, the KV cache, split softmax.
//
// A unit is (row, kv head, split of the keys). The length of a split depends on the row's position only. A unit
// processes its keys 64 at a time with a running maximum and sum. Scores are matrix products: 16 keys x 8 queries per
// instruction, queries in bf16, dimensions in the order of a lane's 16-byte loads and cut into up to four slabs. So is
// the weighted sum of the values: 8 dimensions per warp, softmax weights rounded to bf16.
//
// Keys and values of this step's own rows are not in the cache yet. Each unit that needs them computes them from the
// projections, rounded as the cache holds them (cache.cuh); the unit that ends at the row itself stores them. The units
// of a (row, head) then join their splits in ascending order.
#pragma once
#include "long_attention.cuh"

constexpr int LANES_PER_KEY = HEAD_DIM / 8, KEYS_AT_ONCE = THREADS / LANES_PER_KEY;
constexpr int KEY_PASSES = (KV_BLOCK + KEYS_AT_ONCE - 1) / KEYS_AT_ONCE;
constexpr int QUERY_TILES = (GROUP + 7) / 8, DIM_STEPS = HEAD_DIM / 32, SLABS = DIM_STEPS < 4 ? DIM_STEPS : 4;
constexpr bool ONE_UNIT = MAX_ROWS == 1 && KV_HEADS * MAX_SPLITS <= CTAS;  // at most one per CTA
// Wide heads: a block's values never wait in registers. Those of the first block go to shared memory before the wait
// for the projections; those of later blocks are only prefetched into L2.
constexpr bool EARLY_VALUES = HEAD_DIM > 128;
constexpr int DIM_TILES = HEAD_DIM / 8, DIMS_PER_WARP = (DIM_TILES + WARPS - 1) / WARPS;  // in tiles of 8

// Overlaps the slices of matrix products: until the first barrier, some warp may still be adding those of the previous
// phase.
struct AttentionScratch {
  union BlockOrMany {
    struct {
      alignas(16) bf16 values[KV_BLOCK][HEAD_DIM + 8];  // of the current block; the 8 avoid bank conflicts
      float dot[SLABS][QUERY_TILES * 8][KV_BLOCK];      // scores, by slab of the dimensions
    };
    LongScratch many;
  } keys;
  alignas(16) bf16 weight[QUERY_TILES * 8][KV_BLOCK + 8];
  // Queries, normed and rotated; zeros after the last. This field and those after it are written before the first
  // barrier.
  alignas(16) bf16 q[QUERY_TILES * 8][HEAD_DIM + 8];
  alignas(16) bf16 key[MAX_ROWS][HEAD_DIM], value[MAX_ROWS][HEAD_DIM];  // of this step's rows
  float total[QUERY_TILES * 8], shrink[QUERY_TILES * 8];
};
static_assert(WARPS == 16 && HEAD_DIM % 32 == 0, "warps are mapped to four tiles of keys and four slabs");
static_assert(ATTENTION_OVERLAP <= sizeof(AttentionScratch::BlockOrMany), "slices end before what is written early");
static_assert(sizeof(AttentionScratch) == ATTENTION_SIZE && ATTENTION_SIZE <= ATTENTION_BYTES, "as in records.py");

// Keys per split, in whole blocks: the fewest that keep the number of splits within MAX_SPLITS. `splits_at` is that
// number.
__device__ __forceinline__ int split_length(int position) {
  return (position / (KV_BLOCK * MAX_SPLITS) + 1) * KV_BLOCK;
}
__device__ __forceinline__ int splits_at(int position, int length) {
  return (int)quotient((float)position + 0.5f, (float)length) + 1;
}

// RoPE rotates dimension i with i + ROTATED / 2. If only part of a head is rotated, the two are in lanes ROTATED / 4
// apart; otherwise they are in the same thread.
constexpr bool PARTLY_ROTATED = ROTATED != HEAD_DIM;
static_assert(!PARTLY_ROTATED || (ROTATED <= 64 && ROTATED <= HEAD_DIM / 2 && !(ROTATED & (ROTATED - 1))), "plan.py");

// One warp applies bias, norm and RoPE to one head of one row. `put(i, low, high)` receives two pairs of values: i and
// i + 1, and those half a head further on.
template <class Put>
__device__ __forceinline__ void project(const Args& args, u32 epoch, int layer, int row, int head, int position,
                                        const float* norm, bool rotate, Put put) {
  constexpr int HALF = HEAD_DIM / 2, PAIRS = (HALF / 2 + 31) / 32;
  const int lane = threadIdx.x & 31;
  // First load what does not depend on the projections: after gigabytes of weights none of it is still cached.
  const float* rope = args.rope + (long long)position * ROTATED;
  const float* bias = args.norms + layer * NORM_STRIDE + BIAS_AT + head * HEAD_DIM;
  // Of values 2 i and 2 i + 1, and of those half a head further on.
  float2 weight[PAIRS][2], angle[PAIRS][2], offset[PAIRS][2];
#pragma unroll
  for (int w = 0; w < PAIRS * 2; ++w) {
    const int i = w / 2 * 32 + lane, at = w % 2 * HALF + 2 * i;
    if (HALF / 2 % 32 && i >= HALF / 2) continue;
    if (HEAD_DIM > 128) weight[w / 2][w % 2] = angle[w / 2][w % 2] = float2{0, 0};  // otherwise they would stay live
    if (QK_NORM && norm) weight[w / 2][w % 2] = *(const float2*)(norm + at);
    // Cosines, then sines. If only part of a head is rotated, its dimensions lie in neighbouring lanes.
    if (PARTLY_ROTATED ? rotate && w < 2 && lane < ROTATED / 2 : rotate)
      angle[w / 2][w % 2] = *(const float2*)(rope + (PARTLY_ROTATED ? w * (ROTATED / 2) + at % (ROTATED / 2) : at));
    if (QKV_BIAS) offset[w / 2][w % 2] = *(const float2*)(bias + at);
  }
  u64 words[PAIRS][2];
  for (u32 spins = 0;; count_spin(spins)) {
    bool here = true;
#pragma unroll
    for (int w = 0; w < PAIRS * 2; ++w) {
      int i = w / 2 * 32 + lane, at = (row * QKV_ROWS + head * HEAD_DIM + w % 2 * HALF) / 2;
      if (HALF / 2 % 32 == 0 || i < HALF / 2) words[w / 2][w % 2] = load_word(args.qkv + at + i);
    }
#pragma unroll
    for (int w = 0; w < PAIRS * 2; ++w)
      here &= (HALF / 2 % 32 && w / 2 * 32 + lane >= HALF / 2) || pair_has_epoch(words[w / 2][w % 2], epoch);
    if (here) break;
  }
  float2 v[PAIRS][2];
  float sum = 0;
#pragma unroll
  for (int w = 0; w < PAIRS * 2; ++w) {
    float2& pair = v[w / 2][w % 2];
    pair.x = pair.y = 0;
    if (HALF / 2 % 32 && w / 2 * 32 + lane >= HALF / 2) continue;
    pair.x = first_of(words[w / 2][w % 2]);
    pair.y = second_of(words[w / 2][w % 2]);
    if (QKV_BIAS) {
      pair.x += offset[w / 2][w % 2].x;
      pair.y += offset[w / 2][w % 2].y;
    }
    sum += pair.x * pair.x + pair.y * pair.y;
  }
  float inverse = 1.f;
  if (QK_NORM && norm) inverse = rsqrtf(warp_sum(sum) / HEAD_DIM + NORM_EPS);
#pragma unroll
  for (int j = 0; j < PAIRS; ++j) {
    const int i = 2 * (j * 32 + lane);
    if (!PARTLY_ROTATED && i >= HALF) continue;
    float2 p = v[j][0], q = v[j][1];
    if (QK_NORM && norm) {
      p.x = p.x * inverse * weight[j][0].x;
      p.y = p.y * inverse * weight[j][0].y;
      q.x = q.x * inverse * weight[j][1].x;
      q.y = q.y * inverse * weight[j][1].y;
    }
    if (PARTLY_ROTATED) {
      if (rotate && j == 0) {  // by all lanes: they exchange values
        const float other_x = __shfl_xor_sync(~0u, p.x, ROTATED / 4), other_y = __shfl_xor_sync(~0u, p.y, ROTATED / 4);
        const float sign = lane < ROTATED / 4 ? -1.f : 1.f;
        const float2 c = angle[0][0], s = angle[0][1];
        if (lane < ROTATED / 2) p.x = p.x * c.x + sign * other_x * s.x, p.y = p.y * c.y + sign * other_y * s.y;
      }
      if (i >= HALF) continue;
    } else if (rotate) {
      float2 c = angle[j][0], s = angle[j][1], old = p;
      p.x = old.x * c.x - q.x * s.x;
      p.y = old.y * c.y - q.y * s.y;
      q.x = q.x * c.x + old.x * s.x;
      q.y = q.y * c.y + old.y * s.y;
    }
    put(i, pack_bf16(p.x, p.y), pack_bf16(q.x, q.y));
  }
}

// The type of a value in the cache.
#if KV_FP8
typedef unsigned char Kept;
#else
typedef bf16 Kept;
#endif
// A head's keys in a block of the cache. Its values lie `to_values` further on.
__device__ __forceinline__ Kept* keys_at(const Args& args, int layer, int head, int block) {
  return (Kept*)args.kv + ((place_of(layer) * 2 * args.kv_blocks + block) * KV_HEADS + head) * (KV_BLOCK * HEAD_DIM);
}
__device__ __forceinline__ long long to_values(const Args& args) {
  return args.kv_blocks * (KV_HEADS * KV_BLOCK * HEAD_DIM);
}
// The exponent of the token's head that the cache holds at `at`; the exponents of the block's other tokens lie around
// it.
__device__ __forceinline__ unsigned char* exponent_of(const Args& args, const Kept* at) {
  return args.exponents + (at - (const Kept*)args.kv) / HEAD_DIM;
}
__device__ __forceinline__ void prefetch_block(const Args& args, const Kept* keys) {
  constexpr int LINES = KV_BLOCK * HEAD_DIM * sizeof(Kept) / 128;
#pragma unroll 1
  for (int i = threadIdx.x; i < 2 * LINES; i += THREADS)
    prefetch_l2((const char*)(keys + (i < LINES ? 0 : to_values(args))) + i % LINES * 128);
  if (KV_FP8 && threadIdx.x < 2) prefetch_l2(exponent_of(args, keys + (threadIdx.x ? to_values(args) : 0)));
}
// Loads eight dimensions of a token's head as the cache holds them. In 8 bits that is codes and an exponent, which are
// widened only when needed, so that loads overlap.
__device__ __forceinline__ uint4 load_kept(const Kept* from, const unsigned char* exponent) {
#if KV_FP8
  const uint2 codes = __ldcg((const uint2*)from);
  return make_uint4(codes.x, codes.y, __ldcg(exponent), 0);
#else
  return load16(from);
#endif
}
__device__ __forceinline__ uint4 widened(uint4 kept) {
  return KV_FP8 ? widen_eight(make_uint2(kept.x, kept.y), kept.z) : kept;
}
// Prefetches into L2 the first two blocks that this CTA will attend to: their addresses are known before the
// projections are. Loading a block from memory takes longer than working on one, so a unit stays two blocks ahead.
__device__ inline void attention_prefetch(const Args& args, const Shared& shared, int layer) {
  const int position = shared.position[0], length = split_length(position), splits = splits_at(position, length);
  if (rows_of(shared) != 1) return;
  const int* table = args.tables + shared.table[0] * args.table_width;
  for (int unit = blockIdx.x; unit < KV_HEADS * splits; unit += CTAS) {
    const int begin = unit / KV_HEADS * length, end = min(begin + min(length, 2 * KV_BLOCK), position);
#pragma unroll 1
    for (int at = begin; at < end; at += KV_BLOCK)
      prefetch_block(args, keys_at(args, layer, unit % KV_HEADS, table[at / KV_BLOCK]));
  }
}

// The gates of two neighbouring dimensions of a row's attention output: their address, and how they apply. `word` was
// loaded earlier.
__device__ __forceinline__ const u64* gates_at(const Args& args, int row, int dim) {
  return args.qkv + (row * QKV_ROWS + GATES_AT + dim) / 2;
}
__device__ __forceinline__ u32 apply_gates(const Args& args, u32 epoch, const u64* from, u64 word, float a, float b) {
#if GATED
  for (u32 spins = 0; !pair_has_epoch(word, epoch); word = load_word(from)) count_spin(spins);
  a = quotient(a, 1.f + exponential(-first_of(word)));
  b = quotient(b, 1.f + exponential(-second_of(word)));
#endif
  return pack_bf16(a, b);
}

// Joins the splits of one (row, head) in ascending order. Each unit joins a part of the dimensions; its threads wait
// for all splits at once.
__device__ inline void join_splits(const Args& args, char* area, u32 epoch, int row, int head, int split, int splits,
                                   const u64* partial) {
  constexpr int NEXT = GROUP * (HEAD_DIM + 2), PAIRS = HEAD_DIM / 2;
  static_assert(16 * (GROUP * PAIRS + MAX_SPLITS) <= ATTENTION_BYTES, "the parts of a unit fit the scratch");
  float4* parts = (float4*)area;  // [split][pair]: maximum, sum, two values
  // Divisions in floats: nothing else overlaps this code.
  const float each = quotient((float)(GROUP * PAIRS), (float)splits);
  const int first = (int)((float)split * each + 0.01f), pairs = (int)((float)(split + 1) * each + 0.01f) - first;
  const float per_split = quotient(1.f, (float)pairs);
  block_barrier();
#pragma unroll 1
  for (int i = threadIdx.x; i < pairs * splits; i += THREADS) {
    int j = (int)(((float)i + 0.5f) * per_split), pair = first + i - j * pairs;
    const u64* from = partial + j * NEXT + pair / PAIRS * (HEAD_DIM + 2);
    uint4 got = receive2x2(from + HEAD_DIM, from + pair % PAIRS * 2, epoch);
    parts[i] =
        make_float4(__uint_as_float(got.x), __uint_as_float(got.y), __uint_as_float(got.z), __uint_as_float(got.w));
  }
  block_barrier();
#pragma unroll 1
  for (int i = threadIdx.x; i < pairs; i += THREADS) {
    // The maximum first: then the scales do not depend on each other.
    float peak = -INF, total = 0, a = 0, b = 0;
    const int dim = 2 * (head * (GROUP * PAIRS) + first + i);
    const u64* gates = gates_at(args, row, dim);
    const u64 word = GATED ? load_word(gates) : 0;
#pragma unroll 4
    for (int j = 0; j < splits; ++j) peak = fmaxf(peak, parts[j * pairs + i].x);
#pragma unroll 4
    for (int j = 0; j < splits; ++j) {
      const float4 part = parts[j * pairs + i];
      const float scale = power2(part.x - peak);
      total += scale * part.y;
      a += scale * part.z;
      b += scale * part.w;
    }
    send(args.attended + (row * (O::COPY_BLOCKS * BLOCK) + dim) / 2,
         apply_gates(args, epoch, gates, word, quotient(a, total), quotient(b, total)), epoch);
  }
}

__device__ inline void attention_unit(const Args& args, Shared& shared, char* area, int layer, u32 epoch, int row,
                                      int unit) {
  AttentionScratch& s = *(AttentionScratch*)area;
  const float* norms = args.norms + layer * NORM_STRIDE;
  const int thread = (int)thread_index();
  int position = shared.position[row], first = shared.first[row], warp = thread >> 5;
  const int length = split_length(position);
  int splits = splits_at(position, length), head = unit % KV_HEADS, split = unit / KV_HEADS;
  const int begin = split * length, end = min(begin + length, position + 1);
  const int blocks_from = long_end(position, begin, end);  // the keys before it are left to `attend_long`
  const float scale = 1.4426950408889634f * rsqrtf((float)HEAD_DIM);
  const int lane = thread & 31, part = thread % LANES_PER_KEY, key0 = thread / LANES_PER_KEY;
  // Warp w computes the scores of keys 16 (w % 4) .. + 15 over slab w / 4 of the dimensions.
  const int r = lane >> 2, t = lane & 3, slab = warp >> 2, tile = warp & 3;
  uint4 v[KEY_PASSES], k[DIM_STEPS / SLABS][2];
  const long long values = to_values(args);
  // Load a block's values or keys from the cache; this step's own rows come later.
  auto fetch_values = [&](int block, const Kept* keys, const unsigned char* exponents) {
    const int known = min(min(end, first) - block, KV_BLOCK);
#pragma unroll
    for (int p = 0; p < KEY_PASSES; ++p) {
      int j = p * KEYS_AT_ONCE + key0;
      v[p] = make_uint4(0, 0, 0, 0);
      if (j < known) v[p] = load_kept(keys + values + j * HEAD_DIM + part * 8, exponents + values / HEAD_DIM + j);
    }
  };
  auto fetch_keys = [&](int block, const Kept* keys, const unsigned char* exponents) {
    const int known = min(min(end, first) - block, KV_BLOCK);
#pragma unroll
    for (int d = 0; d < DIM_STEPS / SLABS; ++d)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        int j = tile * 16 + r + i * 8;
        k[d][i] = make_uint4(0, 0, 0, 0);
        if (slab < SLABS && j < known)
          k[d][i] = load_kept(keys + j * HEAD_DIM + (slab * (DIM_STEPS / SLABS) + d) * 32 + t * 8, exponents + j);
      }
  };
  auto fetch = [&](int block, int number) {
    const Kept* keys = keys_at(args, layer, head, number);
    const unsigned char* exponents = KV_FP8 ? exponent_of(args, keys) : nullptr;
    fetch_values(block, keys, exponents);
    fetch_keys(block, keys, exponents);
  };
  auto number_of = [&](int at) {
    return args.tables[shared.table[row] * args.table_width + min(at, position) / KV_BLOCK];
  };
  // Puts a block's values into shared memory: those `loaded` from the cache, and those of this step's `own` rows.
  auto put_values = [&](int block, bool loaded, bool own) {
#pragma unroll
    for (int p = 0; p < KEY_PASSES; ++p) {
      const int j = p * KEYS_AT_ONCE + key0, at = block + j;
      const bool mine = own && at >= first && at < end;
      v[p] = widened(v[p]);
      if (mine) v[p] = *(uint4*)(s.value[at - first] + part * 8);
      if (j < KV_BLOCK && (loaded || mine)) *(uint4*)(s.keys.values[j] + part * 8) = v[p];
    }
  };
  fetch(blocks_from, number_of(blocks_from));
  if (EARLY_VALUES) {
    block_barrier();  // some warp may still have been adding slices
    put_values(blocks_from, true, false);
  }
  // The next two blocks. The table is read one block ahead of the address that is computed from it.
  int next = 0, after = 0;
  if (!EARLY_VALUES && blocks_from + KV_BLOCK < end) {
    next = number_of(blocks_from + KV_BLOCK);
    after = number_of(blocks_from + 2 * KV_BLOCK);
  }
  mark(args, shared, FETCH);
  // One head per warp: the queries, then the keys and values of this step's rows. Row j of this sequence in this step
  // is row row - (position - first) + j of the step.
  const int own = max(begin, first), new_keys = max(end - own, 0);
#pragma unroll 1
  for (int task = warp; task < GROUP + 2 * new_keys; task += WARPS) {
    bool query = task < GROUP, value = task >= GROUP + new_keys;
    int at = query ? position : own + (task - GROUP) - (value ? new_keys : 0), from = row - (position - at);
    int source = query ? head * GROUP + task : HEADS + head + (value ? KV_HEADS : 0);
    bf16* to = query ? s.q[task] : value ? s.value[at - first] : s.key[at - first];
    const int block = KV_FP8 && !query && at == position ? number_of(position) : 0;  // before the wait
    project(args, epoch, layer, from, source, at, value ? nullptr : norms + (query ? Q_NORM_AT : K_NORM_AT), !value,
            [&](int i, u32 a, u32 b) {
              *(u32*)(to + i) = a;
              *(u32*)(to + i + HEAD_DIM / 2) = b;
            });
    if (KV_FP8 && !query) {
      Kept* kept = keys_at(args, layer, head, block) + position % KV_BLOCK * HEAD_DIM + (value ? values : 0);
      __syncwarp();
      const u32 exponent = round_head<HEAD_DIM>(to, [&](int i, u32 codes) {
        if (at == position) *(u32*)(kept + i) = codes;
      });
      if (at == position && lane == 0) *exponent_of(args, kept) = exponent;
    }
  }
#pragma unroll 1
  for (int i = thread; i < (QUERY_TILES * 8 - GROUP) * HEAD_DIM; i += THREADS)
    s.q[GROUP + i / HEAD_DIM][i % HEAD_DIM] = 0;
  block_barrier();
  mark(args, shared, PROJECT);
  if (!KV_FP8 && end == position + 1 && thread < 2 * LANES_PER_KEY) {
    int kind = thread / LANES_PER_KEY, i = thread % LANES_PER_KEY * 8, j = position - first;
    Kept* to =
        keys_at(args, layer, head, number_of(position)) + position % KV_BLOCK * HEAD_DIM + (kind ? values : 0) + i;
    *(uint4*)to = *(uint4*)((kind ? s.value[j] : s.key[j]) + i);
  }
  float peak = -INF, total = 0;  // of query `warp`; `total` is this lane's part
  float acc[DIMS_PER_WARP][4];   // queries r and r + 8, dimensions 2 t and 2 t + 1 of the tile
#pragma unroll
  for (int d = 0; d < DIMS_PER_WARP; ++d)
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[d][i] = 0;
#pragma unroll 1
  for (int block = blocks_from; block < end; block += KV_BLOCK) {
    if (EARLY_VALUES) {
      const bool later = block != blocks_from;
      const Kept* keys = later ? keys_at(args, layer, head, number_of(block)) : nullptr;
      const unsigned char* exponents = KV_FP8 && later ? exponent_of(args, keys) : nullptr;
#pragma unroll
      for (int p = 0; p < KEY_PASSES; ++p) v[p] = make_uint4(0, 0, 0, 0);  // or they would stay live across all blocks
      if (later) fetch_values(block, keys, exponents);
      put_values(block, later, true);
      if (later) fetch_keys(block, keys, exponents);
    } else {
      put_values(block, true, true);
    }
    if (slab < SLABS) {
      float dots[QUERY_TILES][4];
#pragma unroll
      for (int j = 0; j < QUERY_TILES; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) dots[j][i] = 0;
#pragma unroll
      for (int d = 0; d < DIM_STEPS / SLABS; ++d) {
        int dim = (slab * (DIM_STEPS / SLABS) + d) * 32 + t * 8;
#pragma unroll
        for (int low_high = 0; low_high < 2; ++low_high) {
          int at = block + tile * 16 + r + low_high * 8;
          k[d][low_high] = widened(k[d][low_high]);
          if (at >= first && at < end) k[d][low_high] = *(uint4*)(s.key[at - first] + dim);
        }
#pragma unroll
        for (int j = 0; j < QUERY_TILES; ++j) {
          uint4 q = *(uint4*)(s.q[j * 8 + r] + dim);
          mma(dots[j], k[d][0].x, k[d][1].x, k[d][0].y, k[d][1].y, q.x, q.y);
          mma(dots[j], k[d][0].z, k[d][1].z, k[d][0].w, k[d][1].w, q.z, q.w);
        }
      }
#pragma unroll
      for (int j = 0; j < QUERY_TILES; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          s.keys.dot[slab][j * 8 + 2 * t + (i & 1)][tile * 16 + r + (i >> 1) * 8] = dots[j][i];
    }
    const bool more = block + KV_BLOCK < end;
    if (more) {
      if (!EARLY_VALUES) fetch(block + KV_BLOCK, next);  // its registers are free, and there is work until it arrives
      if (block + 2 * KV_BLOCK < min(end, first))
        prefetch_block(args, keys_at(args, layer, head, EARLY_VALUES ? number_of(block + 2 * KV_BLOCK) : after));
      next = after;
      if (!EARLY_VALUES) after = number_of(block + 3 * KV_BLOCK);
    }
    block_barrier();
    if (warp < GROUP) {
      float a = s.keys.dot[0][warp][lane], b = s.keys.dot[0][warp][lane + 32];
#pragma unroll
      for (int i = 1; i < SLABS; ++i) {
        a += s.keys.dot[i][warp][lane];
        b += s.keys.dot[i][warp][lane + 32];
      }
      a = block + lane < end ? a * scale : -INF;
      b = block + lane + 32 < end ? b * scale : -INF;
      const float old = peak;
      peak = fmaxf(old, warp_max(fmaxf(a, b)));
      u32 pair = pack_bf16(power2(a - peak), power2(b - peak));  // the sum uses the rounded weights, too
      s.weight[warp][lane] = (bf16)pair;
      s.weight[warp][lane + 32] = (bf16)(pair >> 16);
      const float shrink = power2(old - peak);
      if (lane == 0) s.shrink[warp] = shrink;
      total = total * shrink + (low(pair) + high(pair));
    }
    block_barrier();
#pragma unroll
    for (int d = 0; d < DIMS_PER_WARP; ++d) {
      int dims = warp + d * WARPS;
      if (dims >= DIM_TILES) break;
      constexpr bool SECOND = QUERY_TILES > 1;  // queries 8 to 15
      acc[d][0] *= s.shrink[r];
      acc[d][1] *= s.shrink[r];
      if (SECOND) acc[d][2] *= s.shrink[8 + r], acc[d][3] *= s.shrink[8 + r];
#pragma unroll
      for (int keys = 0; keys < KV_BLOCK; keys += 32) {
        u32 m[4];
        load_transposed(m, shared_address(s.keys.values[keys + lane] + dims * 8));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const bf16* weights = s.weight[r] + keys + 16 * i + 2 * t;
          const bf16* other = s.weight[SECOND ? 8 + r : r] + keys + 16 * i + 2 * t;
          mma(acc[d], *(const u32*)weights, SECOND ? *(const u32*)other : 0, *(const u32*)(weights + 8),
              SECOND ? *(const u32*)(other + 8) : 0, m[2 * i], m[2 * i + 1]);
        }
      }
    }
    if (more) block_barrier();
  }
  if (HAS_LONG && blocks_from > begin) {
    LongScratch& many = s.keys.many;
    block_barrier();
    total = warp_sum(total);
    if (warp < GROUP && lane == 0) many.peak[WARPGROUPS][warp] = peak, many.total[WARPGROUPS][warp] = total;
    attend_long(args, many, s.q[0], args.tables + shared.table[row] * args.table_width, layer, head, begin,
                blocks_from);
    warp = (int)thread_index() >> 5;
    if (warp < GROUP) {
      peak = long_peak(many, warp);
      total = lane == 0 ? long_total(many, warp, peak) : 0.f;
    }
    const float highest = long_peak(many, r);
#pragma unroll
    for (int d = 0; d < DIMS_PER_WARP; ++d) {
      const int dim = (warp + d * WARPS) * 8 + 2 * t;
      if (dim >= HEAD_DIM) continue;
      acc[d][0] = long_sum(many, r, dim, highest, acc[d][0]);
      acc[d][1] = long_sum(many, r, dim + 1, highest, acc[d][1]);
    }
  }
  mark(args, shared, SOFTMAX);
  // Recomputed: kept through the loops, they would take registers.
  if (ONE_UNIT) unit = opaque((int)blockIdx.x);
  head = unit % KV_HEADS, split = unit / KV_HEADS;
  splits = splits_at(shared.position[row], split_length(shared.position[row]));
  u64* partial = args.partial + (row * KV_HEADS + head) * (MAX_SPLITS * GROUP * (HEAD_DIM + 2));
  u64* out = partial + split * (GROUP * (HEAD_DIM + 2));
  if (splits == 1) {
    if (warp < GROUP) s.total[warp] = warp_sum(total);
    block_barrier();
  }
#pragma unroll
  for (int d = 0; d < DIMS_PER_WARP; ++d)
#pragma unroll
    for (int i = 0; i < QUERY_TILES; ++i) {
      int g = 8 * i + r, dim = (warp + d * WARPS) * 8 + 2 * t;
      if (g >= GROUP || dim >= HEAD_DIM) continue;
      if (splits == 1) {
        const int to = (head * GROUP + g) * HEAD_DIM + dim;
        const u64* gates = gates_at(args, row, to);
        const float a = quotient(acc[d][2 * i], s.total[g]), b = quotient(acc[d][2 * i + 1], s.total[g]);
        send(args.attended + (row * (O::COPY_BLOCKS * BLOCK) + to) / 2,
             apply_gates(args, epoch, gates, GATED ? load_word(gates) : 0, a, b), epoch);
      } else {
        send2(out + g * (HEAD_DIM + 2) + dim, __float_as_uint(acc[d][2 * i]), __float_as_uint(acc[d][2 * i + 1]),
              epoch);
      }
    }
  warp = (int)thread_index() >> 5;
  if (splits > 1 && warp < GROUP) {
    u64* to = out + warp * (HEAD_DIM + 2) + HEAD_DIM;
    total = warp_sum(total);
    send2(to, __float_as_uint(peak), __float_as_uint(total), epoch);
  }
  if (splits > 1) join_splits(args, area, epoch, row, head, split, splits, partial);
  block_barrier();
}

__device__ inline void attention(const Args& args, Shared& shared, char* memory, int layer, u32 epoch) {
  char* area = area_of(memory) - ATTENTION_OVERLAP;
  if constexpr (ONE_UNIT) {  // there is no second unit to keep anything for
    if (blockIdx.x < KV_HEADS * splits_at(shared.position[0], split_length(shared.position[0])))
      attention_unit(args, shared, area, layer, epoch, 0, blockIdx.x);
    return;
  }
  int next = blockIdx.x;  // the next unit of this CTA, counted from the current row's first
#pragma unroll 1
  for (int row = 0; row < rows_of(shared); ++row) {
    const int position = shared.position[row], units = KV_HEADS * splits_at(position, split_length(position));
#pragma unroll 1
    for (; next < units; next += CTAS) attention_unit(args, shared, area, layer, epoch, row, next);
    next -= units;
  }
}
