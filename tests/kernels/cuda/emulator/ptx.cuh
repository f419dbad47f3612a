// Replaces ptx.cuh and emulates the GPU in one CPU thread, so that the CUDA sources themselves run where there is no
// GPU.
//
// Every CUDA thread is a fiber. Which one runs next is random, and some warps are held up for a while, so that a missing
// barrier shows as a wrong result.
// Asynchronous copies complete at a random moment between their issue and the wait for them. Shared memory starts as
// NaNs. A collective that not all lanes reach is reported as a deadlock.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#define __device__
#define __constant__ static const
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  u32 x, y, z, w;
};
struct alignas(8) uint2 {
  u32 x, y;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
template <class A>
A min(A a, A b) {
  return a < b ? a : b;
}
template <class A>
A max(A a, A b) {
  return a > b ? a : b;
}
inline float __uint_as_float(u32 v) {
  float f;
  memcpy(&f, &v, 4);
  return f;
}
inline float __int_as_float(int v) {
  float f;
  memcpy(&f, &v, 4);
  return f;
}
inline u32 float_bits(float f) {
  u32 v;
  memcpy(&v, &f, 4);
  return v;
}
inline u32 __float_as_uint(float f) { return float_bits(f); }
inline float rsqrtf(float v) { return 1.f / sqrtf(v); }
#define INF __int_as_float(0x7f800000)

namespace emu {
struct Dim {
  int x;
};
struct Fiber;
struct Gate {  // a barrier of a fixed number of fibers
  int members, arrived = 0;
  std::vector<Fiber*> waiting;
};
constexpr int WHILE = 20000;  // picks of the scheduler
struct Warp {
  bool held = false;  // by the scheduler, for a while
  Gate gate{32}, firsts{4};
  u32 slot[2][32][6];
};
struct Warpgroup {
  Gate gate{128};
  u32 slot[2][128];
};
struct Copy {
  u32 to, gate, bytes;
  const char* from;
};
struct Cta {
  int index;
  std::vector<char> memory;
  char* base;
  Gate gate{0}, barriers[8]{{0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}};  // of all threads; of some, by number (1: compute threads)
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  std::vector<char> published;  // shared memory as `wgmma` sees it
  int publishers = 0;
  std::vector<Copy> copies;  // issued, not completed yet
};
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Dim thread, block, grid;
  Cta* cta;
  Warp* warp;
  int parity = 0, group_parity = 0;
  struct {
    float* c;
    float sum[4];
  } pending[2] = {};         // sums of `wgmma` in flight
  bool multiplying = false;  // between its begin and its wait
  bool begun = false, finished = false;
  jmp_buf place;
};
inline Fiber* current;
inline jmp_buf scheduler;
inline std::vector<Fiber*> ready;
inline u32 noise = 1;
inline u32 random_bits() {
  noise ^= noise << 13;
  noise ^= noise >> 17;
  noise ^= noise << 5;
  return noise;
}
// A context starts a fiber on its own stack; after that, jumps switch between fibers without system calls.
inline void sleep() {
  if (!_setjmp(current->place)) _longjmp(scheduler, 1);
}
inline void wake(Fiber* fiber) {
  current = fiber;
  if (_setjmp(scheduler)) return;
  if (fiber->begun) _longjmp(fiber->place, 1);
  fiber->begun = true;
  setcontext(&fiber->context);
}
inline void meet(Gate& gate) {
  if (++gate.arrived == gate.members) {
    gate.arrived = 0;
    for (Fiber* f : gate.waiting) ready.push_back(f);
    gate.waiting.clear();
    return;
  }
  gate.waiting.push_back(current);
  sleep();
}
// A gate counts its phases; a completed copy completes one.
inline u64& gate_at(u32 gate) { return *(u64*)(current->cta->base + gate); }
inline void land(const Copy& c) {
  memcpy(current->cta->base + c.to, c.from, c.bytes);
  ++gate_at(c.gate);
}
}  // namespace emu

#define threadIdx (emu::current->thread)
#define blockIdx (emu::current->block)
#define gridDim (emu::current->grid)
#define SHARED_MEMORY(name) char* name = emu::current->cta->base

