// Attention on AMX. The cache holds keys and values as a tile register multiplies them (layout.h); up to sixteen
// queries are the rows of the other factor. One token and many take the same path, so their bits agree.

constexpr bool tiles_attend(int head_dim) { return head_dim % 32 == 0; }

static void score_tiles(const KvCache& cache, const int32_t* table, int layer, int kv_head, const Pass& pass,
                        const Pair* queries, float* scores) {
  const int pairs = cache.head_dim / 2;
  constexpr size_t kKeyStep = kKeysAtOnce * 4;
  const size_t q_step = pairs * 4, out_step = pass.ld * 4;
  tile_rows(pass.count);
  tiles_written();
  if (pairs == 32) {  // both halves of the queries stay in their registers
    _tile_loadd(2, queries, q_step);
    _tile_loadd(3, queries + 16, q_step);
  }
  for (int first = 0; first < pass.longest; first += kKeysAtOnce) {
    const uint32_t* keys =
        cache.keys(table[first / kBlockTokens], layer, kv_head) + first % kBlockTokens * static_cast<size_t>(pairs);
    if (pairs == 32) {
      _tile_loadd(4, keys, kKeyStep);
      _tile_loadd(5, keys + 16, kKeyStep);
      _tile_loadd(6, keys + 16 * kKeysAtOnce, kKeyStep);
      _tile_loadd(7, keys + 16 * kKeysAtOnce + 16, kKeyStep);
      if (first) {
        _tile_stored(0, scores + first - kKeysAtOnce, out_step);
        _tile_stored(1, scores + first - kKeysAtOnce + 16, out_step);
      }
      _tile_zero(0);
      _tile_zero(1);
      _tile_dpbf16ps(0, 2, 4);
      _tile_dpbf16ps(1, 2, 5);
      _tile_dpbf16ps(0, 3, 6);
      _tile_dpbf16ps(1, 3, 7);
      continue;
    }
    if (first) {
      _tile_stored(0, scores + first - kKeysAtOnce, out_step);
      _tile_stored(1, scores + first - kKeysAtOnce + 16, out_step);
    }
    _tile_zero(0);
    _tile_zero(1);
    for (int i = 0; i < pairs; i += 16, keys += 16 * kKeysAtOnce) {
      _tile_loadd(2, queries + i, q_step);
      _tile_loadd(4, keys, kKeyStep);
      _tile_dpbf16ps(0, 2, 4);
      _tile_loadd(5, keys + 16, kKeyStep);
      _tile_dpbf16ps(1, 2, 5);
    }
  }
  const int last = (pass.longest - 1) / kKeysAtOnce * kKeysAtOnce;
  _tile_stored(0, scores + last, out_step);
  _tile_stored(1, scores + last + 16, out_step);
}

static void weigh_tiles(const KvCache& cache, const int32_t* table, int layer, int kv_head, const Pass& pass,
                        const Pair* probabilities, const float* inverse) {
  const size_t dim = cache.head_dim, value_step = dim * 4, p_step = pass.ld * 2;
  alignas(64) float sums[kTileRows][kTileRows];
  tiles_written();
  for (size_t d = 0; d < dim; d += 32) {
    const auto values = [&](int first) {
      return cache.values(table[first / kBlockTokens], layer, kv_head) + first % kBlockTokens / 2 * dim + d;
    };
    _tile_zero(0);
    _tile_zero(1);
    for (int first = 0; first < pass.longest; first += 2 * kKeysAtOnce) {
      const uint32_t* v = values(first);
      _tile_loadd(2, probabilities + first / 2, p_step);
      _tile_loadd(4, v, value_step);
      _tile_loadd(5, v + 16, value_step);
      _tile_dpbf16ps(0, 2, 4);
      _tile_dpbf16ps(1, 2, 5);
      if (first + kKeysAtOnce >= pass.longest) break;
      v = values(first + kKeysAtOnce);
      _tile_loadd(3, probabilities + (first + kKeysAtOnce) / 2, p_step);
      _tile_loadd(6, v, value_step);
      _tile_loadd(7, v + 16, value_step);
      _tile_dpbf16ps(0, 3, 6);
      _tile_dpbf16ps(1, 3, 7);
    }
    _tile_stored(0, sums, 64);
    for (int i = 0; i < pass.count; i++) store(pass.out[i] + d, load(sums[i]) * set(inverse[i]));
    _tile_stored(1, sums, 64);
    for (int i = 0; i < pass.count; i++) store(pass.out[i] + d + 16, load(sums[i]) * set(inverse[i]));
  }
}
