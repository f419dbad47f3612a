// The rows of a step, for kernels whose rows are tokens of different sequences.
#pragma once
#include "packed.cuh"
#include "wide_ptx.cuh"

// Written by the host; in a run of the general driver kept up to date by the device. The rows of a sequence are
// neighbours at consecutive positions.
struct StepRows {
  int count;                  // rows
  int done, produced, first;  // a run (sample.cu): it is over; its tokens; unused
  int token[64], position[64], table[64];
  int slot[64], fold[64];  // recurrent layers (family.cu): the sequence's state, and what it has to be caught up by
};

__device__ __forceinline__ float bf16_at(const bf16* p) { return __uint_as_float((u32)*p << 16); }
__device__ __forceinline__ bf16 to_bf16(float v) { return (bf16)(pack_bf16(v, 0.f) & 0xffff); }
__device__ __forceinline__ float natural_power(float v) { return power2(v * 1.44269504f); }
__device__ __forceinline__ float sigmoid(float v) { return quotient(1.f, 1.f + natural_power(-v)); }
