// The instructions of prefill that `ptx.cuh` does not have: products of whole warpgroups in bf16, and copies of any
// shape.
//
// As with `ptx.cuh`, the tests replace this file by one that emulates it.
#pragma once
#include "ptx.cuh"

// A kernel whose only argument is the structure p.
#define KERNEL(name, threads, Arguments) \
  extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ Arguments p)

// A gate (mbarrier) whose phase ends after `count` arrivals and after all bytes that were announced.
__device__ __forceinline__ void gate_init_count(u32 gate, u32 count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(gate), "r"(count) : "memory");
}
__device__ __forceinline__ void gates_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void gate_arrive(u32 gate) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(gate) : "memory");
}
__device__ __forceinline__ void gate_expect(u32 gate, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(gate), "r"(bytes) : "memory");
}
// The copy engine copies a run of bytes; the gate counts them.
__device__ __forceinline__ void copy_run(u32 to, const char* from, u32 bytes, u32 gate) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(gate)
               : "memory");
}
// For bytes that are read once: L2 evicts them before others.
__device__ __forceinline__ void copy_run_once(u32 to, const char* from, u32 bytes, u32 gate) {
  asm volatile(
      "{.reg .b64 once; createpolicy.fractional.L2::evict_first.b64 once, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], once;}" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(gate)
      : "memory");
}
// A thread copies 16 bytes. `copies_arrive` makes the thread arrive at the gate once all its copies so far have landed.
__device__ __forceinline__ void copy16(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_arrive(u32 gate) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(gate) : "memory");
}
// Makes copies that have landed visible to matrix instructions, too.
__device__ __forceinline__ void show_to_wide() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void put_float(u32 at, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}
__device__ __forceinline__ float shared_float(u32 at) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at));
  return v;
}
// Loads 16 read-only bytes that this SM needs once; L1 does not keep them.
__device__ __forceinline__ uint4 load_once(const void* p) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p));
  return v;
}
// Adds 1, atomically among all CTAs; returns the value before.
__device__ __forceinline__ u32 count_up(u32* counter) {
  u32 seen;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(seen) : "l"(counter) : "memory");
  return seen;
}

// wgmma in bf16, c += a * b: every warp of the warpgroup supplies 16 rows x 16 columns of a in registers and gets its
// 16 x N of c; b is N rows of 128 bytes in shared memory, of which 32 are used, 16-byte pieces swizzled by the row
// (piece ^ row % 8), 8 rows in 1,024 aligned bytes.
__device__ __forceinline__ u64 wide_operand(u32 at) { return (u64)(at >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62; }
__device__ __forceinline__ void wide_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wide_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wide_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Sums are valid after the wait; pass them through here before touching them.
template <int N>
__device__ __forceinline__ void wide_sums(float (&c)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(c[i])::"memory");
}

#define C4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define C16(i) C4(i), C4(i + 4), C4(i + 8), C4(i + 12)
__device__ __forceinline__ void wide_mma(float (&c)[4], const u32* a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1, 0;"
               : C4(0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wide_mma(float (&c)[8], const u32* a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, 1, 1, 1, "
      "0;"
      : C4(0), C4(4)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wide_mma(float (&c)[16], const u32* a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
      "{%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
      : C16(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wide_mma(float (&c)[32], const u32* a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
      : C16(0), C16(16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wide_mma(float (&c)[64], const u32* a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,"
      "%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
      : C16(0), C16(16), C16(32), C16(48)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef C16
#undef C4
