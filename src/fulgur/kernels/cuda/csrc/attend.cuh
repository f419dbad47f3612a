// Attention of a step's rows, each at its own position in its own sequence: RoPE and the KV cache, then the softmax
// over splits of the keys. Used by steps of many sequences (batch.cu) and by the general driver (family.cu).
#pragma once
#include "cache.cuh"
#include "step.cuh"

// A warp per head of a row adds up the parts of its projection and applies bias, norm and rotation; queries go to `q`,
// keys and values to the cache. The first `rotated` dimensions of a head are rotated, in pairs i and i + rotated / 2.
constexpr int WIDEST_HEAD = 256;
struct StepRope {
  const StepRows* rows;
  const float* parts;                              // [split, row, stride]
  const float *bias, *q_weight, *k_weight, *rope;  // null where a family has none; rope [context, cos + sin]
  const float* query_scale;                        // [context]; null: 1
  const int* tables;                               // [sequence, width]
  float* q;                                        // [row, heads, HEAD]
  bf16 *keys, *values;                             // [block, kv heads, 64, HEAD]; with exponents: 8-bit codes
  unsigned char *key_exponents, *value_exponents;  // [block, kv heads, 64]; null: keys and values are bf16
  int n, splits, stride, heads, kv_heads, head_dim, rotated, table_width;
  float eps;
  int pad;
};
KERNEL(step_rope, 128, StepRope) {
  SHARED_MEMORY(memory);
  let_successor_start();
  wait_for_predecessor();
  const int all = p.heads + 2 * p.kv_heads, each = (all + 3) / 4, half = p.rotated / 2;
  const int row = blockIdx.x / each, head = blockIdx.x % each * 4 + threadIdx.x / 32, lane = threadIdx.x & 31;
  const int count = p.rows->count, position = p.rows->position[row], sequence = p.rows->table[row];
  if (row >= count || head >= all) return;
  float* x = (float*)memory + threadIdx.x / 32 * WIDEST_HEAD;
  const long long block = p.tables[(long long)sequence * p.table_width + (position >> 6)];
  const bool is_q = head < p.heads, is_v = head >= p.heads + p.kv_heads;
  const float* weight = is_v ? nullptr : is_q ? p.q_weight : p.k_weight;
  const float* from = p.parts + (long long)row * p.stride + head * p.head_dim;
  constexpr int EACH = WIDEST_HEAD / 32;  // dimensions of a lane, all loaded at once
  float value[EACH], norm[EACH], cosine[EACH], sine[EACH], squares = 0;
  const float* rope = p.rope + (long long)position * p.rotated;
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const int i = lane + 32 * k, angle = i < half ? i : i - half;
    const bool there = i < p.head_dim, turns = !is_v && i < p.rotated;
    value[k] = 0;
    norm[k] = there && weight ? weight[i] : 1.f;
    cosine[k] = turns ? rope[angle] : 1.f, sine[k] = turns ? rope[half + angle] : 0.f;
  }
#pragma unroll 2
  for (int s = 0; s < p.splits; ++s)
#pragma unroll
    for (int k = 0; k < EACH; ++k)
      if (lane + 32 * k < p.head_dim) value[k] += from[(long long)s * p.n * p.stride + lane + 32 * k];
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const int i = lane + 32 * k;
    if (p.bias && i < p.head_dim) value[k] += p.bias[head * p.head_dim + i];
    squares += value[k] * value[k];
  }
  for (int mask = 16; mask; mask >>= 1) squares += __shfl_xor_sync(~0u, squares, mask);
  const float factor = weight ? rsqrtf(squares / p.head_dim + p.eps) : 1.f;
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    value[k] *= factor * norm[k];
    if (lane + 32 * k < p.head_dim) x[lane + 32 * k] = value[k];
  }
  __syncwarp();
  const int kv_head = is_v ? head - p.heads - p.kv_heads : head - p.heads;
  const long long slot = (block * p.kv_heads + kv_head) * 64 + (position & 63);
  bf16* to = is_v ? p.values : p.keys;
  unsigned char* exponents = is_v ? p.value_exponents : p.key_exponents;
  float* q = p.q + ((long long)row * p.heads + head) * p.head_dim;
  const float scale = is_q && p.query_scale ? p.query_scale[position] : 1.f;
  u32 made[EACH];
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const int i = lane + 32 * k;
    made[k] = 0;
    if (i >= p.head_dim) continue;
    float v = value[k];
    if (!is_v && i < p.rotated) v = v * cosine[k] + (i < half ? -x[i + half] : x[i - half]) * sine[k];
    made[k] = to_bf16(v);
    if (is_q)
      q[i] = v * scale;
    else if (!exponents)
      to[slot * p.head_dim + i] = made[k];
  }
  if (!is_q && exponents) store_head(made, p.head_dim, (unsigned char*)to + slot * p.head_dim, exponents + slot);
}

