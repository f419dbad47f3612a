// Packed weights times many rows: the products of prefill, for dense matrices and experts alike.
//
// A CTA makes tiles of 256 outputs (rows of the matrix) x TOKENS tokens and goes on to the next tile while the last one
// is written. Four warps load the operands, a block of 128 columns per stage: packed weights by the copy engine, and
// activations gathered by row. Two warpgroups multiply 128 outputs each. The layout of `formats.py` is that of the
// registers of `wgmma`: a lane reads its 16 bytes, widens them to bf16 (exactly) and has the fragments of two steps of
// 16 columns. In exchange activations lie in `ordered` columns.
//
// Scales are applied to the sums: before the products of a block are added, the sums so far are divided by its scale
// and multiplied by the previous block's. The last scale is applied at the end.
#pragma once
#include "packed.cuh"
#include "wide_ptx.cuh"

enum Epilogue { STORE_FLOAT, STORE_BF16, ADD_FLOAT, SWIGLU, CLAMPED };  // CLAMPED: gpt-oss's SwiGLU with biases
constexpr int OUTPUTS = 256, CONSUMERS = 256, PRODUCERS = 128;
constexpr int COLUMNS = 128;  // of a block

struct Tile {
  int expert, first, count, pad;
};  // `count` sorted rows, from `first` on

struct Product {
  const char* weights;  // of the layer
  const bf16* x;        // [rows, stride]
  void* out;
  const int* rows;              // experts: the row of x of every sorted row; null: itself
  const float* routing_weight;  // experts: the routing weight of every sorted row; null: 1
  const Tile* tiles;            // experts; null: one matrix for all rows
  const int* tile_count;
  const float* bias;     // CLAMPED: [expert, bias_stride], in the order of the matrix's rows
  long long copy_bytes;  // from expert to expert
  long long out_split;   // elements from split to split of the output
  int n;                 // rows of x; experts: unused
  int matrix_rows;       // rows of the matrix that count
  int matrix_tiles;      // of 16 rows
  int blocks;            // of 128 columns
  int out_stride;        // elements
  int splits;            // of the columns; each has its own part of the output
  int bias_stride;
  float limit, alpha;  // CLAMPED
  int wide, stages;    // of steps (rows.cuh): most quads of a piece; number of stages
};
__device__ __forceinline__ constexpr bool activates(int epilogue) { return epilogue == SWIGLU || epilogue == CLAMPED; }

template <int FORMAT, int TOKENS>
struct Memory {
  static constexpr int X = TOKENS * COLUMNS * 2, W = OUTPUTS / 16 * Packed<FORMAT>::BYTES,
                       STAGE = X + (W + 1023) / 1024 * 1024;
  static constexpr int STAGING = 2 * 16 * 132 * 4, FIXED = STAGING + 128 + 1024;
  static constexpr int FIT = (227 * 1024 - FIXED) / STAGE, STAGES = FIT > 6 ? 6 : FIT;
  static constexpr int TOTAL = STAGES * STAGE + FIXED;
  static_assert(STAGES >= 2, "at least two stages, so that copies overlap with products");
};

