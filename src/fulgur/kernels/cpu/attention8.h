// Attention over keys and values of 8 bits (layout.h). Queries are rounded to 8 bits as well, and so are probabilities,
// with one scale per block of tokens. So both products are integer dot products, exact in any order, at half the bytes
// and half the instructions of bf16. Only the sums over groups of dimensions and over blocks are floats, in one fixed
// order: the bits of a query do not depend on what is computed with it.

constexpr int kQueries8 = kQueriesAtOnce == 6 ? 6 : 2;  // as many at once as the registers hold
constexpr int kQuad = 4;                                // bytes that a product adds up in a lane

INLINE int8_t* bytes_of(uint32_t* p) { return reinterpret_cast<int8_t*>(p); }
INLINE const uint16_t* scales_of(const KvCache& cache, const uint32_t* half) {
  return reinterpret_cast<const uint16_t*>(half + kBlockTokens * cache.head_dim / kQuad);
}
INLINE int32_t quad(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, kQuad);
  return v;
}

// Rounds n values to -127..127 times the scale that is returned, the next bf16 above largest / 127.
INLINE uint16_t to_bytes(const float* x, int n, int8_t* out) {
  F16 top = set(0.f);
  for (int i = 0; i < n; i += 16) top = max(top, abs(load(x + i)));
  const float exact = hmax(top) / 127.f;
  uint32_t bits;
  std::memcpy(&bits, &exact, 4);
  bits = (bits + 0xffff) & 0xffff0000;
  float scale;
  std::memcpy(&scale, &bits, 4);
  const F16 inverse = set(scale > 0.f ? 1.f / scale : 0.f);
  for (int i = 0; i < n; i += 16) store_i8(out + i, to_int(load(x + i) * inverse));
  return static_cast<uint16_t>(bits >> 16);
}

static void store_kv8(const KvCache& cache, int block, int layer, int head, int slot, const float* key,
                      const float* value) {
  const int dim = cache.head_dim, group = cache.key_group();
  int8_t bytes[256];
  uint32_t* keys = cache.keys(block, layer, head);
  auto* key_scales = const_cast<uint16_t*>(scales_of(cache, keys));
  for (int g = 0; g < dim / group; g++)
    key_scales[g * kBlockTokens + slot] = to_bytes(key + g * group, group, bytes + g * group);
  int8_t* k = bytes_of(keys) + slot / 32 * 32 * dim + slot % 32 * kQuad;
  for (int i = 0; i < dim; i++) k[i / kQuad * 32 * kQuad + i % kQuad] = static_cast<int8_t>(bytes[i] ^ 0x80);  // + 128
  uint32_t* values = cache.values(block, layer, head);
  const_cast<uint16_t*>(scales_of(cache, values))[slot] = to_bytes(value, dim, bytes);
  int8_t* v = bytes_of(values) + slot / kQuad * dim * kQuad + slot % kQuad;
  for (int i = 0; i < dim; i++) v[i * kQuad] = bytes[i];
}

// Fetches `bytes` into L2.
INLINE void fetch(const void* p, size_t bytes) {
  for (size_t i = 0; i < bytes; i += kLine) __builtin_prefetch(static_cast<const uint8_t*>(p) + i, 0, 2);
}

// A few queries, rounded.
struct Queries8 {
  int8_t* q;            // [query][dim]
  float* scale;         // [query][group]
  int32_t* correction;  // the same: -128 * sum of q, since keys are stored with 128 added
};

