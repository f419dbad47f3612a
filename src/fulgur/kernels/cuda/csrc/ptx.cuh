// The only file with PTX in it: wrappers of single instructions.
//
// It includes no header of the CUDA toolkit, so NVRTC alone builds it. The tests replace this file by an emulation and
// run the other sources on the CPU.
#pragma once

typedef unsigned short bf16;  // held as bits; conversions round to nearest even
typedef unsigned int u32;
typedef unsigned long long u64;

#define INF __int_as_float(0x7f800000)
#define SHARED_MEMORY(name) extern __shared__ __align__(128) char name[]

__device__ __forceinline__ u32 pack_bf16(float lo, float hi) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
__device__ __forceinline__ float from_half(u32 bits16) {
  float r;
  asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(r) : "r"(bits16));
  return r;
}

// Approximations: wrong by a unit or two in the last place, but a few instructions instead of dozens. (Code that
// exceeds the instruction cache is fetched again in every layer.)
__device__ __forceinline__ float power2(float v) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
__device__ __forceinline__ float quotient(float a, float b) {
  float r;
  asm("div.full.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// Other SMs write activations during the launch: read them through L2, never from a stale L1 line.
__device__ __forceinline__ float load(const float* p) { return __ldcg(p); }
__device__ __forceinline__ uint4 load16(const void* p) { return __ldcg((const uint4*)p); }
__device__ __forceinline__ void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// A barrier of some warps of a CTA; __syncthreads is barrier 0, of all.
template <int THREADS_>
__device__ __forceinline__ void barrier_of(int which) {
  asm volatile("bar.sync %0, %1;" ::"r"(which), "n"(THREADS_) : "memory");
}
// Among the first four lanes.
__device__ __forceinline__ bool any_lane(bool v) { return __any_sync(0xfu, v); }
// A bit per lane; the number of set bits.
__device__ __forceinline__ u32 lanes_with(bool v) { return __ballot_sync(~0u, v); }
__device__ __forceinline__ int count_bits(u32 v) { return __popc(v); }
__device__ __forceinline__ float lane_value(float v, int lane) { return __shfl_sync(~0u, v, lane); }
// Sleeps for about `time` nanoseconds: a polling warp takes issue slots from the others.
__device__ __forceinline__ void nap(u32 time) { asm volatile("nanosleep.u32 %0;" ::"r"(time)); }
// Registers per thread from here on, for a warpgroup (four adjacent warps): what one gives up another may take.
template <int N>
__device__ __forceinline__ void take_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
template <int N>
__device__ __forceinline__ void give_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
// Reads threadIdx.x again, so that values derived from it are not kept in registers through all phases of a step.
__device__ __forceinline__ u32 thread_index() {
  u32 r;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(r));
  return r;
}
// Hides a value from the optimiser, so that what is derived from it is not kept in registers either.
__device__ __forceinline__ int opaque(int v) {
  asm volatile("" : "+r"(v));
  return v;
}
// Signals between the warps of a CTA through shared memory.
__device__ __forceinline__ void store_release(u32 at, u32 v) {
  asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
// Without ordering: a release waits for all outstanding accesses of the thread.
__device__ __forceinline__ void store_relaxed(u32 at, u32 v) {
  asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
__device__ __forceinline__ u32 load_acquire_shared(u32 at) {
  u32 v;
  asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// A gate is an mbarrier: a copy into shared memory completes its phase, and a thread that waits for that phase's parity
// then sees the bytes.
__device__ __forceinline__ void gate_init(u32 gate) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(gate) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(gate) : "memory");
#endif
}
// Hopper's copy engine takes a whole piece; older GPUs copy 16 bytes at a time. Weights are evicted first from L2, so
// that prefetched lines stay.
__device__ __forceinline__ void copy_piece(u32 to, const char* from, u32 bytes, u32 gate) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(gate), "r"(bytes) : "memory");
  asm volatile(
      "{.reg .b64 once; createpolicy.fractional.L2::evict_first.b64 once, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], once;}" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(gate)
      : "memory");
#else
  for (u32 at = 0; at < bytes; at += 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at), "l"(from + at) : "memory");
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(gate) : "memory");
#endif
}
__device__ __forceinline__ void prefetch_piece(const char* from, u32 bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#else
  for (u32 at = 0; at < bytes; at += 128) prefetch_l2(from + at);
#endif
}
__device__ __forceinline__ void gate_wait(u32 gate, u32 parity) {
  u32 done;
  do {
#if __CUDA_ARCH__ >= 900
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(gate), "r"(parity)
                 : "memory");
#else
    asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(gate), "r"(parity)
                 : "memory");