// The fragments of a group of a block for this lane.
template <int FORMAT>
__device__ __forceinline__ void read_weights(u32 at, int group, u32* a) {
  const u32 lane = threadIdx.x & 31;
  if constexpr (FORMAT == BF16) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint4 w = shared16(at + i * 512 + lane * 16);
      a[4 * i] = w.x, a[4 * i + 1] = w.y, a[4 * i + 2] = w.z, a[4 * i + 3] = w.w;
    }
  } else if constexpr (!Packed<FORMAT>::NIBBLES) {
#pragma unroll
    for (int i = 0; i < 4; ++i) fragments(shared16(at + i * 512 + lane * 16), a + 8 * i);
  } else if constexpr (FORMAT == MXFP4) {  // a group is half of what a lane's 16 bytes hold
    const uint4 w = shared16(at + group / 2 * 512 + lane * 16);
    const uint4 codes = group % 2
                            ? make_uint4(second_codes(w.x), second_codes(w.y), second_codes(w.z), second_codes(w.w))
                            : make_uint4(first_codes(w.x), first_codes(w.y), first_codes(w.z), first_codes(w.w));
    fragments(make_uint4(from_mxfp4(codes.x), from_mxfp4(codes.y), from_mxfp4(codes.z), from_mxfp4(codes.w)), a);
  } else {
    constexpr int CHUNKS = 2 / Packed<FORMAT>::GROUPS;
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i) {
      const uint4 w = shared16(at + (group * CHUNKS + i) * 512 + lane * 16);
      fragments(make_uint4(first_codes(w.x), first_codes(w.y), first_codes(w.z), first_codes(w.w)), a + 16 * i);
      fragments(make_uint4(second_codes(w.x), second_codes(w.y), second_codes(w.z), second_codes(w.w)), a + 16 * i + 8);
    }
  }
}
// The scales of its rows g and g + 8.
template <int FORMAT>
__device__ __forceinline__ void read_scales(u32 at, int group, float (&scale)[2]) {
  const u32 record = at + Packed<FORMAT>::DATA, row = (threadIdx.x & 31) >> 2;
  if constexpr (FORMAT == FP8) {
    scale[0] = shared_float(record), scale[1] = shared_float(record + 4);
  } else if constexpr (FORMAT == FP8_ROWS) {
    scale[0] = shared_float(record + row * 4), scale[1] = shared_float(record + row * 4 + 32);
  } else if constexpr (FORMAT == MXFP4) {  // the exponents of a row's four groups; codes are 1/64 of values
    scale[0] = __uint_as_float((__float_as_uint(shared_float(record + row * 4)) >> 8 * group & 255u) << 23) * 64.f;
    scale[1] = __uint_as_float((__float_as_uint(shared_float(record + row * 4 + 32)) >> 8 * group & 255u) << 23) * 64.f;
  } else {
    scale[0] = from_half(shared2(record + group * 32 + row * 2)) * 512.f;  // codes are 1/512 of values
    scale[1] = from_half(shared2(record + group * 32 + row * 2 + 16)) * 512.f;
  }
}
// The factor that takes sums from scale `now` to scale `next`. A scale of 0 means weights of 0, so any factor will do.
__device__ __forceinline__ float rescale(float& now, float next) {
  if (next == 0) return 1;
  const float factor = quotient(now, next);
  now = next;
  return factor;
}

// A tile of the output. Experts take all outputs of a tile of tokens one after another; a dense matrix goes through 8
// tiles of tokens for every 256 outputs, so that neither operand is read far more often than the other.
template <int TOKENS>
struct Place {
  int outputs, first, count;  // first output; rows
  int begin, end, split;      // blocks
  int expert;
  const char* weights;
  __device__ __forceinline__ Place(const Product& p, int tile) {
    const int across = (p.matrix_tiles * 16 + OUTPUTS - 1) / OUTPUTS;
    weights = p.weights, expert = 0;
    split = tile % p.splits, tile /= p.splits;
    begin = p.blocks * split / p.splits, end = p.blocks * (split + 1) / p.splits;
    if (p.tiles) {
      const Tile t = p.tiles[tile / across];
      outputs = tile % across * OUTPUTS, first = t.first, count = t.count;
      expert = t.expert, weights += expert * p.copy_bytes;
    } else {
      const int all = (p.n + TOKENS - 1) / TOKENS, group = tile / (8 * across), wide = min(all - 8 * group, 8),
                at = tile - group * 8 * across;
      outputs = at / wide * OUTPUTS, first = (8 * group + at % wide) * TOKENS, count = min(p.n - first, TOKENS);
    }
  }
  static __device__ __forceinline__ int total(const Product& p) {
    const int across = (p.matrix_tiles * 16 + OUTPUTS - 1) / OUTPUTS;
    return across * p.splits * (p.tiles ? *p.tile_count : (p.n + TOKENS - 1) / TOKENS);
  }
};

