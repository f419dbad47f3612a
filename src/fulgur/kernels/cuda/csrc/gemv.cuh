// Packed weights times the up to 8 rows of a step: the products of the general driver, for any model family.
//
// A unit is a tile of 16 rows of a matrix (of an expert). KW warps share a unit by cutting its blocks of 128 columns
// into slices. A warp loads weights straight into registers, two groups of blocks ahead of the arithmetic, widens them
// to bf16 (exactly) and multiplies all rows at once: a column of `mma` is a row of the step. Slices meet in shared
// memory and are added in order. So a row's result depends neither on the other rows nor on timing.
//
// Experts: an expert that several rows chose is read once, and each row takes its own column. A row adds up its experts
// in the order in which it chose them.
//
// Every CTA prepares the operand for itself: the residual times the norm's weight (the norm's factor multiplies the
// sums), a vector as it is, or the heads of a delta net with their norm and gate.
//
// The first weights of dense matrices are in flight before a kernel waits for its predecessor, those of experts as soon
// as the experts are known. A warp has two groups of weights in flight.
#pragma once
#include "routing.cuh"

constexpr int GEMV_WARPS = 16, GEMV_THREADS = 32 * GEMV_WARPS, TILE_ROWS = 16;

enum Operand { NORMED, VECTOR, GATED };
// CHOOSES_EXPERTS: ACTIVATED, and the kernel chooses the experts.
enum Outcome { STORED, ACTIVATED, ADDED, CHOOSES_EXPERTS };
template <int OUTCOME>
constexpr bool ACTIVATES = OUTCOME == ACTIVATED || OUTCOME == CHOOSES_EXPERTS;
template <int OUTCOME>  // ADDED reads heads or a hidden vector; gates and ups read the residual
__device__ __forceinline__ bool takes(int operand, int asked) {
  if (OUTCOME == ADDED ? asked == NORMED : asked == GATED || (ACTIVATES<OUTCOME> && asked == VECTOR)) return false;
  return ACTIVATES<OUTCOME> || operand == asked;
}
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
  long long copy_bytes;
  int operand, width;  // columns that the operand has
  int in_stride, z_stride, head, choices;
  int tiles, blocks, cut, matrix_rows, out_stride, bias_stride;  // 1 << cut: KW
  int batch;                                                     // units whose partial sums shared memory holds
  float eps, limit, alpha;                                       // limit: of clamped gates, 0: plain SwiGLU
  Router router;                                                 // CHOOSES_EXPERTS
};

constexpr int OPERAND_PAD = 32;  // columns: rows that are read together lie in different banks
__device__ __forceinline__ int operand_stride(const Gemv& p) { return p.blocks * 128 + OPERAND_PAD; }

// Shared memory: sums of squares by row and warp; the routing; the operand; partial sums.
struct GemvRoom {
  float squares[MOST_ROWS][GEMV_WARPS];
  float factor[MOST_ROWS];
  u32 leads[MOST_DISTINCT / 32];
  Routing routing;
};

// What a thread loads of the operand's first row before it knows the number of rows: columns of a residual and the
// norm's weights (NORMED), or pieces of a vector (VECTOR). Their addresses are known before the predecessor ends.
constexpr int AHEAD = 2;
struct Begun {
  const void* at[AHEAD];
  uint4 x[AHEAD];
  float4 norm[AHEAD];
};
__device__ __forceinline__ const bf16* piece_at(const Gemv& p, int piece) {  // null: zeros
  const u32 each = p.blocks * 16, line = (u32)piece / each, at = ((u32)piece - line * each) * 8;
  return at < (u32)p.in_stride ? p.in + (long long)line * p.in_stride + at : nullptr;
}
__device__ __forceinline__ uint4 load_if(const void* at) { return at ? load16(at) : make_uint4(0, 0, 0, 0); }
template <int OUTCOME>
__device__ __forceinline__ void find_operand(const Gemv& p, Begun& begun) {
#pragma unroll
  for (int k = 0; k < AHEAD; ++k) {
    const int piece = k * GEMV_THREADS + threadIdx.x;
    begun.at[k] = nullptr, begun.norm[k] = make_float4(0, 0, 0, 0);
    if (takes<OUTCOME>(p.operand, NORMED) && 4 * piece < p.width)
      begun.at[k] = p.x + 4 * piece, begun.norm[k] = *(const float4*)(p.norm + 4 * piece);
    if (takes<OUTCOME>(p.operand, VECTOR) && piece < p.choices * p.blocks * 16) begun.at[k] = piece_at(p, piece);
  }
}

