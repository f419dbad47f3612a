// What the general driver does between its products (gemv.cuh): the beginning of a step, attention (attend.cuh), gated
// delta nets, and what the drafting head reads.
#include "attend.cuh"

// Sets the residual of every row to its embedding, and tells recurrent layers how many tokens of the last step were
// accepted: those before this step's first position.
struct Begin {
  StepRows* rows;
  const bf16* embed;  // [token, width]
  float* x;           // [row, width]
  int* known;         // [slot]: tokens that the state holds; null: no recurrent layers
  int width, pad;
};
KERNEL(step_begin, 256, Begin) {
  let_successor_start();
  wait_for_predecessor();
  const int row = blockIdx.x;
  if (p.rows->done) {
    if (row == 0 && threadIdx.x == 0) p.rows->count = 0;
    return;
  }
  if (row >= p.rows->count) return;
  for (int i = threadIdx.x; i < p.width; i += 256)
    p.x[(long long)row * p.width + i] = bf16_at(p.embed + (long long)p.rows->token[row] * p.width + i);
  if (row || threadIdx.x || !p.known) return;
  for (int i = 0; i < p.rows->count; ++i) {
    const int slot = p.rows->slot[i];
    if (i && p.rows->slot[i - 1] == slot) continue;
    p.rows->fold[i] = p.rows->position[i] - p.known[slot];
    p.known[slot] = p.rows->position[i];
  }
}

// A gated delta net. Every row decays, corrects and reads a state S, [k_dim, v_dim] per value head:
//     S = g S; d = beta (v - S'k); S = S + k d'; o = S'q
// Columns of S are independent, so a CTA holds 32 of them in registers: a column per lane, k_dim / 8 rows per warp.
//
// Memory holds S as of the first row of the last step, and a log of that step's rows: k, d and g of each, and the
// inputs of the convolution. The next step folds the accepted rows into S, writes S once, and goes on with its own rows
// in registers. A row that is folded in later goes through the same operations, so k rows in a step have the bits of k
// steps.
constexpr int LOG = 16;  // positions: the rows of two steps; the convolution looks back at most 7 of them
constexpr int DELTA_WARPS = 8, DELTA_THREADS = 32 * DELTA_WARPS, DELTA_COLUMNS = 32, MOST_K = 128, DELTA_ROWS = 8;

struct Delta {
  const StepRows* rows;
  const float* mixed;                   // [row, stride]: inputs of the convolution: queries, keys, values
  const float* ba;                      // [row, ba_stride]: b of every value head, then a
  const float *taps, *decay, *dt_bias;  // [tap, channel], [value head]
  float* state;  // of the layer in slot 0: S; inputs [LOG, channels]; k [LOG, keys]; d and g [LOG, values + heads]
  float* out;    // [row, values]
  long long slot_floats;
  int stride, ba_stride, k_heads, v_heads, k_dim, v_dim, taps_count, pad;
};

struct DeltaRoom {
  float q[DELTA_ROWS][MOST_K], k[DELTA_ROWS][MOST_K], v[DELTA_ROWS][DELTA_COLUMNS];
  float beta[DELTA_ROWS], decay[DELTA_ROWS], kq[DELTA_ROWS];
  float dots[2][2][DELTA_WARPS][DELTA_COLUMNS];  // [row % 2]
};

// A channel of the convolution at a position: its inputs and taps, all loaded at once.
constexpr int MOST_TAPS = 8;
struct Taps {
  float x[MOST_TAPS], w[MOST_TAPS], newest;
  __device__ __forceinline__ void load(const Delta& p, const float* inputs, int channels, int channel, int begin,
                                       int first, int row) {
#pragma unroll
    for (int tap = 0; tap < MOST_TAPS; ++tap) {
      const int from = first + row - (p.taps_count - 1) + tap;
      const float* at = from >= first ? p.mixed + (long long)(begin + from - first) * p.stride + channel
                                      : inputs + (from & (LOG - 1)) * channels + channel;
      const bool there = channel >= 0 && tap < p.taps_count;
      x[tap] = there && from >= 0 ? __ldcg(at) : 0.f;
      w[tap] = there ? p.taps[tap * channels + channel] : 0.f;
    }
    newest = channel >= 0 ? __ldcg(p.mixed + (long long)(begin + row) * p.stride + channel) : 0.f;
  }
  __device__ __forceinline__ float sum(int count) const {
    float v = 0;
#pragma unroll
    for (int tap = 0; tap < MOST_TAPS; ++tap)
      if (tap < count) v = fmaf(x[tap], w[tap], v);
    return v;
  }
};

