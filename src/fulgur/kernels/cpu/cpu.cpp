// Which of the compiled kernels this CPU can run. For AMX, CPUID alone is not trusted: some hypervisors show the flag
// and fault on the instruction, others hide a leaf. So the kernels are tried once in a child process.
#include "ops.h"

#if defined(FULGUR_X86)
#include <cpuid.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>
#elif defined(FULGUR_ARM) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(FULGUR_ARM)
#include <sys/auxv.h>
#endif

namespace fulgur {

namespace isa_portable {
extern const Ops table;
}
const Ops* ops_portable() { return &isa_portable::table; }

#if defined(FULGUR_X86)
namespace isa_avx2 {
extern const Ops table;
}
namespace isa_avxvnni {
extern const Ops table;
}
namespace isa_avx512 {
extern const Ops table;
}
namespace isa_avx512bf16 {
extern const Ops table;
}
namespace isa_amx {
extern const Ops table;
}
namespace isa_amx_emulated {
extern const Ops table;
}

static bool cpuid7(unsigned subleaf, unsigned* a, unsigned* b, unsigned* c, unsigned* d) {
  return __get_cpuid_count(7, subleaf, a, b, c, d) != 0;
}

const Ops* ops_avx2() {
  const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return has ? &isa_avx2::table : nullptr;
}
const Ops* ops_avxvnni() {
  unsigned a, b, c, d;
  return ops_avx2() && cpuid7(1, &a, &b, &c, &d) && (a >> 4 & 1) ? &isa_avxvnni::table : nullptr;
}
const Ops* ops_avx512() {
  const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vnni") && ops_avx2();
  return has ? &isa_avx512::table : nullptr;
}
const Ops* ops_avx512bf16() {
  unsigned a, b, c, d;
  return ops_avx512() && cpuid7(1, &a, &b, &c, &d) && (a >> 5 & 1) ? &isa_avx512bf16::table : nullptr;
}

// 8 rows x 64 columns on AMX must equal the AVX-512 kernel bit for bit, and the mean of 32 ones must be one.
static bool amx_agrees(const Ops& amx) {
  constexpr int kRows = 8, kCols = 64, kTiles = 2, kScales = kTiles * kTileRows * 2;
  alignas(64) static uint8_t weights[kScales + kTiles * kTileRows * kCols], scratch[64];
  alignas(64) static int8_t q[kRows * kCols];
  static float scale[kRows], one[kRows * kTiles * kTileRows], two[kRows * kTiles * kTileRows];
  static int32_t correction[kRows];
  for (int i = 0; i < kScales; i += 2) weights[i + 1] = 0x3c;  // 1.0
  for (size_t i = kScales; i < sizeof weights; i++) weights[i] = static_cast<uint8_t>(i * 37 + 11);
  for (int m = 0; m < kRows; m++) {
    scale[m] = 1.f;
    for (int k = 0; k < kCols; k++)
      correction[m] -= 128 * (q[m * kCols + k] = static_cast<int8_t>(m * 31 + k * 7 - 100));
  }
  const Matrix w{weights, 8, kCols, kTiles * kTileRows, kCols, kTiles};
  const Acts acts{q, scale, correction, nullptr, kCols, kRows};
  amx.linear(w, 0, kTiles, acts, kRows, scratch, nullptr, one, kTiles * kTileRows);
  isa_avx512bf16::table.linear(w, 0, kTiles, acts, kRows, scratch, nullptr, two, kTiles * kTileRows);
  if (std::memcmp(one, two, sizeof one)) return false;

  constexpr int kDim = 32, kLength = 32;
  KvCache cache{nullptr, 1, 1, kDim, 1};
  std::vector<uint32_t> kv(cache.size());
  cache.data = kv.data();
  for (size_t i = 0; i < cache.half(); i++) cache.values(0, 0, 0)[i] = 0x3f803f80;  // two ones in bf16
  std::vector<float> query(kDim, 1.f), mean(kDim), attention(attention_scratch(kLength));
  const int32_t table = 0;
  amx.attend(cache, &table, 0, 0, {query.data(), 0, mean.data(), 0, 1, 1, kLength}, attention.data());
  return std::all_of(mean.begin(), mean.end(), [](float v) { return v == 1.f; });
}

static bool amx_works() {
  unsigned a, b, c, d;
  if (!ops_avx512bf16() || !cpuid7(0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1) || !(d >> 25 & 1))
    return false;
  if (syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */)) return false;
  const pid_t child = fork();
  if (child < 0) return false;
  if (child == 0) _exit(amx_agrees(isa_amx::table) ? 0 : 1);
  int status = 1;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
const Ops* ops_amx_emulated() {
  static const bool works = ops_avx512bf16() && amx_agrees(isa_amx_emulated::table);
  return works ? &isa_amx_emulated::table : nullptr;
}
const Ops* ops_amx() {
  static const bool works = amx_works();
  return works ? &isa_amx::table : nullptr;
}
#else
const Ops* ops_avx2() { return nullptr; }
const Ops* ops_avxvnni() { return nullptr; }
const Ops* ops_avx512() { return nullptr; }
const Ops* ops_avx512bf16() { return nullptr; }
const Ops* ops_amx() { return nullptr; }
const Ops* ops_amx_emulated() { return nullptr; }
#endif

#if defined(FULGUR_ARM)
namespace isa_neon {
extern const Ops table;
}
namespace isa_neon_i8mm {
extern const Ops table;
}
#if defined(__APPLE__)
static bool arm_has(const char* feature) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value;
}
const Ops* ops_neon() { return arm_has("hw.optional.arm.FEAT_DotProd") ? &isa_neon::table : nullptr; }
const Ops* ops_neon_i8mm() {
  return ops_neon() && arm_has("hw.optional.arm.FEAT_I8MM") ? &isa_neon_i8mm::table : nullptr;
}
#else
const Ops* ops_neon() { return getauxval(AT_HWCAP) >> 20 & 1 /* ASIMDDP */ ? &isa_neon::table : nullptr; }
const Ops* ops_neon_i8mm() {
  return ops_neon() && (getauxval(AT_HWCAP2) >> 13 & 1 /* I8MM */) ? &isa_neon_i8mm::table : nullptr;
}
#endif
#else
const Ops* ops_neon() { return nullptr; }
const Ops* ops_neon_i8mm() { return nullptr; }
#endif

}  // namespace fulgur
