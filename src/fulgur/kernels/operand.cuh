// The right-hand side of a matrix product: up to 8 rows of activations as bf16 in shared memory, in the lanes' order.
//
// Columns 64 h + 16 t + 8 j .. + 7 of a block of 128 (h, j in 0..1, t in 0..3) lie at byte 256 * block + 64 * (2 h + j) + 16 t:
// a lane's four 16-byte loads of a block are then contiguous over the four lanes that share a row, and rows are padded by
// 64 bytes, so that no two lanes of a load phase meet in a bank.
#pragma once
#include "exchange.cuh"

__device__ __forceinline__ int operand_offset(int k) {   // k a multiple of 4
  return (k >> 7) * 256 + ((k >> 6) & 1) * 128 + ((k >> 3) & 1) * 64 + ((k >> 4) & 3) * 16 + (k & 7) * 2;
}

// A vector of bf16 pairs (attended heads, SwiGLU's result): `width` values a row, a multiple of 128. Of every `stretch` values
// the first `filled` are sent, the rest is padding that meets weights of zero.
__device__ inline void operand_copy(char* operand, const u64* from, int width, int stretch, int filled, int rows, u32 epoch, State* state) {
#pragma unroll 1
  for (int row = 0; row < rows; ++row)
#pragma unroll 1
    for (int k = threadIdx.x * 8; k < width; k += 2 * THREADS * 8) {
      u64 words[2][4];
      bool wanted[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        int at = k + i * THREADS * 8;
        wanted[i] = at < width && (stretch == filled || at % stretch < filled);
      }
      for (u32 spins = 0;; count_spin(spins, state)) {
        bool here = true;
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (wanted[i]) load_words(words[i], from + (row * width + k + i * THREADS * 8) / 2);
#pragma unroll
        for (int i = 0; i < 8; ++i) here &= !wanted[i / 4] || is_of(words[i / 4][i % 4], epoch);
        if (here) break;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        int at = k + i * THREADS * 8;
        uint4 values = make_uint4(0, 0, 0, 0);
        if (wanted[i]) values = make_uint4((u32)words[i][0], (u32)words[i][1], (u32)words[i][2], (u32)words[i][3]);
        if (at < width) *(uint4*)(operand + row * OPERAND_STRIDE + operand_offset(at)) = values;
      }
    }
  block_barrier();
}

constexpr int PER_THREAD = (D_MODEL / 4 + THREADS - 1) / THREADS;   // float4 of a row that a thread holds

// RMSNorm: x * rsqrt(mean(x^2) + eps) * weight. `tokens` not null: the rows are their embeddings, otherwise they are received.
__device__ inline void operand_norm(char* operand, Shared& shared, const Args& args, const float* weight, const int* tokens,
                                    const u64* x, u32 epoch, int rows) {
  float4 w[PER_THREAD];
#pragma unroll
  for (int i = 0; i < PER_THREAD; ++i) {
    int at = (i * THREADS + threadIdx.x) * 4;
    w[i] = at < D_MODEL ? *(const float4*)(weight + at) : make_float4(0, 0, 0, 0);
  }
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    float4 v[PER_THREAD];
    u64 words[PER_THREAD][2];
    float sum = 0;
    for (u32 spins = 0; !tokens; count_spin(spins, args.state)) {
      bool here = true;
#pragma unroll
      for (int i = 0; i < PER_THREAD; ++i) {
        int at = (i * THREADS + threadIdx.x) * 4;
        if (at < D_MODEL) load_words(words[i], x + (row * D_MODEL + at) / 2);
      }
#pragma unroll
      for (int i = 0; i < PER_THREAD; ++i)
        here &= (i * THREADS + threadIdx.x) * 4 >= D_MODEL || (is_pair_of(words[i][0], epoch) && is_pair_of(words[i][1], epoch));
      if (here) break;
    }
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
      int at = (i * THREADS + threadIdx.x) * 4;
      v[i] = make_float4(0, 0, 0, 0);
      if (at < D_MODEL) {
        if (tokens) {
          uint2 e = *(const uint2*)(args.embed + (long long)tokens[row] * D_MODEL + at);
          v[i] = make_float4(low(e.x), high(e.x), low(e.y), high(e.y));
        } else {
          v[i] = make_float4(first_of(words[i][0]), second_of(words[i][0]), first_of(words[i][1]), second_of(words[i][1]));
        }
      }
      sum += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
    }
    sum = warp_sum(sum);
    float* sums = shared.sums[row & 1];
    if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = sum;
    block_barrier();
    float total = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) total += sums[i];
    float inverse = rsqrtf(total / D_MODEL + NORM_EPS);
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
      int at = (i * THREADS + threadIdx.x) * 4;
      if (at < D_MODEL)
        *(uint2*)(operand + row * OPERAND_STRIDE + operand_offset(at)) =
            make_uint2(pack_bf16(v[i].x * inverse * w[i].x, v[i].y * inverse * w[i].y),
                       pack_bf16(v[i].z * inverse * w[i].z, v[i].w * inverse * w[i].w));
    }
    // Columns beyond the model's width meet weights that are zero; they must be finite.
#pragma unroll 1
    for (int k = D_MODEL + threadIdx.x * 4; k < (D_MODEL + BLOCK - 1) / BLOCK * BLOCK; k += THREADS * 4)
      *(uint2*)(operand + row * OPERAND_STRIDE + operand_offset(k)) = make_uint2(0, 0);
  }
  block_barrier();
}