#endif
  } while (!done);
}
__device__ __forceinline__ bool gate_done(u32 gate, u32 parity) {
  u32 done;
  asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
               : "=r"(done)
               : "r"(gate), "r"(parity)
               : "memory");
  return done;
}
__device__ __forceinline__ uint4 shared16(u32 at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}
__device__ __forceinline__ float2 shared8(u32 at) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at));
  return v;
}
__device__ __forceinline__ u32 shared4(u32 at) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
__device__ __forceinline__ void put4(u32 at, u32 v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
__device__ __forceinline__ u32 shared2(u32 at) {
  unsigned short v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
  return v;
}

// c += a (16 x 16, row) * b (16 x 8, column)
__device__ __forceinline__ void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Four 8 x 8 matrices, transposed. Lane i gives the address of row i % 8 of matrix i / 8, and gets rows 2 t and 2 t + 1
// of column i / 4 of each.
__device__ __forceinline__ void load_transposed(u32 (&m)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ u32 fma_bf16x2(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

// Hopper's warpgroup matrix instruction in fp8 (e4m3): c (+)= a * b by four warps. Each warp supplies 16 rows x 32
// columns of a in registers (x, y: rows g and g + 8, bytes 4 t ..; z, w: the same 16 columns further on) and gets its
// own 16 x 8 of c. b (32 x 8) is in shared memory, the same for all four: 8 columns of 16 bytes lie together, the next
// 16 rows CORE_BYTES further on.
constexpr int CORE_BYTES = 144;  // 128, and 16 to avoid bank conflicts of stores
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
constexpr int WGMMA_UNIT = 16;  // bytes per unit of b
__device__ __forceinline__ u32 wgmma_operand(u32 at) { return at / WGMMA_UNIT | CORE_BYTES / WGMMA_UNIT << 16; }
__device__ __forceinline__ void wgmma(float (&c)[4], uint4 a, u32 b, bool add) {
  if (!add) {  // write c only: a register read before it is written would be live through all phases
    asm volatile(
        "{.reg .pred p; .reg .b64 d; setp.ne.b32 p, 0, 0; mov.b64 d, {%8, %9};\n"
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0,%1,%2,%3}, {%4,%5,%6,%7}, d, p, 1, 1;}"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b), "n"(8));
    return;
  }
  asm volatile(
      "{.reg .b64 d; mov.b64 d, {%8, %9};\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0,%1,%2,%3}, {%4,%5,%6,%7}, d, 1, 1, 1;}"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b), "n"(8));
}
// The sums are valid after the wait; read them only through `wgmma_sums`.
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}
__device__ __forceinline__ void wgmma_sums(float (&c)[4]) {
  asm volatile("" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])::"memory");
}
// Call after ordinary stores to shared memory that `wgmma` will read, and before the barrier.
__device__ __forceinline__ void publish_to_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Pairs of f16; to e4m3 (two bytes) and back. Rounds to nearest and saturates beyond 448. GPUs before compute
// capability 8.9 lack the conversion, and it is never called there.
__device__ __forceinline__ u32 pack_half(float lo, float hi) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
__device__ __forceinline__ u32 to_e4m3(u32 pair) {
  unsigned short r = 0;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(r) : "r"(pair));
#endif
  return r;
}
__device__ __forceinline__ u32 from_e4m3(u32 codes) {
  u32 r;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((unsigned short)codes));
  return r;
}
__device__ __forceinline__ u32 fma_half(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
__device__ __forceinline__ u32 max_halves(u32 a, u32 b) {
  u32 r;
  asm("max.u16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ u32 warp_max_bits(u32 v) {
  u32 r;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v));
  return r;
}

// A kernel of the graph driver waits here for everything that earlier kernels wrote; its own weights may already be in
// flight.
__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_successor_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// 8 bytes that no other thread sees torn.
__device__ __forceinline__ void store_word(u64* to, u64 word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
// Two of them with one instruction, each atomic.
__device__ __forceinline__ void store_words(u64* to, u64 first, u64 second) {
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(first), "l"(second) : "memory");
}
__device__ __forceinline__ u64 load_word(const u64* from) {
  u64 word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
}
__device__ __forceinline__ void load_words(u64 (&words)[2], const u64* from) {
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(words[0]), "=l"(words[1]) : "l"(from) : "memory");
}
// Ends the thread.
__device__ __forceinline__ void leave() { asm volatile("exit;"); }
constexpr u32 PATIENCE = 1u << 26;  // polls before a wait is given up: seconds

__device__ __forceinline__ u32 clock_low() {
  u32 now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now));
  return now;
}
__device__ __forceinline__ u64 cycles() {
  u64 now;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(now));
  return now;
}
__device__ __forceinline__ void add_later(u64* to, u64 by) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(to), "l"(by) : "memory");
}

__device__ __forceinline__ void arrive(u32* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ __forceinline__ u32 load_acquire(const u32* counter) {
  u32 seen;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  return seen;
}
