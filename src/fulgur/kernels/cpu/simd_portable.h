// Sixteen floats and sixteen int32 in plain C++: the path that works everywhere.

struct F16 {
  float v[16];
};
struct I16 {
  int32_t v[16];
};
#define LANES for (int i = 0; i < 16; i++)

static inline F16 load(const float* p) {
  F16 r;
  std::memcpy(r.v, p, 64);
  return r;
}
static inline void store(float* p, F16 a) { std::memcpy(p, a.v, 64); }
static inline F16 set(float x) {
  F16 r;
  LANES r.v[i] = x;
  return r;
}
static inline I16 seti(int32_t x) {
  I16 r;
  LANES r.v[i] = x;
  return r;
}
static inline F16 operator+(F16 a, F16 b) {
  LANES a.v[i] += b.v[i];
  return a;
}
static inline F16 operator-(F16 a, F16 b) {
  LANES a.v[i] -= b.v[i];
  return a;
}
static inline F16 operator*(F16 a, F16 b) {
  LANES a.v[i] *= b.v[i];
  return a;
}
static inline F16 operator/(F16 a, F16 b) {
  LANES a.v[i] /= b.v[i];
  return a;
}
static inline F16 fma(F16 a, F16 b, F16 c) {
  LANES c.v[i] += a.v[i] * b.v[i];
  return c;
}
static inline F16 max(F16 a, F16 b) {
  LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
static inline F16 min(F16 a, F16 b) {
  LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
static inline F16 abs(F16 a) {
  LANES a.v[i] = std::fabs(a.v[i]);
  return a;
}
static inline F16 to_float(I16 a) {
  F16 r;
  LANES r.v[i] = static_cast<float>(a.v[i]);
  return r;
}
static inline I16 to_int(F16 a) {
  I16 r;
  LANES r.v[i] = static_cast<int32_t>(std::nearbyintf(a.v[i]));
  return r;
}
static inline F16 round(F16 a) {
  LANES a.v[i] = std::nearbyintf(a.v[i]);
  return a;
}
static inline I16 addi(I16 a, I16 b) {
  LANES a.v[i] += b.v[i];
  return a;
}
static inline void store_i8(int8_t* p, I16 a) { LANES p[i] = static_cast<int8_t>(a.v[i]); }
static inline float hmax(F16 a) {
  float m = a.v[0];
  LANES m = a.v[i] > m ? a.v[i] : m;
  return m;
}
static inline float hsum(F16 a) {
  for (int n = 8; n; n /= 2)
    for (int i = 0; i < n; i++) a.v[i] += a.v[i + n];
  return a.v[0];
}
static inline int32_t hsumi(I16 a) {
  int32_t s = 0;
  LANES s += a.v[i];
  return s;
}
static inline F16 pow2(F16 n) {  // 2^n for integral n in [-126, 127]
  F16 r;
  LANES {
    int32_t b = (static_cast<int32_t>(n.v[i]) + 127) << 23;
    std::memcpy(&r.v[i], &b, 4);
  }
  return r;
}
static inline float half_to_float(uint16_t h) {
  uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023, bits;
  if (exponent == 0) {
    float f = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return sign ? -f : f;
  }
  bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
static inline F16 load_half(const uint16_t* p) {
  F16 r;
  LANES r.v[i] = half_to_float(p[i]);
  return r;
}
static inline F16 load_bf16(const uint16_t* p) {
  F16 r;
  LANES {
    const uint32_t bits = static_cast<uint32_t>(p[i]) << 16;
    std::memcpy(&r.v[i], &bits, 4);
  }
  return r;
}
// Keep lanes below n, the rest become `fill`.
static inline F16 keep(F16 a, int n, float fill) {
  LANES if (i >= n) a.v[i] = fill;
  return a;
}
// Per lane: a > b ? x : y.
static inline I16 where_greater(F16 a, F16 b, I16 x, I16 y) {
  LANES if (a.v[i] > b.v[i]) y.v[i] = x.v[i];
  return y;
}
static inline I16 loadi(const int32_t* p) {
  I16 r;
  std::memcpy(r.v, p, 64);
  return r;
}
static inline void storei(int32_t* p, I16 a) { std::memcpy(p, a.v, 64); }

// A pair of attention factors, multiplied with a pair of bf16 in each lane.
struct Pair {
  float a, b;
};
static inline Pair pair(float a, float b) { return {a, b}; }
static inline F16 dot_pair(F16 acc, const uint32_t* kv, const Pair& q) {
  LANES {
    uint32_t lo = kv[i] << 16, hi = kv[i] & 0xffff0000u;
    float x, y;
    std::memcpy(&x, &lo, 4);
    std::memcpy(&y, &hi, 4);
    acc.v[i] += x * q.a;
    acc.v[i] += y * q.b;
  }
  return acc;
}
static inline void store_pairs(Pair* p, F16 a) { std::memcpy(p, a.v, 64); }  // 16 floats = 8 pairs

constexpr int kQueriesAtOnce = 4, kPassQueries = 8;
constexpr int kInterleave4 = 1, kInterleave8 = 1;
constexpr int kMaxRows4 = 4, kMaxRows8 = 4;
constexpr int tiles_at_once(int, int) { return 1; }

// sum += a (unsigned bytes) * b (signed bytes), four per lane
static inline I16 multiply_add(I16 sum, I16 a, I16 b) {
  for (int r = 0; r < 16; r++)
    for (int j = 0; j < 32; j += 8) sum.v[r] += (a.v[r] >> j & 255) * static_cast<int8_t>(b.v[r] >> j);
  return sum;
}

// acc[m] += sum over the group of (weight + offset) * activation; weights `w` of `k` columns in layout rows16.
template <int BITS, int M, int T, int>
static inline void dot_group(const uint8_t* w, size_t line, size_t, int k, const int8_t* q, size_t stride,
                             I16 (&acc)[M][T]) {
  static_assert(T == 1);
  for (int m = 0; m < M; m++) {
    const uint8_t* p = w;
    const int8_t* a = q + m * stride;
    I16 s = acc[m][0];
    for (int i = 0; i < k; i += BITS == 8 ? 4 : 8, p += line, a += BITS == 8 ? 4 : 8)
      for (int r = 0; r < 16; r++)
        for (int j = 0; j < 4; j++) {
          if (BITS == 8)
            s.v[r] += p[r * 4 + j] * a[j];
          else
            s.v[r] += (p[r * 4 + j] & 15) * a[j] + (p[r * 4 + j] >> 4) * a[4 + j];
        }
    acc[m][0] = s;
  }
}
#undef LANES