inline u32 thread_index() { return emu::current->thread.x; }
inline void __syncthreads() { emu::meet(emu::current->cta->gate); }
template <int MEMBERS>
void barrier_of(int which) {
  emu::Gate& gate = emu::current->cta->barriers[which];
  gate.members = MEMBERS;
  emu::meet(gate);
}
inline void __syncwarp() { emu::meet(emu::current->warp->gate); }
template <class T>
T __shfl_xor_sync(u32 members, T v, int mask) {
  emu::Fiber* f = emu::current;
  int lane = f->thread.x & 31, p = f->parity;
  if (members != ~0u) {
    fprintf(stderr, "a shuffle of some lanes only\n");
    abort();
  }
  memcpy(f->warp->slot[p][lane], &v, 4);
  emu::meet(f->warp->gate);
  memcpy(&v, f->warp->slot[p][lane ^ mask], 4);
  f->parity ^= 1;
  return v;
}
inline float lane_value(float v, int lane) {
  emu::Fiber* f = emu::current;
  const int p = f->parity;
  memcpy(f->warp->slot[p][f->thread.x & 31], &v, 4);
  emu::meet(f->warp->gate);
  memcpy(&v, f->warp->slot[p][lane], 4);
  f->parity ^= 1;
  return v;
}
// A bit for each of the first `lanes`, which meet at the gate.
inline u32 vote(emu::Gate& gate, int lanes, bool v) {
  emu::Fiber* f = emu::current;
  int p = f->parity;
  f->warp->slot[p][f->thread.x & 31][0] = v;
  emu::meet(gate);
  f->parity ^= 1;
  u32 bits = 0;
  for (int i = 0; i < lanes; ++i) bits |= (u32) !!f->warp->slot[p][i][0] << i;
  return bits;
}
inline bool any_lane(bool v) { return vote(emu::current->warp->firsts, 4, v); }
inline u32 lanes_with(bool v) { return vote(emu::current->warp->gate, 32, v); }
inline void nap(u32) {
  emu::ready.push_back(emu::current);
  emu::sleep();
}
inline int count_bits(u32 v) { return __builtin_popcount(v); }
template <int N>
void take_registers() {}
template <int N>
void give_registers() {}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
inline void __threadfence_system() {}
template <class T>
T atomicAdd(T* to, T by) {
  const T before = *to;
  *to += by;
  return before;
}
inline void leave() {
  fprintf(stderr, "a wait never ended\n");
  abort();
}
inline void __trap() {
  fprintf(stderr, "a barrier never completed\n");
  abort();
}

