// What happens between the products of a prompt, for any family: RoPE and the cache, the attention output as an
// operand, routing.
#include "cache.cuh"
#include "step.cuh"

// The heads of a row: bias, norm, rotation of the first `rotated` dimensions; queries to `q`, keys and values to their
// slot of the cache. A warp per head.
struct PromptRope {
  const float* projected;                                        // [n, stride]
  const float *bias, *q_weight, *k_weight, *rope, *query_scale;  // null where a family has none; rope: cos, then sin
  const int* table;
  bf16 *q, *keys, *values;  // [n, heads, head_dim]; [block, kv heads, 64, head_dim], with exponents: 8-bit codes
  unsigned char *key_exponents, *value_exponents;  // [block, kv heads, 64]; null: keys and values are bf16
  int n, position, heads, kv_heads, head_dim, stride, rotated;
  float eps;
};
constexpr int MOST_HEAD = 256;
KERNEL(prompt_rope, 256, PromptRope) {
  const int lane = threadIdx.x & 31, all = p.heads + 2 * p.kv_heads, half = p.rotated / 2;
  for (long long item = blockIdx.x * 8 + threadIdx.x / 32; item < (long long)p.n * all; item += gridDim.x * 8) {
    const int row = item / all, head = item % all, position = p.position + row;
    const bool is_q = head < p.heads, is_v = head >= p.heads + p.kv_heads;
    const float* x = p.projected + (long long)row * p.stride + head * p.head_dim;
    const float *bias = p.bias ? p.bias + head * p.head_dim : nullptr, *weight = is_v   ? nullptr
                                                                                 : is_q ? p.q_weight
                                                                                        : p.k_weight;
    float value[MOST_HEAD / 32], squares = 0, factor = 1;
#pragma unroll
    for (int j = 0; j < MOST_HEAD / 32; ++j) {
      const int d = lane + 32 * j;
      value[j] = d < p.head_dim ? x[d] + (bias ? bias[d] : 0.f) : 0.f;
      squares += value[j] * value[j];
    }
    if (weight) {
      for (int mask = 16; mask; mask >>= 1) squares += __shfl_xor_sync(~0u, squares, mask);
      factor = rsqrtf(squares / p.head_dim + p.eps);
    }
    const float scale = is_q && p.query_scale ? p.query_scale[position] : 1.f;
    const int kv_head = head - p.heads - (is_v ? p.kv_heads : 0);
    const long long slot = ((long long)p.table[position >> 6] * p.kv_heads + kv_head) * 64 + (position & 63);
    bf16* to = is_q ? p.q + ((long long)row * p.heads + head) * p.head_dim : is_v ? p.values : p.keys;
    unsigned char* exponents = is_q ? nullptr : is_v ? p.value_exponents : p.key_exponents;
    if (!is_q && !exponents) to += slot * p.head_dim;
    const float* angles = p.rope + (long long)position * p.rotated;
    u32 stored[MOST_HEAD / 32];
#pragma unroll
    for (int j = 0; j < MOST_HEAD / 32; ++j) {
      const int d = lane + 32 * j;
      stored[j] = 0;
      if (d >= p.head_dim) continue;
      float made = value[j] * factor * (weight ? weight[d] : 1.f);
      if (!is_v && d < p.rotated) {
        const int other = d < half ? d + half : d - half, at = d < half ? d : d - half;
        const float partner = (x[other] + (bias ? bias[other] : 0.f)) * factor * (weight ? weight[other] : 1.f);
        made = made * angles[at] + (d < half ? -partner : partner) * angles[half + at];
      }
      stored[j] = to_bf16(made * scale);
      if (!exponents) to[d] = stored[j];
    }
    if (exponents) store_head(stored, p.head_dim, (unsigned char*)to + slot * p.head_dim, exponents + slot);
  }
}