// The operand in bf16, [row, choice][columns]; columns beyond its width are zeros. The factors of the norm are ready
// after two more barriers (`find_factors`).
template <int OUTCOME>
__device__ __forceinline__ void prepare_operand(const Gemv& p, GemvRoom& room, bf16* operand, int count,
                                                const Begun& begun) {
  const int thread = threadIdx.x, warp = thread / 32, lane = thread & 31, stride = operand_stride(p);
  const int padded = p.blocks * 128;
  constexpr bool KEPT = OUTCOME != CHOOSES_EXPERTS;  // there, registers are short while experts are chosen
  if (takes<OUTCOME>(p.operand, NORMED)) {
#pragma unroll 1
    for (int row = 0; row < count; ++row) {
      const float* from = p.x + (long long)row * p.in_stride;
      float squares = 0;
#pragma unroll 1
      for (int first = 4 * thread; first < padded; first += 4 * AHEAD * GEMV_THREADS) {
        uint4 x[AHEAD];
        float4 w[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
          const int i = first + 4 * k * GEMV_THREADS;
          const bool again = first != 4 * thread;
          x[k] = row || again ? load_if(i < p.width ? from + i : nullptr) : begun.x[k];
          w[k] = KEPT && !again ? begun.norm[k] : i < p.width ? *(const float4*)(p.norm + i) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
          const int i = first + 4 * k * GEMV_THREADS;
          if (i >= padded) continue;
          const float a = __uint_as_float(x[k].x), b = __uint_as_float(x[k].y), c = __uint_as_float(x[k].z),
                      d = __uint_as_float(x[k].w);
          squares += (a * a + b * b) + (c * c + d * d);
          uint2 pair;
          pair.x = pack_bf16(a * w[k].x, b * w[k].y), pair.y = pack_bf16(c * w[k].z, d * w[k].w);
          *(uint2*)(operand + row * stride + i) = pair;
        }
      }
      squares = warp_sum(squares);
      if (lane == 0) room.squares[row][warp] = squares;
    }
  } else if (takes<OUTCOME>(p.operand, VECTOR)) {
    const int first_row = p.choices * p.blocks * 16;
#pragma unroll 1
    for (int first = thread; first < count * first_row; first += AHEAD * GEMV_THREADS) {
      uint4 v[AHEAD];
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {
        const int piece = first + k * GEMV_THREADS;
        v[k] = first == thread && piece < first_row ? begun.x[k]
                                                    : load_if(piece < count * first_row ? piece_at(p, piece) : nullptr);
      }
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {
        const u32 piece = first + k * GEMV_THREADS, each = p.blocks * 16, line = piece / each;
        if ((int)piece < count * first_row) *(uint4*)(operand + line * stride + (piece - line * each) * 8) = v[k];
      }
    }
  } else if (takes<OUTCOME>(p.operand, GATED)) {
    const int heads = p.width / p.head, at = 4 * lane;
    const bool inside = at < p.head;
    const float4 none = make_float4(0, 0, 0, 0), w = inside ? *(const float4*)(p.norm + at) : none;
    constexpr int HEADS = 2;  // whose values a warp waits for together
#pragma unroll 1
    for (int row = 0; row < count; ++row)
#pragma unroll 1
      for (int first = warp; first < heads; first += HEADS * GEMV_WARPS) {
        float4 x[HEADS], z[HEADS];
#pragma unroll
        for (int k = 0; k < HEADS; ++k) {
          const int head = first + k * GEMV_WARPS, column = head * p.head + at;
          const bool there = inside && head < heads;
          x[k] = there ? __ldcg((const float4*)(p.x + (long long)row * p.in_stride + column)) : none;
          z[k] = there ? __ldcg((const float4*)(p.z + (long long)row * p.z_stride + column)) : none;
        }
#pragma unroll
        for (int k = 0; k < HEADS; ++k) {
          const int head = first + k * GEMV_WARPS;
          const float4 v = x[k], gate = z[k];
          const float squares = warp_sum((v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w));
          const float factor = rsqrtf(squares / p.head + p.eps);
          uint2 pair;
          pair.x = pack_bf16(v.x * factor * w.x * (gate.x * sigmoid(gate.x)),
                             v.y * factor * w.y * (gate.y * sigmoid(gate.y)));
          pair.y = pack_bf16(v.z * factor * w.z * (gate.z * sigmoid(gate.z)),
                             v.w * factor * w.w * (gate.w * sigmoid(gate.w)));
          if (inside && head < heads) *(uint2*)(operand + row * stride + head * p.head + at) = pair;
        }
      }
    for (int i = p.width + thread; i < padded; i += GEMV_THREADS)
      for (int row = 0; row < count; ++row) operand[row * stride + i] = 0;
  }
}
// Call after a barrier; use the factors after another.
__device__ __forceinline__ void find_factors(const Gemv& p, GemvRoom& room, int count) {
  const int row = threadIdx.x;
  if (row >= count) return;
  float squares = 0;
#pragma unroll
  for (int i = 0; i < GEMV_WARPS; ++i) squares += room.squares[row][i];
  room.factor[row] = p.operand == NORMED ? rsqrtf(squares / p.width + p.eps) : 1.f;
}

