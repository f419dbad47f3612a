// Gated delta nets, in place of other layers' attention. Every row decays, corrects and reads a state S, [K_DIM, V_DIM]
// per value head:
//     S = g S; d = beta (v - S'k); S = S + k d'; o = S'q
// Columns of S are independent, so a unit is DELTA_COLUMNS columns of a head. Lanes hold a column each in registers,
// and K_PARTS warps divide its K_DIM rows.
//
// Memory holds S as of the first row of the last step, and a log of that step's rows, as family.cu does: the general
// driver can continue where this one stopped, and k rows in a step have the bits of k steps. All of this is known
// before the projections, so it is loaded while waiting for them.
//
// The heads' RMSNorm needs all columns of a head, which are spread over several units. So a unit sends its values times
// the norm's weight and the gate, and the reader computes the norm's factor from sums of squares (operand.cuh).
#pragma once
#include "side.cuh"

#if DELTA_LAYERS
constexpr int LOG = 16;  // positions of the log: the rows of two steps; the convolution looks back at most 7 of them
constexpr int KEY_CHANNELS = K_HEADS * K_DIM, CHANNELS = 2 * KEY_CHANNELS + VALUES;
constexpr int K_PARTS = WARPS * 32 / DELTA_COLUMNS, EACH = K_DIM / K_PARTS, WINDOW = TAPS - 1;
constexpr int UNIT_CHANNELS = 2 * K_DIM + DELTA_COLUMNS;  // of the convolution: queries, keys, values
static_assert(V_DIM == BLOCK && V_DIM / 32 == DELTA_PARTS && K_DIM % 32 == 0 && K_DIM % K_PARTS == 0, "plan.py");
static_assert(UNIT_CHANNELS + DELTA_COLUMNS + 32 <= THREADS && MAX_ROWS <= 32,
              "one thread per channel, one warp for the gates");
static_assert(MAX_ROWS + WINDOW <= LOG, "no row overwrites what an earlier one needs");

// After the operand, if there is room: the warps that finish a unit still read it while others write the operand of o.
struct DeltaScratch {
  float q[MAX_ROWS][K_DIM], k[MAX_ROWS][K_DIM], v[MAX_ROWS][DELTA_COLUMNS];
  float z[MAX_ROWS][DELTA_COLUMNS], beta[MAX_ROWS], decay[MAX_ROWS];
  float dots[2][2][K_PARTS][DELTA_COLUMNS];  // [row % 2][with the key, with the query]
};
static_assert(DELTA_AT + sizeof(DeltaScratch) <= AREA_BYTES, "as header.py divides shared memory");

// Where the parts of a layer's state lie.
struct DeltaState {
  float *s, *inputs, *keys,
      *values;  // [head][K_DIM][V_DIM]; [LOG][CHANNELS]; [LOG][KEY_CHANNELS]; [LOG][VALUES + V_HEADS]
  __device__ __forceinline__ DeltaState(const Args& args, const Shared& shared, int layer) {
    s = args.states + shared.slot * args.slot_floats + (-1 - place_of(layer)) * (long long)STATE_FLOATS;
    inputs = s + V_HEADS * K_DIM * V_DIM;
    keys = inputs + LOG * CHANNELS;
    values = keys + LOG * KEY_CHANNELS;
  }
};
struct DeltaUnit {
  int head, column, k_head;  // head of the values; first column; head of the queries and keys
  bool logs_key;             // true for one unit of every key head
  __device__ __forceinline__ DeltaUnit(int unit) {
    head = unit / HEAD_UNITS, column = unit % HEAD_UNITS * DELTA_COLUMNS;
    constexpr int V_PER_K = V_HEADS / K_HEADS;
    k_head = head / V_PER_K, logs_key = head % V_PER_K == 0 && column == 0;
  }
  // A thread's channel of the convolution; -1: none.
  __device__ __forceinline__ int channel(int thread) const {
    if (thread < K_DIM) return k_head * K_DIM + thread;
    if (thread < 2 * K_DIM) return KEY_CHANNELS + k_head * K_DIM + thread - K_DIM;
    return thread < UNIT_CHANNELS ? 2 * KEY_CHANNELS + head * V_DIM + column + thread - 2 * K_DIM : -1;
  }
};
__device__ __forceinline__ float sigmoid(float v) { return quotient(1.f, 1.f + exponential(-v)); }
// ln(1 + e^v)
__device__ __forceinline__ float soft_plus(float v) { return v > 20.f ? v : log1pf(expf(v)); }