template <int FORMAT, int TOKENS>
__device__ __forceinline__ void load_tiles(const Product& p, u32 stages, u32 gates) {
  typedef Memory<FORMAT, TOKENS> M;
  const int thread = threadIdx.x - CONSUMERS, lane = thread & 31, piece = thread & 15, low = thread >> 4;
  const u32 to = stages + piece / 8 * (TOKENS * 128) + low * 128 + ((piece & 7) ^ low) * 16;
  u32 stage = 0, parity = 1;
  // The weights of a single matrix are known before the predecessor ends, whose results are the other operand.
  int ahead = 0;
  if (!p.tiles && (int)blockIdx.x < Place<TOKENS>::total(p)) {
    const Place<TOKENS> place(p, blockIdx.x);
    ahead = min(place.end - place.begin, M::STAGES);
    const int mine = min(place.outputs / 16 + lane, p.matrix_tiles - 1);
    const char* weights = place.weights + ((long long)mine * p.blocks + place.begin) * Packed<FORMAT>::BYTES;
    for (int i = 0; thread < 32 && i < ahead; ++i, weights += Packed<FORMAT>::BYTES) {
      if (lane == 0) gate_expect(gates + i * 16, M::W);
      __syncwarp();
      if (lane < OUTPUTS / 16)
        copy_run(stages + i * M::STAGE + M::X + lane * Packed<FORMAT>::BYTES, weights, Packed<FORMAT>::BYTES,
                 gates + i * 16);
    }
  }
  wait_for_predecessor();
  for (int tile = blockIdx.x, total = Place<TOKENS>::total(p); tile < total; tile += gridDim.x) {
    const Place<TOKENS> place(p, tile);
    u32 from[TOKENS / 8];  // byte offsets of this thread's rows: every eighth row
#pragma unroll
    for (int i = 0; i < TOKENS / 8; ++i) {
      const int row = place.first + min(low + 8 * i, place.count - 1);
      from[i] = (p.rows ? p.rows[row] : row) * p.blocks * (2 * COLUMNS);
    }
    const char* x = (const char*)p.x + piece * 16 + place.begin * (2 * COLUMNS);
    const int mine = min(place.outputs / 16 + lane, p.matrix_tiles - 1);  // beyond the end: results are not stored
    const char* weights = place.weights + ((long long)mine * p.blocks + place.begin) * Packed<FORMAT>::BYTES;
    for (int block = place.begin; block < place.end; ++block) {
      const u32 base = stage * M::STAGE, full = gates + stage * 16;
      gate_wait(full + 8, parity);
      if (thread < 32) {
        if (ahead > 0) {
          --ahead;
        } else {
          if (lane == 0) gate_expect(full, M::W);
          __syncwarp();
          if (lane < OUTPUTS / 16)
            copy_run(stages + base + M::X + lane * Packed<FORMAT>::BYTES, weights, Packed<FORMAT>::BYTES, full);
        }
        weights += Packed<FORMAT>::BYTES;
      }
#pragma unroll
      for (int i = 0; i < TOKENS / 8; ++i) copy16(to + base + i * 1024, x + from[i]);
      copies_arrive(full);
      x += 2 * COLUMNS;
      if (++stage == M::STAGES) stage = 0, parity ^= 1;
    }
  }
}

// Sums of 16 tokens go through shared memory and are written row by row; `v` [16][stride] holds 128 outputs, or 64 of
// SwiGLU, of which the first `columns` are written.
template <int EPILOGUE>
__device__ __forceinline__ void write_rows(const Product& p, u32 v, int outputs, int columns, int first, int count,
                                           int split) {
  constexpr int WIDTH = activates(EPILOGUE) ? 64 : 128, STRIDE = WIDTH + 4;
  constexpr bool NARROW = activates(EPILOGUE) || EPILOGUE == STORE_BF16;
  constexpr int EACH = NARROW ? 8 : 4, ACROSS = WIDTH / EACH;
  const int thread = threadIdx.x & 127, limit = activates(EPILOGUE) ? p.matrix_rows / 2 : p.matrix_rows;
#pragma unroll
  for (int i = thread; i < 16 * ACROSS; i += 128) {
    const int row = i / ACROSS, at = i % ACROSS * EACH;
    if (row >= count || at >= columns) continue;
    const u32 from = v + row * STRIDE * 4;
    const long long to = (long long)(first + row) * p.out_stride + split * p.out_split + outputs + at;
    float value[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e += 4) {
      if constexpr (activates(EPILOGUE)) {
        for (int f = e; f < e + 4; ++f) value[f] = shared_float(from + ordered_column(at + f) * 4);
      } else {
        const uint4 bits = shared16(from + (at + e) * 4);
        value[e] = __uint_as_float(bits.x), value[e + 1] = __uint_as_float(bits.y);
        value[e + 2] = __uint_as_float(bits.z), value[e + 3] = __uint_as_float(bits.w);
      }
    }
    if (!activates(EPILOGUE) && outputs + at + EACH > limit) {  // the matrix ends among these outputs
      for (int e = 0; outputs + at + e < limit; ++e) {
        float* out = (float*)p.out + to + e;
        if constexpr (NARROW)
          ((bf16*)p.out)[to + e] = (bf16)(pack_bf16(value[e], 0.f) & 0xffff);
        else
          *out = EPILOGUE == ADD_FLOAT ? *out + value[e] : value[e];
      }
    } else if constexpr (NARROW) {  // beyond h's last column: finite numbers, which meet weights of 0
      *(uint4*)((bf16*)p.out + to) = make_uint4(pack_bf16(value[0], value[1]), pack_bf16(value[2], value[3]),
                                                pack_bf16(value[4], value[5]), pack_bf16(value[6], value[7]));
    } else {
      float4* out = (float4*)((float*)p.out + to);
      float4 sum = EPILOGUE == ADD_FLOAT ? *out : make_float4(0, 0, 0, 0);
      *out = make_float4(sum.x + value[0], sum.y + value[1], sum.z + value[2], sum.w + value[3]);
    }
  }
}

