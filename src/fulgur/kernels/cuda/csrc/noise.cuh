// Random numbers for sampling, and functions whose bits must be the same on host and device.
//
// Gumbel-max: the argmax of logit / temperature + Gumbel noise is distributed as the softmax. The noise is a function
// of seed, position and token. `engine/gumbel.py` does the same operations in the same order, so host and device choose
// the same token.
#pragma once
#include "ptx.cuh"

constexpr u64 GOLDEN = 0x9E3779B97F4A7C15ull;
__device__ __forceinline__ u64 mix(u64 v) {
  v += GOLDEN;
  v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9ull;
  v = (v ^ (v >> 27)) * 0x94D049BB133111EBull;
  return v ^ (v >> 31);
}
// ln of a normal positive number. CUDA's own differs from numpy's in the last bit.
__device__ __forceinline__ float natural_log(float x) {
  u32 bits = __float_as_uint(x);
  float exponent = (float)((int)(bits >> 23) - 127), m = __uint_as_float((bits & 0x7fffffu) | 0x3f800000u);
  if (m > 1.41421356f) {
    m = m * 0.5f;
    exponent = exponent + 1.f;
  }
  float f = m - 1.f, s = f / (2.f + f), z = s * s;
  float series = 1.f + z * (0.33333334f + z * (0.2f + z * (0.14285715f + z * 0.11111111f)));
  return exponent * 0.6931472f + (s + s) * series;
}
__device__ __forceinline__ float gumbel(u64 key, int token) {
  u32 bits = (u32)(mix(key + (u64)token * GOLDEN) >> 32);
  float v = ((float)bits + 0.5f) * 2.3283064e-10f;  // 2^-32
  v = fminf(v, 0.99999994f);
  // -ln(1 - v), accurate for small v: that is where unlikely tokens win.
  float waited = v < 0.0078125f ? v + v * v * (0.5f + v * 0.33333334f) : -natural_log(1.f - v);
  return -natural_log(waited);
}

// The weight, in units of 2^-31, of a token whose scaled logit minus the highest is `d` <= 0. Sums of integers do not
// depend on their order, so the mass that top-p keeps is the same everywhere.
__device__ __forceinline__ u64 weight_of(float d) {
  const float y = d * 1.44269504f;
  if (!(y > -32.f)) return 0;
  const float whole = floorf(y), f = y - whole;
  const float power =
      1.f + f * (0.6931472f +
                 f * (0.24022651f + f * (0.05550411f + f * (0.009618129f + f * (0.0013333558f + f * 0.00015403530f)))));
  return (u64)(power * 2147483648.f) >> (int)-whole;
}
