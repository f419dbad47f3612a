// Row-wise arithmetic of routers, gates and gated delta nets. Every sum has one fixed order, whatever else is in a
// step.

static void norm_row(const float* x, const float* weight, float eps, int n, float* out) {
  const F16 factor = head_norm(x, eps, n);
  for (int i = 0; i < n; i += 16) store(out + i, load(x + i) * factor * load(weight + i));
}

static void dot_rows(const uint16_t* w, int begin, int end, int cols, const float* x, float* out) {
  for (int r = begin; r < end; r++) {
    const uint16_t* row = w + static_cast<size_t>(r) * cols;
    F16 a = set(0.f), b = set(0.f);
    int i = 0;
    for (; i + 32 <= cols; i += 32) {
      a = fma(load_bf16(row + i), load(x + i), a);
      b = fma(load_bf16(row + i + 16), load(x + i + 16), b);
    }
    if (i < cols) a = fma(load_bf16(row + i), load(x + i), a);
    out[r] = hsum(a + b);
  }
}

INLINE F16 sigmoid(F16 x) { return set(1.f) / (exp2(min(x * set(-1.44269504f), set(120.f))) + set(1.f)); }

static void gate_row(float* out, const float* gate, int n) {
  for (int i = 0; i < n; i += 16) store(out + i, load(out + i) * sigmoid(load(gate + i)));
}

static void convolve(const float* const* inputs, const float* weights, size_t ld, int taps, int n, float* out) {
  for (int i = 0; i < n; i += 16) {
    F16 sum = set(0.f);
    for (int t = 0; t < taps; t++) sum = fma(load(inputs[t] + i), load(weights + t * ld + i), sum);
    store(out + i, sum * sigmoid(sum));
  }
}

static void unit(float* x, int n, float scale) {
  F16 squares = set(0.f);
  for (int i = 0; i < n; i += 16) squares = fma(load(x + i), load(x + i), squares);
  const F16 factor = set(scale / __builtin_sqrtf(hsum(squares) + 1e-6f));
  for (int i = 0; i < n; i += 16) store(x + i, load(x + i) * factor);
}

template <int V>  // V vectors of 16 columns
INLINE void delta_columns(const DeltaPass& pass, int column) {
  F16 seen[V], read[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) seen[v] = read[v] = set(0.f);
  for (int i = 0; i < pass.k_dim; i++) {
    const size_t at = static_cast<size_t>(i) * pass.v_dim + column;
    const F16 key = set(pass.key[i]), query = set(pass.query[i]);
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
      F16 s = load(pass.from + at + 16 * v);
      for (int f = 0; f < pass.folds; f++)
        s = fma(set(pass.keys[f * pass.key_ld + i]), load(pass.errors + f * pass.error_ld + column + 16 * v),
                s * set(pass.decays[f * pass.decay_ld]));
      store(pass.to + at + 16 * v, s);
      seen[v] = fma(key, s, seen[v]);
      read[v] = fma(query, s, read[v]);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) {
    store(pass.seen + column + 16 * v, seen[v]);
    store(pass.read + column + 16 * v, read[v]);
  }
}

static void delta_pass(const DeltaPass& pass) {
  int column = 0;
  for (; column + 64 <= pass.v_dim; column += 64) delta_columns<4>(pass, column);
  for (; column < pass.v_dim; column += 16) delta_columns<1>(pass, column);
}

static void delta_read(const float* key, const float* query, const float* value, float decay, float beta, int k_dim,
                       int v_dim, const float* seen, float* read, float* error) {
  F16 dot = set(0.f);
  for (int i = 0; i < k_dim; i += 16) dot = fma(load(key + i), load(query + i), dot);
  const F16 both = set(hsum(dot)), d = set(decay), b = set(beta);
  for (int i = 0; i < v_dim; i += 16) {
    const F16 e = b * (load(value + i) - d * load(seen + i));
    store(error + i, e);
    store(read + i, fma(both, e, d * load(read + i)));
  }
}

static void norm_gated(const float* x, const float* weight, float eps, const float* z, int n, float* out) {
  const F16 factor = head_norm(x, eps, n);
  for (int i = 0; i < n; i += 16) {
    const F16 gate = load(z + i);
    store(out + i, load(x + i) * factor * load(weight + i) * (gate * sigmoid(gate)));
  }
}
