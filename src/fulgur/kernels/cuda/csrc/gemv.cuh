// Packed weights times the up to 8 rows of a step, for any family: what the general driver multiplies with.
//
// A unit is a tile of 16 rows of a matrix (of an expert). KW warps share a unit by cutting its blocks of 128 columns
// into slices. A warp loads weights straight into registers, one group of blocks ahead of the arithmetic, widens them
// to bf16 (exactly) and multiplies all rows at once: a column of `mma` is a row of the step. Slices meet in shared
// memory and are added in order. So a row's result depends neither on the other rows nor on timing.
//
// Experts: an expert that several rows chose is read once; a row takes its own column. A row adds up its experts in the
// order of its own choice.
//
// The operand is prepared by every CTA for itself: the residual times the norm's weight (the norm's factor multiplies
// the sums), a vector as it is, or the heads of a delta net with their norm and gate.
//
// A CTA takes half of an SM, so that the next kernel's is there before this one ends: the first weights of dense
// matrices are on their way before a kernel waits for its predecessor, those of experts as soon as they are known.
#pragma once
#include "step.cuh"

constexpr int GEMV_WARPS = 8, GEMV_THREADS = 32 * GEMV_WARPS, MOST_ROWS = 8, MOST_CHOSEN = 16, TILE_ROWS = 16;
constexpr int MOST_DISTINCT = MOST_ROWS * MOST_CHOSEN;

struct Routing {  // the experts of a step's rows
  int distinct;
  int expert[MOST_DISTINCT];
  signed char choice[MOST_DISTINCT][MOST_ROWS];  // which of a row's experts it is; -1: none
  float weight[MOST_ROWS][MOST_CHOSEN];
};

enum Operand { NORMED, VECTOR, GATED };
enum Outcome { STORED, ACTIVATED, ADDED, CHOSEN };  // CHOSEN: ACTIVATED, of experts that are chosen here
template <int OUTCOME>
constexpr bool ACTIVATES = OUTCOME == ACTIVATED || OUTCOME == CHOSEN;
struct Gemv {
  const StepRows* rows;
  const char* weights;  // [copy][tile][block]
  // The operand. NORMED: `x` is the residual [row, in_stride], `norm` its weight. VECTOR: `in` [row, choice,
  // in_stride]. GATED: `x` [row, in_stride] are heads of `head` values, `norm` their common weight, `z` [row, z_stride]
  // their gates.
  const float *x, *norm, *z;
  const bf16* in;
  // STORED: out [row, out_stride] = sums. ACTIVATED: h [row, choice, out_stride] of gates and ups, 8 of each a tile.
  // ADDED: out [row, out_stride] += the sums of a row's experts.
  float* out;
  bf16* h;
  const float* bias;       // [copy, rows of the matrix]; null: none
  const Routing* routing;  // ADDED: null: one matrix for all rows
  Routing* route;          // CHOSEN: the experts, as they are chosen from `logits`
  const float *logits, *route_bias;  // [row, logit_stride]; [expert]
  long long copy_bytes;
  int operand, width;  // columns that the operand has
  int in_stride, z_stride, head, choices;
  int tiles, blocks, kw, matrix_rows, out_stride, bias_stride;
  int batch;                        // floats of partial sums that shared memory holds
  int experts, top, shared_expert;  // `route`: softmax over `top` of `experts`; one more logit is the shared expert's
  int over_all;                     // `route`: softmax over all of them
  float eps, limit, alpha;          // limit: of clamped gates, 0: plain SwiGLU
  int logit_stride;
};

constexpr int OPERAND_PAD = 32;  // columns: rows that are read together lie in different banks
__device__ __forceinline__ int operand_stride(const Gemv& p) { return p.blocks * 128 + OPERAND_PAD; }

// Shared memory: sums of squares by row and warp; the routing; the operand; partial sums.
struct GemvRoom {
  float squares[MOST_ROWS][GEMV_WARPS];
  float factor[MOST_ROWS];
  int mine[MOST_DISTINCT];  // experts by row and choice
  signed char leads[MOST_DISTINCT];  // 1: the first row that chose the expert
  Routing routing;
};