// A group of two blocks in a warp's registers (one block of bf16), and their scales.
template <int FORMAT>
struct Group {
  using P = Packed<FORMAT>;
  static constexpr int CHUNKS = P::DATA / 512, BLOCKS = FORMAT == BF16 ? 1 : 2;
  uint4 w[BLOCKS * CHUNKS];
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
    else if constexpr (FORMAT == MXFP4)  // 2^(s - 127) * 64: the codes are 1/64 of the values
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
// Where a warp is in its tasks, each a slice of a tile of a copy. Stepping to the next group takes no division.
struct Task {
  int unit, part, tile, which;  // unit of the batch, part of the unit; `which` of the distinct experts
  int block, blocks;            // the next block; blocks left
  const char* at;
  bool there;
};

template <int FORMAT, int OUTCOME>
__device__ __forceinline__ void settle(Task& task, const Gemv& p, const Routing* routing, const Batch& batch) {
  while (task.part >= batch.parts) task.part -= batch.parts, task.tile += batch.apart, ++task.unit;
  task.there = task.unit < batch.units;
  if (!task.there) return;
  if (ACTIVATES<OUTCOME>)
    while (task.tile >= p.tiles) task.tile -= p.tiles, ++task.which;
  if (OUTCOME == ADDED) task.which = task.part >> p.cut;
  const int slice = task.part & ((1 << p.cut) - 1), copy = routing ? routing->expert[task.which] : 0;
  task.block = slice * p.blocks >> p.cut;
  task.blocks = ((slice + 1) * p.blocks >> p.cut) - task.block;
  task.at = p.weights + copy * p.copy_bytes + ((long long)task.tile * p.blocks + task.block) * Packed<FORMAT>::BYTES;
}
template <int FORMAT, int OUTCOME>
__device__ __forceinline__ void begin_tasks(Task& task, const Gemv& p, const Routing* routing, const Batch& batch) {
  task.unit = 0, task.part = threadIdx.x / 32, task.tile = batch.first, task.which = 0;
  settle<FORMAT, OUTCOME>(task, p, routing, batch);
}
template <int FORMAT, int OUTCOME>
__device__ __forceinline__ void next_group(Task& task, const Gemv& p, const Routing* routing, const Batch& batch) {
  constexpr int BLOCKS = Group<FORMAT>::BLOCKS;
  task.block += BLOCKS, task.blocks -= BLOCKS, task.at += BLOCKS * Packed<FORMAT>::BYTES;
  if (task.blocks > 0) return;
  task.part += GEMV_WARPS;
  settle<FORMAT, OUTCOME>(task, p, routing, batch);
}

// The weights that a warp has in flight, and the task to load from next.
template <int FORMAT, int OUTCOME>
struct Flow {
  Group<FORMAT> even, odd;
  Task ahead;
  __device__ __forceinline__ void load(Group<FORMAT>& group, const Gemv& p, const Routing* routing,
                                       const Batch& batch) {
    if (!ahead.there) return;
    group.load(ahead.at, ahead.blocks);
    next_group<FORMAT, OUTCOME>(ahead, p, routing, batch);
  }
  __device__ __forceinline__ void begin(const Gemv& p, const Routing* routing, const Batch& batch) {
    begin_tasks<FORMAT, OUTCOME>(ahead, p, routing, batch);
    load(even, p, routing, batch);
    load(odd, p, routing, batch);
  }
};

// Where a row's part of a task's sums goes; -1: the row did not choose the expert.
template <int OUTCOME>
__device__ __forceinline__ int part_of(const Task& task, const Gemv& p, const Routing* routing, int count, int row) {
  if (OUTCOME == ADDED && routing) {
    const int choice = routing->choice[task.which][row], slice = task.part & ((1 << p.cut) - 1);
    return choice < 0 ? -1 : ((((task.unit * p.choices + choice) << p.cut) + slice) * count + row) * TILE_ROWS;
  }
  return (((task.unit << p.cut) + task.part) * count + row) * TILE_ROWS;
}

template <int FORMAT, int OUTCOME>
__device__ __forceinline__ void multiply_tasks(const Gemv& p, const Routing* routing, const Batch& batch, int count,
                                               const bf16* operand, float* parts, Flow<FORMAT, OUTCOME>& flow) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int row = g < count ? g : 0, stride = operand_stride(p);
  Task task;
  begin_tasks<FORMAT, OUTCOME>(task, p, routing, batch);
  float acc[4] = {0, 0, 0, 0};
  const auto turn = [&](Group<FORMAT>& group) {
    int line = row;
    if (OUTCOME == ADDED && routing) line = row * p.choices + max((int)routing->choice[task.which][row], 0);
    group.multiply(acc, operand + line * stride + task.block * 128 + t * 8, task.blocks);
    flow.load(group, p, routing, batch);
    if (task.blocks <= Group<FORMAT>::BLOCKS) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = 2 * t + i;
        const int to = column < count ? part_of<OUTCOME>(task, p, routing, count, column) : -1;
        if (to >= 0) parts[to + g] = acc[i], parts[to + g + 8] = acc[2 + i];
      }
      acc[0] = acc[1] = acc[2] = acc[3] = 0;
    }
    next_group<FORMAT, OUTCOME>(task, p, routing, batch);
  };