// Prefetches a unit's columns of S into L2, and its part of the log.
__device__ inline void delta_prefetch(const Args& args, const Shared& shared, int layer) {
  const int number = opaque((int)blockIdx.x);
  if (number >= DELTA_UNITS || shared.position[0] == 0) return;
  const DeltaUnit unit(number);
  const DeltaState state(args, shared, layer);
  const int thread = (int)thread_index(), line = thread & 15;
#pragma unroll 1
  for (int i = thread; i < K_DIM * (DELTA_COLUMNS / 32); i += THREADS)
    prefetch_l2(state.s + (unit.head * K_DIM + i % K_DIM) * V_DIM + unit.column + i / K_DIM * 32);
  const int channel = unit.channel(thread);
  if (channel >= 0 && !(channel & 31))
#pragma unroll
    for (int i = 0; i < TAPS; ++i)
      prefetch_l2(args.norms + (long long)layer * NORM_STRIDE + CONV_AT + i * CHANNELS + channel);
  // Each group of 16 threads prefetches one position of the convolution's inputs; the first group also the last row's
  // log.
  const int back = thread / 16 + 1, position = shared.position[0] - back;
  if (back > WINDOW || position < 0) return;
  const float* inputs = state.inputs + (position & (LOG - 1)) * CHANNELS;
  const int at = line % (K_DIM / 32) * 32;
  if (line < 2 * (K_DIM / 32))
    prefetch_l2(inputs + (line < K_DIM / 32 ? 0 : KEY_CHANNELS) + unit.k_head * K_DIM + at);
  else if (line < 2 * (K_DIM / 32) + DELTA_COLUMNS / 32)
    prefetch_l2(inputs + 2 * KEY_CHANNELS + unit.head * V_DIM + unit.column + (line - 2 * (K_DIM / 32)) * 32);
  else if (back == 1 && line < 14)
    prefetch_l2(state.keys + (position & (LOG - 1)) * KEY_CHANNELS + unit.k_head * K_DIM + at);
  else if (back == 1)
    prefetch_l2(state.values + (position & (LOG - 1)) * (VALUES + V_HEADS) +
                (line == 14 ? unit.head * V_DIM + unit.column : VALUES + unit.head));
}

__device__ __forceinline__ float receive_projection(const Args& args, int row, int at, u32 epoch) {
  const u64 word = receive_pair(args.qkv + (row * QKV_ROWS + at) / 2, epoch);
  return at & 1 ? second_of(word) : first_of(word);
}