// Attention of one row, one key/value head and its query heads, over a split of the keys; which keys a split has
// depends on the position only. The last CTA of a head to finish joins the splits in order.
struct StepAttend {
  const StepRows* rows;
  const float* q;
  const bf16 *keys, *values;
  const unsigned char *key_exponents, *value_exponents;  // as in `StepRope`
  const int* tables;
  float* parts;        // [row, kv head, split][GROUP][HEAD + 2]: sums, maximum, sum of exponentials
  u32* arrived;        // [row, kv head]: 0 before and after
  const float* sinks;  // [head]: a logit without a value; null: none
  const float* gate;   // [row, gate_stride]: the attention output is multiplied by its sigmoid; null: none
  bf16* out;           // [row, stride], with columns `ordered` or plain
  int n, heads, kv_heads, head_dim, table_width, stride, gate_stride, splits;
  int window, skipped;  // how many last keys a row sees, 0: all; how many first keys no row sees
  float scale;
  int ordered;
};
constexpr int BLOCK_KEYS = 64,
              MOST_HEADS = 16;  // keys of a cache block, also the most splits; most query heads per key/value head

template <int HEAD>
struct AttendRoom {  // padded, so that rows that are read together lie in different banks
  alignas(16) bf16 key[BLOCK_KEYS][HEAD + 8];
  alignas(16) bf16 value[BLOCK_KEYS][HEAD + 8];
  bf16 q[MOST_HEADS][HEAD + 8];
  bf16 weight[MOST_HEADS][BLOCK_KEYS + 8];
  float dot[MOST_HEADS][BLOCK_KEYS + 4];  // by key; at the end, the weight of each split
  float highest[MOST_HEADS], total[MOST_HEADS], shrink[MOST_HEADS];
  u32 arrived;
};

// A head's attention output, from the sums of its splits. A warp per head computes the weight of each split once; then
// a thread sums pairs of dimensions, with the loads of several splits in flight.
template <int HEAD>
__device__ __forceinline__ void join_splits(const StepAttend& p, AttendRoom<HEAD>& s, int row, int head, int group,
                                            int used, const float* parts) {
  const int thread = threadIdx.x, lane = thread & 31, warp = thread / 32;
  constexpr int EACH = MOST_HEADS / 4, PER_LANE = BLOCK_KEYS / 32;
  float2 known[EACH][PER_LANE];  // the maximum and the sum of a split
#pragma unroll
  for (int i = 0; i < EACH; ++i)
#pragma unroll
    for (int j = 0; j < PER_LANE; ++j) {
      const int h = warp + 4 * i, n = lane + 32 * j;
      known[i][j] = h < group && n < used ? __ldcg((const float2*)(parts + (n * group + h) * (HEAD + 2) + HEAD))
                                          : float2{-INF, 0};
    }
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int h = warp + 4 * i;
    if (h >= group) break;
    const float sink = p.sinks ? p.sinks[head * group + h] : -INF;
    float highest = sink, total = 0;
#pragma unroll
    for (int j = 0; j < PER_LANE; ++j) highest = fmaxf(highest, known[i][j].x);
    for (int mask = 16; mask; mask >>= 1) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, mask));
#pragma unroll
    for (int j = 0; j < PER_LANE; ++j) {
      known[i][j].x = natural_power(known[i][j].x - highest);
      total += known[i][j].y * known[i][j].x;
    }
    for (int mask = 16; mask; mask >>= 1) total += __shfl_xor_sync(~0u, total, mask);
    const float factor = quotient(1.f, total + natural_power(sink - highest));
#pragma unroll
    for (int j = 0; j < PER_LANE; ++j) s.dot[h][lane + 32 * j] = known[i][j].x * factor;
  }
  __syncthreads();
