// How the cache holds keys and values: as bf16, or in 8 bits as e4m3 codes with an exponent (of a power of two) for
// each head of a token.
//
// A value is rounded to bf16 first, then to code * 2^k, which bf16 represents exactly. So every reader of the cache
// gets the same bf16 values and computes as if they had been stored. (kv_cache.py does the same with torch.)
//
// Codes lie in the order 0, 2, 1, 3 within every four dimensions, so `widen_codes` returns neighbours as pairs.
#pragma once
#include "fp8.cuh"

// The larger magnitude of two bf16, as bits, which compare like the magnitudes.
__device__ __forceinline__ u32 larger_magnitude(u32 pair) { return max(pair & 0x7fffu, pair >> 16 & 0x7fffu); }
// The exponent that a head is stored with, from the bits of its largest magnitude: values are scaled so that the
// largest lies in 128..256. Beyond 57,344 they saturate. It is the exponent of the bf16 that `widen_codes` multiplies
// by.
__device__ __forceinline__ u32 cache_exponent(u32 largest) { return min(max(largest >> 7, 16u) + 113u, 254u); }
__device__ __forceinline__ float code_scale(u32 exponent) { return __uint_as_float((374u - exponent) << 23); }
// Four values (two pairs of bf16) as codes with that exponent.
__device__ __forceinline__ u32 to_codes(uint2 v, u32 exponent) {
  const float by = code_scale(exponent);
  const float a = __uint_as_float(v.x << 16), b = __uint_as_float(v.x & 0xffff0000u);
  const float c = __uint_as_float(v.y << 16), d = __uint_as_float(v.y & 0xffff0000u);
  return to_e4m3(pack_half(a * by, c * by)) | to_e4m3(pack_half(b * by, d * by)) << 16;
}
// One bf16 as a code, and where the code of a dimension lies.
__device__ __forceinline__ unsigned char to_code(u32 v, u32 exponent) {
  return (unsigned char)to_e4m3(pack_half(__uint_as_float(v << 16) * code_scale(exponent), 0.f));
}
__device__ __forceinline__ int code_place(int dim) { return (dim & ~3) | (dim & 1) << 1 | (dim >> 1 & 1); }
// The factor of `widen_codes`, one exponent for each half of a pair.
__device__ __forceinline__ u32 cache_factor(u32 low, u32 high) { return low << 7 | high << 23; }
// Four codes as two pairs of bf16: bytes 0 and 2, bytes 1 and 3. (fp8.cuh says how.)
__device__ __forceinline__ void widen_codes(u32 w, u32 factor, u32& even, u32& odd) {
  even = fma_bf16x2(((w << 8) & 0x80008000u) | ((w << 4) & 0x07f007f0u), factor, 0x80008000u);
  odd = fma_bf16x2((w & 0x80008000u) | ((w >> 4) & 0x07f007f0u), factor, 0x80008000u);
}
// Eight values of one head of one token.
__device__ __forceinline__ uint4 widen_eight(uint2 codes, u32 exponent) {
  const u32 factor = cache_factor(exponent, exponent);
  uint4 v;
  widen_codes(codes.x, factor, v.x, v.y);
  widen_codes(codes.y, factor, v.z, v.w);
  return v;
}

// A warp rounds a head of bf16 in place to the values that the cache will represent. `put(i, codes)` receives the codes
// of dimensions i to i + 3. Returns the exponent.
template <int DIMS, class Put>
__device__ __forceinline__ u32 round_head(bf16* head, Put put) {
  constexpr int EACH = (DIMS + 127) / 128;
  const int lane = threadIdx.x & 31;
  uint2 v[EACH];
  u32 largest = 0;
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const int i = 4 * (lane + 32 * k);
    v[k] = make_uint2(0, 0);
    if (DIMS % 128 == 0 || i < DIMS) v[k] = *(const uint2*)(head + i);
    largest = max(largest, max(larger_magnitude(v[k].x), larger_magnitude(v[k].y)));
  }
  const u32 exponent = cache_exponent(warp_max_bits(largest));
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const int i = 4 * (lane + 32 * k);
    if (DIMS % 128 && i >= DIMS) continue;
    const u32 codes = to_codes(v[k], exponent);
    widen_codes(codes, cache_factor(exponent, exponent), v[k].x, v[k].y);
    *(uint2*)(head + i) = v[k];
    put(i, codes);
  }
  return exponent;
}
// Stores a head in 8 bits, by a warp whose lanes hold dimensions lane + 32 k as bf16 (zeros beyond `dims`).
template <int EACH>
__device__ __forceinline__ void store_head(const u32 (&value)[EACH], int dims, unsigned char* codes,
                                           unsigned char* exponents) {
  const int lane = threadIdx.x & 31;
  u32 largest = 0;
#pragma unroll
  for (int k = 0; k < EACH; ++k) largest = max(largest, value[k] & 0x7fffu);
  const u32 exponent = cache_exponent(warp_max_bits(largest));
#pragma unroll
  for (int k = 0; k < EACH; ++k)
    if (lane + 32 * k < dims) codes[code_place(lane + 32 * k)] = to_code(value[k], exponent);
  if (lane == 0) *exponents = (unsigned char)exponent;
}
// Eight values of a cache, from element `at` on; `exponents` is null if the cache is bf16.
__device__ __forceinline__ uint4 cached_eight(const bf16* cache, const unsigned char* exponents, long long at,
                                              int head_dim) {
  if (!exponents) return *(const uint4*)(cache + at);
  return widen_eight(*(const uint2*)((const unsigned char*)cache + at), exponents[at / head_dim]);
}
