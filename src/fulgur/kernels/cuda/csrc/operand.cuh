// The operand of a matrix product: up to 8 rows of activations in shared memory.
//
// As bf16 they lie one after another. A lane's 16 bytes are its 8 columns of every 32 (formats.py). Rows are padded by
// 64 bytes to avoid bank conflicts.
//
// For `wgmma` (fp8 times fp8) a value is two e4m3 terms, x = scale * (hi + lo / 16), with a power-of-two scale for each
// block of 128 columns. Any bf16 value of at least 2^-15 of the block's maximum is represented exactly. An instruction
// has 8 columns and serves four warps that are at different blocks of K: slice i uses columns 2 (i % 4) for hi and 2 (i
// % 4) + 1 for lo. A STEP holds the blocks that slices i .. i + 3 reach at the same time. A warp ignores the columns of
// the others.
#pragma once
#include "predict.cuh"
#include "side.cuh"

// How a matrix is cut, as data. The persistent driver runs all phases through one copy of the code, which then stays in
// the instruction cache.
struct Shape {
  int phase, tiles, units;    // units: of a step over one row
  int kw_bits, cut_bits;      // log2 of the warps per unit, and of these times the splits of K
  int blocks;                 // along K, of all slices
  int steps;                  // blocks of the longest slice
  int row_units;              // with experts: units of one row; otherwise 0
  float per_tile, per_block;  // 1 / tiles, 1 / blocks
  float unit;                 // for `wgmma`: the value of weight code 1.0; 0: the product is in bf16
};
template <class M>
constexpr bool BY_WGMMA = WGMMA && M::FORMAT != BF16;
#define SHAPE_OF(M)                                         \
  Shape{M::ID,                                              \
        M::TILES,                                           \
        M::UNITS,                                           \
        M::KW_BITS,                                         \
        M::CUT_BITS,                                        \
        M::BLOCKS,                                          \
        M::STEPS,                                           \
        M::COPIES > 1 ? M::UNITS : 0,                       \
        1.f / M::TILES,                                     \
        1.f / M::BLOCKS,                                    \
        !BY_WGMMA<M>                                ? 0.f   \
        : M::FORMAT == INT4 || M::FORMAT == INT4_64 ? 512.f \
                                                    : 1.f}

static_assert(CORE_BYTES == CORE_SIZE, "as in header.py");
constexpr int STEP_BYTES = 8 * CORE_BYTES;
// Which forms the readers of the residual and of copied vectors need. The router reads the residual itself, and its
// fold the heads' outputs, both in bf16.
constexpr bool NORM_IN_BF16 = HAS_ROUTER || !BY_WGMMA<Qkv> || !BY_WGMMA<Head>;
constexpr bool NORM_IN_FP8 = BY_WGMMA<Qkv> || BY_WGMMA<Head>, COPY_IN_FP8 = BY_WGMMA<Qkv>;
// When qkv takes fp8 terms, its norm also keeps the raw residual in bf16 for the router, so it is not fetched twice.
constexpr bool KEEPS_RAW = HAS_ROUTER && BY_WGMMA<Qkv>;

// Offset from a row's operand to the two columns of a block.
__device__ __forceinline__ int terms_at(const Shape& s, int block) {
  int slice = (int)(((float)((block + 1) << s.cut_bits) - 0.5f) * s.per_block);
  return ((slice >> 2) * s.steps + block - (slice * s.blocks >> s.cut_bits)) * STEP_BYTES + (slice & 3) * 32;
}
// The power of two that scales values up to `peak` into 128..256, and its inverse.
__device__ __forceinline__ void scales_of(float peak, float& up, float& down) {
  u32 exponent = max(__float_as_uint(peak) & 0x7f800000u, 16u << 23);
  up = __uint_as_float((261u << 23) - exponent);
  down = __uint_as_float(exponent - (7u << 23));
}
// Offset of columns k .. k + 3 of a block (k a multiple of 4) from `terms_at`. Eight columns lie in two places,
// CORE_BYTES apart.
__device__ __forceinline__ u32 within_terms(u32 k) {
  return (k >> 5) * (2 * CORE_BYTES) + (k >> 2 & 1) * CORE_BYTES + (k >> 1 & 12);
}
// Writes four values at that place. Columns are ordered as the weights' bytes: 0, 2, 1, 3. Rounding via f16 keeps 11 of
// the terms' 12 bits.
__device__ __forceinline__ void put_terms(char* to, float a, float b, float c, float d) {
  const u32 sixteen = 0x4c004c00u, minus = 0xcc00cc00u;
  u32 ac = pack_half(a, c), bd = pack_half(b, d), high_ac = to_e4m3(ac), high_bd = to_e4m3(bd);
  ac = fma_half(ac, sixteen, fma_half(from_e4m3(high_ac), minus, 0x80008000u));
  bd = fma_half(bd, sixteen, fma_half(from_e4m3(high_bd), minus, 0x80008000u));
  *(u32*)to = high_ac | high_bd << 16;
  *(u32*)(to + 16) = to_e4m3(ac) | to_e4m3(bd) << 16;
}

