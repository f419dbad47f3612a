// Sixteen floats and sixteen int32 in four NEON registers each. Needs dot products of bytes (Armv8.2 dotprod); with
// i8mm those of unsigned and signed bytes are one instruction.

struct F16 {
  float32x4_t v[4];
};
struct I16 {
  int32x4_t v[4];
};
#define QUARTERS _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)

static inline F16 load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
static inline void store(float* p, F16 a) { QUARTERS vst1q_f32(p + 4 * i, a.v[i]); }
static inline F16 set(float x) {
  const float32x4_t r = vdupq_n_f32(x);
  return {r, r, r, r};
}
static inline I16 seti(int32_t x) {
  const int32x4_t r = vdupq_n_s32(x);
  return {r, r, r, r};
}
static inline F16 operator+(F16 a, F16 b) {
  QUARTERS a.v[i] = vaddq_f32(a.v[i], b.v[i]);
  return a;
}
static inline F16 operator-(F16 a, F16 b) {
  QUARTERS a.v[i] = vsubq_f32(a.v[i], b.v[i]);
  return a;
}
static inline F16 operator*(F16 a, F16 b) {
  QUARTERS a.v[i] = vmulq_f32(a.v[i], b.v[i]);
  return a;
}
static inline F16 operator/(F16 a, F16 b) {
  QUARTERS a.v[i] = vdivq_f32(a.v[i], b.v[i]);
  return a;
}
static inline F16 fma(F16 a, F16 b, F16 c) {
  QUARTERS c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]);
  return c;
}
static inline F16 max(F16 a, F16 b) {  // with a NaN the second operand, as on x86; vmaxq would give NaN
  QUARTERS a.v[i] = vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]);
  return a;
}
static inline F16 min(F16 a, F16 b) {
  QUARTERS a.v[i] = vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]);
  return a;
}
static inline F16 abs(F16 a) {
  QUARTERS a.v[i] = vabsq_f32(a.v[i]);
  return a;
}
static inline F16 to_float(I16 a) {
  F16 r;
  QUARTERS r.v[i] = vcvtq_f32_s32(a.v[i]);
  return r;
}
static inline I16 to_int(F16 a) {
  I16 r;
  QUARTERS r.v[i] = vcvtnq_s32_f32(a.v[i]);
  return r;
}
static inline F16 round(F16 a) {
  QUARTERS a.v[i] = vrndnq_f32(a.v[i]);
  return a;
}
static inline I16 addi(I16 a, I16 b) {
  QUARTERS a.v[i] = vaddq_s32(a.v[i], b.v[i]);
  return a;
}
static inline void store_i8(int8_t* p, I16 a) {
  const int16x8_t low = vcombine_s16(vmovn_s32(a.v[0]), vmovn_s32(a.v[1]));
  const int16x8_t high = vcombine_s16(vmovn_s32(a.v[2]), vmovn_s32(a.v[3]));
  vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
static inline float hmax(F16 a) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3]))); }
static inline float hsum(F16 a) {  // halves are added, then quarters: the order of the other instruction sets
  const float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
static inline int32_t hsumi(I16 a) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3])));
}
static inline F16 pow2(F16 n) {  // 2^n for integral n in [-126, 127]
  QUARTERS n.v[i] = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n.v[i]), vdupq_n_s32(127)), 23));
  return n;
}
static inline F16 load_half(const uint16_t* p) {
  F16 r;
  QUARTERS r.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
  return r;
}
static inline float half_to_float(uint16_t h) {
  return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0);
}
static inline F16 load_bf16(const uint16_t* p) {
  F16 r;
  QUARTERS r.v[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16));
  return r;
}
// Keep lanes below n, the rest become `fill`.
static inline F16 keep(F16 a, int n, float fill) {
  const int32_t first[4] = {0, 1, 2, 3};
  const int32x4_t lane = vld1q_s32(first);
  QUARTERS a.v[i] = vbslq_f32(vcltq_s32(lane, vdupq_n_s32(n - 4 * i)), a.v[i], vdupq_n_f32(fill));
  return a;
}
// Per lane: a > b ? x : y.
static inline I16 where_greater(F16 a, F16 b, I16 x, I16 y) {
  QUARTERS y.v[i] = vbslq_s32(vcgtq_f32(a.v[i], b.v[i]), x.v[i], y.v[i]);
  return y;
}
static inline I16 loadi(const int32_t* p) {
  return {vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)};
}
static inline void storei(int32_t* p, I16 a) { QUARTERS vst1q_s32(p + 4 * i, a.v[i]); }