#pragma unroll 1
  while (task.there) {
    turn(flow.even);
    if (!task.there) break;
    turn(flow.odd);
  }
}

// A row's sum of a unit: slices in order.
__device__ __forceinline__ float sum_slices(const float* parts, int cut, int count) {
  float sum = 0;
#pragma unroll 4
  for (int i = 0; i < 1 << cut; ++i) sum += parts[i * count * TILE_ROWS];
  return sum;
}

// SwiGLU, or gpt-oss's variant: gate and up are clamped, and 1 is added to up.
__device__ __forceinline__ float activate(const Gemv& p, float gate, float up) {
  if (p.limit == 0.f) return gate * sigmoid(gate) * up;
  gate = fminf(gate, p.limit), up = fminf(fmaxf(up, -p.limit), p.limit);
  return (up + 1.f) * gate * sigmoid(p.alpha * gate);
}

template <int OUTCOME>
__device__ __forceinline__ void finish_units(const Gemv& p, const GemvRoom& room, const Routing* routing,
                                             const Batch& batch, int count, const float* parts) {
  for (int i = threadIdx.x; i < batch.units * count * TILE_ROWS; i += GEMV_THREADS) {
    const int r = i % TILE_ROWS, index = count == 1 ? i / TILE_ROWS : i / TILE_ROWS / count,
              row = i / TILE_ROWS - index * count;
    const int unit = batch.first + index * batch.apart, which = ACTIVATES<OUTCOME> && routing ? unit / p.tiles : 0;
    const int tile = unit - which * p.tiles, at = tile * TILE_ROWS + r;
    if (OUTCOME == STORED) {
      if (at >= p.matrix_rows) continue;
      const float sum = sum_slices(parts + ((index << p.cut) * count + row) * TILE_ROWS + r, p.cut, count);
      p.out[(long long)row * p.out_stride + at] = sum * room.factor[row] + (p.bias ? p.bias[at] : 0.f);
    } else if (ACTIVATES<OUTCOME>) {
      const int choice = routing ? routing->choice[which][row] : 0;
      if (r >= 8 || choice < 0) continue;
      const float* from = parts + ((index << p.cut) * count + row) * TILE_ROWS + r;
      float gate = sum_slices(from, p.cut, count) * room.factor[row],
            up = sum_slices(from + 8, p.cut, count) * room.factor[row];
      if (p.bias) {
        const float* bias = p.bias + (long long)(routing ? routing->expert[which] : 0) * p.bias_stride + at;
        gate += bias[0], up += bias[8];
      }
      p.h[((long long)row * p.choices + choice) * p.out_stride + tile * 8 + r] = to_bf16(activate(p, gate, up));
    } else {
      if (at >= p.matrix_rows) continue;
      float* to = p.out + (long long)row * p.out_stride + at;
      float value = __ldcg(to);
      const float* from = parts + (((index * p.choices) << p.cut) * count + row) * TILE_ROWS + r;
#pragma unroll 4
      for (int choice = 0; choice < p.choices; ++choice) {
        float sum = sum_slices(from + (choice << p.cut) * count * TILE_ROWS, p.cut, count);
        if (p.bias) sum += p.bias[(long long)(routing ? routing->mine[row][choice] : 0) * p.bias_stride + at];
        value += routing ? routing->weight[row][choice] * sum : sum;
      }
      *to = value;
    }
  }
}
// Prefetches the biases that a batch will add into L2.
template <int OUTCOME>
__device__ __forceinline__ void fetch_bias(const Gemv& p, const Routing* routing, const Batch& batch, int distinct) {
  const int i = threadIdx.x, each = OUTCOME == ADDED ? distinct : 1;
  if (!p.bias || i >= batch.units * each) return;
  const int index = i / each, unit = batch.first + index * batch.apart;
  const int which = ACTIVATES<OUTCOME> ? unit / p.tiles : i - index * each;
  const int tile = ACTIVATES<OUTCOME> ? unit - which * p.tiles : unit;
  prefetch_l2(p.bias + (long long)(routing ? routing->expert[which] : 0) * p.bias_stride + tile * TILE_ROWS);
}

