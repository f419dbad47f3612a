// Sends every fp8 and every 4-bit code through the kernels' conversions; the caller compares the results.
#include "linear.cuh"

extern "C" __global__ void widen_all(u32* fp8, u32* int4) {
  u32 code = threadIdx.x, even, odd;
  widen_fp8(code | (255 - code) << 8 | code << 16 | (255 - code) << 24, even, odd);
  fp8[2 * code] = even;     // the pair (code, code)
  fp8[2 * code + 1] = odd;  // the pair (255 - code, 255 - code)
  if (code < 128) {         // the bytes 2 * code, 2 * code + 1 and their complements
    codes_of(2 * code | (2 * code + 1) << 8 | (255 - 2 * code) << 16 | (254 - 2 * code) << 24, even, odd);
    int4[2 * code] = even;
    int4[2 * code + 1] = odd;
  }
}
