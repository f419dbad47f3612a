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
// the sums), a vector as it is, or the heads of a delta net with their norm and gate. The first weights of dense
// matrices are on their way before the kernel waits for its predecessor.
#pragma once
#include "step.cuh"

constexpr int GEMV_WARPS = 16, GEMV_THREADS = 32 * GEMV_WARPS, MOST_ROWS = 8, MOST_CHOSEN = 16, TILE_ROWS = 16;
constexpr int MOST_DISTINCT = MOST_ROWS * MOST_CHOSEN;

struct Routing {  // the experts of a step's rows
  int distinct;
  int expert[MOST_DISTINCT];
  signed char choice[MOST_DISTINCT][MOST_ROWS];  // which of a row's experts it is; -1: none
  float weight[MOST_ROWS][MOST_CHOSEN];
};

enum Operand { NORMED, VECTOR, GATED };
enum Outcome { STORED, ACTIVATED, ADDED };
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
  const Routing* routing;  // null: one matrix for all rows
  Routing* route;          // STORED: from these logits the experts are chosen; null: they are not logits
  u32* arrived;            // for `route`: 0 before and after
  const float* route_bias;
  long long copy_bytes;
  int operand, width;  // columns that the operand has
  int in_stride, z_stride, head, choices;
  int tiles, blocks, kw, matrix_rows, out_stride, bias_stride;
  int batch;                        // floats of partial sums that shared memory holds
  int experts, top, shared_expert;  // `route`: softmax over `top` of `experts`; one more logit is the shared expert's
  int over_all;                     // `route`: softmax over all of them
  float eps, limit, alpha;          // limit: of clamped gates, 0: plain SwiGLU
  int pad;
};

constexpr int OPERAND_PAD = 32;  // columns: rows that are read together lie in different banks
__device__ __forceinline__ int operand_stride(const Gemv& p) { return p.blocks * 128 + OPERAND_PAD; }

// Shared memory: sums of squares by row and warp; the routing; the operand; partial sums.
struct GemvRoom {
  float squares[MOST_ROWS][GEMV_WARPS];
  float factor[MOST_ROWS];
  int last, pad[7];
  Routing routing;
};

