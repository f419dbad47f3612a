// Attention of the query heads of one token that share a KV head, over the cached blocks of its sequence.
// Two passes: all scores and their softmax, then the weighted sum of values. Every head is computed by itself in one
// fixed order over positions, so neither the number of heads done together nor other tokens change its bits.
// Where the CPU multiplies bf16, queries and probabilities are rounded to bf16; elsewhere they stay float.

template <int N>
INLINE void score_heads(const KvCache& cache, const int32_t* table, int layer, int kv_head, const Pair* q, int length,
                        float* scores, size_t ld) {
  const int pairs = cache.head_dim / 2;
  for (int first = 0; first < length; first += kKeysAbreast) {
    const int block = first / kBlockTokens;
    const uint32_t* keys = cache.keys(table[block], layer, kv_head) + first % kBlockTokens * pairs;
    F16 s[N], t[N];
#pragma GCC unroll 8
    for (int h = 0; h < N; h++) s[h] = t[h] = set(0.f);
    for (int i = 0; i < pairs; i++, keys += kKeysAbreast) {
#pragma GCC unroll 8
      for (int h = 0; h < N; h++) {
        s[h] = dot_pair(s[h], keys, q[h * pairs + i]);
        t[h] = dot_pair(t[h], keys + 16, q[h * pairs + i]);
      }
    }
#pragma GCC unroll 8
    for (int h = 0; h < N; h++) {
      store(scores + h * ld + first, s[h]);
      store(scores + h * ld + first + 16, t[h]);
    }
  }
}

// scores[0..length) -> unnormalised probabilities as pairs; returns 1 / their sum. Writes whole vectors of 16.
static float softmax(float* scores, Pair* probabilities, int length) {
  const int tail = length & ~15;
  if (tail < length) store(scores + tail, keep(load(scores + tail), length - tail, -1e30f));
  F16 top = set(-1e30f);
  for (int i = 0; i < length; i += 16) top = max(top, load(scores + i));
  const F16 largest = set(hmax(top));
  F16 sum = set(0.f);
  for (int i = 0; i < length; i += 16) {
    F16 p = exp2(load(scores + i) - largest);
    if (i == tail) p = keep(p, length - tail, 0.f);
    sum = sum + p;
    store_pairs(probabilities + i / 2, p);
  }
  return 1.f / hsum(sum);
}

template <int N, int V>  // N heads, V vectors of 16 dims
INLINE void weigh_values(const KvCache& cache, const int32_t* table, int layer, int kv_head, int dim, const Pair* p,
                         size_t ld, int length, const float* inverse, float* out) {
  F16 s[N][V];
  for (int h = 0; h < N; h++)
    for (int v = 0; v < V; v++) s[h][v] = set(0.f);
  const int pairs = (length + 1) / 2;
  for (int first = 0; first < pairs; first += kBlockTokens / 2) {
    const uint32_t* values = cache.values(table[first / (kBlockTokens / 2)], layer, kv_head) + dim;
    const int count = pairs - first < kBlockTokens / 2 ? pairs - first : kBlockTokens / 2;
    for (int j = 0; j < count; j++)
#pragma GCC unroll 4
      for (int v = 0; v < V; v++)
#pragma GCC unroll 8
        for (int h = 0; h < N; h++)
          s[h][v] = dot_pair(s[h][v], values + j * cache.head_dim + 16 * v, p[h * ld + first + j]);
  }
  for (int h = 0; h < N; h++)
    for (int v = 0; v < V; v++) store(out + h * cache.head_dim + dim + 16 * v, s[h][v] * set(inverse[h]));
}

template <int V>
static void weigh_heads(const KvCache& cache, const int32_t* table, int layer, int kv_head, int dim, const Pair* p,
                        size_t ld, int heads, int length, const float* inverse, float* out) {
  int h = 0;
  const auto call = [&](auto count) {
    constexpr int N = decltype(count)::value;
    weigh_values<N, V>(cache, table, layer, kv_head, dim, p + h * ld, ld, length, inverse + h,
                       out + h * cache.head_dim);
    h += N;
  };
  if constexpr (kHeadsAtOnce == 6)
    while (heads - h == 6 || heads - h >= 10) call(Count<6>{});
  while (heads - h >= 4) call(Count<4>{});
  if (heads - h == 3) call(Count<3>{});
  if (heads - h == 2) call(Count<2>{});
  if (heads - h == 1) call(Count<1>{});
}

static void attend(const KvCache& cache, const int32_t* table, int layer, int kv_head, const float* q, int heads,
                   int length, float* out, float* scratch) {
  const size_t ld = (static_cast<size_t>(length) + kBlockTokens) & ~static_cast<size_t>(kBlockTokens - 1);
  const int dim = cache.head_dim, pairs = dim / 2;
  float* scores = scratch;
  Pair* probabilities = reinterpret_cast<Pair*>(scores + heads * ld);  // ld / 2 pairs a head
  Pair* queries = probabilities + heads * ld / 2;
  for (int i = 0; i < heads * dim; i += 16) store_pairs(queries + i / 2, load(q + i));

  int h = 0;
  const auto score = [&](auto count) {
    constexpr int N = decltype(count)::value;
    score_heads<N>(cache, table, layer, kv_head, queries + h * pairs, length, scores + h * ld, ld);
    h += N;
  };
  while (heads - h >= 8) score(Count<8>{});
  if (heads - h >= 6) score(Count<6>{});
  while (heads - h >= 4) score(Count<4>{});
  if (heads - h >= 2) score(Count<2>{});
  if (heads - h >= 1) score(Count<1>{});

  float inverse[kMaxHeads];
  for (int i = 0; i < heads; i++) inverse[i] = softmax(scores + i * ld, probabilities + i * ld / 2, length);
  for (int d = 0; d < dim;) {
    if (dim - d >= 64) {
      weigh_heads<4>(cache, table, layer, kv_head, d, probabilities, ld / 2, heads, length, inverse, out);
      d += 64;
    } else {
      weigh_heads<1>(cache, table, layer, kv_head, d, probabilities, ld / 2, heads, length, inverse, out);
      d += 16;
    }
  }
}
