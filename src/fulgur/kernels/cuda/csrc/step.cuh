// The rows of a step, for kernels whose rows are tokens of different sequences.
#pragma once
#include "packed.cuh"
#include "wide_ptx.cuh"

// Written by the host; in a run of the general driver kept up to date by the device. A sequence's rows are adjacent, at
// consecutive positions.
struct StepRows {
  int count;                  // rows
  int done, produced, first;  // of a run (sample.cu): whether it is over; tokens produced; unused
  int token[64], position[64], table[64];
  int slot[64], fold[64];  // recurrent layers (family.cu): index of the sequence's state; logged tokens to fold into it
};

__device__ __forceinline__ float bf16_at(const bf16* p) { return __uint_as_float((u32)*p << 16); }
__device__ __forceinline__ bf16 to_bf16(float v) { return (bf16)(pack_bf16(v, 0.f) & 0xffff); }
__device__ __forceinline__ float natural_power(float v) { return power2(v * 1.44269504f); }
__device__ __forceinline__ float sigmoid(float v) { return quotient(1.f, 1.f + natural_power(-v)); }