#pragma unroll 1
  for (int i = 2 * thread; i < group * HEAD; i += 4 * 256) {
    float2 made[4];
    const float *from[4], *factor[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // columns are ordered within groups of 32, and a head has whole groups
      const int at = min(i + k * 256, group * HEAD - 2), column = p.ordered ? ordered_column(at) : at;
      made[k] = float2{0, 0}, factor[k] = s.dot[column / HEAD], from[k] = parts + column + column / HEAD * 2;
    }
#pragma unroll 4
    for (int n = 0; n < used; ++n) {
      float2 v[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) v[k] = __ldcg((const float2*)(from[k] + n * group * (HEAD + 2)));
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float by = factor[k][n];
        made[k].x = fmaf(v[k].x, by, made[k].x), made[k].y = fmaf(v[k].y, by, made[k].y);
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int at = i + k * 256;
      if (at >= group * HEAD) break;
      if (p.gate) {
        const int column = p.ordered ? ordered_column(at) : at;
        const float* gate = p.gate + (long long)row * p.gate_stride + head * group * HEAD + column;
        made[k].x *= sigmoid(gate[0]), made[k].y *= sigmoid(gate[1]);
      }
      *(u32*)(p.out + (long long)row * p.stride + head * group * HEAD + at) = pack_bf16(made[k].x, made[k].y);
    }
  }
}

// Loads a block of keys and values into shared memory. What a row does not see may be anything, even NaN, so its values
// become zeros.
template <int HEAD, class Load, class Widen>
__device__ __forceinline__ void load_block(AttendRoom<HEAD>& s, int first_seen, int seen, Load load, Widen widen) {
  constexpr int PIECES = BLOCK_KEYS * HEAD / 8 / 128, AT_ONCE = PIECES < 8 ? PIECES : 8;  // of 8 dimensions a thread
#pragma unroll
  for (int piece = 0; piece < PIECES; piece += AT_ONCE) {
    uint4 k[AT_ONCE], v[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int at = ((piece + i) * 128 + threadIdx.x) * 8;
      k[i] = load(0, at), v[i] = load(1, at);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int at = ((piece + i) * 128 + threadIdx.x) * 8, key = at / HEAD, dim = at % HEAD;
      *(uint4*)&s.key[key][dim] = widen(k[i]);
      *(uint4*)&s.value[key][dim] = key >= first_seen && key < seen ? widen(v[i]) : make_uint4(0, 0, 0, 0);
    }
  }
}