// A vector of bf16 pairs that is copied as it is: `width` values a row, a multiple of 128. Of every `stretch` values
// the first `filled` are sent; the rest is padding that meets zero weights.
struct Vector {
  const u64* from;
  int width, stretch, filled;
  const u64* squares;  // of a delta net's heads, a block each: parts of their sums of squares; else null
};
// The heads' outputs (for o), or the result of SwiGLU (for down), of which an expert or a dense model sends whole
// tiles.
__device__ __forceinline__ Vector vector_for(const Args& args, bool o, bool delta = false) {
  return Vector{o ? args.attended : args.h, (o ? O::BLOCKS : Down::BLOCKS) * BLOCK,
                (o ? O::COPY_BLOCKS : Down::COPY_BLOCKS) * BLOCK,
                delta ? VALUES
                : o   ? HEADS * HEAD_DIM
                      : (FFN + 7) / 8 * 8,
                delta ? args.squares : nullptr};
}
// The factor of a delta net's head. A lane has loaded one part of its sum of squares, or nothing.
__device__ __forceinline__ float head_factor(u64 part) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < DELTA_PARTS; ++i) sum += lane_value(__uint_as_float((u32)part), i);
  return rsqrtf(sum / BLOCK + NORM_EPS);
}

// Copies a vector into the operand. A warp takes a block at a time so that its loads are whole sectors: half a sector
// costs L2 as much.
__device__ inline void operand_copy(char* operand, const Vector& vector, int rows, u32 epoch, const Shape& s) {
  const u64* from = vector.from;
  const int width = vector.width, stretch = vector.stretch, filled = vector.filled;
  // Blocks that a warp waits for together: all of its own, for dense models of up to 10,240 values. Each wait is a trip
  // through L2.
  constexpr int WIDEST = ((O::BLOCKS > Down::BLOCKS ? O::BLOCKS : Down::BLOCKS) + WARPS - 1) / WARPS;
  constexpr int AT_ONCE = COPY_IN_FP8 ? 3 : WIDEST < 5 ? WIDEST : 5;
  const int thread = (int)thread_index();
#pragma unroll 1
  for (int row = 0; row < rows; ++row, operand += OPERAND_STRIDE, from += width / 2)
#pragma unroll 1
    for (int begin = thread * 4; begin < width; begin += AT_ONCE * THREADS * 4) {  // all lanes of a warp together
      u64 words[AT_ONCE][2] = {}, parts[AT_ONCE] = {};
      bool wanted[AT_ONCE];
      const bool sums = DELTA_LAYERS && vector.squares && (thread & 31) < DELTA_PARTS;
      int terms[AT_ONCE];  // computed before the wait
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        int at = begin + i * THREADS * 4;
        wanted[i] = at < width && (stretch == filled || at % stretch < filled);
        if constexpr (COPY_IN_FP8) terms[i] = opaque(terms_at(s, at / BLOCK) + (int)within_terms(at % BLOCK));
      }
      // Polls one word first: 132 CTAs that poll all of theirs would slow L2 for everyone.
      for (u32 spins = 0; !has_epoch(load_word(from + (begin & ~127) / 2), epoch);) count_spin(spins);
      for (u32 spins = 0;; count_spin(spins)) {
        bool here = true;
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
          if (wanted[i]) {
            load_words(words[i], from + (begin + i * THREADS * 4) / 2);
            const int head = row * (VALUES / BLOCK) + (begin + i * THREADS * 4) / BLOCK;
            if (sums) parts[i] = load_word(vector.squares + head * DELTA_PARTS + (thread & 31));
          }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
          here &= !wanted[i] || (has_epoch(words[i][0], epoch) && has_epoch(words[i][1], epoch) &&
                                 (!sums || has_epoch(parts[i], epoch)));
        if (here) break;
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const int at = begin + i * THREADS * 4;
        if (at >= width) break;
        uint2 values = wanted[i] ? make_uint2((u32)words[i][0], (u32)words[i][1]) : make_uint2(0, 0);
        if (DELTA_LAYERS && vector.squares) {
          const float factor = head_factor(parts[i]);
          values = make_uint2(pack_bf16(low(values.x) * factor, high(values.x) * factor),
                              pack_bf16(low(values.y) * factor, high(values.y) * factor));
        }
        if constexpr (COPY_IN_FP8) {
          u32 peaks = max_halves(values.x & 0x7fff7fffu, values.y & 0x7fff7fffu);
          float up, down;
          scales_of(__uint_as_float(warp_max_bits(max(peaks << 16, peaks & 0xffff0000u))), up, down);
          const u32 block = (u32)at / BLOCK, column = (u32)at % BLOCK;
          put_terms(operand + TERMS_AT + terms[i], low(values.x) * up, high(values.x) * up, low(values.y) * up,
                    high(values.y) * up);
          if (column == 0) *(float*)(operand + block * 4) = down * s.unit;
        }
        if (!COPY_IN_FP8 || (EXPERTS && s.phase == O::ID)) *(uint2*)(operand + BF16_AT + at * 2) = values;
      }
    }
  if constexpr (COPY_IN_FP8) publish_to_wgmma();
  block_barrier();
}