// What every thread has of a residual: 4 columns at a time.
constexpr int AHEAD = 2;
__device__ __forceinline__ void load_columns(float4 (&x)[AHEAD], const float* from, int first, int width) {
#pragma unroll
  for (int k = 0; k < AHEAD; ++k) {
    const int i = first + 4 * k * GEMV_THREADS;
    x[k] = i < width ? __ldcg((const float4*)(from + i)) : make_float4(0, 0, 0, 0);
  }
}
__device__ __forceinline__ float warp_sum(float v) {
  for (int mask = 16; mask; mask >>= 1) v += __shfl_xor_sync(~0u, v, mask);
  return v;
}

// The operand in bf16, [row, choice][columns]; columns beyond its width are zeros. `begun`: the first columns of row 0,
// for NORMED. The factors of the norm are there after two more barriers (`find_factors`).
__device__ __forceinline__ void prepare_operand(const Gemv& p, GemvRoom& room, bf16* operand, int count,
                                                const float4 (&begun)[AHEAD]) {
  const int thread = threadIdx.x, warp = thread / 32, lane = thread & 31, stride = operand_stride(p);
  const int padded = p.blocks * 128;
  if (p.operand == NORMED) {
#pragma unroll 1
    for (int row = 0; row < count; ++row) {
      const float* from = p.x + (long long)row * p.in_stride;
      float squares = 0;
#pragma unroll 1
      for (int first = 4 * thread; first < padded; first += 4 * AHEAD * GEMV_THREADS) {
        float4 x[AHEAD];
        if (row || first != 4 * thread) {
          load_columns(x, from, first, p.width);
        } else {
#pragma unroll
          for (int k = 0; k < AHEAD; ++k) x[k] = begun[k];
        }
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
          const int i = first + 4 * k * GEMV_THREADS;
          if (i >= padded) continue;
          const float4 w = i < p.width ? *(const float4*)(p.norm + i) : make_float4(0, 0, 0, 0), v = x[k];
          squares += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
          uint2 pair;
          pair.x = pack_bf16(v.x * w.x, v.y * w.y), pair.y = pack_bf16(v.z * w.z, v.w * w.w);
          *(uint2*)(operand + row * stride + i) = pair;
        }
      }
      squares = warp_sum(squares);
      if (lane == 0) room.squares[row][warp] = squares;
    }
  } else if (p.operand == VECTOR) {
    for (int i = 8 * thread; i < count * p.choices * padded; i += 8 * GEMV_THREADS) {
      const int line = i / padded, at = i % padded;
      uint4 v = make_uint4(0, 0, 0, 0);
      if (at < p.in_stride) v = load16(p.in + (long long)line * p.in_stride + at);
      *(uint4*)(operand + line * stride + at) = v;
    }
  } else {
    const int heads = p.width / p.head, at = 4 * lane;
    const bool inside = at < p.head;
    const float4 none = make_float4(0, 0, 0, 0), w = inside ? *(const float4*)(p.norm + at) : none;
    constexpr int HEADS = 4;  // whose values a warp waits for together
#pragma unroll 1
    for (int first = warp; first < count * heads; first += HEADS * GEMV_WARPS) {
      float4 x[HEADS], z[HEADS];
#pragma unroll
      for (int k = 0; k < HEADS; ++k) {
        const int unit = first + k * GEMV_WARPS, row = unit / heads, column = unit % heads * p.head + at;
        const bool there = inside && unit < count * heads;
        x[k] = there ? __ldcg((const float4*)(p.x + (long long)row * p.in_stride + column)) : none;
        z[k] = there ? __ldcg((const float4*)(p.z + (long long)row * p.z_stride + column)) : none;
      }
#pragma unroll
      for (int k = 0; k < HEADS; ++k) {
        const int unit = first + k * GEMV_WARPS;
        const float4 v = x[k], gate = z[k];
        const float squares = warp_sum((v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w));
        const float factor = rsqrtf(squares / p.head + p.eps);
        uint2 pair;
        pair.x = pack_bf16(v.x * factor * w.x * (gate.x * sigmoid(gate.x)),
                           v.y * factor * w.y * (gate.y * sigmoid(gate.y)));
        pair.y = pack_bf16(v.z * factor * w.z * (gate.z * sigmoid(gate.z)),
                           v.w * factor * w.w * (gate.w * sigmoid(gate.w)));
        if (inside && unit < count * heads)
          *(uint2*)(operand + unit / heads * stride + unit % heads * p.head + at) = pair;
      }
    }
    for (int i = p.width + thread; i < padded; i += GEMV_THREADS)
      for (int row = 0; row < count; ++row) operand[row * stride + i] = 0;
  }
}
// Between two barriers.
__device__ __forceinline__ void find_factors(const Gemv& p, GemvRoom& room, int count) {
  const int row = threadIdx.x;
  if (row >= count) return;
  float squares = 0;
#pragma unroll
  for (int i = 0; i < GEMV_WARPS; ++i) squares += room.squares[row][i];
  room.factor[row] = p.operand == NORMED ? rsqrtf(squares / p.width + p.eps) : 1.f;
}