inline u32 round_bf16(float v) {
  u32 b = float_bits(v);
  if ((b & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (b + 0x7fffu + ((b >> 16) & 1)) >> 16;
}
inline u32 pack_bf16(float lo, float hi) { return round_bf16(lo) | (round_bf16(hi) << 16); }
inline float from_half(u32 h) {
  int e = (h >> 10) & 31, m = h & 1023;
  float v = e ? ldexpf(1024 + m, e - 25) : ldexpf(m, -24);
  return h & 0x8000 ? -v : v;
}
inline float power2(float v) { return exp2f(v); }
inline float quotient(float a, float b) { return a / b; }
inline float load(const float* p) { return *p; }
inline uint4 load16(const void* p) { return *(const uint4*)p; }
inline void prefetch_l2(const void* p) {
  volatile char c = *(const volatile char*)p;
  (void)c;
}
inline u32 shared_address(const void* p) { return (u32)((const char*)p - emu::current->cta->base); }
inline void gate_init(u32 gate) { emu::gate_at(gate) = 0; }
inline void copy_piece(u32 to, const char* from, u32 bytes, u32 gate) {
  if ((uintptr_t)from % 16 || to % 16 || bytes % 16) {
    fprintf(stderr, "a copy is not aligned to 16 bytes\n");
    abort();
  }
  emu::Copy c{to, gate, bytes, from};
  memset(emu::current->cta->base + to, 0xff, bytes);  // a late reader of the old bytes gets NaNs
  if (emu::random_bits() & 1)
    emu::land(c);
  else
    emu::current->cta->copies.push_back(c);
}
inline void prefetch_piece(const char* from, u32 bytes) {
  for (u32 at = 0; at < bytes; at += 16) prefetch_l2(from + at);
}
inline void gate_wait(u32 gate, u32 parity) {
  auto& copies = emu::current->cta->copies;
  for (int spins = 0; (emu::gate_at(gate) & 1) == parity; ++spins) {
    if (spins > 100000) {
      fprintf(stderr, "a wait for a copy that was never issued\n");
      abort();
    }
    for (size_t i = 0; i < copies.size(); ++i)
      if (copies[i].gate == gate) {
        emu::land(copies[i]);
        copies.erase(copies.begin() + i);
        break;
      }
    if ((emu::gate_at(gate) & 1) != parity) return;
    emu::ready.push_back(emu::current);
    emu::sleep();
  }
}
inline bool gate_done(u32 gate, u32 parity) {
  auto& copies = emu::current->cta->copies;
  for (size_t i = 0; i < copies.size(); ++i)
    if (copies[i].gate == gate && emu::random_bits() & 1) {
      emu::land(copies[i]);
      copies.erase(copies.begin() + i);
      break;
    }
  return (emu::gate_at(gate) & 1) != parity;
}
inline void store_release(u32 at, u32 v) { *(volatile u32*)(emu::current->cta->base + at) = v; }
inline void store_relaxed(u32 at, u32 v) { store_release(at, v); }
inline u32 load_acquire_shared(u32 at) { return *(const volatile u32*)(emu::current->cta->base + at); }
inline uint4 shared16(u32 at) { return *(const uint4*)(emu::current->cta->base + at); }
inline float2 shared8(u32 at) { return *(const float2*)(emu::current->cta->base + at); }
inline u32 shared4(u32 at) { return *(const u32*)(emu::current->cta->base + at); }
inline void put4(u32 at, u32 v) { *(u32*)(emu::current->cta->base + at) = v; }
inline u32 shared2(u32 at) { return *(const unsigned short*)(emu::current->cta->base + at); }
inline float half_of(u32 pair, int h) { return __uint_as_float(h ? pair & 0xffff0000u : pair << 16); }
inline void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  emu::Fiber* f = emu::current;
  int lane = f->thread.x & 31, g = lane >> 2, t = lane & 3, p = f->parity;
  u32 mine[6] = {a0, a1, a2, a3, b0, b1};
  memcpy(f->warp->slot[p][lane], mine, sizeof mine);
  emu::meet(f->warp->gate);
  auto* slot = f->warp->slot[p];
  for (int i = 0; i < 4; ++i) {
    int bottom = i >> 1, column = 2 * t + (i & 1);
    float sum = 0;
    for (int k = 0; k < 16; ++k) {
      int owner = (k & 7) >> 1, late = k >> 3;
      sum +=
          half_of(slot[g * 4 + owner][bottom + 2 * late], k & 1) * half_of(slot[column * 4 + owner][4 + late], k & 1);
    }
    c[i] += sum;
  }
  f->parity ^= 1;
}
inline float e4m3(u32 code) {
  int e = (code >> 3) & 15, m = code & 7;
  if (e == 15 && m == 7) return NAN;
  float v = e ? ldexpf(8 + m, e - 10) : ldexpf(m, -9);
  return code & 128 ? -v : v;
}
// The four warps of a warpgroup together, all with the same b. A sum stays NaN until it is waited for.
constexpr int CORE_BYTES = 144, WGMMA_UNIT = 16;
inline u32 wgmma_operand(u32 at) {
  if (at % 16) {
    fprintf(stderr, "an operand of wgmma is not aligned to 16 bytes\n");
    abort();
  }
  return at / 16;
}
inline void meet_warpgroup(u32 v) {
  emu::Fiber* f = emu::current;
  emu::Warpgroup& group = f->cta->warpgroups[f->thread.x / 128];
  int p = f->group_parity;
  group.slot[p][f->thread.x % 128] = v;
  emu::meet(group.gate);
  f->group_parity ^= 1;
  for (u32 other : group.slot[p])
    if (other != v) {
      fprintf(stderr, "the warps of a warpgroup multiply with different operands\n");
      abort();
    }
}
inline void in_wgmma(bool wanted) {
  if (emu::current->multiplying != wanted) {
    fprintf(stderr, "wgmma without its begin, or sums without its wait\n");
    abort();
  }
}
inline void wgmma_begin() {
  in_wgmma(false);
  emu::current->multiplying = true;
  meet_warpgroup(0);
}
inline void wgmma(float (&c)[4], uint4 a, u32 b, bool add) {
  emu::Fiber* f = emu::current;
  in_wgmma(true);
  meet_warpgroup(b << 1 | add);
  int lane = f->thread.x & 31, g = lane >> 2, t = lane & 3, p = f->parity;
  u32 mine[4] = {a.x, a.y, a.z, a.w};
  memcpy(f->warp->slot[p][lane], mine, sizeof mine);
  emu::meet(f->warp->gate);
  auto* slot = f->warp->slot[p];
  auto& sum = f->pending[0].c == c || !f->pending[0].c ? f->pending[0] : f->pending[1];
  static float numbers[256];
  if (!numbers[1])
    for (int i = 0; i < 256; ++i) numbers[i] = e4m3(i);
  if (!add) {
    sum.c = c;
    for (int i = 0; i < 4; ++i) sum.sum[i] = 0;
  }
  if (sum.c != c) {
    fprintf(stderr, "wgmma adds to sums that were not begun\n");
    abort();
  }
  if (f->cta->published.empty()) {
    fprintf(stderr, "wgmma reads what was never published to it\n");
    abort();
  }
  const unsigned char* base = (const unsigned char*)f->cta->published.data() + b * 16;
  for (int i = 0; i < 4; ++i) {
    float total = 0;
    for (int k = 0; k < 32; ++k) {
      u32 code = slot[g * 4 + k % 16 / 4][(i >> 1) + 2 * (k / 16)] >> (k % 4 * 8) & 255;
      total += numbers[code] * numbers[base[k / 16 * CORE_BYTES + (2 * t + (i & 1)) * 16 + k % 16]];
    }
    sum.sum[i] += total;
    c[i] = NAN;
  }
  f->parity ^= 1;
}
inline void wgmma_wait() {
  in_wgmma(true);
  emu::current->multiplying = false;
  meet_warpgroup(0);
}
inline void wgmma_sums(float (&c)[4]) {
  in_wgmma(false);
  for (auto& sum : emu::current->pending)
    if (sum.c == c) {
      memcpy(c, sum.sum, sizeof c);
      sum.c = nullptr;
      return;
    }
  fprintf(stderr, "sums of wgmma that nobody began\n");
  abort();
}
// Stores become visible to `wgmma` once all compute threads have published theirs.
inline void publish_to_wgmma() {
  emu::Cta& cta = *emu::current->cta;
  if (++cta.publishers % cta.barriers[1].members == 0)
    cta.published.assign((const char*)cta.base, (const char*)cta.memory.data() + cta.memory.size());
}
// To nearest even, with `bits` fraction bits and exponents from `lowest` on.
inline double rounded(double v, int bits, int lowest) {
  int e = v == 0 || fabs(v) < ldexp(1, lowest) ? lowest : ilogb(v);
  return ldexp(nearbyint(ldexp(v, bits - e)), e - bits);
}
inline u32 to_half(double v) {
  double m = fabs(rounded(v, 10, -14));
  u32 sign = std::signbit(v) ? 0x8000 : 0;
  if (v != v) return 0x7fff;
  if (m >= 65536) return sign | 0x7c00;
  if (m < 0x1p-14) return sign | (u32)ldexp(m, 24);
  int e = ilogb(m);
  return sign | (u32)(e + 15) << 10 | ((u32)ldexp(m, 10 - e) & 1023);
}
inline u32 pack_half(float lo, float hi) { return to_half(lo) | to_half(hi) << 16; }
inline u32 fma_half(u32 a, u32 b, u32 c) {
  auto one = [](u32 p, u32 q, u32 r) { return to_half((double)from_half(p) * from_half(q) + from_half(r)); };
  return one(a & 0xffff, b & 0xffff, c & 0xffff) | one(a >> 16, b >> 16, c >> 16) << 16;
}
inline u32 to_e4m3(u32 pair) {
  auto one = [](float v) -> u32 {
    u32 sign = float_bits(v) >> 31 << 7;
    float m = fabsf((float)rounded(v, 3, -6));
    if (v != v) return 0x7f;
    if (m > 448) return sign | 0x7e;
    if (m < 0x1p-6f) return sign | (u32)ldexpf(m, 9);
    int e = ilogbf(m);
    return sign | (u32)(e + 7) << 3 | ((u32)ldexpf(m, 3 - e) & 7);
  };
  return one(from_half(pair & 0xffff)) | one(from_half(pair >> 16)) << 8;
}
inline u32 from_e4m3(u32 codes) { return pack_half(e4m3(codes & 255), e4m3(codes >> 8 & 255)); }
inline u32 max_halves(u32 a, u32 b) { return max(a & 0xffff, b & 0xffff) | max(a >> 16, b >> 16) << 16; }
inline u32 warp_max_bits(u32 v) {
  emu::Fiber* f = emu::current;
  int p = f->parity;
  f->warp->slot[p][f->thread.x & 31][0] = v;
  emu::meet(f->warp->gate);
  f->parity ^= 1;
  for (int i = 0; i < 32; ++i) v = max(v, f->warp->slot[p][i][0]);
  return v;
}
inline void load_transposed(u32 (&m)[4], u32 row) {
  emu::Fiber* f = emu::current;
  int lane = f->thread.x & 31, p = f->parity;
  f->warp->slot[p][lane][0] = row;
  emu::meet(f->warp->gate);
  for (int i = 0; i < 4; ++i) {
    auto at = [&](int r) {
      return (u32)((const bf16*)(f->cta->base + f->warp->slot[p][8 * i + 2 * (lane & 3) + r][0]))[lane >> 2];
    };
    m[i] = at(0) | at(1) << 16;
  }
  f->parity ^= 1;
}
inline u32 __byte_perm(u32 a, u32 b, u32 which) {
  const u64 both = (u64)b << 32 | a;
  u32 out = 0;
  for (int i = 0; i < 4; ++i) out |= (u32)(both >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
  return out;
}
inline u32 fma_bf16x2(u32 a, u32 b, u32 c) {
  float lo = fmaf(half_of(a, 0), half_of(b, 0), half_of(c, 0)), hi = fmaf(half_of(a, 1), half_of(b, 1), half_of(c, 1));
  return pack_bf16(lo, hi);
}
inline void wait_for_predecessor() {}
inline void let_successor_start() {}
// A poll lets others run; a word that never arrives ends the test within seconds.
inline void let_others_run() {
  emu::ready.push_back(emu::current);
  emu::sleep();
}
constexpr u32 PATIENCE = 1u << 20;
inline void store_word(u64* to, u64 word) { *(volatile u64*)to = word; }
inline void store_words(u64* to, u64 first, u64 second) {
  if ((uintptr_t)to % 16) {
    fprintf(stderr, "two words that are not aligned\n");
    abort();
  }
  store_word(to, first);
  let_others_run();  // each word is atomic, the pair is not
  store_word(to + 1, second);
}
inline u64 load_word(const u64* from) {
  let_others_run();
  return *(const volatile u64*)from;
}
inline void load_words(u64 (&words)[2], const u64* from) {
  let_others_run();
  if ((uintptr_t)from % 16) {
    fprintf(stderr, "a load of two words is not aligned\n");
    abort();
  }
  words[0] = *(const volatile u64*)from;
  words[1] = *(const volatile u64*)(from + 1);
}
inline int opaque(int v) { return v; }
inline u32 clock_low() { return emu::random_bits(); }
inline u64 cycles() {
  static u64 now = 0;
  return ++now;
}
inline void add_later(u64* to, u64 by) { *to += by; }
inline void arrive(u32* counter) { ++*counter; }
inline u32 load_acquire(const u32* counter) {
  emu::ready.push_back(emu::current);
  emu::sleep();
  return *(const volatile u32*)counter;
}
