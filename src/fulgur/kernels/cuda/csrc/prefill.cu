// What a layer of prefill does between its products: norms, RoPE and the KV cache, routing, sums of experts. Most
// kernels use a warp per row.
//
// `instances.h` names the formats that a model has: WIDEN(name, FORMAT).
#include "cache.cuh"
#include "wide.cuh"

__device__ __forceinline__ float warp_sum(float v) {
  for (int mask = 16; mask; mask >>= 1) v += __shfl_xor_sync(~0u, v, mask);
  return v;
}
__device__ __forceinline__ int rows_first() { return blockIdx.x * 8 + threadIdx.x / 32; }
__device__ __forceinline__ int rows_step() { return gridDim.x * 8; }
__device__ __forceinline__ float bf16_value(u32 pair, int high) {
  return __uint_as_float(high ? pair & 0xffff0000u : pair << 16);
}
__device__ __forceinline__ float exponential(float v) { return power2(1.44269504f * v); }

// x / rms(x) in bf16, with and without the weight: the operands of a layer's products, and of its router.
struct Norm {
  const float *x, *weight;  // [n, width], [width]
  bf16 *out, *plain;        // [n, stride], zeros after `width`; plain may be null
  int n, width, stride, ordered;
  float eps;
  int pad;
};
KERNEL(norm_rows, 256, Norm) {
  const int lane = threadIdx.x & 31;
  for (int row = rows_first(); row < p.n; row += rows_step()) {
    const float* x = p.x + (long long)row * p.width;
    float squares = 0;
    for (int i = lane * 4; i < p.width; i += 128) {
      const float4 v = *(const float4*)(x + i);
      squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    const float factor = rsqrtf(warp_sum(squares) / p.width + p.eps);
    for (int at = lane * 8; at < p.stride; at += 256) {
      u32 out[4], plain[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const int column = p.ordered ? ordered_column(at + 2 * t) : at + 2 * t;
        const bool inside = column < p.width;
        const float a = inside ? x[column] * factor : 0.f, b = inside ? x[column + 1] * factor : 0.f;
        plain[t] = pack_bf16(a, b);
        out[t] = inside ? pack_bf16(a * p.weight[column], b * p.weight[column + 1]) : 0;
      }
      *(uint4*)(p.out + (long long)row * p.stride + at) = make_uint4(out[0], out[1], out[2], out[3]);
      if (p.plain)
        *(uint4*)(p.plain + (long long)row * p.stride + at) = make_uint4(plain[0], plain[1], plain[2], plain[3]);
    }
  }
}

// The heads of a row: bias, norm, rotation; queries to `q`, keys and values to their slot of the cache. Four warps
// divide a row's heads; a lane has pairs of dimensions i and i + half, which are rotated together.
constexpr int ROPE_WARPS = 4;
struct Rope {
  const bf16* qkv;                                 // [n, qkv_stride]
  const float *bias, *q_weight, *k_weight, *rope;  // null where a family has none; rope [context, cos + sin]
  const int* table;
  bf16 *q, *keys, *values;  // [n, heads, HEAD]; [block, kv heads, 64, HEAD], with exponents: 8-bit codes
  unsigned char *key_exponents, *value_exponents;  // [block, kv heads, 64]; null: keys and values are bf16
  int n, position, heads, kv_heads, head_dim, qkv_stride;
  float eps;
  int pad;
};
KERNEL(rope_store, 256, Rope) {
  const int lane = threadIdx.x & 31, all = p.heads + 2 * p.kv_heads, half = p.head_dim / 2;
  for (int item = rows_first(); item < p.n * ROPE_WARPS; item += rows_step()) {
    const int row = item / ROPE_WARPS, position = p.position + row;
    const long long block = p.table[position >> 6];
    float2 cosine[2], sine[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = 2 * lane + 64 * j;
      if (i >= half) continue;
      cosine[j] = *(const float2*)(p.rope + (long long)position * p.head_dim + i);
      sine[j] = *(const float2*)(p.rope + (long long)position * p.head_dim + half + i);
    }
    for (int head = item % ROPE_WARPS; head < all; head += ROPE_WARPS) {
      const bf16* x = p.qkv + (long long)row * p.qkv_stride + head * p.head_dim;
      const bool is_q = head < p.heads, is_v = head >= p.heads + p.kv_heads;
      const float *bias = p.bias ? p.bias + head * p.head_dim : nullptr, *weight = is_v   ? nullptr
                                                                                   : is_q ? p.q_weight
                                                                                          : p.k_weight;
      float2 first[2], second[2];
      float factor = 1;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int i = 2 * lane + 64 * j;
        first[j].x = first[j].y = second[j].x = second[j].y = 0;
        if (i >= half) continue;
        const u32 a = *(const u32*)(x + i), b = *(const u32*)(x + i + half);
        first[j].x = bf16_value(a, 0), first[j].y = bf16_value(a, 1), second[j].x = bf16_value(b, 0),
        second[j].y = bf16_value(b, 1);
        if (bias) {
          first[j].x += bias[i], first[j].y += bias[i + 1];
          second[j].x += bias[i + half], second[j].y += bias[i + half + 1];
        }
      }
      if (weight) {
        float squares = 0;
#pragma unroll
        for (int j = 0; j < 2; ++j)
          squares +=
              first[j].x * first[j].x + first[j].y * first[j].y + second[j].x * second[j].x + second[j].y * second[j].y;
        factor = rsqrtf(warp_sum(squares) / p.head_dim + p.eps);
      }
      const int kv_head = is_v ? head - p.heads - p.kv_heads : head - p.heads;
      const long long slot = (block * p.kv_heads + kv_head) * 64 + (position & 63);
      bf16* to = is_q ? p.q + ((long long)row * p.heads + head) * p.head_dim : is_v ? p.values : p.keys;
      unsigned char* exponents = is_q ? nullptr : is_v ? p.value_exponents : p.key_exponents;
      if (!is_q && !exponents) to += slot * p.head_dim;
      u32 low[2] = {}, high[2] = {};  // pairs of bf16
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int i = 2 * lane + 64 * j;
        if (i >= half) continue;
        float2 a = first[j], b = second[j];
        if (weight) {
          a.x *= factor * weight[i], a.y *= factor * weight[i + 1];
          b.x *= factor * weight[i + half], b.y *= factor * weight[i + half + 1];
        }
        if (!is_v) {
          const float2 c = a;
          a.x = c.x * cosine[j].x - b.x * sine[j].x, a.y = c.y * cosine[j].y - b.y * sine[j].y;
          b.x = b.x * cosine[j].x + c.x * sine[j].x, b.y = b.y * cosine[j].y + c.y * sine[j].y;
        }
        low[j] = pack_bf16(a.x, a.y), high[j] = pack_bf16(b.x, b.y);
        if (!exponents) *(u32*)(to + i) = low[j], *(u32*)(to + i + half) = high[j];
      }
      if (!exponents) continue;
      const u32 exponent = cache_exponent(warp_max_bits(max(max(larger_magnitude(low[0]), larger_magnitude(high[0])),
                                                            max(larger_magnitude(low[1]), larger_magnitude(high[1])))));
      unsigned char* codes = (unsigned char*)to + slot * p.head_dim;
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int i = 2 * lane + 64 * j + k;
          if (i >= half) continue;
          codes[code_place(i)] = to_code(low[j] >> 16 * k & 0xffff, exponent);
          codes[code_place(i + half)] = to_code(high[j] >> 16 * k & 0xffff, exponent);
        }
      if (lane == 0) exponents[slot] = exponent;
    }
  }
}