template <int N>
INLINE void score_queries8(const KvCache& cache, const int32_t* table, int layer, int kv_head, const Queries8& queries,
                           int length, float* scores, size_t ld) {
  const int dim = cache.head_dim, group = cache.key_group(), groups = dim / group;
  for (int first = 0; first < length; first += 32) {
    const uint32_t* half = cache.keys(table[first / kBlockTokens], layer, kv_head);
    const auto* keys = reinterpret_cast<const int32_t*>(half) + first % kBlockTokens * dim / kQuad;
    const uint16_t* scales = scales_of(cache, half) + first % kBlockTokens;
    const int8_t* q = queries.q;
    if (first % kBlockTokens == 0) {  // scales are not part of the streams: prefetch those that are needed next
      const int block = first / kBlockTokens, next = std::min(block + 1, (length - 1) / kBlockTokens);
      fetch(scales_of(cache, cache.keys(table[next], layer, kv_head)), groups * kBlockTokens * 2);
      fetch(scales_of(cache, cache.values(table[block], layer, kv_head)), kBlockTokens * 2);
    }
    F16 s[N][2];
#pragma GCC unroll 8
    for (int h = 0; h < N; h++) s[h][0] = s[h][1] = set(0.f);
    for (int g = 0; g < groups; g++, scales += kBlockTokens) {
      I16 d[N][2];
#pragma GCC unroll 8
      for (int h = 0; h < N; h++) d[h][0] = d[h][1] = seti(queries.correction[h * groups + g]);
      for (int i = 0; i < group; i += kQuad, q += kQuad, keys += 32) {
        const I16 a = loadi(keys), b = loadi(keys + 16);
#pragma GCC unroll 8
        for (int h = 0; h < N; h++) {
          const I16 x = seti(quad(q + h * dim));
          d[h][0] = multiply_add(d[h][0], a, x);
          d[h][1] = multiply_add(d[h][1], b, x);
        }
      }
      const F16 a = load_bf16(scales), b = load_bf16(scales + 16);
#pragma GCC unroll 8
      for (int h = 0; h < N; h++) {
        const F16 x = set(queries.scale[h * groups + g]);
        s[h][0] = fma(to_float(d[h][0]), a * x, s[h][0]);
        s[h][1] = fma(to_float(d[h][1]), b * x, s[h][1]);
      }
    }
#pragma GCC unroll 8
    for (int h = 0; h < N; h++) {
      store(scores + h * ld + first, s[h][0]);
      store(scores + h * ld + first + 16, s[h][1]);
    }
  }
}

// Rounds probabilities times the scales of their values to 0..127 times one scale per block.
static void round_probabilities(const KvCache& cache, const int32_t* table, int layer, int kv_head, float* p,
                                int length, int8_t* out, float* block_scales) {
  for (int first = 0; first < length; first += kBlockTokens, p += kBlockTokens, out += kBlockTokens) {
    const int block = first / kBlockTokens;
    const uint16_t* scales = scales_of(cache, cache.values(table[block], layer, kv_head));
    F16 x[4], top = set(0.f);
    for (int i = 0; i < 4; i++) x[i] = load(p + 16 * i) * load_bf16(scales + 16 * i), top = max(top, x[i]);
    const float largest = hmax(top);
    const F16 inverse = set(largest > 0.f ? 127.f / largest : 0.f);
    for (int i = 0; i < 4; i++) store_i8(out + 16 * i, to_int(x[i] * inverse));
    block_scales[block] = largest / 127.f;
  }
}

// Adds the weighted values of one block to the results of N queries, for V vectors of 16 dims.
template <int N, int V>
INLINE void weigh_block8(const int32_t* values, int width, int count, const int8_t* p, size_t ld, const float* scales,
                         size_t scales_ld, bool first, float* const* out, int dim) {
  I16 d[N][V];
#pragma GCC unroll 8
  for (int h = 0; h < N; h++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) d[h][v] = seti(0);
  for (int i = 0; i < count; i += kQuad, values += width, p += kQuad) {
    I16 x[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) x[v] = loadi(values + 16 * v);
#pragma GCC unroll 8
    for (int h = 0; h < N; h++) {
      const I16 weight = seti(quad(p + h * ld));
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) d[h][v] = multiply_add(d[h][v], weight, x[v]);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < N; h++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
      float* to = out[h] + dim + 16 * v;
      store(to, fma(to_float(d[h][v]), set(scales[h * scales_ld]), first ? set(0.f) : load(to)));
    }
}

