// Sixteen lanes with AVX-512: one register. Uses VNNI for integer products, and BF16 for attention if the CPU has it.

struct F16 {
  __m512 v;
};
struct I16 {
  __m512i v;
};

static inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
static inline F16 set(float x) { return {_mm512_set1_ps(x)}; }
static inline I16 seti(int32_t x) { return {_mm512_set1_epi32(x)}; }
static inline F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline F16 abs(F16 a) { return {_mm512_abs_ps(a.v)}; }
static inline F16 to_float(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
static inline I16 to_int(F16 a) { return {_mm512_cvtps_epi32(a.v)}; }
static inline F16 round(F16 a) { return {_mm512_roundscale_ps(a.v, 0)}; }
static inline I16 addi(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
static inline void store_i8(int8_t* p, I16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
static inline float hmax(F16 a) { return _mm512_reduce_max_ps(a.v); }
static inline float hsum(F16 a) { return _mm512_reduce_add_ps(a.v); }
static inline int32_t hsumi(I16 a) { return _mm512_reduce_add_epi32(a.v); }
static inline F16 exp2(F16 x) {  // 2^x, relative error about 1e-7, exact for whole numbers
  const __m512 f = _mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // x - floor(x)
  __m512 p = _mm512_set1_ps(1.8671303e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.0170298e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5799913e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4016444e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9315130e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.f));
  return {_mm512_scalef_ps(p, x.v)};  // p * 2^floor(x)
}
static inline F16 load_half(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline F16 load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
static inline F16 keep(F16 a, int n, float fill) {
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(n >= 16 ? 0xffff : (1 << n) - 1), _mm512_set1_ps(fill), a.v)};
}
static inline I16 where_greater(F16 a, F16 b, I16 x, I16 y) {
  return {_mm512_mask_mov_epi32(y.v, _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), x.v)};
}
static inline I16 loadi(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
static inline void storei(int32_t* p, I16 a) { _mm512_storeu_si512(p, a.v); }

#ifdef __AVX512BF16__
using Pair = uint32_t;  // two bf16
static inline Pair pair(float a, float b) { return to_bf16(a) | static_cast<uint32_t>(to_bf16(b)) << 16; }
static inline F16 dot_pair(F16 acc, const uint32_t* kv, const Pair& q) {
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)_mm512_loadu_si512(kv), (__m512bh)_mm512_set1_epi32(static_cast<int>(q)))};
}
static inline void store_pairs(Pair* p, F16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(a.v));
}
#else
struct Pair {
  float a, b;
};
static inline Pair pair(float a, float b) { return {a, b}; }
static inline F16 dot_pair(F16 acc, const uint32_t* kv, const Pair& q) {
  __m512i x = _mm512_loadu_si512(kv);
  __m512 lo = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
  __m512 hi = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  acc.v = _mm512_fmadd_ps(lo, _mm512_set1_ps(q.a), acc.v);
  return {_mm512_fmadd_ps(hi, _mm512_set1_ps(q.b), acc.v)};
}
static inline void store_pairs(Pair* p, F16 a) { _mm512_storeu_ps(&p->a, a.v); }
#endif

constexpr int kQueriesAtOnce = 6, kPassQueries = 12;
constexpr int kInterleave4 = 4, kInterleave8 = 2;
constexpr int kMaxRows4 = 12, kMaxRows8 = 6;
// A broadcast activation serves every tile, and each row of each tile is an independent sum. So take as many tiles at
// once as leave registers for the sums of the whole product.
constexpr int tiles_at_once(int bits, int rows) { return bits == 8 ? 2 : rows <= 3 ? 4 : rows <= 8 ? 2 : 1; }

// sum += a (unsigned bytes) * b (signed bytes), four per lane
static inline I16 multiply_add(I16 sum, I16 a, I16 b) { return {_mm512_dpbusd_epi32(sum.v, a.v, b.v)}; }

static inline __m512i broadcast4(const int8_t* p) {
  int v;
  std::memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

// acc[m][t] += sum over a group of (weight + offset) * activation, for M activation rows and T interleaved tiles.
// FETCH: lines to prefetch at each step, `ahead` bytes from here.
template <int BITS, int M, int T, int FETCH>
INLINE void dot_group(const uint8_t* w, size_t line, size_t ahead, int k, const int8_t* q, size_t stride,
                      I16 (&acc)[M][T]) {
  // With few sums, every second product gets a separate sum, since a product has to wait five cycles for the last one
  // to the same sum. High nibbles then stay in place, and their sum is shifted once.
  constexpr bool kTwoSums = M * T <= 4;
  const __m512i low = _mm512_set1_epi8(15), high = _mm512_set1_epi8(static_cast<char>(0xf0));
  __m512i a[M][T], b[M][T];
#pragma GCC unroll 16
  for (int m = 0; m < M; m++)
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) a[m][t] = acc[m][t].v, b[m][t] = _mm512_setzero_si512();
  for (int i = 0; i < k; i += 8, w += BITS == 8 ? 2 * line : line, q += 8) {
    if constexpr (M == 1) {  // each line straight into its products: 5% faster than loading all lines first
      const __m512i first = broadcast4(q), second = broadcast4(q + 4);
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) {
        const uint8_t* p = w + t * kLine;
        const __m512i x = _mm512_loadu_si512(p);
        if constexpr (BITS == 8) {
          a[0][t] = _mm512_dpbusd_epi32(a[0][t], x, first);
          b[0][t] = _mm512_dpbusd_epi32(b[0][t], _mm512_loadu_si512(p + line), second);
        } else {
          a[0][t] = _mm512_dpbusd_epi32(a[0][t], _mm512_and_si512(x, low), first);
          b[0][t] = _mm512_dpbusd_epi32(b[0][t], _mm512_and_si512(x, high), second);
        }
      }
      continue;
    }
#pragma GCC unroll 4
    for (int t = 0; t < FETCH; t++) _mm_prefetch(w + ahead + t * kLine, _MM_HINT_T1);
    __m512i x[T], y[T];
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      const uint8_t* p = w + t * kLine;
      x[t] = _mm512_loadu_si512(p);
      if constexpr (BITS == 8) {
        y[t] = _mm512_loadu_si512(p + line);
      } else {
        y[t] = kTwoSums ? _mm512_and_si512(x[t], high) : _mm512_and_si512(_mm512_srli_epi16(x[t], 4), low);
        x[t] = _mm512_and_si512(x[t], low);
      }
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
      const __m512i first = broadcast4(q + m * stride);
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) a[m][t] = _mm512_dpbusd_epi32(a[m][t], x[t], first);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
      const __m512i second = broadcast4(q + m * stride + 4);
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) {
        __m512i& sum = kTwoSums ? b[m][t] : a[m][t];
        sum = _mm512_dpbusd_epi32(sum, y[t], second);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; m++)
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      if constexpr (kTwoSums) a[m][t] = _mm512_add_epi32(a[m][t], BITS == 8 ? b[m][t] : _mm512_srai_epi32(b[m][t], 4));
      acc[m][t].v = a[m][t];
    }
}
