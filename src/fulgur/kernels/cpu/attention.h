// Attention of the query heads of one KV head, for some tokens of one sequence, over its cached blocks. Two passes: all
// scores and their softmax, then the weighted sum of the values.
//
// Every query is computed alone, in one fixed order over positions; positions after its own have weight 0. So neither
// the number of queries computed together nor other tokens change its bits. If the CPU multiplies bf16, queries and
// probabilities are rounded to bf16; otherwise they stay float. Caches of 8 bits: attention8.h.

static void store_kv8(const KvCache& cache, int block, int layer, int head, int slot, const float* key,
                      const float* value);

static void store_kv(const KvCache& cache, int block, int layer, int head, int slot, const float* key,
                     const float* value) {
  if (cache.bits == 8) return store_kv8(cache, block, layer, head, slot, key, value);
  const int dim = cache.head_dim;
  uint32_t* k = cache.keys(block, layer, head) + slot / kKeysAtOnce * (dim / 2) * kKeysAtOnce + slot % kKeysAtOnce;
  for (int i = 0; i < dim / 2; i++)
    k[i * kKeysAtOnce] = to_bf16(key[2 * i]) | static_cast<uint32_t>(to_bf16(key[2 * i + 1])) << 16;
  auto v = reinterpret_cast<uint16_t*>(cache.values(block, layer, head) + slot / 2 * dim) + slot % 2;
  for (int i = 0; i < dim; i++) v[2 * i] = to_bf16(value[i]);
}

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

INLINE F16 drop(F16 x, int n) {  // zeros in the first n lanes
  float lanes[16];
  store(lanes, x);
  for (int i = 0; i < n && i < 16; i++) lanes[i] = 0.f;
  return load(lanes);
}

// scores[skip..length) -> unnormalised probabilities, zeros before and up to `padded`, sixteen at a time to put(at, p);
// returns 1 / their sum, to which a sink adds.
template <class Put>
INLINE float softmax(float* scores, int skip, int length, int padded, const float* sink, Put&& put) {
  const int tail = length & ~15;
  for (int i = 0; i < skip; i++) scores[i] = -1e30f;
  if (tail < length) store(scores + tail, keep(load(scores + tail), length - tail, -1e30f));
  // Four maxima and two sums, so that none depends on the previous one.
  F16 top[4] = {set(-1e30f), set(-1e30f), set(-1e30f), set(-1e30f)};
  int i = 0;
  for (; i + 64 <= length; i += 64)
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) top[j] = max(top[j], load(scores + i + 16 * j));
  for (; i < length; i += 16) top[0] = max(top[0], load(scores + i));
  F16 largest = set(hmax(max(max(top[0], top[1]), max(top[2], top[3]))));
  if (sink) largest = max(largest, set(*sink));
  F16 sum[2] = {set(0.f), set(0.f)};
  const auto weigh = [&](int at, F16& to) {
    F16 p = exp2(load(scores + at) - largest);
    if (at == tail) p = keep(p, length - tail, 0.f);
    if (at < skip) p = drop(p, skip - at);
    to = to + p;
    put(at, p);
  };
  for (i = 0; i + 16 < length; i += 32) weigh(i, sum[0]), weigh(i + 16, sum[1]);
  if (i < length) weigh(i, sum[0]);
  for (i = (length + 15) & ~15; i < padded; i += 16) put(i, set(0.f));
  if (!sink) return 1.f / hsum(sum[0] + sum[1]);
  float lanes[16];
  store(lanes, exp2(set(*sink) - largest));
  return 1.f / (hsum(sum[0] + sum[1]) + lanes[0]);
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
  int length[kTileRows], skip[kTileRows];  // a query sees the tokens from `skip` up to `length`
  const float* sink[kTileRows];
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
    inverse[i] = softmax(scores + i * ld, pass.skip[i], pass.length[i], padded, pass.sink[i],
                         [&](int at, F16 p) { store_pairs(probabilities + (i * ld + at) / 2, p); });
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

#include "attention8.h"

static void attend(const KvCache& cache, const int32_t* table, int layer, int kv_head, const Queries& queries,
                   float* scratch) {
  const bool tiles = cache.bits == 16 && tiles_attend(cache.head_dim);
  const int total = queries.rows * queries.heads, most = tiles ? kTileRows : kPassQueries;
  const int passes = (total + most - 1) / most;
  // Full passes if the rest also fills the registers, otherwise equal ones.
  const int size = !tiles && total % most >= kQueriesAtOnce ? most : (total + passes - 1) / passes;
  for (int first = 0; first < total; first += size) {
    Pass pass;
    pass.count = std::min(size, total - first);
    // With a window: from the block of the first token that any of these queries sees. Tokens that only other queries
    // see have weight 0, so where the pass begins does not change a query's bits.
    const int seen = queries.length + first / queries.heads;
    const int begin = queries.window ? std::max(seen - queries.window, 0) / kBlockTokens * kBlockTokens : 0;
    for (int i = 0; i < pass.count; i++) {
      const int row = (first + i) / queries.heads, head = (first + i) % queries.heads;
      pass.q[i] = queries.q + row * queries.q_ld + head * cache.head_dim;
      pass.out[i] = queries.out + row * queries.out_ld + head * cache.head_dim;
      pass.length[i] = pass.longest = queries.length + row - begin;
      pass.skip[i] = queries.window ? std::max(pass.length[i] - queries.window, 0) : 0;
      pass.sink[i] = queries.sinks ? queries.sinks + head : nullptr;
    }
    pass.ld = attention_ld(pass.longest);
    (cache.bits == 8 ? attend_pass8 : attend_pass)(cache, table + begin / kBlockTokens, layer, kv_head, pass, scratch);
  }
}
