// One instruction set's table of operations. An isa_*.cpp defines ISA (its namespace) and SIMD_HEADER and includes
// this; everything is static and in its own namespace, so no code built for one CPU is ever linked into another's.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "ops.h"

#define INLINE static inline __attribute__((always_inline))

namespace fulgur::ISA {
namespace {

template <int N>
using Count = std::integral_constant<int, N>;
constexpr int kMaxHeads = 64;  // query heads on one KV head

#include SIMD_HEADER
#include "norm.h"
#ifdef TILES_HEADER
#include TILES_HEADER
#else
constexpr bool use_tiles(int, int) { return false; }
static inline void tile_dot_matrix(const uint8_t*, const uint16_t*, int, int, const Acts&, int, int, F16*) {}
#endif
#include "linear.h"
#include "attention.h"

}  // namespace

extern const Ops table;
const Ops table = {
    ISA_NAME, norm_quantise, linear,    linear_add, linear_swiglu, linear_argmax,
    embed,    widen,         norm_rope, store_kv,   attend,        read_bytes,
};

}  // namespace fulgur::ISA