// Copies keys and values of the first `n` positions from their blocks to contiguous rows, for libraries' attention
// kernels.
struct Gather {
  const bf16 *keys, *values;
  const unsigned char *key_exponents, *value_exponents;  // as in `Rope`
  const int* table;
  bf16 *to_keys, *to_values;  // [n, kv heads, HEAD]
  int n, kv_heads, head_dim, pad;
};
KERNEL(gather_cache, 256, Gather) {
  const int pieces = p.head_dim / 8;
  const long long all = (long long)p.n * p.kv_heads * pieces;
  for (long long item = (long long)blockIdx.x * 256 + threadIdx.x; item < all; item += (long long)gridDim.x * 256) {
    const int piece = item % pieces, head = item / pieces % p.kv_heads, position = item / pieces / p.kv_heads;
    const long long from =
        (((long long)p.table[position >> 6] * p.kv_heads + head) * 64 + (position & 63)) * p.head_dim + piece * 8;
    *(uint4*)(p.to_keys + item * 8) = cached_eight(p.keys, p.key_exponents, from, p.head_dim);
    *(uint4*)(p.to_values + item * 8) = cached_eight(p.values, p.value_exponents, from, p.head_dim);
  }
}

// The attention output as an operand. With `earlier` it has two parts, over this chunk's keys and over those before it,
// each with the logarithm of its sum of exponentials; they are joined by their softmax weights.
struct Attended {
  const bf16 *own, *earlier;           // [row, head, HEAD] by strides
  const float *own_lse, *earlier_lse;  // [head, row]
  bf16* out;                           // [n, stride], zeros after `width`
  int n, width, stride, head_dim, ordered;
  int own_row, own_head, earlier_row, earlier_head, lse_head;  // strides
};
KERNEL(attended_rows, 256, Attended) {
  const int lane = threadIdx.x & 31;
  for (int row = rows_first(); row < p.n; row += rows_step())
    for (int at = lane * 8; at < p.stride; at += 256) {
      u32 out[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const int column = p.ordered ? ordered_column(at + 2 * t) : at + 2 * t, head = column / p.head_dim,
                  dim = column % p.head_dim;
        out[t] = 0;
        if (column >= p.width) continue;
        out[t] = *(const u32*)(p.own + (long long)row * p.own_row + (long long)head * p.own_head + dim);
        if (!p.earlier) continue;
        const u32 other =
            *(const u32*)(p.earlier + (long long)row * p.earlier_row + (long long)head * p.earlier_head + dim);
        const float difference =
            p.earlier_lse[(long long)head * p.lse_head + row] - p.own_lse[(long long)head * p.lse_head + row];
        const float part = quotient(1.f, 1.f + exponential(difference)), rest = 1.f - part;
        out[t] = pack_bf16(part * bf16_value(out[t], 0) + rest * bf16_value(other, 0),
                           part * bf16_value(out[t], 1) + rest * bf16_value(other, 1));
      }
      *(uint4*)(p.out + (long long)row * p.stride + at) = make_uint4(out[0], out[1], out[2], out[3]);
    }
}