// The values of a block are read from L1 by all queries but the first ones.
static void weigh_values8(const KvCache& cache, const int32_t* table, int layer, int kv_head, const Pass& pass,
                          const int8_t* p, const float* block_scales, size_t scales_ld) {
  const int width = cache.head_dim;
  for (int first = 0; first < pass.longest; first += kBlockTokens) {
    const int block = first / kBlockTokens, count = std::min(pass.longest - first, kBlockTokens);
    const auto* values = reinterpret_cast<const int32_t*>(cache.values(table[block], layer, kv_head));
    int h = 0;
    const auto take = [&](auto n) {
      constexpr int N = decltype(n)::value;
      const float* scales = block_scales + h * scales_ld + block;
      int d = 0;
      for (; width - d >= 64; d += 64)
        weigh_block8<N, 4>(values + d, width, count, p + h * pass.ld + first, pass.ld, scales, scales_ld, !first,
                           pass.out + h, d);
      for (; d < width; d += 16)
        weigh_block8<N, 1>(values + d, width, count, p + h * pass.ld + first, pass.ld, scales, scales_ld, !first,
                           pass.out + h, d);
      h += N;
    };
    if constexpr (kQueries8 == 6)
      while (pass.count - h >= 3) take(Count<3>{});
    else
      while (pass.count - h >= 2) take(Count<2>{});
    while (pass.count - h) take(Count<1>{});
  }
}

static void attend_pass8(const KvCache& cache, const int32_t* table, int layer, int kv_head, const Pass& pass,
                         float* scratch) {
  const int dim = cache.head_dim, group = cache.key_group(), groups = dim / group, count = pass.count;
  const size_t ld = pass.ld, blocks = ld / kBlockTokens;
  float* scores = scratch;
  auto* p = reinterpret_cast<int8_t*>(scores + count * ld);
  float* block_scales = scores + count * (ld + ld / 4);
  Queries8 queries;
  queries.scale = block_scales + count * blocks;
  queries.correction = reinterpret_cast<int32_t*>(queries.scale + count * groups);
  queries.q = reinterpret_cast<int8_t*>(queries.correction + count * groups);
  for (int i = 0; i < count; i++)
    for (int g = 0; g < groups; g++) {
      int8_t* q = queries.q + i * dim + g * group;
      const uint32_t bits = static_cast<uint32_t>(to_bytes(pass.q[i] + g * group, group, q)) << 16;
      std::memcpy(queries.scale + i * groups + g, &bits, 4);
      int32_t sum = 0;
      for (int j = 0; j < group; j++) sum += q[j];
      queries.correction[i * groups + g] = -128 * sum;
    }

  int h = 0;
  const auto score = [&](auto n) {
    constexpr int N = decltype(n)::value;
    const Queries8 some{queries.q + h * dim, queries.scale + h * groups, queries.correction + h * groups};
    score_queries8<N>(cache, table, layer, kv_head, some, pass.longest, scores + h * ld, ld);
    h += N;
  };
  if constexpr (kQueries8 == 6) {
    while (count - h >= 6) score(Count<6>{});
    if (count - h >= 4) score(Count<4>{});
  }
  while (count - h >= 2) score(Count<2>{});
  if (count - h) score(Count<1>{});
  const int padded = (pass.longest + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
  float inverse[kTileRows];
  for (int i = 0; i < count; i++) {
    float* row = scores + i * ld;
    inverse[i] = softmax(row, pass.skip[i], pass.length[i], padded, pass.sink[i], [&](int at, F16 x) {
      store(row + at, x);
      // Memory is idle now: every query fetches some blocks of values.
      if (at % kBlockTokens == 0 && at / kBlockTokens % count == i)
        fetch(cache.values(table[at / kBlockTokens], layer, kv_head), static_cast<size_t>(kBlockTokens) * dim);
    });
    round_probabilities(cache, table, layer, kv_head, row, pass.longest, p + i * ld, block_scales + i * blocks);
  }
  weigh_values8(cache, table, layer, kv_head, pass, p, block_scales, blocks);
  for (int i = 0; i < count; i++)
    for (int d = 0; d < dim; d += 16) store(pass.out[i] + d, load(pass.out[i] + d) * set(inverse[i]));
}
