// Packed weights (formats.py) as the kernels of prefill and of the general driver read them.
#pragma once
#include "fp8.cuh"

enum Format { BF16, FP8, FP8_ROWS, INT4, INT4_64, MXFP4 };  // the codes of formats.py

template <int FORMAT>
struct Packed {
  static constexpr bool NIBBLES = FORMAT >= INT4;
  static constexpr int DATA = FORMAT == BF16 ? 4096 : NIBBLES ? 1024 : 2048;
  static constexpr int RECORD = FORMAT == BF16 ? 0 : FORMAT == FP8 ? 16 : FORMAT == INT4 ? 32 : 64;
  static constexpr int BYTES = DATA + RECORD;
  static constexpr int GROUPS = FORMAT == MXFP4 ? 4 : FORMAT == INT4_64 ? 2 : 1;
};

// The two weights of every byte of a 4-bit format, as e4m3 codes: of 1/512 of the integer, or 1/64 of MXFP4's value.
__device__ __forceinline__ u32 first_codes(u32 w) { return w & 0x87878787u; }
__device__ __forceinline__ u32 second_codes(u32 w) { return (w >> 4 | w << 28) & 0x87878787u; }
__device__ __forceinline__ u32 from_mxfp4(u32 codes) { return (codes & 0x80808080u) | (codes & 0x07070707u) << 2; }

// 32 columns of fp8 codes become the fragments of two steps of 16 columns.
__device__ __forceinline__ void fragments(uint4 w, u32* a) {
  widen_fp8(w.x, a[0], a[2]);
  widen_fp8(w.y, a[1], a[3]);
  widen_fp8(w.z, a[4], a[6]);
  widen_fp8(w.w, a[5], a[7]);
}

// Position 16 s + 8 h + 2 t + b of 32 holds column 8 t + 4 s + 2 h + b: four lanes t hold what a step of `wgmma` takes.
__device__ __forceinline__ int ordered_column(int position) {
  return (position & ~31) | (position >> 1 & 3) << 3 | (position >> 4 & 1) << 2 | (position >> 3 & 1) << 1 |
         (position & 1);
}
