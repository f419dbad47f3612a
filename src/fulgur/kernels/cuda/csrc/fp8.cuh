// fp8 to bf16.
#pragma once
#include "ptx.cuh"

// Widens four fp8 e4m3 to two bf16 pairs (bytes 0 and 2, 1 and 3). Moving exponent and mantissa into place gives 2^-120
// of the value; the multiplication restores it.
__device__ __forceinline__ void widen_fp8(u32 w, u32& even, u32& odd) {
  u32 e = ((w << 8) & 0x80008000u) | ((w << 4) & 0x07f007f0u);
  u32 o = (w & 0x80008000u) | ((w >> 4) & 0x07f007f0u);
  even = fma_bf16x2(e, 0x7b807b80u, 0x80008000u);
  odd = fma_bf16x2(o, 0x7b807b80u, 0x80008000u);
}