// The attention output as the operand of the output projection: with sinks, times the keys' part of the softmax; then
// times the gate's sigmoid.
struct PromptAttended {
  const bf16* attended;          // [n, heads, head_dim]
  const float* gate;             // [n, gate_stride]; null: none
  const float *log_sum, *sinks;  // [heads, n]: logarithms of sums of exponentials; [heads]; null: none
  bf16* out;                     // [n, stride], zeros after the heads
  int n, heads, head_dim, gate_stride, stride, ordered;
};
KERNEL(prompt_attended, 256, PromptAttended) {
  const int lane = threadIdx.x & 31, width = p.heads * p.head_dim;
  for (int row = blockIdx.x * 8 + threadIdx.x / 32; row < p.n; row += gridDim.x * 8)
    for (int at = lane * 8; at < p.stride; at += 256) {
      u32 out[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const int column = p.ordered ? ordered_column(at + 2 * t) : at + 2 * t, head = column / p.head_dim;
        out[t] = 0;
        if (column >= width) continue;
        const u32 pair = *(const u32*)(p.attended + (long long)row * width + column);
        float a = __uint_as_float(pair << 16), b = __uint_as_float(pair & 0xffff0000u);
        if (p.sinks) {
          const float share = sigmoid(p.log_sum[(long long)head * p.n + row] - p.sinks[head]);
          a *= share, b *= share;
        }
        if (p.gate) {
          const float2 gate = *(const float2*)(p.gate + (long long)row * p.gate_stride + column);
          a *= sigmoid(gate.x), b *= sigmoid(gate.y);
        }
        out[t] = pack_bf16(a, b);
      }
      *(uint4*)(p.out + (long long)row * p.stride + at) = make_uint4(out[0], out[1], out[2], out[3]);
    }
}

// The experts of a row by descending logit, ties to the lowest number, and their routing weights. A shared expert comes
// last; its weight is the sigmoid of the logit after all others. A warp per row.
struct PromptRoute {
  const float *logits, *bias;  // [n, stride]; [experts] or null
  int* chosen;                 // [n, top + shared]
  float* routing_weight;
  int n, experts, top, stride, shared, over_all;
};
constexpr int MOST_EXPERTS = 512;
KERNEL(prompt_route, 256, PromptRoute) {
  const int lane = threadIdx.x & 31, all = p.top + p.shared;
  for (int row = blockIdx.x * 8 + threadIdx.x / 32; row < p.n; row += gridDim.x * 8) {
    const float* logits = p.logits + (long long)row * p.stride;
    float logit[MOST_EXPERTS / 32], highest = 0, sum = 0, kept = 0, mine = 0;
#pragma unroll
    for (int j = 0; j < MOST_EXPERTS / 32; ++j) {
      const int expert = lane + 32 * j;
      logit[j] = expert < p.experts ? logits[expert] + (p.bias ? p.bias[expert] : 0.f) : -INF;
    }
    for (int k = 0; k < p.top; ++k) {
      float best = -INF;
      int which = p.experts;
#pragma unroll
      for (int j = 0; j < MOST_EXPERTS / 32; ++j)
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
        for (int j = 0; j < MOST_EXPERTS / 32; ++j) sum += natural_power(logit[j] - highest);
        for (int mask = 16; mask; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
      }
      const float weight = natural_power(best - highest);
      kept += weight;
      if (lane == k) mine = weight, p.chosen[(long long)row * all + k] = which;
#pragma unroll
      for (int j = 0; j < MOST_EXPERTS / 32; ++j)
        if (which == lane + 32 * j) logit[j] = -INF;
    }
    if (lane < p.top) p.routing_weight[(long long)row * all + lane] = quotient(mine, p.over_all ? sum : kept);
    if (p.shared && lane == 0) {
      p.chosen[(long long)row * all + p.top] = p.experts;
      p.routing_weight[(long long)row * all + p.top] = sigmoid(logits[p.experts]);
    }
  }
}