KERNEL(step_delta, 256, Delta) {
  SHARED_MEMORY(memory);
  DeltaRoom& s = *(DeltaRoom*)memory;
  let_successor_start();
  wait_for_predecessor();
  const int parts = (p.v_dim + DELTA_COLUMNS - 1) / DELTA_COLUMNS;
  const int head = blockIdx.x / parts, first_column = blockIdx.x % parts * DELTA_COLUMNS;
  const int thread = threadIdx.x, lane = thread & 31, warp = thread / 32, column = first_column + lane;
  const bool inside = column < p.v_dim;
  const int group = p.v_heads / p.k_heads, k_head = head / group, each = p.k_dim / DELTA_WARPS;
  const bool logs_key = head % group == 0 && first_column == 0;
  const int keys = p.k_heads * p.k_dim, values = p.v_heads * p.v_dim, channels = 2 * keys + values;
  const int count = min(p.rows->count, DELTA_ROWS);
  constexpr int EACH = MOST_K / DELTA_WARPS;
#pragma unroll 1
  for (int begin = 0, rows; begin < count; begin += rows) {
    const int slot = p.rows->slot[begin], first = p.rows->position[begin], fold = p.rows->fold[begin];
    for (rows = 1; begin + rows < count && p.rows->slot[begin + rows] == slot;) ++rows;
    float* state = p.state + slot * p.slot_floats;
    float* inputs = state + (long long)p.v_heads * p.k_dim * p.v_dim;
    float *key_log = inputs + LOG * channels, *value_log = key_log + LOG * keys;
    // S as of the last step's first row.
    float* at = state + ((long long)head * p.k_dim + warp * each) * p.v_dim + column;
    float c[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) c[i] = first && inside && i < each ? __ldcg(at + i * p.v_dim) : 0.f;
    // The convolution of all rows: queries and keys of the head, values of the columns. S is being loaded meanwhile.
    int channel[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int which = i * DELTA_THREADS + thread;
      const bool is_v = which >= 2 * p.k_dim, is_k = !is_v && which >= p.k_dim;
      const int within = is_v ? first_column + which - 2 * p.k_dim : which - (is_k ? p.k_dim : 0);
      channel[i] = is_v ? 2 * keys + head * p.v_dim + within : (is_k ? keys : 0) + k_head * p.k_dim + within;
      if (is_v && (within >= p.v_dim || which >= 2 * p.k_dim + DELTA_COLUMNS)) channel[i] = -1;
    }
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      Taps one, two;
      one.load(p, inputs, channels, channel[0], begin, first, row);
      two.load(p, inputs, channels, channel[1], begin, first, row);
      const auto finish = [&](const Taps& taps, int which, int to) {
        const int within = which - 2 * p.k_dim;
        const float sum = taps.sum(p.taps_count), value = sum * sigmoid(sum);  // 0 beyond the last column
        if (to >= 0 && (within >= 0 || logs_key)) inputs[((first + row) & (LOG - 1)) * channels + to] = taps.newest;
        if (within < 0)
          (which >= p.k_dim ? s.k[row] + which - p.k_dim : s.q[row] + which)[0] = value;
        else if (within < DELTA_COLUMNS)
          s.v[row][within] = value;
      };
      finish(one, thread, channel[0]);
      finish(two, DELTA_THREADS + thread, channel[1]);
    }
#pragma unroll 1
    for (int back = first ? fold : 0; back > 0; --back) {
      const int place = (first - back) % LOG;
      const float *k = key_log + place * keys + k_head * p.k_dim + warp * each,
                  *d = value_log + place * (values + p.v_heads);
      const float decay = __ldcg(d + values + head), correction = inside ? __ldcg(d + head * p.v_dim + column) : 0.f;
#pragma unroll
      for (int i = 0; i < EACH; ++i)
        if (i < each) c[i] = fmaf(__ldcg(k + i), correction, c[i] * decay);
    }
    if (fold > 0 || first == 0)
#pragma unroll
      for (int i = 0; i < EACH; ++i)
        if (inside && i < each) at[i * p.v_dim] = c[i];
    __syncthreads();
    for (int row = warp; row < rows; row += DELTA_WARPS) {
      const float* ba = p.ba + (long long)(begin + row) * p.ba_stride;
      const float a = __ldcg(ba + p.v_heads + head) + p.dt_bias[head], beta = __ldcg(ba + head), rate = p.decay[head];
      float qq = 0, kk = 0, kq = 0;
      for (int i = lane; i < p.k_dim; i += 32) {
        const float q = s.q[row][i], k = s.k[row][i];
        qq += q * q, kk += k * k, kq += k * q;
      }
      for (int mask = 16; mask; mask >>= 1)
        qq += __shfl_xor_sync(~0u, qq, mask), kk += __shfl_xor_sync(~0u, kk, mask),
            kq += __shfl_xor_sync(~0u, kq, mask);
      const float q = rsqrtf(qq + 1e-6f) * rsqrtf((float)p.k_dim), k = rsqrtf(kk + 1e-6f);
      for (int i = lane; i < p.k_dim; i += 32) s.q[row][i] *= q, s.k[row][i] *= k;
      if (lane == 0) {
        s.kq[row] = kq * q * k;
        s.beta[row] = sigmoid(beta);
        s.decay[row] = expf(rate * (a > 20.f ? a : log1pf(expf(a))));
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      float with_k = 0, with_q = 0;
      const float decay = s.decay[row];
#pragma unroll
      for (int i = 0; i < EACH; ++i)
        if (i < each) {
          c[i] *= decay;
          with_k = fmaf(c[i], s.k[row][warp * each + i], with_k);
          with_q = fmaf(c[i], s.q[row][warp * each + i], with_q);
        }
      auto& dots = s.dots[row & 1];
      dots[0][warp][lane] = with_k, dots[1][warp][lane] = with_q;
      __syncthreads();
      with_k = with_q = 0;
#pragma unroll
      for (int i = 0; i < DELTA_WARPS; ++i) with_k += dots[0][i][lane], with_q += dots[1][i][lane];
      const float correction = s.beta[row] * (s.v[row][lane] - with_k);
#pragma unroll
      for (int i = 0; i < EACH; ++i)
        if (i < each) c[i] = fmaf(s.k[row][warp * each + i], correction, c[i]);
      const int place = (first + row) % LOG;
      if (warp == 0 && inside) {
        p.out[(long long)(begin + row) * values + head * p.v_dim + column] = fmaf(correction, s.kq[row], with_q);
        value_log[place * (values + p.v_heads) + head * p.v_dim + column] = correction;
      }
      if (thread == 0 && first_column == 0) value_log[place * (values + p.v_heads) + values + head] = decay;
      if (logs_key)
        for (int i = thread; i < p.k_dim; i += DELTA_THREADS)
          key_log[place * keys + k_head * p.k_dim + i] = s.k[row][i];
    }
    if (begin + rows < count) __syncthreads();  // the next sequence's rows use the same room
  }
}

