// Row-wise arithmetic between the matrix products: norm, quantisation, RoPE, exp.

INLINE F16 dequantise(I16 dot, F16 weight_scale, float act_scale, F16 sum) {
  return fma(to_float(dot), weight_scale * set(act_scale), sum);
}

#ifndef __AVX512F__
static inline F16 exp2(F16 x) {  // 2^x, relative error about 2e-7; below 2^-126 it is 2^-126
  x = max(x, set(-126.f));
  const F16 n = round(x), f = x - n;
  F16 p = set(1.5403530393381608e-4f);
  p = fma(p, f, set(1.3333558146428443e-3f));
  p = fma(p, f, set(9.6181291076284772e-3f));
  p = fma(p, f, set(5.5504108664821580e-2f));
  p = fma(p, f, set(2.4022650695910072e-1f));
  p = fma(p, f, set(6.9314718055994531e-1f));
  p = fma(p, f, set(1.f));
  return p * pow2(n);
}
#endif

static inline F16 head_norm(const float* x, float eps, int n) {
  F16 squares = set(0.f);
  for (int i = 0; i < n; i += 16) {
    const F16 v = load(x + i);
    squares = fma(v, v, squares);
  }
  return set(1.f / __builtin_sqrtf(hsum(squares) / static_cast<float>(n) + eps));
}

static void quantise(const float* x, const float* weight, const Matrix& w, const Acts& acts, int row, int begin,
                     int end) {
  int8_t* q = acts.q + row * acts.stride;
  const auto value = [&](int i) { return weight ? load(x + i) * load(weight + i) : load(x + i); };
  for (int first = begin; first < end; first += w.group) {
    const size_t at = first / w.group * acts.group_stride + row;
    const int last = first + w.group;
    F16 top = set(0.f), squares = set(0.f);
    for (int i = first; i < last; i += 16) {
      top = max(top, abs(value(i)));
      if (weight) squares = fma(load(x + i), load(x + i), squares);
    }
    const float largest = hmax(top);
    const F16 inverse = set(largest > 0.f ? 127.f / largest : 0.f);
    I16 total = seti(0);
    for (int i = first; i < last; i += 16) {
      const I16 v = to_int(value(i) * inverse);
      total = addi(total, v);
      store_i8(q + i, v);
    }
    acts.scale[at] = largest / 127.f;
    acts.correction[at] = -w.offset() * hsumi(total);
    if (weight) acts.square[at] = hsum(squares);
  }
}

static void widen(const uint16_t* halves, int n, float* out) {
  for (int i = 0; i < n; i += 16) store(out + i, load_half(halves + i));
}

static void norm_rope(float* head, const float* weight, float eps, const float* cos, const float* sin, int head_dim,
                      int rotary, float scale) {
  const int half = rotary / 2;
  const F16 s = set(scale);
  const F16 factor = weight ? head_norm(head, eps, head_dim) : set(1.f);
  if (rotary < head_dim) {
    float f[16];
    store(f, factor);
    for (int i = rotary; i < head_dim; i++) head[i] = head[i] * f[0] * (weight ? weight[i] : 1.f) * scale;
  }
  if (half % 16) {  // very small heads
    float f[16];
    store(f, factor);
    for (int i = 0; i < half; i++) {
      const float a = head[i] * f[0] * (weight ? weight[i] : 1.f),
                  b = head[half + i] * f[0] * (weight ? weight[half + i] : 1.f);
      head[i] = (a * cos[i] - b * sin[i]) * scale;
      head[half + i] = (b * cos[i] + a * sin[i]) * scale;
    }
    return;
  }
  for (int i = 0; i < half; i += 16) {
    F16 a = load(head + i), b = load(head + half + i);
    if (weight) {
      a = a * factor * load(weight + i);
      b = b * factor * load(weight + half + i);
    }
    const F16 c = load(cos + i), d = load(sin + i);
    store(head + i, (a * c - b * d) * s);
    store(head + half + i, (b * c + a * d) * s);
  }
}