// A group of blocks in a warp's registers: 128 bytes of every lane, and their scales.
template <int FORMAT>
struct Group {
  using P = Packed<FORMAT>;
  static constexpr int CHUNKS = P::DATA / 512, BLOCKS = 8 / CHUNKS;
  uint4 w[8];
  u32 scale[BLOCKS][2][P::GROUPS > 2 ? 1 : P::GROUPS];  // as stored; MXFP4: the four of a row

  __device__ __forceinline__ void load(const char* at, int blocks) {
    const int lane = threadIdx.x & 31, g = lane >> 2;
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
      const char* block = at + b * P::BYTES;
      const bool there = b < blocks;
#pragma unroll
      for (int i = 0; i < CHUNKS; ++i)
        w[b * CHUNKS + i] = there ? load_once(block + i * 512 + lane * 16) : make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const char* record = block + P::DATA;
        if constexpr (FORMAT == FP8)
          scale[b][half][0] = there ? *(const u32*)(record + half * 4) : 0;
        else if constexpr (FORMAT == FP8_ROWS || FORMAT == MXFP4)
          scale[b][half][0] = there ? *(const u32*)(record + (g + half * 8) * 4) : 0;
        else if constexpr (FORMAT != BF16)
#pragma unroll
          for (int n = 0; n < P::GROUPS; ++n)
            scale[b][half][n] = there ? *(const unsigned short*)(record + n * 32 + (g + half * 8) * 2) : 0;
      }
    }
  }
  __device__ __forceinline__ float scale_of(int block, int half, int slab) const {
    if constexpr (FORMAT == BF16)
      return 1.f;
    else if constexpr (FORMAT == MXFP4)  // 2^(s - 127), and 64: the codes are of 1/64
      return __uint_as_float((scale[block][half][0] >> (8 * slab) & 255u) << 23) * 64.f;
    else if constexpr (P::NIBBLES)
      return from_half(scale[block][half][slab * P::GROUPS / 4]) * 512.f;
    else
      return __uint_as_float(scale[block][half][0]);
  }
  // Adds the products with the operand of this lane's row, from the group's first block on.
  __device__ __forceinline__ void multiply(float (&acc)[4], const bf16* operand, int blocks) const {
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
      if (b >= blocks) break;
      float sum[4] = {0, 0, 0, 0};
#pragma unroll
      for (int slab = 0; slab < 4; ++slab) {  // of 32 columns
        const uint4 x = *(const uint4*)(operand + b * 128 + slab * 32);
        u32 a[8];
        if constexpr (FORMAT == BF16) {
          const uint4 v = w[b * CHUNKS + 2 * slab], u = w[b * CHUNKS + 2 * slab + 1];
          a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w, a[4] = u.x, a[5] = u.y, a[6] = u.z, a[7] = u.w;
        } else if constexpr (!P::NIBBLES) {
          fragments(w[b * CHUNKS + slab], a);
        } else {
          const uint4 v = w[b * CHUNKS + slab / 2];
          uint4 codes = slab % 2
                            ? make_uint4(second_codes(v.x), second_codes(v.y), second_codes(v.z), second_codes(v.w))
                            : make_uint4(first_codes(v.x), first_codes(v.y), first_codes(v.z), first_codes(v.w));
          if constexpr (FORMAT == MXFP4)
            codes = make_uint4(from_mxfp4(codes.x), from_mxfp4(codes.y), from_mxfp4(codes.z), from_mxfp4(codes.w));
          fragments(codes, a);
        }
        mma(sum, a[0], a[1], a[2], a[3], x.x, x.y);
        mma(sum, a[4], a[5], a[6], a[7], x.z, x.w);
        if (slab % (4 / P::GROUPS) == 4 / P::GROUPS - 1) {
          const float top = scale_of(b, 0, slab), bottom = scale_of(b, 1, slab);
          acc[0] = fmaf(top, sum[0], acc[0]), acc[1] = fmaf(top, sum[1], acc[1]);
          acc[2] = fmaf(bottom, sum[2], acc[2]), acc[3] = fmaf(bottom, sum[3], acc[3]);
          sum[0] = sum[1] = sum[2] = sum[3] = 0;
        }
      }
    }
  }
};