template <int FORMAT, int OUTCOME>
__device__ __forceinline__ void gemv(const Gemv& p, char* memory) {
  GemvRoom& room = *(GemvRoom*)memory;
  bf16* operand = (bf16*)(memory + (sizeof(GemvRoom) + 15) / 16 * 16);
  let_successor_start();
  // A CTA has units blockIdx.x, blockIdx.x + gridDim.x, ... The first weights of dense matrices are known before the
  // step's rows are, and a batch has room for the first two tasks of every warp.
  const int thread = threadIdx.x, warp = thread / 32, apart = (int)gridDim.x, begin = (int)blockIdx.x;
  const bool routed = OUTCOME == CHOOSES_EXPERTS || (OUTCOME == ADDED && p.routing);
  Batch batch{begin, apart, (p.tiles - begin + apart - 1) / apart, 1 << p.cut};
  Flow<FORMAT, OUTCOME> flow;
  if (!routed) flow.begin(p, nullptr, batch);
  Begun begun;
  find_operand<OUTCOME>(p, begun);
  wait_for_predecessor();
#pragma unroll
  for (int k = 0; k < AHEAD; ++k) begun.x[k] = load_if(begun.at[k]);
  const int count = min(p.rows->count, MOST_ROWS);
  const Routing* routing = nullptr;
  int own = batch.units;
  if (routed) {
    routing = &room.routing;
    if (OUTCOME == CHOOSES_EXPERTS) {
      if (warp == 0 || warp < count) choose_experts(p.router, room.routing, warp);  // row 0 need not wait for `count`
    } else {
      constexpr int WORDS = sizeof(Routing) / 4, EACH = (WORDS + GEMV_THREADS - 1) / GEMV_THREADS;
      u32 word[EACH];
#pragma unroll
      for (int i = 0; i < EACH; ++i)
        word[i] = i * GEMV_THREADS + thread < WORDS ? __ldcg((const u32*)p.routing + i * GEMV_THREADS + thread) : 0;
#pragma unroll
      for (int i = 0; i < EACH; ++i)
        if (i * GEMV_THREADS + thread < WORDS) ((u32*)&room.routing)[i * GEMV_THREADS + thread] = word[i];
    }
    if (count <= 0) return;
    __syncthreads();
    if (OUTCOME == CHOOSES_EXPERTS && count > 1) list_experts(room.routing, room.leads, count, GEMV_THREADS);
    const int distinct = routing->distinct;
    if (OUTCOME == CHOOSES_EXPERTS) own = (p.tiles * distinct - begin + apart - 1) / apart;
    if (OUTCOME == ADDED) batch.parts = distinct << p.cut;
    batch.units = min(own, p.batch);
    flow.begin(p, routing, batch);
    fetch_bias<OUTCOME>(p, routing, batch, distinct);
    if (OUTCOME == CHOOSES_EXPERTS && begin == 0)
      for (int i = thread; i < (int)sizeof(Routing) / 4; i += GEMV_THREADS)
        ((u32*)p.router.to)[i] = ((const u32*)&room.routing)[i];
  } else {
    if (count <= 0) return;
    batch.units = min(own, p.batch);
    flow.ahead.there = flow.ahead.there && flow.ahead.unit < batch.units;
    fetch_bias<OUTCOME>(p, nullptr, batch, 1);
  }
  prepare_operand<OUTCOME>(p, room, operand, count, begun);
  __syncthreads();
  find_factors(p, room, count);
  float* parts = (float*)(operand + count * (p.operand == VECTOR ? p.choices : 1) * operand_stride(p));
#pragma unroll 1
  for (int left = own; left > 0; left -= p.batch) {
    if (left < own) {
      batch.first += p.batch * apart, batch.units = min(left, p.batch);
      flow.begin(p, routing, batch);
    }
    multiply_tasks<FORMAT, OUTCOME>(p, routing, batch, count, operand, parts, flow);
    __syncthreads();
    finish_units<OUTCOME>(p, room, routing, batch, count, parts);
    if (left > p.batch) __syncthreads();
  }
}