// The experts of a row by descending logit, and their routing weights.
struct Route {
  const float* logits;  // [n, stride]
  int* chosen;          // [n, top]
  float* routing_weight;
  int n, experts, top, stride, normalise, pad;
};
KERNEL(route_rows, 256, Route) {
  const int lane = threadIdx.x & 31;
  for (int row = rows_first(); row < p.n; row += rows_step()) {
    float logit[8];
    float highest = 0, all = 0, kept = 0, mine = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j)
      logit[j] = lane + 32 * j < p.experts ? p.logits[(long long)row * p.stride + lane + 32 * j] : -INF;
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
      which = min(which, p.experts - 1);  // NaN logits: any valid expert
      if (k == 0) {
        highest = best;
#pragma unroll
        for (int j = 0; j < 8; ++j) all += exponential(logit[j] - highest);
        all = warp_sum(all);
      }
      const float weight = exponential(best - highest);
      kept += weight;
      if (lane == k) mine = weight, p.chosen[(long long)row * p.top + k] = which;
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (which == lane + 32 * j) logit[j] = -INF;
    }
    if (lane < p.top) p.routing_weight[(long long)row * p.top + lane] = quotient(mine, p.normalise ? kept : all);
  }
}

// Sorts rows by expert, otherwise keeping their order. A CTA per expert counts the rows of the experts before its own,
// and lists its own. The last CTA to finish cuts them into tiles.
struct Sort {
  const int* chosen;  // [n * top]
  const float* routing_weight;
  int *row, *place;  // the row of every sorted row; the sorted row of every choice
  float* sorted_routing_weight;
  int* starts;  // [experts + 1]
  Tile* tiles;
  int* tile_count;
  u32* finished;  // 0 before and after
  int choices, top, experts, tokens;
};
KERNEL(sort_by_expert, 512, Sort) {
  SHARED_MEMORY(memory);
  int* counts = (int*)memory;  // [16 warps][2], later [experts]
  const int expert = blockIdx.x, thread = threadIdx.x, lane = thread & 31, warp = thread / 32;
  int before = 0, own = 0;
  for (int i = thread; i < p.choices; i += 512) before += p.chosen[i] < expert, own += p.chosen[i] == expert;
  for (int mask = 16; mask; mask >>= 1)
    before += __shfl_xor_sync(~0u, before, mask), own += __shfl_xor_sync(~0u, own, mask);
  if (lane == 0) counts[2 * warp] = before, counts[2 * warp + 1] = own;
  __syncthreads();
  before = own = 0;
  for (int i = 0; i < 16; ++i) before += counts[2 * i], own += counts[2 * i + 1];
  __syncthreads();
  // Every warp lists its own stretch, once it knows how many rows the stretches before it hold.
  const int each = ((p.choices + 15) / 16 + 31) / 32 * 32, begin = warp * each, end = min(begin + each, p.choices);
  int found = 0;
  for (int i = begin + lane; i < end; i += 32) found += p.chosen[i] == expert;
  for (int mask = 16; mask; mask >>= 1) found += __shfl_xor_sync(~0u, found, mask);
  if (lane == 0) counts[warp] = found;
  __syncthreads();
  int at = before;
  for (int w = 0; w < warp; ++w) at += counts[w];
  for (int from = begin; from < end; from += 32) {
    const int i = from + lane;
    const bool mine = i < end && p.chosen[i] == expert;
    const u32 bits = lanes_with(mine);
    if (mine) {
      const int place = at + count_bits(bits & ((1u << lane) - 1));
      p.row[place] = i / p.top, p.place[i] = place, p.sorted_routing_weight[place] = p.routing_weight[i];
    }
    at += count_bits(bits);
  }
  __syncthreads();
  if (thread == 0) {
    p.starts[expert] = before;
    if (expert + 1 == p.experts) p.starts[p.experts] = before + own;
    counts[0] = count_up(p.finished);
  }
  __syncthreads();
  if (counts[0] != p.experts - 1) return;
  __syncthreads();
  if (thread == 0) *p.finished = 0;
  for (int e = thread; e < p.experts; e += 512)
    counts[e] = (__ldcg(p.starts + e + 1) - __ldcg(p.starts + e) + p.tokens - 1) / p.tokens;
  __syncthreads();
  for (int mine = thread; mine < p.experts; mine += 512) {
    int tile = 0;
    for (int e = 0; e < mine; ++e) tile += counts[e];
    for (int first = __ldcg(p.starts + mine), end = __ldcg(p.starts + mine + 1); first < end; first += p.tokens)
      p.tiles[tile++] = Tile{mine, first, min(end - first, p.tokens), 0};
    if (mine + 1 == p.experts) *p.tile_count = tile;
  }
}

