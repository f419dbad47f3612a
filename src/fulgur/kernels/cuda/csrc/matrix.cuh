// Which part of a matrix a CTA and a warp multiply. plan.py explains the cut.
#pragma once

// CTA c has units first_unit(c) .. first_unit(c + 1) - 1. If they do not divide evenly, the CTAs in the middle get one
// more: not the first ones, which attend, nor the last quarter, which route (unless the others are too few). If there
// are fewer units than CTAs, the last CTAs take one each.
static __device__ __forceinline__ int first_unit(int cta, int units) {
  const int each = units / CTAS, more = units % CTAS, even = CTAS - more;
  return cta * each + min(max(cta - (even - (each ? min(CTAS / 4, even) : 0)), 0), more);
}

// A matrix of the plan. `Constants` is generated (header.py).
template <class Constants>
struct Matrix : Constants {
  using C = Constants;
  // Units of a step. With experts, every row has its own.
  static __device__ __forceinline__ int units(int rows) {
    return C::COPIES == 1 ? C::TILES * C::SPLIT : rows * C::TILES * (C::JOINED ? 1 : C::CHOSEN_COPIES);
  }
  static __device__ __forceinline__ int first(int cta, int rows) { return first_unit(cta, units(rows)); }
  // The first block of a warp's slice of K.
  static __device__ __forceinline__ int slice(int split, int warp) {
    return (split * C::KW + warp) * C::BLOCKS / (C::SPLIT * C::KW);
  }
  // Flat cut: the first block of a CTA, counted through all tiles.
  static __device__ __forceinline__ int first_block(int cta) {
    return max(cta - (CTAS - C::OVER), 0) * C::GRAINS / C::OVER * C::GRAIN;
  }
};
