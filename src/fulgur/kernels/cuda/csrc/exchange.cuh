// How values pass from CTA to CTA: words of 8 bytes, part of them the value, part the epoch (which layer of which step)
// it is of.
//
// All CTAs read most values, so bytes are time: a vector of 2,048 passes in 1.4 µs as 16 KB and in 0.8 µs as 8 KB. The
// residual and the projections pass as pairs of floats of 24 bits with 16 bits of the epoch (they are written anew in
// every layer; the host sees to it that no row keeps words of half a turn of the epochs ago). A thread asks for all of
// its words at once.
//
// A word is stored and loaded as a whole, so whoever finds the epoch has the value: no barrier, no fence, one trip
// through L2 instead of three. Epochs only grow, within a launch and from launch to launch; whatever else lies in a
// buffer is older.
//
// A word may be overwritten in the next layer because its writer then holds values that were made from everybody's
// results of this one: all who needed the old word have read it. (Who makes nothing of it may read a newer one, which
// harms nobody.)
#pragma once
#include "common.cuh"

__device__ __forceinline__ void send(u64* to, u32 value, u32 epoch) { store_word(to, (u64)epoch << 32 | value); }
__device__ __forceinline__ void send2(u64* to, u32 first, u32 second, u32 epoch) {
  store_words(to, (u64)epoch << 32 | first, (u64)epoch << 32 | second);
}
__device__ __forceinline__ bool is_of(u64 word, u32 epoch) { return (int)((u32)(word >> 32) - epoch) >= 0; }
__device__ __forceinline__ void count_spin(u32& spins, State* state) {
  if (++spins > PATIENCE) {
    state->error = 1;
    __trap();
  }
}

// A float to the 24 bits that pass, to nearest even; beyond the largest of them lies infinity.
__device__ __forceinline__ u32 shorten(float v) {
  u32 bits = __float_as_uint(v);
  return (bits + 0x7fu + ((bits >> 8) & 1)) >> 8;
}
__device__ __forceinline__ float passed(float v) { return __uint_as_float(shorten(v) << 8); }
__device__ __forceinline__ void send_pair(u64* to, float first, float second, u32 epoch) {
  store_word(to, (u64)epoch << 48 | (u64)shorten(second) << 24 | shorten(first));
}
__device__ __forceinline__ float first_of(u64 word) { return __uint_as_float((u32)word << 8); }
__device__ __forceinline__ float second_of(u64 word) { return __uint_as_float((u32)(word >> 16) & 0xffffff00u); }
__device__ __forceinline__ bool is_pair_of(u64 word, u32 epoch) { return (short)((u32)(word >> 48) - epoch) >= 0; }

__device__ __forceinline__ u64 receive_pair(const u64* from, u32 epoch, State* state) {
  u64 word = load_word(from);
  for (u32 spins = 0; !is_pair_of(word, epoch); word = load_word(from)) count_spin(spins, state);
  return word;
}
// Two words here and two there.
__device__ __forceinline__ uint4 receive2x2(const u64* here, const u64* there, u32 epoch, State* state) {
  u64 a[2], b[2];
  u32 spins = 0;
  for (;;) {
    load_words(a, here);
    load_words(b, there);
    if (is_of(a[0], epoch) && is_of(a[1], epoch) && is_of(b[0], epoch) && is_of(b[1], epoch)) break;
    count_spin(spins, state);
  }
  return make_uint4((u32)a[0], (u32)a[1], (u32)b[0], (u32)b[1]);
}
