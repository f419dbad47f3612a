// Attention of the query heads of one KV head, for some tokens of one sequence, over its cached blocks. Two passes: all
// scores and their softmax, then the weighted sum of the values.
//
// Every query is computed alone, in one fixed order over positions; positions after its own have weight 0. So neither
// the number of queries computed together nor other tokens change its bits. If the CPU multiplies bf16, queries and
// probabilities are rounded to bf16; otherwise they stay float.

template <int N>
INLINE void score_queries(const KvCache& cache, const int32_t* table, int layer, int kv_head, const Pair* q, int length,
                          float* scores, size_t ld) {
  const int pairs = cache.head_dim / 2;
  for (int first = 0; first < length; first += kKeysAtOnce) {
    const int block = first / kBlockTokens;
    const uint32_t* keys = cache.keys(table[block], layer, kv_head) + first % kBlockTokens * pairs;
    F16 s[N], t[N];
#pragma GCC unroll 8
    for (int h = 0; h < N; h++) s[h] = t[h] = set(0.f);
    for (int i = 0; i < pairs; i++, keys += kKeysAtOnce) {
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

// scores[0..length) -> unnormalised probabilities as pairs, zeros up to `padded`; returns 1 / their sum.
static float softmax(float* scores, Pair* probabilities, int length, int padded) {
  const int tail = length & ~15;
  if (tail < length) store(scores + tail, keep(load(scores + tail), length - tail, -1e30f));
  // Four maxima and two sums, so that none depends on the previous one.
  F16 top[4] = {set(-1e30f), set(-1e30f), set(-1e30f), set(-1e30f)};
  int i = 0;
  for (; i + 64 <= length; i += 64)
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) top[j] = max(top[j], load(scores + i + 16 * j));
  for (; i < length; i += 16) top[0] = max(top[0], load(scores + i));
  const F16 largest = set(hmax(max(max(top[0], top[1]), max(top[2], top[3]))));
  F16 sum[2] = {set(0.f), set(0.f)};
  const auto weigh = [&](int at, F16& to) {
    F16 p = exp2(load(scores + at) - largest);
    if (at == tail) p = keep(p, length - tail, 0.f);
    to = to + p;
    store_pairs(probabilities + at / 2, p);
  };
  for (i = 0; i + 16 < length; i += 32) weigh(i, sum[0]), weigh(i + 16, sum[1]);
  if (i < length) weigh(i, sum[0]);
  for (i = (length + 15) & ~15; i < padded; i += 16) store_pairs(probabilities + i / 2, set(0.f));
  return 1.f / hsum(sum[0] + sum[1]);
}

template <int N, int V>  // N queries, V vectors of 16 dims
INLINE void weigh_values(const KvCache& cache, const int32_t* table, int layer, int kv_head, int dim, const Pair* p,
                         size_t ld, int length, const float* inverse, float* const* out) {
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
    for (int v = 0; v < V; v++) store(out[h] + dim + 16 * v, s[h][v] * set(inverse[h]));
}

template <int V>
static void weigh_queries(const KvCache& cache, const int32_t* table, int layer, int kv_head, int dim, const Pair* p,
                          size_t ld, int count, int length, const float* inverse, float* const* out) {
  int h = 0;
  const auto call = [&](auto n) {
    constexpr int N = decltype(n)::value;
    weigh_values<N, V>(cache, table, layer, kv_head, dim, p + h * ld, ld, length, inverse + h, out + h);
    h += N;
  };
  if constexpr (kQueriesAtOnce == 6)
    while (count - h == 6 || count - h >= 10) call(Count<6>{});
  while (count - h >= 4) call(Count<4>{});
  if (count - h == 3) call(Count<3>{});
  if (count - h == 2) call(Count<2>{});
  if (count - h == 1) call(Count<1>{});
}

// A few queries at once: where they and their results lie, and how many tokens each one sees.
struct Pass {
  int count, longest;
  size_t ld;  // of scores and probabilities
  const float* q[kTileRows];
  float* out[kTileRows];
  int length[kTileRows];
};

#ifdef TILES_HEADER
#include "attention_amx.h"
#else
constexpr bool tiles_attend(int) { return false; }
static inline void score_tiles(const KvCache&, const int32_t*, int, int, const Pass&, const Pair*, float*) {}
static inline void weigh_tiles(const KvCache&, const int32_t*, int, int, const Pass&, const Pair*, const float*) {}
#endif

static void attend_pass(const KvCache& cache, const int32_t* table, int layer, int kv_head, const Pass& pass,
                        float* scratch) {
  const int dim = cache.head_dim, pairs = dim / 2, count = pass.count, longest = pass.longest;
  const size_t ld = pass.ld;
  float* scores = scratch;
  Pair* probabilities = reinterpret_cast<Pair*>(scores + count * ld);  // ld / 2 pairs a query
  Pair* queries = probabilities + count * ld / 2;
  for (int i = 0; i < count; i++)
    for (int d = 0; d < dim; d += 16) store_pairs(queries + (i * dim + d) / 2, load(pass.q[i] + d));

  const bool tiles = tiles_attend(dim);
  if (tiles) {
    score_tiles(cache, table, layer, kv_head, pass, queries, scores);
  } else {
    int h = 0;
    const auto score = [&](auto n) {
      constexpr int N = decltype(n)::value;
      score_queries<N>(cache, table, layer, kv_head, queries + h * pairs, longest, scores + h * ld, ld);
      h += N;
    };
    while (count - h >= 8) score(Count<8>{});
    if (count - h >= 6) score(Count<6>{});
    while (count - h >= 4) score(Count<4>{});
    if (count - h >= 2) score(Count<2>{});
    if (count - h >= 1) score(Count<1>{});
  }

  float inverse[kTileRows];
  const int padded = (longest + kKeysAtOnce - 1) / kKeysAtOnce * kKeysAtOnce;
  for (int i = 0; i < count; i++)
    inverse[i] = softmax(scores + i * ld, probabilities + i * ld / 2, pass.length[i], padded);
  if (tiles) return weigh_tiles(cache, table, layer, kv_head, pass, probabilities, inverse);
  for (int d = 0; d < dim;) {
    if (dim - d >= 64) {
      weigh_queries<4>(cache, table, layer, kv_head, d, probabilities, ld / 2, count, longest, inverse, pass.out);
      d += 64;
    } else {
      weigh_queries<1>(cache, table, layer, kv_head, d, probabilities, ld / 2, count, longest, inverse, pass.out);
      d += 16;
    }
  }
}

static void attend(const KvCache& cache, const int32_t* table, int layer, int kv_head, const Queries& queries,
                   float* scratch) {
  const bool tiles = tiles_attend(cache.head_dim);
  const int total = queries.rows * queries.heads, most = tiles ? kTileRows : kPassQueries;
  const int passes = (total + most - 1) / most;
  // Full passes if the rest also fills the registers, otherwise equal ones.
  const int size = !tiles && total % most >= kQueriesAtOnce ? most : (total + passes - 1) / passes;
  for (int first = 0; first < total; first += size) {
    Pass pass;
    pass.count = std::min(size, total - first);
    for (int i = 0; i < pass.count; i++) {
      const int row = (first + i) / queries.heads, head = (first + i) % queries.heads;
      pass.q[i] = queries.q + row * queries.q_ld + head * cache.head_dim;
      pass.out[i] = queries.out + row * queries.out_ld + head * cache.head_dim;
      pass.length[i] = pass.longest = queries.length + row;
    }
    pass.ld = attention_ld(pass.longest);
    attend_pass(cache, table, layer, kv_head, pass, scratch);
  }
}