// The drafting head (MTP) reads, for slot t of its own keys and values, token t and the hidden state at t - 1. Hidden
// states are kept in a ring, [slot, HIDDEN, width], by position; a draft puts the head's own results where the model's
// will be.
constexpr int HIDDEN = 128;
__device__ __forceinline__ long long hidden_at(const StepRows* rows, int row, int back, int width) {
  return ((long long)rows->slot[row] * HIDDEN + (rows->position[row] - back) % HIDDEN) * width;
}
__device__ __forceinline__ float sum_of_256(float v, float* room) {  // threads of a CTA
  for (int mask = 16; mask; mask >>= 1) v += __shfl_xor_sync(~0u, v, mask);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) room[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += room[i];
  return sum;
}

// The drafting head's operand: the norm of a token's embedding, then the norm of the hidden state before it.
struct Draft {
  const StepRows* rows;
  const bf16* embed;    // [token, width]
  const float* hidden;  // the ring
  const float *embed_norm, *hidden_norm;
  bf16* out;  // [row, 2 width]
  int width;
  float eps;
};
KERNEL(step_draft, 256, Draft) {
  SHARED_MEMORY(memory);
  let_successor_start();
  wait_for_predecessor();
  const int row = blockIdx.x, thread = threadIdx.x;
  if (row >= p.rows->count) return;
  const bf16* embed = p.embed + (long long)p.rows->token[row] * p.width;
  const float* hidden = p.hidden + hidden_at(p.rows, row, 1, p.width);
  float a = 0, b = 0;
  for (int i = thread; i < p.width; i += 256) {
    const float e = bf16_at(embed + i), h = __ldcg(hidden + i);
    a += e * e, b += h * h;
  }
  const float of_embed = rsqrtf(sum_of_256(a, (float*)memory) / p.width + p.eps),
              of_hidden = rsqrtf(sum_of_256(b, (float*)memory) / p.width + p.eps);
  bf16* out = p.out + (long long)row * 2 * p.width;
  for (int i = thread; i < p.width; i += 256) {
    out[i] = to_bf16(bf16_at(embed + i) * of_embed * p.embed_norm[i]);
    out[p.width + i] = to_bf16(__ldcg(hidden + i) * of_hidden * p.hidden_norm[i]);
  }
}

// Stores the residual of every row, after its final norm, in the ring.
struct Hidden {
  const StepRows* rows;
  const float *x, *norm;
  float* ring;
  int width;
  float eps;
};
KERNEL(step_hidden, 256, Hidden) {
  SHARED_MEMORY(memory);
  let_successor_start();
  wait_for_predecessor();
  const int row = blockIdx.x, thread = threadIdx.x;
  if (row >= p.rows->count) return;
  const float* x = p.x + (long long)row * p.width;
  float squares = 0;
  for (int i = thread; i < p.width; i += 256) squares += __ldcg(x + i) * __ldcg(x + i);
  const float factor = rsqrtf(sum_of_256(squares, (float*)memory) / p.width + p.eps);
  float* out = p.ring + hidden_at(p.rows, row, 0, p.width);
  for (int i = thread; i < p.width; i += 256) out[i] = __ldcg(x + i) * factor * p.norm[i];
}