// What a CTA multiplies between two reductions: `units` units from `first` on, `apart` from each other, each as `parts`
// tasks: slices, or slices of every expert.
struct Batch {
  int first, apart, units, parts;
};
// One of a warp's tasks: a slice of a tile of a copy.
struct Task {
  int unit, tile, which, slice;  // unit of the batch; `which` of the distinct experts
  int block, blocks;             // blocks that are left
  const char* at;
};

template <int OUTCOME>
__device__ __forceinline__ bool find_task(Task& task, const Gemv& p, const Routing* routing, const Batch& batch,
                                          int index) {
  if (index >= batch.units * batch.parts) return false;
  const int part = index % batch.parts;
  task.unit = index / batch.parts, task.slice = part % p.kw;
  const int unit = batch.first + task.unit * batch.apart;
  task.tile = ACTIVATES<OUTCOME> ? unit % p.tiles : unit;
  task.which = ACTIVATES<OUTCOME> ? unit / p.tiles : OUTCOME == ADDED ? part / p.kw : 0;
  const int copy = routing ? routing->expert[task.which] : 0;
  task.block = task.slice * p.blocks / p.kw;
  task.blocks = (task.slice + 1) * p.blocks / p.kw - task.block;
  task.at = p.weights + copy * p.copy_bytes;
  return true;
}
template <int FORMAT>
__device__ __forceinline__ const char* address_of(const Task& task, const Gemv& p) {
  return task.at + ((long long)task.tile * p.blocks + task.block) * Packed<FORMAT>::BYTES;
}

// Where a row's part of a task's sums goes; -1: the row did not choose the expert.
template <int OUTCOME>
__device__ __forceinline__ int part_of(const Task& task, const Gemv& p, const Routing* routing, int count, int row) {
  if (OUTCOME == ADDED) {
    const int choice = routing ? routing->choice[task.which][row] : 0;
    return choice < 0 ? -1 : (((task.unit * p.choices + choice) * p.kw + task.slice) * count + row) * TILE_ROWS;
  }
  return ((task.unit * p.kw + task.slice) * count + row) * TILE_ROWS;
}

template <int FORMAT, int OUTCOME>
__device__ __forceinline__ void multiply_tasks(const Gemv& p, const Routing* routing, const Batch& batch, int count,
                                               const bf16* operand, float* parts, Group<FORMAT>& ahead, bool loaded) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int row = g < count ? g : 0, stride = operand_stride(p);
  int index = warp;
  Task task, next;
  if (!find_task<OUTCOME>(task, p, routing, batch, index)) return;
  next = task;
  if (!loaded) ahead.load(address_of<FORMAT>(next, p), next.blocks);
  float acc[4] = {0, 0, 0, 0};
  bool more = true;
