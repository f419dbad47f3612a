// Stands in for wide_ptx.cuh: see ptx.cuh beside this file.
#pragma once
#include <map>

#include "ptx.cuh"

#define KERNEL(name, threads, Arguments) extern "C" void name(const Arguments& p)

inline uint4 load_once(const void* p) { return *(const uint4*)p; }

namespace emu {
struct WideGate {
  short count, left;
  u32 phase;
};  // 8 bytes of shared memory; copies add to what is left
struct Later {
  u32 to, gate, bytes;
  const char* from;
  bool arrives;
  Fiber* whose;
};
inline std::map<Cta*, std::vector<Later>> later;
inline WideGate& wide_gate(u32 gate) { return *(WideGate*)(current->cta->base + gate); }
inline void arrival(u32 gate) {
  WideGate& g = wide_gate(gate);
  if (--g.left == 0) g.left = g.count, ++g.phase;
}
// Copies complete in any order; a thread's arrival only after its earlier copies.
inline void complete_one() {
  auto& list = later[current->cta];
  if (list.empty()) return;
  size_t pick = random_bits() % list.size();
  if (list[pick].bytes == 0)
    for (size_t i = 0; i < pick; ++i)
      if (list[i].whose == list[pick].whose && list[i].bytes) {
        pick = i;
        break;
      }
  const Later one = list[pick];
  list.erase(list.begin() + pick);
  if (one.bytes) memcpy(current->cta->base + one.to, one.from, one.bytes);
  if (one.arrives) arrival(one.gate);
}
}  // namespace emu

inline void gate_init_count(u32 gate, u32 count) { emu::wide_gate(gate) = {(short)count, (short)count, 0}; }
inline void gates_ready() {}
inline void gate_arrive(u32 gate) { emu::arrival(gate); }
// The bytes that are announced: the arrival waits for its copies, which come one by one.
inline void gate_expect(u32 gate, u32 bytes) {
  if (bytes % 16) {
    fprintf(stderr, "a copy is not a multiple of 16 bytes\n");
    abort();
  }
  emu::wide_gate(gate).left += bytes / 16 - 1;
}
inline void copy_run(u32 to, const char* from, u32 bytes, u32 gate) {
  if ((uintptr_t)from % 16 || to % 16 || bytes % 16) {
    fprintf(stderr, "a copy is not aligned to 16 bytes\n");
    abort();
  }
  memset(emu::current->cta->base + to, 0xff, bytes);
  for (u32 at = 0; at < bytes; at += 16)
    emu::later[emu::current->cta].push_back({to + at, gate, 16, from + at, true, emu::current});
}
inline void copy_run_once(u32 to, const char* from, u32 bytes, u32 gate) { copy_run(to, from, bytes, gate); }
inline void copy16(u32 to, const void* from) {
  if ((uintptr_t)from % 16 || to % 16) {
    fprintf(stderr, "a copy is not aligned to 16 bytes\n");
    abort();
  }
  memset(emu::current->cta->base + to, 0xff, 16);
  emu::later[emu::current->cta].push_back({to, 0, 16, (const char*)from, false, emu::current});
}
inline void copies_arrive(u32 gate) {
  emu::later[emu::current->cta].push_back({0, gate, 0, nullptr, true, emu::current});
}
inline void wide_gate_wait(u32 gate, u32 parity) {
  for (int spins = 0; (emu::wide_gate(gate).phase & 1) == parity; ++spins) {
    if (spins > 1000000) {
      fprintf(stderr, "a gate that nobody opens\n");
      abort();
    }
    emu::complete_one();
    emu::ready.push_back(emu::current);
    emu::sleep();
  }
}
#define gate_wait wide_gate_wait
inline void show_to_wide() {}
inline void put_float(u32 at, float v) { *(float*)(emu::current->cta->base + at) = v; }
inline float shared_float(u32 at) { return *(const float*)(emu::current->cta->base + at); }
inline u32 count_up(u32* counter) { return (*counter)++; }

inline u64 wide_operand(u32 at) { return at; }
inline void wide_begin() {}
inline void wide_commit() {}
template <int PENDING>
void wide_wait() {
  emu::meet(emu::current->cta->warpgroups[emu::current->thread.x / 128].gate);
}
template <int N>
void wide_sums(float (&c)[N]) {}
// Pieces of 16 bytes are swizzled by bits 7 to 9 of their address.
template <int N>
void wide_mma(float (&c)[N], const u32* a, u64 b) {
  emu::Fiber* f = emu::current;
  int lane = f->thread.x & 31, g = lane >> 2, t = lane & 3, p = f->parity;
  memcpy(f->warp->slot[p][lane], a, 16);
  emu::meet(f->warp->gate);
  float left[2][16];
  for (int k = 0; k < 16; ++k)
    for (int bottom = 0; bottom < 2; ++bottom)
      left[bottom][k] = half_of(f->warp->slot[p][g * 4 + (k & 7) / 2][bottom + 2 * (k >> 3)], k & 1);
  for (int i = 0; i < N; ++i) {
    u32 token = i / 4 * 8 + 2 * t + (i & 1);
    float sum = 0;
    for (int k = 0; k < 16; ++k) {
      u32 at = (u32)b + token / 8 * 1024 + token % 8 * 128 + k * 2;
      at ^= (at >> 7 & 7) << 4;
      sum += left[i >> 1 & 1][k] * half_of(*(const bf16*)(f->cta->base + at), 0);
    }
    c[i] += sum;
  }
  f->parity ^= 1;
}