// `turn`: how many units this CTA has already done.
__device__ inline void delta_unit(const Args& args, Shared& shared, char* area, int layer, u32 epoch, int number,
                                  int turn) {
  DeltaScratch& s = *(DeltaScratch*)area;
  const DeltaUnit unit(number);
  const DeltaState state(args, shared, layer);
  const float* vectors = args.norms + (long long)layer * NORM_STRIDE;
  const int thread = (int)thread_index(), lane = thread & 31, warp = thread >> 5, rows = rows_of(shared);
  const int part = warp % K_PARTS, mine = warp / K_PARTS * 32 + lane, column = unit.column + mine;
  const int first = shared.position[0], fold = first ? shared.fold : 0;
  // S, and what the convolution looks back at.
  float* at = state.s + (unit.head * K_DIM + part * EACH) * V_DIM + column;
  float c[EACH];
#pragma unroll
  for (int i = 0; i < EACH; ++i) c[i] = first ? __ldcg(at + i * V_DIM) : 0.f;
  // What the last accepted row adds to S. (More than one row is pending only after a draft.)
  const int last = (first - 1) & (LOG - 1);
  const float *last_key = state.keys + last * KEY_CHANNELS + unit.k_head * K_DIM + part * EACH,
              *last_value = state.values + last * (VALUES + V_HEADS);
  float k[EACH];
#pragma unroll
  for (int i = 0; i < EACH; ++i) k[i] = fold > 0 ? __ldcg(last_key + i) : 0.f;
  const float last_decay = fold > 0 ? __ldcg(last_value + VALUES + unit.head) : 1.f,
              last_correction = fold > 0 ? __ldcg(last_value + unit.head * V_DIM + column) : 0.f;
  const int channel = unit.channel(thread);
  float x[WINDOW], w[TAPS];
#pragma unroll
  for (int i = 0; i < TAPS; ++i) w[i] = channel >= 0 ? vectors[CONV_AT + i * CHANNELS + channel] : 0.f;
#pragma unroll
  for (int i = 0; i < WINDOW; ++i) {
    const int from = first - WINDOW + i;
    x[i] = channel >= 0 && from >= 0 ? __ldcg(state.inputs + (from & (LOG - 1)) * CHANNELS + channel) : 0.f;
  }
  const float weight = vectors[DELTA_NORM_AT + column];
  mark(args, shared, FETCH);
  // The convolution of all rows, and their gates.
  if (channel >= 0) {
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      const float newest = receive_projection(args, row, channel, epoch);
      float sum = 0;
#pragma unroll
      for (int i = 0; i < WINDOW; ++i) sum = fmaf(x[i], w[i], sum);
      sum = fmaf(newest, w[WINDOW], sum);
      const float value = sum * sigmoid(sum);
      if (thread < K_DIM)
        s.q[row][thread] = value;
      else if (thread < 2 * K_DIM)
        s.k[row][thread - K_DIM] = value;
      else
        s.v[row][thread - 2 * K_DIM] = value;
      if (thread >= 2 * K_DIM || unit.logs_key) state.inputs[((first + row) & (LOG - 1)) * CHANNELS + channel] = newest;
#pragma unroll
      for (int i = 0; i + 1 < WINDOW; ++i) x[i] = x[i + 1];
      x[WINDOW - 1] = newest;
    }
  } else if (thread < UNIT_CHANNELS + DELTA_COLUMNS) {
    const int which = thread - UNIT_CHANNELS, from = CHANNELS + unit.head * V_DIM + unit.column + which;
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      const float z = receive_projection(args, row, from, epoch);
      s.z[row][which] = z * sigmoid(z);
    }
  } else if (warp == WARPS - 1) {
    const float rate = vectors[DECAY_AT + unit.head], bias = vectors[DT_BIAS_AT + unit.head];
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      const float inverse = inverse_of(shared, row);
      const float2 ba = gates_of(shared, row, turn);
      if (lane == 0) {
        s.beta[row] = sigmoid(ba.x * inverse);
        s.decay[row] = expf(rate * soft_plus(ba.y * inverse + bias));
      }
    }
  }
  // Folds the accepted rows of the last step into S.
#pragma unroll 1
  for (int back = fold; back > 1; --back) {
    const int place = (first - back) & (LOG - 1);
    const float *key = state.keys + place * KEY_CHANNELS + unit.k_head * K_DIM + part * EACH,
                *d = state.values + place * (VALUES + V_HEADS);
    const float decay = __ldcg(d + VALUES + unit.head), correction = __ldcg(d + unit.head * V_DIM + column);
#pragma unroll
    for (int i = 0; i < EACH; ++i) c[i] = fmaf(__ldcg(key + i), correction, c[i] * decay);
  }
  if (fold > 0)
#pragma unroll
    for (int i = 0; i < EACH; ++i) c[i] = fmaf(k[i], last_correction, c[i] * last_decay);
  if (fold > 0 || first == 0)
