// Which of the compiled kernels this CPU can run. CPUID alone is not believed for AMX: some hypervisors show the flag
// and fault on the instruction, others hide a leaf, so the kernels are tried once in a child process.
#include "ops.h"

#if defined(FULGUR_X86)
#include <cpuid.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
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
const Ops* ops_amx_emulated() { return ops_avx512bf16() ? &isa_amx_emulated::table : nullptr; }

static bool amx_works() {
  unsigned a, b, c, d;
  if (!ops_avx512bf16() || !cpuid7(0, &a, &b, &c, &d) || !(d >> 24 & 1) || !(d >> 25 & 1)) return false;
  if (syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */)) return false;
  const pid_t child = fork();
  if (child < 0) return false;
  if (child == 0) {  // 8 rows x 64 columns on AMX must equal the AVX-512 kernel bit for bit
    alignas(64) static uint8_t weights[64 + 1024], scratch[1024];
    alignas(64) static int8_t q[8 * 128];
    static float scale[8], one[8 * 16], two[8 * 16];
    static int32_t correction[8];
    for (int i = 0; i < 16; i++) reinterpret_cast<uint16_t*>(weights)[i] = 0x3c00;  // 1.0
    for (int i = 0; i < 1024; i++) weights[64 + i] = static_cast<uint8_t>(i * 37 + 11);
    for (int m = 0; m < 8; m++) {
      scale[m] = 1.f;
      for (int k = 0; k < 64; k++) correction[m] -= 128 * (q[m * 128 + k] = static_cast<int8_t>(m * 31 + k * 7 - 100));
    }
    const Matrix w{weights, 8, 64, 16, 64};
    const Acts acts{q, scale, correction, 128, 1};
    isa_amx::table.linear(w, 0, 1, acts, 8, scratch, nullptr, one, 16);
    isa_avx512bf16::table.linear(w, 0, 1, acts, 8, scratch, nullptr, two, 16);
    _exit(std::memcmp(one, two, sizeof one) == 0 ? 0 : 1);
  }
  int status = 1;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
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

}  // namespace fulgur