#pragma unroll 1
  while (more) {
    const Group<FORMAT> now = ahead;
    next.block += Group<FORMAT>::BLOCKS, next.blocks -= Group<FORMAT>::BLOCKS;
    const bool ends = next.blocks <= 0;
    if (ends) more = find_task<OUTCOME>(next, p, routing, batch, index += GEMV_WARPS);
    if (more) ahead.load(address_of<FORMAT>(next, p), next.blocks);
    int line = row;
    if (OUTCOME == ADDED && routing) line = row * p.choices + max((int)routing->choice[task.which][row], 0);
    now.multiply(acc, operand + line * stride + task.block * 128 + t * 8, task.blocks);
    if (ends) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = 2 * t + i;
        const int to = column < count ? part_of<OUTCOME>(task, p, routing, count, column) : -1;
        if (to >= 0) parts[to + g] = acc[i], parts[to + g + 8] = acc[2 + i];
      }
      acc[0] = acc[1] = acc[2] = acc[3] = 0;
    }
    task = next;
  }
}

// A row's sum of a unit: slices in order.
__device__ __forceinline__ float sum_slices(const float* parts, int kw, int count) {
  float sum = 0;
  for (int i = 0; i < kw; ++i) sum += parts[i * count * TILE_ROWS];
  return sum;
}

// SwiGLU, or gpt-oss's: both sides bounded, and up counts from -1.
__device__ __forceinline__ float activate(const Gemv& p, float gate, float up) {
  if (p.limit == 0.f) return gate * sigmoid(gate) * up;
  gate = fminf(gate, p.limit), up = fminf(fmaxf(up, -p.limit), p.limit);
  return (up + 1.f) * gate * sigmoid(p.alpha * gate);
}

template <int OUTCOME>
__device__ __forceinline__ void finish_units(const Gemv& p, const GemvRoom& room, const Routing* routing,
                                             const Batch& batch, int count, const float* parts) {
  for (int i = threadIdx.x; i < batch.units * count * TILE_ROWS; i += GEMV_THREADS) {
    const int r = i % TILE_ROWS, row = i / TILE_ROWS % count, index = i / TILE_ROWS / count;
    const int unit = batch.first + index * batch.apart;
    const int tile = ACTIVATES<OUTCOME> ? unit % p.tiles : unit, at = tile * TILE_ROWS + r;
    if (OUTCOME == STORED) {
      if (at >= p.matrix_rows) continue;
      const float sum = sum_slices(parts + (index * p.kw * count + row) * TILE_ROWS + r, p.kw, count);
      p.out[(long long)row * p.out_stride + at] = sum * room.factor[row] + (p.bias ? p.bias[at] : 0.f);
    } else if (ACTIVATES<OUTCOME>) {
      const int which = unit / p.tiles, choice = routing ? routing->choice[which][row] : 0;
      if (r >= 8 || choice < 0) continue;
      const float* from = parts + (index * p.kw * count + row) * TILE_ROWS + r;
      float gate = sum_slices(from, p.kw, count) * room.factor[row],
            up = sum_slices(from + 8, p.kw, count) * room.factor[row];
      if (p.bias) {
        const float* bias = p.bias + (long long)(routing ? routing->expert[which] : 0) * p.bias_stride + at;
        gate += bias[0], up += bias[8];
      }
      p.h[((long long)row * p.choices + choice) * p.out_stride + tile * 8 + r] = to_bf16(activate(p, gate, up));
    } else {
      if (at >= p.matrix_rows) continue;
      float* to = p.out + (long long)row * p.out_stride + at;
      float value = __ldcg(to);
      for (int choice = 0; choice < p.choices; ++choice) {
        float sum =
            sum_slices(parts + ((index * p.choices + choice) * p.kw * count + row) * TILE_ROWS + r, p.kw, count);
        if (p.bias) {
          int copy = 0;
          if (routing)
            for (int j = 0; j < routing->distinct; ++j)
              if (routing->choice[j][row] == choice) copy = routing->expert[j];
          sum += p.bias[(long long)copy * p.bias_stride + at];
        }
        value += routing ? routing->weight[row][choice] * sum : sum;
      }
      *to = value;
    }
  }
}