// Multiplies a block of 128 columns: 64 * PARTS outputs of a warpgroup, whose weights are at `mine`, times the tokens
// at `x`.
template <int FORMAT, int TOKENS, int PARTS>
__device__ __forceinline__ void multiply_block(u32 x, const u32 (&mine)[PARTS], float (&c)[PARTS][TOKENS / 2],
                                               float (&scale)[PARTS][2]) {
  constexpr int GROUPS = Packed<FORMAT>::GROUPS, STEPS = 8 / GROUPS;
  u32 a[PARTS][4 * STEPS];
#pragma unroll
  for (int n = 0; n < GROUPS; ++n) {
    if constexpr (FORMAT != BF16) {
#pragma unroll
      for (int i = 0; i < PARTS; ++i) {
        float next[2];
        read_scales<FORMAT>(mine[i], n, next);
        const float up = rescale(scale[i][0], next[0]), down = rescale(scale[i][1], next[1]);
#pragma unroll
        for (int j = 0; j < TOKENS / 2; ++j) c[i][j] *= j & 2 ? down : up;
        wide_sums(c[i]);  // here, not between products
      }
    }
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {  // the second 64 outputs are widened while the first are multiplied
      read_weights<FORMAT>(mine[i], n, a[i]);
      wide_begin();
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        const int step = n * STEPS + s;
        wide_mma(c[i], a[i] + 4 * s, wide_operand(x + step / 4 * (TOKENS * 128) + step % 4 * 32));
      }
      wide_commit();
    }
    wide_wait<0>();
#pragma unroll
    for (int i = 0; i < PARTS; ++i) wide_sums(c[i]);
  }
}

