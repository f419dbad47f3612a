// The gated delta rule over the tokens of a prompt, in chunks of 64; delta_chunks.py explains the mathematics.
//
//   delta_mix    convolution, SiLU and norms: queries, keys and values, [head, token, dimension]
//   delta_solve  a CTA per chunk of a head: U and W of its triangular system, and Q K' * D
//   delta_scan   a CTA per 32 columns of a head's state: for each chunk, what its tokens read, then the new state
//   delta_gate   the heads with their norm and gate: the operand of the output projection
//
// All in fp32. Tokens beyond the last are zeros with a decay of 1: they change nothing.
#include "step.cuh"

constexpr int CHUNK = 64, MOST_DIM = 128, LOG = 16, SCAN_COLUMNS = 32, SYSTEM = CHUNK + 4;
struct DeltaPrompt {
  const float *mixed, *ba;  // [n, stride]: inputs of the convolution, then the gates; [n, ba_stride]
  const float *taps, *decay, *dt_bias, *norm;
  float* inputs;         // [LOG, channels]: those of the last positions, by position
  float* state;          // [v heads, k_dim, v_dim]
  float *q, *k, *v;      // [head, padded, dimension]
  float *u, *w, *inner;  // [v head, padded, v_dim], [v head, padded, k_dim], [v head, chunk, 64, 64]
  float *total, *read;   // [v head, padded]: running sums of the logarithms of decays; [v head, padded, v_dim]
  bf16* out;             // [n, out_stride], zeros after the heads
  int n, padded, position, stride, ba_stride, out_stride;
  int k_heads, v_heads, k_dim, v_dim, taps_count, ordered;
  float eps;
};

__device__ __forceinline__ float sum_of_warp(float v) {
  for (int mask = 16; mask; mask >>= 1) v += __shfl_xor_sync(~0u, v, mask);
  return v;
}