// The experts of all rows from their logits: a warp a row. The lowest number wins ties.
__device__ __forceinline__ u32 sortable(float v) {
  const u32 bits = __float_as_uint(v);
  return bits ^ ((u32)((int)bits >> 31) | 0x80000000u);
}
constexpr int MOST_EXPERTS = 512;
template <int EACH>  // logits of a lane
__device__ __forceinline__ void choose_experts(const Gemv& p, GemvRoom& room, int row) {
  const int lane = threadIdx.x & 31, chosen = p.top + p.shared_expert;
  const float* logits = p.logits + (long long)row * p.logit_stride;
  Routing& r = room.routing;
  int* mine = room.mine + row * chosen;
  float logit[EACH], all = 0, kept = 0, own = 0, peak = 0;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int expert = i * 32 + lane;
    logit[i] = expert < p.experts ? __ldcg(logits + expert) + (p.route_bias ? p.route_bias[expert] : 0.f) : -INF;
  }
  const float shared_logit = p.shared_expert ? __ldcg(logits + p.experts) : 0.f;
#pragma unroll 1
  for (int k = 0; k < p.top; ++k) {
    float best = -INF;
#pragma unroll
    for (int i = 0; i < EACH; ++i) best = fmaxf(best, logit[i]);
    const u32 highest = warp_max_bits(sortable(best));
    u32 which = 0;  // the lowest expert with this logit, as its distance from the end
#pragma unroll
    for (int i = EACH - 1; i >= 0; --i)
      if (sortable(logit[i]) == highest) which = MOST_EXPERTS - (i * 32 + lane);
    const int expert = max(MOST_EXPERTS - (int)warp_max_bits(which), 0) % p.experts;
    const float value = __uint_as_float(highest ^ (~(u32)((int)highest >> 31) | 0x80000000u));
    if (k == 0) {
      peak = value;
      if (p.over_all) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) all += natural_power(logit[i] - peak);
        all = warp_sum(all);
      }
    }
    const float weight = natural_power(value - peak);
    kept += weight;
    if (lane == k) own = weight;
    if (lane == 0) mine[k] = expert;
#pragma unroll
    for (int i = 0; i < EACH; ++i)
      if (expert == i * 32 + lane) logit[i] = -INF;
  }
  if (lane < p.top) r.weight[row][lane] = quotient(own, p.over_all ? all : kept);
  if (p.shared_expert && lane == 0) r.weight[row][p.top] = sigmoid(shared_logit), mine[p.top] = p.experts;
}
// Lists the distinct ones in the order in which rows chose them first. Between barriers.
__device__ __forceinline__ void list_experts(const Gemv& p, GemvRoom& room, int count) {
  const int chosen = p.top + p.shared_expert, i = threadIdx.x, every = count * chosen, expert = room.mine[i & 127];
  Routing& r = room.routing;
  if (count == 1) {
    if (i < chosen) r.expert[i] = expert, r.choice[i][0] = (signed char)i;
    if (i == 0) r.distinct = chosen;
    __syncthreads();
    return;
  }
  for (int j = i; j < MOST_DISTINCT * MOST_ROWS / 4; j += GEMV_THREADS) ((u32*)&r.choice[0][0])[j] = ~0u;
  int first = i;
  for (int j = 0; j < min(i, every); ++j)
    if (room.mine[j] == expert) {
      first = j;
      break;
    }
  if (i < every) room.leads[i] = first == i;
  __syncthreads();
  int place = 0;
  if (i < every) {
    for (int j = 0; j < first; ++j) place += room.leads[j];
    if (first == i) r.expert[place] = expert;
    r.choice[place][i / chosen] = (signed char)(i % chosen);
    if (i == every - 1) {
      int distinct = 0;
      for (int j = 0; j < every; ++j) distinct += room.leads[j];
      r.distinct = distinct;
    }
  }
  __syncthreads();
}