// Stores the sums of a warpgroup's first `columns` outputs, for `count` rows from `first` on.
template <int TOKENS, int EPILOGUE, int PARTS>
__device__ __forceinline__ void store_sums(const Product& p, const float (&c)[PARTS][TOKENS / 2],
                                           const float (&scale)[PARTS][2], u32 v, int outputs, int columns, int first,
                                           int count, int split, int expert) {
  constexpr int AT_ONCE = TOKENS < 16 ? TOKENS : 16;
  const int warp = threadIdx.x / 32, group = warp / 4, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
  for (int from = 0; from < TOKENS; from += AT_ONCE) {
#pragma unroll
    for (int i = 0; i < PARTS; ++i)
#pragma unroll
      for (int j = 0; j < AT_ONCE / 2; ++j) {  // steps of 8 tokens: rows g, g, g + 8, g + 8 of tokens 2 t, 2 t + 1
        const float sum = c[i][from / 2 + j] * scale[i][j >> 1 & 1];
        const int token = j / 4 * 8 + 2 * t + (j & 1);
        if constexpr (activates(EPILOGUE)) {
          if (j & 2) continue;
          float up = c[i][from / 2 + j + 2] * scale[i][1], h;
          if constexpr (EPILOGUE == SWIGLU) {
            h = quotient(sum, 1.f + power2(-1.44269504f * sum)) * up;
          } else {
            const int tile = min(outputs / 16 + i * 4 + (warp & 3), p.matrix_tiles - 1);
            const float* bias = p.bias + (long long)expert * p.bias_stride + tile * 16 + g;
            const float gate = fminf(sum + bias[0], p.limit);
            up = fminf(fmaxf(up + bias[8], -p.limit), p.limit);
            h = (up + 1.f) * quotient(gate, 1.f + power2(-1.44269504f * p.alpha * gate));
          }
          if (p.routing_weight && from + token < count) h *= p.routing_weight[first + from + token];
          put_float(v + (token * 68 + (i * 4 + (warp & 3)) * 8 + g) * 4, h);
        } else {
          put_float(v + (token * 132 + (i * 4 + (warp & 3)) * 16 + (j & 2) * 4 + g) * 4, sum);
        }
      }
    barrier_of<128>(1 + group);
    if (from < count && columns) {
      const bool half = activates(EPILOGUE);
      write_rows<EPILOGUE>(p, v, half ? outputs / 2 : outputs, half ? columns / 2 : columns, first + from, count - from,
                           split);
    }
    barrier_of<128>(1 + group);
  }
}

template <int FORMAT, int TOKENS, int EPILOGUE>
__device__ __forceinline__ void multiply(const Product& p, u32 stages, u32 gates, u32 staging) {
  typedef Memory<FORMAT, TOKENS> M;
  const int warp = threadIdx.x / 32, group = warp / 4, lane = threadIdx.x & 31;
  const u32 v = staging + group * (M::STAGING / 2);
  u32 stage = 0, parity = 0;
  wait_for_predecessor();
  for (int tile = blockIdx.x, total = Place<TOKENS>::total(p); tile < total; tile += gridDim.x) {
    const Place<TOKENS> place(p, tile);
    float c[2][TOKENS / 2];
    float scale[2][2] = {{1, 1}, {1, 1}};  // of rows g and g + 8, still to be applied to the sums
#pragma unroll
    for (int i = 0; i < TOKENS / 2; ++i) c[0][i] = c[1][i] = 0;
    for (int block = place.begin; block < place.end; ++block) {
      const u32 base = stages + stage * M::STAGE, full = gates + stage * 16;
      gate_wait(full, parity);
      show_to_wide();
      const u32 first = base + M::X + (group * 8 + (warp & 3)) * Packed<FORMAT>::BYTES,
                mine[2] = {first, first + 4 * Packed<FORMAT>::BYTES};  // the second 64 outputs: 4 tiles on
      multiply_block<FORMAT, TOKENS, 2>(base, mine, c, scale);
      if (lane == 0) gate_arrive(full + 8);
      if (++stage == M::STAGES) stage = 0, parity ^= 1;
    }
    const int outputs = place.outputs + group * 128;
    const int columns = outputs < p.matrix_tiles * 16 ? 128 : 0;
    store_sums<TOKENS, EPILOGUE, 2>(p, c, scale, v, outputs, columns, place.first, place.count, place.split,
                                    place.expert);
  }
}

template <int FORMAT, int TOKENS, int EPILOGUE>
__device__ __forceinline__ void product(const Product& p, char* memory) {
  typedef Memory<FORMAT, TOKENS> M;
  let_successor_start();
  const u32 stages = (shared_address(memory) + 1023) / 1024 * 1024;
  const u32 staging = stages + M::STAGES * M::STAGE, gates = staging + M::STAGING;
  if (threadIdx.x == 0) {
    for (int i = 0; i < M::STAGES; ++i) {
      gate_init_count(gates + i * 16, PRODUCERS + 1);       // full
      gate_init_count(gates + i * 16 + 8, CONSUMERS / 32);  // empty
    }
    gates_ready();
  }
  __syncthreads();
  if (threadIdx.x >= CONSUMERS) {
    give_registers<40>();
    load_tiles<FORMAT, TOKENS>(p, stages, gates);
  } else {
    take_registers<232>();
    multiply<FORMAT, TOKENS, EPILOGUE>(p, stages, gates, staging);
  }
}