// A pair of attention factors, multiplied with a pair of bf16 in each lane.
struct Pair {
  float a, b;
};
static inline Pair pair(float a, float b) { return {a, b}; }
static inline F16 dot_pair(F16 acc, const uint32_t* kv, const Pair& q) {
  QUARTERS {
    const uint32x4_t x = vld1q_u32(kv + 4 * i);
    acc.v[i] = vfmaq_n_f32(acc.v[i], vreinterpretq_f32_u32(vshlq_n_u32(x, 16)), q.a);
    acc.v[i] = vfmaq_n_f32(acc.v[i], vreinterpretq_f32_u32(vandq_u32(x, vdupq_n_u32(0xffff0000u))), q.b);
  }
  return acc;
}
static inline void store_pairs(Pair* p, F16 a) { store(&p->a, a); }

constexpr int kQueriesAtOnce = 4, kPassQueries = 8;
constexpr int kInterleave4 = 1, kInterleave8 = 1;
constexpr int kMaxRows4 = 4, kMaxRows8 = 4;
constexpr int tiles_at_once(int, int) { return 1; }

static inline int8x16_t broadcast4(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(v));
}

// acc += w (unsigned bytes) * q (signed bytes), four per lane, exact.
#ifdef __ARM_FEATURE_MATMUL_INT8
static inline int32x4_t dot4(int32x4_t acc, uint8x16_t w, int8x16_t q) { return vusdotq_s32(acc, w, q); }
#else  // signed bytes alone: w - 128, and 128 times the sum of q
static inline int32x4_t dot4(int32x4_t acc, uint8x16_t w, int8x16_t q) {
  const int32x4_t sums = vdotq_s32(vdupq_n_s32(0), q, vdupq_n_s8(1));
  const int8x16_t centred = vreinterpretq_s8_u8(veorq_u8(w, vdupq_n_u8(0x80)));
  return vdotq_s32(vaddq_s32(acc, vshlq_n_s32(sums, 7)), centred, q);
}
#endif

static inline I16 multiply_add(I16 sum, I16 a, I16 b) {
  QUARTERS sum.v[i] = dot4(sum.v[i], vreinterpretq_u8_s32(a.v[i]), vreinterpretq_s8_s32(b.v[i]));
  return sum;
}

// acc[m] += sum over the group of (weight + offset) * activation; weights `w` of `k` columns in layout rows16.
template <int BITS, int M, int T, int>
static inline void dot_group(const uint8_t* w, size_t line, size_t, int k, const int8_t* q, size_t stride,
                             I16 (&acc)[M][T]) {
  static_assert(T == 1);
  I16 s[M];
  for (int m = 0; m < M; m++) s[m] = acc[m][0];
  for (int c = 0; c < k; c += BITS == 8 ? 4 : 8, w += line, q += BITS == 8 ? 4 : 8) {
    const uint8x16_t x[4] = {vld1q_u8(w), vld1q_u8(w + 16), vld1q_u8(w + 32), vld1q_u8(w + 48)};
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      const int8x16_t a = broadcast4(q + m * stride);
      if constexpr (BITS == 8) {
        QUARTERS s[m].v[i] = dot4(s[m].v[i], x[i], a);
      } else {  // nibbles are positive bytes: signed products are exact
        const int8x16_t b = broadcast4(q + m * stride + 4);
        QUARTERS {
          const int8x16_t low = vreinterpretq_s8_u8(vandq_u8(x[i], vdupq_n_u8(15)));
          const int8x16_t high = vreinterpretq_s8_u8(vshrq_n_u8(x[i], 4));
          s[m].v[i] = vdotq_s32(vdotq_s32(s[m].v[i], low, a), high, b);
        }
      }
    }
  }
  for (int m = 0; m < M; m++) acc[m][0] = s[m];
}
#undef QUARTERS