template <int FORMAT, int OUTCOME>
__device__ __forceinline__ void gemv(const Gemv& p, char* memory) {
  GemvRoom& room = *(GemvRoom*)memory;
  bf16* operand = (bf16*)(memory + (sizeof(GemvRoom) + 15) / 16 * 16);
  let_successor_start();
  // A CTA has units blockIdx.x, blockIdx.x + gridDim.x, ... The first weights of dense matrices are known before the
  // step's rows are, and a batch has room for the first task of every warp.
  const int thread = threadIdx.x, warp = thread / 32;
  Group<FORMAT> ahead;
  Task first;
  const int apart = (int)gridDim.x, begin = (int)blockIdx.x;
  const Batch own{begin, apart, (p.tiles - begin + apart - 1) / apart, p.kw};
  bool loaded = OUTCOME != CHOSEN && !p.routing && find_task<OUTCOME>(first, p, nullptr, own, warp);
  if (loaded) ahead.load(address_of<FORMAT>(first, p), first.blocks);
  if (p.operand == NORMED && thread * 32 < p.width) prefetch_l2(p.norm + thread * 32);
  wait_for_predecessor();
  float4 begun[AHEAD];
  if (p.operand == NORMED) load_columns(begun, p.x, 4 * thread, p.width);
  const int count = min(p.rows->count, MOST_ROWS);
  if (count <= 0) return;
  const Routing* routing = nullptr;
  int distinct = 1;
  if (OUTCOME == CHOSEN) {
    routing = &room.routing;
    if (warp < count) {
      if (p.experts <= 128)
        choose_experts<4>(p, room, warp);
      else if (p.experts <= 256)
        choose_experts<8>(p, room, warp);
      else
        choose_experts<16>(p, room, warp);
    }
  } else if (OUTCOME == ADDED && p.routing) {  // the first weights, from the routing in memory
    const Batch known{begin, apart, own.units, p.kw * __ldcg(&p.routing->distinct)};
    loaded = find_task<OUTCOME>(first, p, p.routing, known, warp);
    if (loaded) ahead.load(address_of<FORMAT>(first, p), first.blocks);
    for (int i = thread; i < (int)sizeof(Routing) / 4; i += GEMV_THREADS)
      ((u32*)&room.routing)[i] = __ldcg((const u32*)p.routing + i);
    routing = &room.routing;
  }
  prepare_operand(p, room, operand, count, begun);
  __syncthreads();
  find_factors(p, room, count);
  if (OUTCOME == CHOSEN)
    list_experts(p, room, count);
  else
    __syncthreads();
  if (routing) distinct = routing->distinct;
  float* parts = (float*)(operand + count * (p.operand == VECTOR ? p.choices : 1) * operand_stride(p));
  const int units = ACTIVATES<OUTCOME> ? p.tiles * distinct : p.tiles;
  const int tasks = OUTCOME == ADDED ? p.kw * distinct : p.kw;
  const int floats = count * TILE_ROWS * p.kw * (OUTCOME == ADDED ? p.choices : 1);  // of a unit
  const int most = max(p.batch / floats, 1);
#pragma unroll 1
  for (int unit = begin; unit < units; unit += most * apart) {
    const Batch batch{unit, apart, min((units - unit + apart - 1) / apart, most), tasks};
    multiply_tasks<FORMAT, OUTCOME>(p, routing, batch, count, operand, parts, ahead, loaded);
    loaded = false;
    __syncthreads();
    finish_units<OUTCOME>(p, room, routing, batch, count, parts);
    __syncthreads();
  }
  if (OUTCOME == CHOSEN && blockIdx.x == 0)
    for (int i = thread; i < (int)sizeof(Routing) / 4; i += GEMV_THREADS)
      ((u32*)p.route)[i] = ((const u32*)&room.routing)[i];
}