#pragma unroll
    for (int i = 0; i < EACH; ++i) at[i * V_DIM] = c[i];
  block_barrier();
  mark(args, shared, PROJECT);
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    const bool ends = part == 0;  // this warp adds up the parts of its columns
    // Every warp computes the norms of the query and the key itself: that is quicker than a barrier.
    float qq = 0, kk = 0, kq = 0;
#pragma unroll
    for (int i = 0; i < K_DIM / 32; ++i) {
      const float q = s.q[row][i * 32 + lane], k = s.k[row][i * 32 + lane];
      qq = fmaf(q, q, qq), kk = fmaf(k, k, kk), kq = fmaf(k, q, kq);
    }
    qq = warp_sum(qq), kk = warp_sum(kk), kq = warp_sum(kq);
    const float by_q = rsqrtf(qq + 1e-6f) * rsqrtf((float)K_DIM), by_k = rsqrtf(kk + 1e-6f);
    const float decay = s.decay[row];
    float with_k = 0, with_q = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      c[i] *= decay;
      with_k = fmaf(c[i], s.k[row][part * EACH + i] * by_k, with_k);
      with_q = fmaf(c[i], s.q[row][part * EACH + i] * by_q, with_q);
    }
    auto& dots = s.dots[row & 1];
    dots[0][part][mine] = with_k, dots[1][part][mine] = with_q;
    block_barrier();
    if (!ends && row + 1 == rows) break;  // the next step adds this row to S
    with_k = with_q = 0;
#pragma unroll
    for (int i = 0; i < K_PARTS; ++i) {
      with_k += dots[0][i][mine];
      if (ends) with_q += dots[1][i][mine];
    }
    const float correction = s.beta[row] * (s.v[row][mine] - with_k);
#pragma unroll
    for (int i = 0; i < EACH; ++i) c[i] = fmaf(s.k[row][part * EACH + i] * by_k, correction, c[i]);
    if (!ends) continue;
    const float value = fmaf(correction, kq * by_q * by_k, with_q);
    const float gated = value * weight * s.z[row][mine], neighbour = __shfl_xor_sync(~0u, gated, 1);
    const float squares = warp_sum(value * value);
    const int head_at = row * (O::COPY_BLOCKS * BLOCK) + unit.head * V_DIM + column;
    if (!(lane & 1)) send(args.attended + head_at / 2, pack_bf16(gated, neighbour), epoch);
    if (lane == 0)
      send(args.squares + (row * V_HEADS + unit.head) * DELTA_PARTS + column / 32, __float_as_uint(squares), epoch);
    // The log of the row.
    float* log = state.values + ((first + row) & (LOG - 1)) * (VALUES + V_HEADS);
    log[unit.head * V_DIM + column] = correction;
    if (column == 0) log[VALUES + unit.head] = decay;
    if (unit.logs_key && mine < 32)
#pragma unroll
      for (int i = 0; i < K_DIM / 32; ++i)
        state.keys[((first + row) & (LOG - 1)) * KEY_CHANNELS + unit.k_head * K_DIM + i * 32 + lane] =
            s.k[row][i * 32 + lane] * by_k;
  }
}

// Called after the product of qkv, in place of attention.
__device__ inline void delta_net(const Args& args, Shared& shared, char* memory, int layer, u32 epoch) {
  constexpr bool SEVERAL = DELTA_UNITS > CTAS;
  const int first = opaque((int)blockIdx.x);  // nothing derived from it is kept in registers through all phases
#pragma unroll 1
  for (int turn = 0, unit = first; unit < DELTA_UNITS; ++turn, unit += CTAS) {
    delta_unit(args, shared, area_of(memory) + DELTA_AT, layer, epoch, unit, turn);
    if (SEVERAL || DELTA_AT == 0) block_barrier();  // the next unit, or o's operand, is written where this one reads
    if (!SEVERAL) break;
  }
}
#endif