// The operand in bf16, [row, choice][columns]; columns beyond its width are zeros.
__device__ __forceinline__ void prepare_operand(const Gemv& p, GemvRoom& room, bf16* operand, int count) {
  const int thread = threadIdx.x, warp = thread / 32, lane = thread & 31, stride = operand_stride(p);
  const int padded = p.blocks * 128;
  if (p.operand == NORMED) {
    for (int row = 0; row < count; ++row) {
      float squares = 0;
      for (int i = 2 * thread; i < padded; i += 2 * GEMV_THREADS) {
        const bool inside = i < p.width;
        const float a = inside ? __ldcg(p.x + (long long)row * p.in_stride + i) : 0.f,
                    b = inside ? __ldcg(p.x + (long long)row * p.in_stride + i + 1) : 0.f;
        squares += a * a + b * b;
        *(u32*)(operand + row * stride + i) = inside ? pack_bf16(a * p.norm[i], b * p.norm[i + 1]) : 0;
      }
      for (int mask = 16; mask; mask >>= 1) squares += __shfl_xor_sync(~0u, squares, mask);
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
    const int heads = p.width / p.head;
    for (int unit = warp; unit < count * heads; unit += GEMV_WARPS) {
      const int row = unit / heads, first = unit % heads * p.head;
      const float* x = p.x + (long long)row * p.in_stride + first;
      const float* z = p.z + (long long)row * p.z_stride + first;
      float squares = 0;
      for (int i = lane; i < p.head; i += 32) {
        const float v = __ldcg(x + i);
        squares += v * v;
      }
      for (int mask = 16; mask; mask >>= 1) squares += __shfl_xor_sync(~0u, squares, mask);
      const float factor = rsqrtf(squares / p.head + p.eps);
      for (int i = lane; i < p.head; i += 32) {
        const float gate = __ldcg(z + i);
        operand[row * stride + first + i] = to_bf16(__ldcg(x + i) * factor * p.norm[i] * (gate * sigmoid(gate)));
      }
    }
    for (int i = p.width + thread; i < padded; i += GEMV_THREADS)
      for (int row = 0; row < count; ++row) operand[row * stride + i] = 0;
  }
  __syncthreads();
  if (thread < count) {
    float squares = 0;
    for (int i = 0; i < GEMV_WARPS; ++i) squares += room.squares[thread][i];
    room.factor[thread] = p.operand == NORMED ? rsqrtf(squares / p.width + p.eps) : 1.f;
  }
  __syncthreads();
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
  task.tile = OUTCOME == ACTIVATED ? unit % p.tiles : unit;
  task.which = OUTCOME == ACTIVATED ? unit / p.tiles : OUTCOME == ADDED ? part / p.kw : 0;
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
    const int tile = OUTCOME == ACTIVATED ? unit % p.tiles : unit, at = tile * TILE_ROWS + r;
    if (OUTCOME == STORED) {
      if (at >= p.matrix_rows) continue;
      const float sum = sum_slices(parts + (index * p.kw * count + row) * TILE_ROWS + r, p.kw, count);
      p.out[(long long)row * p.out_stride + at] = sum * room.factor[row] + (p.bias ? p.bias[at] : 0.f);
    } else if (OUTCOME == ACTIVATED) {
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

// The experts of all rows from their logits, by the last CTA: a warp a row. The lowest number wins ties.
__device__ __forceinline__ u32 sortable(float v) {
  const u32 bits = __float_as_uint(v);
  return bits ^ ((u32)((int)bits >> 31) | 0x80000000u);
}
constexpr int MOST_EXPERTS = 512;
__device__ __forceinline__ void choose_experts(const Gemv& p, Routing& r, short* place, int count) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, chosen = p.top + p.shared_expert;
  for (int i = threadIdx.x; i <= p.experts; i += GEMV_THREADS) place[i] = -1;
  for (int i = threadIdx.x; i < MOST_DISTINCT * MOST_ROWS; i += GEMV_THREADS) (&r.choice[0][0])[i] = -1;
  int* mine = r.expert;  // [row, chosen], until they are counted
  if (warp < count) {
    const float* logits = p.out + (long long)warp * p.out_stride;
    float logit[MOST_EXPERTS / 32], all = 0, kept = 0, own = 0, peak = 0;
#pragma unroll
    for (int i = 0; i < MOST_EXPERTS / 32; ++i) {
      const int expert = i * 32 + lane;
      logit[i] = expert < p.experts ? __ldcg(logits + expert) + (p.route_bias ? p.route_bias[expert] : 0.f) : -INF;
    }
    for (int k = 0; k < p.top; ++k) {
      float best = -INF;
#pragma unroll
      for (int i = 0; i < MOST_EXPERTS / 32; ++i) best = fmaxf(best, logit[i]);
      const u32 highest = warp_max_bits(sortable(best));
      u32 which = 0;  // the lowest expert with this logit, as its distance from the end
#pragma unroll
      for (int i = MOST_EXPERTS / 32 - 1; i >= 0; --i)
        if (sortable(logit[i]) == highest) which = MOST_EXPERTS - (i * 32 + lane);
      const int expert = max(MOST_EXPERTS - (int)warp_max_bits(which), 0) % p.experts;
      const float value = __uint_as_float(highest ^ (~(u32)((int)highest >> 31) | 0x80000000u));
      if (k == 0) {
        peak = value;
        if (p.over_all) {
#pragma unroll
          for (int i = 0; i < MOST_EXPERTS / 32; ++i) all += natural_power(logit[i] - peak);
          for (int mask = 16; mask; mask >>= 1) all += __shfl_xor_sync(~0u, all, mask);
        }
      }
      const float weight = natural_power(value - peak);
      kept += weight;
      if (lane == k) own = weight;
      if (lane == 0) mine[warp * chosen + k] = expert;
#pragma unroll
      for (int i = 0; i < MOST_EXPERTS / 32; ++i)
        if (expert == i * 32 + lane) logit[i] = -INF;
    }
    if (lane < p.top) r.weight[warp][lane] = quotient(own, p.over_all ? all : kept);
    if (p.shared_expert && lane == 0) {
      r.weight[warp][p.top] = sigmoid(__ldcg(logits + p.experts));
      mine[warp * chosen + p.top] = p.experts;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {  // `expert` is written where it has been read
    int distinct = 0;
    for (int i = 0; i < count * chosen; ++i) {
      const int expert = r.expert[i];
      int j = place[expert];
      if (j < 0) {
        j = place[expert] = (short)distinct;
        r.expert[distinct++] = expert;
      }
      r.choice[j][i / chosen] = (signed char)(i % chosen);
    }
    r.distinct = distinct;
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
  Group<FORMAT> ahead;
  Task first;
  const int apart = (int)gridDim.x, begin = (int)blockIdx.x;
  const Batch own{begin, apart, (p.tiles - begin + apart - 1) / apart, p.kw};
  bool loaded = !p.routing && find_task<OUTCOME>(first, p, nullptr, own, threadIdx.x / 32);
  if (loaded) ahead.load(address_of<FORMAT>(first, p), first.blocks);
  wait_for_predecessor();
  const int count = min(p.rows->count, MOST_ROWS);
  if (count <= 0) return;
  const Routing* routing = nullptr;
  if (p.routing) {
    for (int i = threadIdx.x; i < (int)sizeof(Routing) / 4; i += GEMV_THREADS)
      ((u32*)&room.routing)[i] = __ldcg((const u32*)p.routing + i);
    routing = &room.routing;
  }
  prepare_operand(p, room, operand, count);
  float* parts = (float*)(operand + count * (p.operand == VECTOR ? p.choices : 1) * operand_stride(p));
  const int distinct = routing ? routing->distinct : 1;
  const int units = OUTCOME == ACTIVATED ? p.tiles * distinct : p.tiles;
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
  if (OUTCOME == STORED && p.route) {
    if (threadIdx.x == 0) room.last = count_up(p.arrived) == gridDim.x - 1;
    __syncthreads();
    if (!room.last) return;
    if (threadIdx.x == 0) *p.arrived = 0;
    choose_experts(p, room.routing, (short*)operand, count);
    for (int i = threadIdx.x; i < (int)sizeof(Routing) / 4; i += GEMV_THREADS)
      ((u32*)p.route)[i] = ((const u32*)&room.routing)[i];
  }
}