// A warp has a head of 8 tokens, so an input is read once for all taps, except for the first few.
constexpr int MIX_ROWS = 8, MOST_TAPS = 8;
KERNEL(delta_mix, 256, DeltaPrompt) {
  const int lane = threadIdx.x & 31, heads = 2 * p.k_heads + p.v_heads;
  const int keys = p.k_heads * p.k_dim, channels = 2 * keys + p.v_heads * p.v_dim;
  for (int item = blockIdx.x * 8 + threadIdx.x / 32; item < p.padded / MIX_ROWS * heads; item += gridDim.x * 8) {
    const int begin = item / heads * MIX_ROWS, head = item % heads;
    const bool is_q = head < p.k_heads, is_v = head >= 2 * p.k_heads;
    const int own = head - (is_q ? 0 : is_v ? 2 * p.k_heads : p.k_heads), dim = is_v ? p.v_dim : p.k_dim;
    const int first = is_v ? 2 * keys + own * dim : (is_q ? 0 : keys) + own * dim;
    float value[MIX_ROWS][MOST_DIM / 32];
#pragma unroll
    for (int j = 0; j < MOST_DIM / 32; ++j) {
      const int i = lane + 32 * j, channel = first + i;
      float sum[MIX_ROWS];
#pragma unroll
      for (int r = 0; r < MIX_ROWS; ++r) sum[r] = 0;
      if (i < dim) {
        float tap[MOST_TAPS];  // of a token and those before it
#pragma unroll
        for (int t = 0; t < MOST_TAPS; ++t)
          tap[t] = t < p.taps_count ? p.taps[(p.taps_count - 1 - t) * channels + channel] : 0.f;
#pragma unroll
        for (int back = MOST_TAPS - 1; back > -MIX_ROWS; --back) {  // in the order of positions, as steps add them
          if (back >= p.taps_count) continue;
          const int from = begin - back, position = p.position + from;
          const float x = from >= p.n     ? 0.f
                          : from >= 0     ? p.mixed[(long long)from * p.stride + channel]
                          : position >= 0 ? p.inputs[position % LOG * channels + channel]
                                          : 0.f;
#pragma unroll
          for (int r = 0; r < MIX_ROWS; ++r)
            if (r + back >= 0 && r + back < MOST_TAPS) sum[r] = fmaf(x, tap[r + back], sum[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < MIX_ROWS; ++r) value[r][j] = begin + r < p.n ? sum[r] * sigmoid(sum[r]) : 0.f;
    }
    float* to = (is_v ? p.v : is_q ? p.q : p.k) + ((long long)own * p.padded + begin) * dim;
#pragma unroll
    for (int r = 0; r < MIX_ROWS; ++r) {
      float squares = 0;
#pragma unroll
      for (int j = 0; j < MOST_DIM / 32; ++j) squares += value[r][j] * value[r][j];
      squares = sum_of_warp(squares);
      const float factor = is_v ? 1.f : rsqrtf(squares + 1e-6f) * (is_q ? rsqrtf((float)dim) : 1.f);
#pragma unroll
      for (int j = 0; j < MOST_DIM / 32; ++j)
        if (lane + 32 * j < dim) to[r * dim + lane + 32 * j] = value[r][j] * factor;
    }
  }
}

__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
  return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
}

struct SolveRoom {
  float k[CHUNK][MOST_DIM + 4], q[CHUNK][MOST_DIM + 4];  // rows that are read together lie in different banks
  float system[CHUNK][SYSTEM];
  float log_decay[CHUNK], total[CHUNK], beta[CHUNK], right[CHUNK];  // right: beta exp(total)
};
KERNEL(delta_solve, 256, DeltaPrompt) {
  SHARED_MEMORY(memory);
  SolveRoom& s = *(SolveRoom*)memory;
  const int thread = threadIdx.x, chunks = p.padded / CHUNK, head = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
  const int first = chunk * CHUNK, k_head = head / (p.v_heads / p.k_heads);
  const long long k_at = ((long long)k_head * p.padded + first) * p.k_dim;
  for (int i = 4 * thread; i < CHUNK * p.k_dim; i += 1024) {
    const int row = i / p.k_dim, at = i % p.k_dim;
    *(float4*)&s.k[row][at] = *(const float4*)(p.k + k_at + i);
    *(float4*)&s.q[row][at] = *(const float4*)(p.q + k_at + i);
  }
  if (thread < CHUNK) {
    const bool inside = first + thread < p.n;
    const float* ba = p.ba + (long long)(inside ? first + thread : 0) * p.ba_stride;
    const float a = ba[p.v_heads + head] + p.dt_bias[head];
    s.log_decay[thread] = inside ? p.decay[head] * (a > 20.f ? a : log1pf(expf(a))) : 0.f;
    s.beta[thread] = inside ? sigmoid(ba[head]) : 0.f;
  }
  __syncthreads();
  if (thread < CHUNK) {
    float total = 0;
    for (int i = 0; i <= thread; ++i) total += s.log_decay[i];
    s.total[thread] = total, s.right[thread] = s.beta[thread] * expf(total);
    p.total[(long long)head * p.padded + first + thread] = total;
  }
  __syncthreads();
  {  // a thread has 16 entries of a row: every fourth column
    const int row = thread / 4, from = thread % 4;
    float with_k[16], with_q[16];
#pragma unroll
    for (int m = 0; m < 16; ++m) with_k[m] = with_q[m] = 0;
    for (int d = 0; d < p.k_dim; d += 4) {
      const float4 k = *(const float4*)&s.k[row][d], q = *(const float4*)&s.q[row][d];
#pragma unroll
      for (int m = 0; m < 16; ++m) {
        const float4 other = *(const float4*)&s.k[from + 4 * m][d];
        with_k[m] = dot4(k, other, with_k[m]), with_q[m] = dot4(q, other, with_q[m]);
      }
    }
    float* inner = p.inner + ((long long)blockIdx.x * CHUNK + row) * CHUNK;
#pragma unroll
    for (int m = 0; m < 16; ++m) {
      const int column = from + 4 * m;
      const float ratio = column <= row ? expf(s.total[row] - s.total[column]) : 0.f;
      s.system[row][column] = column < row ? s.beta[row] * with_k[m] * ratio : 0.f;
      inner[column] = with_q[m] * ratio;
    }
  }
  __syncthreads();
  const long long row_at = (long long)head * p.padded + first;
#pragma unroll 1
  for (int column = thread; column < p.v_dim + p.k_dim; column += 256) {
    const bool of_v = column < p.v_dim;
    const int at = of_v ? column : column - p.v_dim, dim = of_v ? p.v_dim : p.k_dim;
    const float* v = p.v + row_at * p.v_dim + at;
    float* to = (of_v ? p.u : p.w) + row_at * dim + at;
    float x[CHUNK];
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) {
      float sum = of_v ? s.beta[i] * v[(long long)i * p.v_dim] : s.right[i] * s.k[i][at];
#pragma unroll
      for (int j = 0; j < i; ++j) sum = fmaf(-s.system[i][j], x[j], sum);
      to[(long long)i * dim] = x[i] = sum;
    }
  }
}

struct ScanRoom {
  float state[MOST_DIM][SCAN_COLUMNS];
  float w[CHUNK][MOST_DIM], q[CHUNK][MOST_DIM], k[CHUNK][MOST_DIM];
  float inner[CHUNK][CHUNK], corrected[CHUNK][SCAN_COLUMNS];
  float of_q[CHUNK], of_k[CHUNK];  // exp of the running sum, and of its remainder to the end of the chunk
};
KERNEL(delta_scan, 256, DeltaPrompt) {
  SHARED_MEMORY(memory);
  ScanRoom& s = *(ScanRoom*)memory;
  const int parts = (p.v_dim + SCAN_COLUMNS - 1) / SCAN_COLUMNS, head = blockIdx.x / parts;
  const int thread = threadIdx.x, lane = thread & 31, warp = thread / 32;
  const int column = blockIdx.x % parts * SCAN_COLUMNS + lane, rows = CHUNK / 8 * warp, each = p.k_dim / 8;
  const bool inside = column < p.v_dim;
  const long long k_rows = (long long)(head / (p.v_heads / p.k_heads)) * p.padded, v_rows = (long long)head * p.padded;
  float* state = p.state + (long long)head * p.k_dim * p.v_dim + column;
  for (int d = warp; d < p.k_dim; d += 8) s.state[d][lane] = inside && p.position ? state[(long long)d * p.v_dim] : 0.f;
  const int across = p.k_dim / 4, down = 256 / across, at = thread % across * 4;  // rows that are copied at a time
#pragma unroll 1
  for (int first = 0; first < p.padded; first += CHUNK) {
    const float* total = p.total + v_rows + first;
    const float end = total[CHUNK - 1];
    __syncthreads();
    if (thread < CHUNK) s.of_q[thread] = expf(total[thread]), s.of_k[thread] = expf(end - total[thread]);
    __syncthreads();
#pragma unroll 4
    for (int row = thread / across; row < (thread < down * across ? CHUNK : 0); row += down) {
      const float of_q = s.of_q[row], of_k = s.of_k[row];
      const long long from = (long long)row * p.k_dim + at;
      const float4 q = *(const float4*)(p.q + (k_rows + first) * p.k_dim + from),
                   k = *(const float4*)(p.k + (k_rows + first) * p.k_dim + from);
      *(float4*)&s.w[row][at] = *(const float4*)(p.w + (v_rows + first) * p.k_dim + from);
      *(float4*)&s.q[row][at] = make_float4(q.x * of_q, q.y * of_q, q.z * of_q, q.w * of_q);
      *(float4*)&s.k[row][at] = make_float4(k.x * of_k, k.y * of_k, k.z * of_k, k.w * of_k);
    }
#pragma unroll
    for (int i = 4 * thread; i < CHUNK * CHUNK; i += 1024)
      *(float4*)(&s.inner[0][0] + i) = *(const float4*)(p.inner + (v_rows + first) * CHUNK + i);
    __syncthreads();
    float with_w[8], made[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) with_w[r] = made[r] = 0;
    for (int d = 0; d < p.k_dim; d += 4) {
      const float4 c = make_float4(s.state[d][lane], s.state[d + 1][lane], s.state[d + 2][lane], s.state[d + 3][lane]);
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        with_w[r] = dot4(*(const float4*)&s.w[rows + r][d], c, with_w[r]);
        made[r] = dot4(*(const float4*)&s.q[rows + r][d], c, made[r]);
      }
    }
    const float* u = p.u + (v_rows + first + rows) * p.v_dim + column;
#pragma unroll
    for (int r = 0; r < 8; ++r) s.corrected[rows + r][lane] = inside ? u[(long long)r * p.v_dim] - with_w[r] : 0.f;
    __syncthreads();
    for (int j = 0; j < rows + 8; j += 4) {
      const float4 c = make_float4(s.corrected[j][lane], s.corrected[j + 1][lane], s.corrected[j + 2][lane],
                                   s.corrected[j + 3][lane]);
#pragma unroll
      for (int r = 0; r < 8; ++r) made[r] = dot4(*(const float4*)&s.inner[rows + r][j], c, made[r]);
    }
    float* read = p.read + (v_rows + first + rows) * p.v_dim + column;
#pragma unroll
    for (int r = 0; r < 8; ++r)
      if (inside) read[(long long)r * p.v_dim] = made[r];
    // The warp's own rows of the state: no other warp reads them before the next barrier.
    const float decay = expf(end);
    for (int d = warp * each; d < (warp + 1) * each; d += 4) {
      float4 sum = make_float4(s.state[d][lane] * decay, s.state[d + 1][lane] * decay, s.state[d + 2][lane] * decay,
                               s.state[d + 3][lane] * decay);
      for (int i = 0; i < CHUNK; ++i) {
        const float c = s.corrected[i][lane];
        const float4 k = *(const float4*)&s.k[i][d];
        sum = make_float4(fmaf(k.x, c, sum.x), fmaf(k.y, c, sum.y), fmaf(k.z, c, sum.z), fmaf(k.w, c, sum.w));
      }
      s.state[d][lane] = sum.x, s.state[d + 1][lane] = sum.y, s.state[d + 2][lane] = sum.z,
      s.state[d + 3][lane] = sum.w;
    }
  }
  __syncthreads();
  for (int d = warp; d < p.k_dim; d += 8)
    if (inside) state[(long long)d * p.v_dim] = s.state[d][lane];
}