template <int HEAD>
__device__ __forceinline__ void attend(const StepAttend& p, AttendRoom<HEAD>& s) {
  let_successor_start();
  wait_for_predecessor();
  const int split = blockIdx.x % p.splits, head = blockIdx.x / p.splits % p.kv_heads,
            row = blockIdx.x / p.splits / p.kv_heads;
  const int thread = threadIdx.x, lane = thread & 31, warp = thread / 32, g = lane >> 2, t = lane & 3;
  const int group = p.heads / p.kv_heads;
  const int count = p.rows->count, length = p.rows->position[row] + 1, sequence = p.rows->table[row];
  if (row >= count) return;
  const int first = max(p.window ? length - p.window : 0, p.skipped);
  const int begin = first / BLOCK_KEYS, blocks = (length + BLOCK_KEYS - 1) / BLOCK_KEYS - begin;
  const int* table = p.tables + (long long)sequence * p.table_width;
  const long long unit = ((long long)row * p.kv_heads + head) * p.splits + split;
  float* part = p.parts + unit * group * (HEAD + 2);
  if (split >= blocks) return;  // and nobody waits for it
  const int used = min(blocks, p.splits);
  int held = table[begin + split];                      // the block of the next keys
  constexpr int FLOAT4S = MOST_HEADS * HEAD / 4 / 128;  // of four query dimensions, per thread
  float4 query[FLOAT4S];
#pragma unroll
  for (int i = 0; i < FLOAT4S; ++i) {
    const int at = 4 * (i * 128 + thread);
    query[i] = at < group * HEAD ? *(const float4*)(p.q + ((long long)row * p.heads + head * group) * HEAD + at)
                                 : make_float4(0, 0, 0, 0);
  }
#pragma unroll
  for (int i = 0; i < FLOAT4S; ++i) {
    const int at = 4 * (i * 128 + thread);
    const float4 v = query[i];
    u32* to = (u32*)&s.q[at / HEAD][at % HEAD];
    to[0] = pack_bf16(v.x * p.scale, v.y * p.scale), to[1] = pack_bf16(v.z * p.scale, v.w * p.scale);
  }
  if (thread < MOST_HEADS) s.highest[thread] = -INF, s.total[thread] = 0;
  constexpr int TILES = HEAD / 8 / 4;  // of 8 dimensions, per warp
  float sum[TILES][4] = {};
  for (int block = begin + split; block < begin + blocks; block += p.splits) {
    const long long from = ((long long)held * p.kv_heads + head) * BLOCK_KEYS * HEAD;
    if (block + p.splits < begin + blocks) held = table[block + p.splits];
    __syncthreads();  // the previous block has been read
    const int first_seen = first - block * BLOCK_KEYS, seen = length - block * BLOCK_KEYS;
    if (p.key_exponents)  // widened once all have been loaded, so that the loads overlap
      load_block<HEAD>(
          s, first_seen, seen,
          [&](int value, int at) {
            const uint2 codes = *(const uint2*)((const unsigned char*)(value ? p.values : p.keys) + from + at);
            return make_uint4(codes.x, codes.y, (value ? p.value_exponents : p.key_exponents)[(from + at) / HEAD], 0);
          },
          [](uint4 v) { return widen_eight(make_uint2(v.x, v.y), v.z); });
    else
      load_block<HEAD>(
          s, first_seen, seen,
          [&](int value, int at) { return *(const uint4*)((value ? p.values : p.keys) + from + at); },
          [](uint4 v) { return v; });
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 2; ++n) {  // a warp has 16 keys
      float c[4] = {};
      const int key = warp * 16 + n * 8;
#pragma unroll
      for (int d = 0; d < HEAD; d += 16)
        mma(c, *(const u32*)&s.q[g][d + 2 * t], *(const u32*)&s.q[g + 8][d + 2 * t],
            *(const u32*)&s.q[g][d + 8 + 2 * t], *(const u32*)&s.q[g + 8][d + 8 + 2 * t],
            *(const u32*)&s.key[key + g][d + 2 * t], *(const u32*)&s.key[key + g][d + 8 + 2 * t]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = key + 2 * t + (i & 1), position = block * BLOCK_KEYS + column;
        s.dot[g + (i >> 1) * 8][column] = position < length && position >= first ? c[i] : -INF;
      }
    }
    __syncthreads();
    for (int h = warp; h < MOST_HEADS; h += 4) {  // a warp per head
      if (h >= group) {
        *(u32*)&s.weight[h][2 * lane] = 0;
        if (lane == 0) s.shrink[h] = 1;
        continue;
      }
      const float x = s.dot[h][2 * lane], y = s.dot[h][2 * lane + 1], before = s.highest[h];
      float highest = fmaxf(fmaxf(x, y), before);
      for (int mask = 16; mask; mask >>= 1) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, mask));
      const u32 pair = pack_bf16(natural_power(x - highest), natural_power(y - highest));
      float all = __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u);
      for (int mask = 16; mask; mask >>= 1) all += __shfl_xor_sync(~0u, all, mask);
      *(u32*)&s.weight[h][2 * lane] = pair;
      __syncwarp();
      if (lane == 0) {
        s.shrink[h] = natural_power(before - highest), s.highest[h] = highest;
        s.total[h] = s.total[h] * s.shrink[h] + all;
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      const int dims = (warp * TILES + i) * 8;
      sum[i][0] *= s.shrink[g], sum[i][1] *= s.shrink[g], sum[i][2] *= s.shrink[g + 8], sum[i][3] *= s.shrink[g + 8];
#pragma unroll
      for (int keys = 0; keys < BLOCK_KEYS; keys += 32) {
        u32 m[4];
        load_transposed(m, shared_address(&s.value[keys + lane][dims]));
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int at = keys + 16 * j + 2 * t;
          mma(sum[i], *(const u32*)&s.weight[g][at], *(const u32*)&s.weight[g + 8][at],
              *(const u32*)&s.weight[g][at + 8], *(const u32*)&s.weight[g + 8][at + 8], m[2 * j], m[2 * j + 1]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < TILES; ++i)
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const int h = g + (j >> 1) * 8, dim = (warp * TILES + i) * 8 + 2 * t;
      if (h < group) *(float2*)(part + h * (HEAD + 2) + dim) = float2{sum[i][j], sum[i][j + 1]};
    }
  if (thread < group) *(float2*)(part + thread * (HEAD + 2) + HEAD) = float2{s.highest[thread], s.total[thread]};
  __syncthreads();
  if (thread == 0) s.arrived = count_up(p.arrived + row * p.kv_heads + head);
  __syncthreads();
  if (s.arrived != used - 1) return;
  if (thread == 0) p.arrived[row * p.kv_heads + head] = 0;
  join_splits<HEAD>(p, s, row, head, group, used, p.parts + (unit - split) * group * (HEAD + 2));
}
#define ATTEND(HEAD)                            \
  KERNEL(step_attend_##HEAD, 128, StepAttend) { \
    SHARED_MEMORY(memory);                      \
    attend(p, *(AttendRoom<HEAD>*)memory);      \
  }
ATTEND(32)
ATTEND(64)
ATTEND(128)
ATTEND(256)
