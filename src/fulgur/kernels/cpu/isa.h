// One instruction set's table of operations. An isa_*.cpp defines ISA (its namespace) and SIMD_HEADER and includes this
// file. Everything is static and in its own namespace, so code built for one CPU is never linked into another's.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "ops.h"

#define INLINE static inline __attribute__((always_inline))

namespace fulgur::ISA {
namespace {

template <int N>
using Count = std::integral_constant<int, N>;

#include SIMD_HEADER
#include "norm.h"

// A block of interleaved tiles.
struct Block {
  const uint8_t *scales, *weights;
  size_t step;  // bytes from one group to the next
};
static inline F16 scale_of(const uint8_t* p) { return load_half(reinterpret_cast<const uint16_t*>(p)); }

#ifdef TILES_HEADER
#include TILES_HEADER
#else
constexpr bool use_tiles(int, int) { return false; }
template <int BITS, int A, class Epilogue>
INLINE void tiles_product(const Matrix&, const Block&, int, int, int, const Acts&, int, uint8_t*, Epilogue&&) {}
#endif
#include "linear.h"
#include "attention.h"
#include "delta.h"
#include "peak.h"

}  // namespace

extern const Ops table;
const Ops table = {
    ISA_NAME,      kInterleave4, kInterleave8,   quantise,  linear,   linear_add, linear_swiglu,
    linear_argmax, embed,        widen,          norm_rope, store_kv, attend,     linear_clamped,
    norm_row,      dot_rows,     gate_row,       convolve,  unit,     delta_pass, delta_read,
    norm_gated,    read_bytes,   multiply_bytes, scan,
};

}  // namespace fulgur::ISA