// Adds the outputs of a row's experts to the residual, in the order of the choice.
struct Combine {
  const bf16* y;  // [sorted rows, width]
  const int* place;
  float* x;  // [n, width]
  int n, width, top, pad;
};
KERNEL(combine_rows, 256, Combine) {
  const int lane = threadIdx.x & 31;
  for (int row = rows_first(); row < p.n; row += rows_step())
    for (int at = lane * 4; at < p.width; at += 128) {
      float4* x = (float4*)(p.x + (long long)row * p.width + at);
      float4 sum = *x;
      for (int k = 0; k < p.top; ++k) {
        const uint2 v = *(const uint2*)(p.y + (long long)p.place[(long long)row * p.top + k] * p.width + at);
        sum.x += bf16_value(v.x, 0), sum.y += bf16_value(v.x, 1), sum.z += bf16_value(v.y, 0),
            sum.w += bf16_value(v.y, 1);
      }
      *x = sum;
    }
}

// Widens packed weights to plain bf16 rows, for libraries' products. A warp per block of 16 x 128.
struct Widen {
  const char* weights;
  bf16* out;  // [tiles * 16, blocks * 128]
  int tiles, blocks;
};
template <int FORMAT>
__device__ __forceinline__ void widen_blocks(const Widen& p) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  for (int item = rows_first(); item < p.tiles * p.blocks; item += rows_step()) {
    const char *block = p.weights + (long long)item * Packed<FORMAT>::BYTES, *record = block + Packed<FORMAT>::DATA;
    bf16* out = p.out + ((long long)(item / p.blocks) * 16 * p.blocks + item % p.blocks) * COLUMNS;

#pragma unroll
    for (int slab = 0; slab < 4; ++slab) {
      u32 a[8];
      float top = 1, bottom = 1;
      if constexpr (FORMAT == BF16) {
        const uint4 v = *(const uint4*)(block + 2 * slab * 512 + lane * 16),
                    w = *(const uint4*)(block + (2 * slab + 1) * 512 + lane * 16);
        a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w, a[4] = w.x, a[5] = w.y, a[6] = w.z, a[7] = w.w;
      } else if constexpr (!Packed<FORMAT>::NIBBLES) {
        fragments(*(const uint4*)(block + slab * 512 + lane * 16), a);
        top = ((const float*)record)[FORMAT == FP8 ? 0 : g], bottom = ((const float*)record)[FORMAT == FP8 ? 1 : g + 8];
      } else {
        uint4 w = *(const uint4*)(block + slab / 2 * 512 + lane * 16);
        w = slab & 1 ? make_uint4(second_codes(w.x), second_codes(w.y), second_codes(w.z), second_codes(w.w))
                     : make_uint4(first_codes(w.x), first_codes(w.y), first_codes(w.z), first_codes(w.w));
        fragments(w, a);
        const unsigned short* scales = (const unsigned short*)record + (FORMAT == INT4_64 ? slab / 2 * 16 : 0);
        top = from_half(scales[g]) * 512.f, bottom = from_half(scales[g + 8]) * 512.f;
      }
      if constexpr (FORMAT != BF16) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float scale = i & 1 ? bottom : top;
          a[i] = pack_bf16(bf16_value(a[i], 0) * scale, bf16_value(a[i], 1) * scale);
        }
      }
      // Fragments 0, 2, 4 and 6 are columns 8 t .. 8 t + 7 of row g.
      *(uint4*)(out + (long long)g * p.blocks * COLUMNS + slab * 32 + t * 8) = make_uint4(a[0], a[2], a[4], a[6]);
      *(uint4*)(out + (long long)(g + 8) * p.blocks * COLUMNS + slab * 32 + t * 8) = make_uint4(a[1], a[3], a[5], a[7]);
    }
  }
}

