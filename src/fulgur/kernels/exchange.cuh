// How values pass from CTA to CTA: words of 8 bytes, half of them the value, half the epoch (which layer of which step) it is of.
//
// A word is stored and loaded as a whole, so whoever finds the epoch has the value: no barrier, no fence, one trip through L2
// instead of three. Epochs only grow, within a launch and from launch to launch; whatever else lies in a buffer is older.
//
// A word may be overwritten in the next layer because its writer then holds values that were made from everybody's results
// of this one: all who needed the old word have read it. (Who makes nothing of it may read a newer one, which harms nobody.)
#pragma once
#include "common.cuh"

__device__ __forceinline__ void send(u64* to, u32 value, u32 epoch) { store_word(to, (u64)epoch << 32 | value); }
__device__ __forceinline__ bool is_of(u64 word, u32 epoch) { return (int)((u32)(word >> 32) - epoch) >= 0; }
__device__ __forceinline__ void count_spin(u32& spins, State* state) {
  if (++spins > PATIENCE) {
    state->error = 1;
    __trap();
  }
}

__device__ __forceinline__ u32 receive(const u64* from, u32 epoch, State* state) {
  u64 word = load_word(from);
  for (u32 spins = 0; !is_of(word, epoch); word = load_word(from)) count_spin(spins, state);
  return (u32)word;
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
__device__ __forceinline__ uint4 receive4(const u64* from, u32 epoch, State* state) {
  return receive2x2(from, from + 2, epoch, state);
}
