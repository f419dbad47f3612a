// How values pass between CTAs: as words of 8 bytes that hold a value and its epoch (which layer of which step it
// belongs to).
//
// A word is stored and loaded atomically, so a reader that sees the epoch has the value: no barrier, no fence, one trip
// through L2 instead of three. Epochs only grow, within a launch and from launch to launch; anything else in a buffer
// is older.
//
// Every CTA reads most values, so bytes cost time: a vector of 2,048 takes 1.4 µs as 16 KB and 0.8 µs as 8 KB. The
// residual and the projections therefore pass as pairs of 24-bit floats with 16 bits of the epoch. They are rewritten
// in every layer, and the host makes sure that no row keeps words so old that 16 bits no longer order them. A thread
// requests all of its words at once.
//
// When may a word be overwritten? In the next layer its writer holds values computed from every CTA's results of this
// layer, so every CTA that needed the old word has read it. (A CTA that computes nothing from a word may see a newer
// one, which does no harm.)
#pragma once
#include "common.cuh"

__device__ __forceinline__ void send(u64* to, u32 value, u32 epoch) { store_word(to, (u64)epoch << 32 | value); }
__device__ __forceinline__ void send2(u64* to, u32 first, u32 second, u32 epoch) {
  store_words(to, (u64)epoch << 32 | first, (u64)epoch << 32 | second);
}
__device__ __forceinline__ bool has_epoch(u64 word, u32 epoch) { return (int)((u32)(word >> 32) - epoch) >= 0; }

// Rounds a float to the 24 bits that are sent, to nearest even; overflow becomes infinity.
__device__ __forceinline__ u32 shorten(float v) {
  u32 bits = __float_as_uint(v);
  return (bits + 0x7fu + ((bits >> 8) & 1)) >> 8;
}
__device__ __forceinline__ float as_sent(float v) { return __uint_as_float(shorten(v) << 8); }
__device__ __forceinline__ void send_pair(u64* to, float first, float second, u32 epoch) {
  store_word(to, (u64)epoch << 48 | (u64)shorten(second) << 24 | shorten(first));
}
__device__ __forceinline__ float first_of(u64 word) { return __uint_as_float((u32)word << 8); }
__device__ __forceinline__ float second_of(u64 word) { return __uint_as_float((u32)(word >> 16) & 0xffffff00u); }
__device__ __forceinline__ bool pair_has_epoch(u64 word, u32 epoch) { return (short)((u32)(word >> 48) - epoch) >= 0; }

__device__ __forceinline__ u64 receive_pair(const u64* from, u32 epoch) {
  u64 word = load_word(from);
  for (u32 spins = 0; !pair_has_epoch(word, epoch); word = load_word(from)) count_spin(spins);
  return word;
}
// Two words from `here` and two from `there`.
__device__ __forceinline__ uint4 receive2x2(const u64* here, const u64* there, u32 epoch) {
  u64 a[2], b[2];
  u32 spins = 0;
  for (;;) {
    load_words(a, here);
    load_words(b, there);
    if (has_epoch(a[0], epoch) && has_epoch(a[1], epoch) && has_epoch(b[0], epoch) && has_epoch(b[1], epoch)) break;
    count_spin(spins);
  }
  return make_uint4((u32)a[0], (u32)a[1], (u32)b[0], (u32)b[1]);
}