// SwiGLU of a library product's output, in which 8 gates and 8 ups alternate.
struct Swiglu {
  const bf16* both;  // [n, 2 * width]
  bf16* h;           // [n, stride]
  int n, width, stride, pad;
};
KERNEL(swiglu_rows, 256, Swiglu) {
  const int lane = threadIdx.x & 31;
  for (int row = rows_first(); row < p.n; row += rows_step())
    for (int at = lane * 8; at < p.width; at += 256) {
      const bf16* both = p.both + (long long)row * 2 * p.width + 2 * at;
      const uint4 gate = *(const uint4*)both, up = *(const uint4*)(both + 8);
      const u32 g[4] = {gate.x, gate.y, gate.z, gate.w}, u[4] = {up.x, up.y, up.z, up.w};
      u32 h[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float v[2];
        for (int j = 0; j < 2; ++j) {
          const float z = bf16_value(g[i], j);
          v[j] = quotient(z, 1.f + exponential(-z)) * bf16_value(u[i], j);
        }
        h[i] = pack_bf16(v[0], v[1]);
      }
      *(uint4*)(p.h + (long long)row * p.stride + at) = make_uint4(h[0], h[1], h[2], h[3]);
    }
}

#define WIDEN(name, FORMAT) \
  KERNEL(name, 256, Widen) { widen_blocks<FORMAT>(p); }
#include "instances.h"
