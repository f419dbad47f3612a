// Sixteen lanes with AVX2 + FMA + F16C: two registers. Uses AVX-VNNI for integer products if the CPU has it.

struct F16 {
  __m256 a, b;
};
struct I16 {
  __m256i a, b;
};

static inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float* p, F16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
static inline F16 set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline I16 seti(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static inline F16 operator+(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
static inline F16 operator-(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
static inline F16 operator*(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
static inline F16 operator/(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
static inline F16 fma(F16 x, F16 y, F16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
static inline F16 max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
static inline F16 min(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
static inline F16 abs(F16 x) {
  const __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m)};
}
static inline F16 to_float(I16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
static inline I16 to_int(F16 x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
static inline F16 round(F16 x) { return {_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8)}; }
static inline I16 addi(I16 x, I16 y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
static inline void store_i8(int8_t* p, I16 x) {
  __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}
static inline float hsum8(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
static inline float hmax(F16 x) {
  __m256 v = _mm256_max_ps(x.a, x.b);
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
static inline float hsum(F16 x) { return hsum8(_mm256_add_ps(x.a, x.b)); }
static inline int32_t hsumi(I16 x) {
  __m256i v = _mm256_add_epi32(x.a, x.b);
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
static inline __m256 pow2_8(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
static inline F16 pow2(F16 n) { return {pow2_8(n.a), pow2_8(n.b)}; }
static inline F16 load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
static inline __m256 load_bf16_8(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
static inline F16 load_bf16(const uint16_t* p) { return {load_bf16_8(p), load_bf16_8(p + 8)}; }
static inline F16 keep(F16 x, int n, float fill) {
  alignas(32) float v[16];
  store(v, x);
  for (int i = n; i < 16; i++) v[i] = fill;
  return load(v);
}
static inline __m256i where_greater8(__m256 a, __m256 b, __m256i x, __m256i y) {
  return _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(y), _mm256_castsi256_ps(x), _mm256_cmp_ps(a, b, _CMP_GT_OQ)));
}
static inline I16 where_greater(F16 a, F16 b, I16 x, I16 y) {
  return {where_greater8(a.a, b.a, x.a, y.a), where_greater8(a.b, b.b, x.b, y.b)};
}
static inline I16 loadi(const int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
static inline void storei(int32_t* p, I16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
}

struct Pair {
  float a, b;
};
static inline Pair pair(float a, float b) { return {a, b}; }
static inline __m256 dot_pair8(__m256 acc, const uint32_t* kv, __m256 qa, __m256 qb) {
  __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kv));
  __m256 lo = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
  __m256 hi = _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  return _mm256_fmadd_ps(hi, qb, _mm256_fmadd_ps(lo, qa, acc));
}
static inline F16 dot_pair(F16 acc, const uint32_t* kv, const Pair& q) {
  __m256 qa = _mm256_set1_ps(q.a), qb = _mm256_set1_ps(q.b);
  return {dot_pair8(acc.a, kv, qa, qb), dot_pair8(acc.b, kv + 8, qa, qb)};
}
static inline void store_pairs(Pair* p, F16 x) { store(&p->a, x); }

constexpr int kQueriesAtOnce = 4, kPassQueries = 8;
constexpr int kInterleave4 = 1, kInterleave8 = 1;
constexpr int kMaxRows4 = 4, kMaxRows8 = 4;
constexpr int tiles_at_once(int, int) { return 1; }

static inline __m256i broadcast4(const int8_t* p) {
  int v;
  std::memcpy(&v, p, 4);
  return _mm256_set1_epi32(v);
}

// acc += w (unsigned bytes) * q (signed bytes), four per lane, exact.
#ifdef __AVXVNNI__
static inline __m256i dot4(__m256i acc, __m256i w, __m256i q) { return _mm256_dpbusd_avx_epi32(acc, w, q); }
#else
// maddubs saturates at 16 bits, which 255 * 127 * 2 exceeds: handle the weight's low seven bits and its top bit
// separately.
static inline __m256i dot4(__m256i acc, __m256i w, __m256i q) {
  const __m256i low = _mm256_set1_epi8(0x7f), ones = _mm256_set1_epi16(1);
  __m256i a = _mm256_maddubs_epi16(_mm256_and_si256(w, low), q);  // <= 127 * 128 * 2 = 32512
  __m256i top = _mm256_and_si256(w, _mm256_set1_epi8(static_cast<char>(0x80)));
  __m256i b = _mm256_maddubs_epi16(_mm256_srli_epi16(top, 7), q);  // the top bit as 0 or 1, times 128 below
  __m256i s = _mm256_add_epi32(_mm256_madd_epi16(a, ones), _mm256_slli_epi32(_mm256_madd_epi16(b, ones), 7));
  return _mm256_add_epi32(acc, s);
}
#endif

static inline I16 multiply_add(I16 sum, I16 a, I16 b) { return {dot4(sum.a, a.a, b.a), dot4(sum.b, a.b, b.b)}; }

template <int BITS, int M, int T, int>
static inline void dot_group(const uint8_t* w, size_t line, size_t, int k, const int8_t* q, size_t stride,
                             I16 (&acc)[M][T]) {
  static_assert(T == 1);
  const __m256i nibble = _mm256_set1_epi8(15);
  I16 s[M];
  for (int m = 0; m < M; m++) s[m] = acc[m][0];
  if constexpr (BITS == 8) {
    for (int i = 0; i < k; i += 4, w += line, q += 4) {
      __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
      __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 32));
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) {
        __m256i a = broadcast4(q + m * stride);
        s[m].a = dot4(s[m].a, x, a);
        s[m].b = dot4(s[m].b, y, a);
      }
    }
  } else {
    for (int i = 0; i < k; i += 8, w += line, q += 8) {
      __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
      __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 32));
      __m256i xl = _mm256_and_si256(x, nibble), xh = _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble);
      __m256i yl = _mm256_and_si256(y, nibble), yh = _mm256_and_si256(_mm256_srli_epi16(y, 4), nibble);
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) {
        __m256i a = broadcast4(q + m * stride), b = broadcast4(q + m * stride + 4);
#ifdef __AVXVNNI__
        s[m].a = dot4(dot4(s[m].a, xl, a), xh, b);
        s[m].b = dot4(dot4(s[m].b, yl, a), yh, b);
#else  // 4-bit products leave room in 16 bits: add before widening
        const __m256i ones = _mm256_set1_epi16(1);
        s[m].a = _mm256_add_epi32(
            s[m].a,
            _mm256_madd_epi16(_mm256_add_epi16(_mm256_maddubs_epi16(xl, a), _mm256_maddubs_epi16(xh, b)), ones));
        s[m].b = _mm256_add_epi32(
            s[m].b,
            _mm256_madd_epi16(_mm256_add_epi16(_mm256_maddubs_epi16(yl, a), _mm256_maddubs_epi16(yh, b)), ones));
#endif
      }
    }
  }
  for (int m = 0; m < M; m++) acc[m][0] = s[m];
}