// The residual that a norm reads.
struct Residual {
  const float* weight;  // of the norm; null: the operand is the residual itself
  bool embedded;        // the rows are the embeddings of the step's tokens
  const u64* x;         // otherwise: where they are received from,
  u32 epoch;            // and their epoch
};

// Prepares x * weight (RMSNorm without its factor) as the operand, and writes the sums of squares from which the factor
// comes (`inverse_of`). `routed`: also receive the router's logits; `early`: where to put the part without attention;
// `keep_raw`: also keep x in bf16; `side`: the rows of this layer that CTAs multiply meanwhile (side.cuh), or null.
__device__ inline void operand_norm(char* operand, Shared& shared, const Args& args, const Residual& residual, int rows,
                                    const Shape& s, bool routed, float* early = nullptr, bool keep_raw = false,
                                    const bf16* side = nullptr) {
  const float* weight = residual.weight;
  const u64* x = residual.x;
  const bool embedded = residual.embedded;
  const u32 epoch = residual.epoch;
  const int thread = (int)thread_index();
  float4 w[PER_THREAD];
  int terms[PER_THREAD];  // computed before the wait
#pragma unroll
  for (int i = 0; i < PER_THREAD; ++i) {
    int at = (i * THREADS + thread) * 4;
    if constexpr (NORM_IN_FP8) terms[i] = opaque(terms_at(s, at / BLOCK) + (int)within_terms(at % BLOCK));
    w[i] = !in_row(at)             ? make_float4(0, 0, 0, 0)
           : HAS_ROUTER && !weight ? make_float4(1, 1, 1, 1)
                                   : *(const float4*)(weight + at);
  }
#if DELTA_LAYERS
  SideRows beside;
  beside.load(side, thread);
#endif
#pragma unroll 1
  for (int row = 0; row < rows; ++row, operand += OPERAND_STRIDE) {
    float4 v[PER_THREAD];
    if (embedded) {
#pragma unroll
      for (int i = 0; i < PER_THREAD; ++i) {
        int at = (i * THREADS + thread) * 4;
        uint2 e = make_uint2(0, 0);
        if (in_row(at)) e = *(const uint2*)(args.embed + (long long)shared.token[row] * D_MODEL + at);
        v[i] = make_float4(low(e.x), high(e.x), low(e.y), high(e.y));
      }
    } else {
      u64 words[PER_THREAD][2] = {}, second[PER_THREAD][2] = {};
      const bool parts = DOWN_PARTS > 1 && x != args.x;  // the residual after down is the sum of two parts
      for (u32 spins = 0;; count_spin(spins)) {
        bool here = true;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
          int at = (i * THREADS + thread) * 4;
          if (in_row(at)) load_words(words[i], x + (row * D_MODEL + at) / 2);
          if (parts && in_row(at)) load_words(second[i], x + ((MAX_ROWS + row) * D_MODEL + at) / 2);
        }
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i)
          here &= !in_row((i * THREADS + thread) * 4) ||
                  (pair_has_epoch(words[i][0], epoch) && pair_has_epoch(words[i][1], epoch) &&
                   (!parts || (pair_has_epoch(second[i][0], epoch) && pair_has_epoch(second[i][1], epoch))));
        if (here) break;
      }
#pragma unroll
      for (int i = 0; i < PER_THREAD; ++i)
        v[i] =
            make_float4(first_of(words[i][0]), second_of(words[i][0]), first_of(words[i][1]), second_of(words[i][1]));
      if (parts)
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i)
          v[i] = make_float4(v[i].x + first_of(second[i][0]), v[i].y + second_of(second[i][0]),
                             v[i].z + first_of(second[i][1]), v[i].w + second_of(second[i][1]));
    }