// A warp per row; a lane has pairs of columns. Also keeps the last inputs for the next tokens.
KERNEL(delta_gate, 256, DeltaPrompt) {
  SHARED_MEMORY(memory);
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, values = p.v_heads * p.v_dim;
  const int channels = 2 * p.k_heads * p.k_dim + values;
  float* factor = (float*)memory + warp * p.v_heads;
  for (int row = blockIdx.x * 8 + warp; row < p.n; row += gridDim.x * 8) {
    for (int head = 0; head < p.v_heads; ++head) {
      const float* read = p.read + ((long long)head * p.padded + row) * p.v_dim;
      float squares = 0;
      for (int i = lane; i < p.v_dim; i += 32) squares += read[i] * read[i];
      squares = sum_of_warp(squares);
      if (lane == 0) factor[head] = rsqrtf(squares / p.v_dim + p.eps);
    }
    __syncwarp();
    const float* z = p.mixed + (long long)row * p.stride + channels;
    for (int at = 2 * lane; at < p.out_stride; at += 64) {
      const int column = p.ordered ? ordered_column(at) : at, head = column / p.v_dim, d = column % p.v_dim;
      u32 pair = 0;
      if (column < values) {
        const float* read = p.read + ((long long)head * p.padded + row) * p.v_dim + d;
        const float2 gate = *(const float2*)(z + column);
        pair = pack_bf16(read[0] * factor[head] * p.norm[d] * (gate.x * sigmoid(gate.x)),
                         read[1] * factor[head] * p.norm[d + 1] * (gate.y * sigmoid(gate.y)));
      }
      *(u32*)(p.out + (long long)row * p.out_stride + at) = pair;
    }
    __syncwarp();
  }
  const int kept = min(p.n, LOG);
  for (int i = blockIdx.x * 256 + threadIdx.x; i < kept * channels; i += gridDim.x * 256) {
    const int row = p.n - kept + i / channels, channel = i % channels;
    p.inputs[(p.position + row) % LOG * channels + channel] = p.mixed[(long long)row * p.stride + channel];
  }
}