#if DELTA_LAYERS
    if (side) beside.multiply(v, shared.side[row], thread);
#endif
#if EXPERTS
    // The logits arrive a little after the residual: request them now, wait for them when the operand is written.
    const bool asks = routed && thread < EXPERTS + SHARED_EXPERT;
    Logits logits{};
    if (asks) logits.load(args, row, thread);
#endif
    u32 peak[PER_THREAD];
    uint2 raw[PER_THREAD];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
      if (KEEPS_RAW) raw[i] = make_uint2(pack_bf16(v[i].x, v[i].y), pack_bf16(v[i].z, v[i].w));
      sum += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
      v[i] = make_float4(v[i].x * w[i].x, v[i].y * w[i].y, v[i].z * w[i].z, v[i].w * w[i].w);
      if constexpr (NORM_IN_FP8)  // a warp holds a block
        peak[i] = warp_max_bits(
            __float_as_uint(fmaxf(fmaxf(fabsf(v[i].x), fabsf(v[i].y)), fmaxf(fabsf(v[i].z), fabsf(v[i].w)))));
    }
    sum = warp_sum(sum);
    if ((thread & 31) == 0) shared.sums[row][thread >> 5] = sum;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
      // Columns beyond the model's width are zeros; they meet zero weights.
      int at = (i * THREADS + thread) * 4;
      if (!in_row(at) && at >= (D_MODEL + BLOCK - 1) / BLOCK * BLOCK) break;
      if (KEEPS_RAW && keep_raw) *(uint2*)(operand + BF16_AT + at * 2) = raw[i];
      if (NORM_IN_BF16 && (!NORM_IN_FP8 || !s.unit))
        *(uint2*)(operand + BF16_AT + at * 2) = make_uint2(pack_bf16(v[i].x, v[i].y), pack_bf16(v[i].z, v[i].w));
      if (NORM_IN_FP8 && s.unit) {
        float up, down;
        scales_of(__uint_as_float(peak[i]), up, down);
        const u32 block = (u32)at / BLOCK, column = (u32)at % BLOCK;
        put_terms(operand + TERMS_AT + terms[i], v[i].x * up, v[i].y * up, v[i].z * up, v[i].w * up);
        if (column == 0) *(float*)(operand + block * 4) = down * s.unit;
      }
    }
#if EXPERTS
    if (asks) {
      for (u32 spins = 0; !logits.here(epoch); count_spin(spins)) logits.load(args, row, thread);
      if (!SHARED_EXPERT || thread < EXPERTS) {
        shared.logit[row][thread] = Logits::tagged(logits.sum(), thread);
        if (early) early[row * EXPERTS_OF_4 + thread] = Logits::tagged(logits.sum(ROUTER_PARTS), thread);
      } else {
        shared.shared_logit[row] = logits.sum();
      }
    }
    if (SHARED_EXPERT && EXPERTS == THREADS && routed && thread == 0) {  // there is no thread left for it
      do logits.load(args, row, EXPERTS);
      while (!logits.here(epoch));
      shared.shared_logit[row] = logits.sum();
    }
#endif
  }
#if PREDICTION
  if (routed) check_prediction(shared, epoch - shared.epoch + 1);
#endif
  if constexpr (NORM_IN_FP8) publish_to_wgmma();
  block_barrier();
}
