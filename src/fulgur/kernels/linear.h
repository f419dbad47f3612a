// Matrix times a few activation rows, over tiles of 16 weight rows. Included by each isa_*.cpp after its simd header.
//
//   out[m][r] = sum over groups g of  weight_scale[r][g] * act_scale[m][g] * (integer dot of the group)
//
// The integer dot is exact and the groups are added in ascending order with one fused multiply-add each, so a row's
// result is the same bits whether it is computed alone, with others, or by another instruction set's integer unit.

template <int BITS, int M>
INLINE void tile_dot(const uint8_t* w, const uint16_t* scales, int groups, int group, const Acts& acts, int row,
                     F16* out) {
  const int8_t* q = acts.q + row * acts.stride;
  const float* act_scale = acts.scale + row * acts.group_stride;
  const int32_t* correction = acts.correction + row * acts.group_stride;
  F16 sum[M];
  for (int m = 0; m < M; m++) sum[m] = set(0.f);
  for (int g = 0; g < groups; g++) {
    I16 dot[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) dot[m] = seti(correction[m * acts.group_stride + g]);
    dot_group<BITS, M>(w, group, q, acts.stride, dot);
    const F16 scale = load_half(scales + g * kTileRows);
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
      const size_t at = m * acts.group_stride + g;
      sum[m] = dequantise(dot[m], scale, act_scale[at], sum[m]);
    }
    w += group * kTileRows * BITS / 8;
    q += group;
  }
  for (int m = 0; m < M; m++) out[m] = sum[m];
}

using TileDot = void (*)(const uint8_t*, const uint16_t*, int, int, const Acts&, int, F16*);

template <int BITS, int M>
static __attribute__((noinline)) void tile_dot_rows(const uint8_t* w, const uint16_t* scales, int groups, int group,
                                                    const Acts& acts, int row, F16* out) {
  tile_dot<BITS, M>(w, scales, groups, group, acts, row, out);
}

template <int BITS, int M>
struct FillTable {
  static void fill(TileDot* table) {
    table[M] = tile_dot_rows<BITS, M>;
    FillTable<BITS, M - 1>::fill(table);
  }
};
template <int BITS>
struct FillTable<BITS, 0> {
  static void fill(TileDot*) {}
};

struct TileDots {
  TileDot rows8[kMaxRows + 1], rows4[kMaxRows + 1];
  TileDots() {
    FillTable<8, kMaxRows>::fill(rows8);
    FillTable<4, kMaxRows>::fill(rows4);
  }
};
static const TileDots tile_dots;

// One activation row, T tiles at a time.
template <int BITS, int T, class Epilogue>
INLINE void one_row_tiles(const uint8_t* base, int tile, const Matrix& w, const Acts& acts, Epilogue&& epilogue) {
  const size_t scale_bytes = w.scale_bytes(), tile_bytes = w.tile_bytes();
  const int groups = w.groups(), group = w.group;
  const uint8_t* weights = base + scale_bytes;
  F16 sum[T];
#pragma GCC unroll 4
  for (int t = 0; t < T; t++) sum[t] = set(0.f);
  for (int g = 0; g < groups; g++, weights += group * kTileRows * BITS / 8) {
    I16 dot[T];
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) dot[t] = seti(acts.correction[g]);
    dot_tiles<BITS, T>(weights, tile_bytes, group, acts.q + g * group, dot);
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
      const F16 scale = load_half(reinterpret_cast<const uint16_t*>(base + t * tile_bytes) + g * kTileRows);
      sum[t] = dequantise(dot[t], scale, acts.scale[g], sum[t]);
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < T; t++) epilogue(tile + t, 0, 1, sum + t);
}

template <int BITS, class Epilogue>
INLINE void one_row(const Matrix& w, int begin, int end, const Acts& acts, Epilogue&& epilogue) {
  const size_t tile_bytes = w.tile_bytes();
  int tile = begin;
  for (; tile + kTilesAtOnce <= end; tile += kTilesAtOnce)
    one_row_tiles<BITS, kTilesAtOnce>(w.data + tile * tile_bytes, tile, w, acts, epilogue);
  for (; tile < end; tile++) one_row_tiles<BITS, 1>(w.data + tile * tile_bytes, tile, w, acts, epilogue);
}

// Calls epilogue(tile, first_row, rows, F16 out[rows]) for every tile of [begin, end) and every block of rows.
template <class Epilogue>
INLINE void for_tiles(const Matrix& w, int begin, int end, const Acts& acts, int m, uint8_t* scratch,
                      Epilogue&& epilogue) {
  if (m == 1) {
    if (w.bits == 4)
      one_row<4>(w, begin, end, acts, epilogue);
    else
      one_row<8>(w, begin, end, acts, epilogue);
    return;
  }
  const size_t scale_bytes = w.scale_bytes(), tile_bytes = w.tile_bytes();
  const bool matrix_unit = use_tiles(m, w.group);
  const int most = matrix_unit ? kTileRows : kMaxRows;
  const int blocks = (m + most - 1) / most, block = (m + blocks - 1) / blocks;
  // The matrix unit, or several blocks of rows, will read the tile: unpack its nibbles to bytes once.
  const bool unpack = w.bits == 4 && (matrix_unit || (kUnpackPays && blocks > 2));
  for (int tile = begin; tile < end; tile++) {
    const uint8_t* base = w.data + tile * tile_bytes;
    const auto scales = reinterpret_cast<const uint16_t*>(base);
    const uint8_t* weights = base + scale_bytes;
    if (unpack) {
      unpack_tile(weights, static_cast<size_t>(w.cols) / 8, scratch);
      weights = scratch;
    }
    for (int row = 0; row < m; row += block) {
      const int rows = m - row < block ? m - row : block;
      F16 out[kTileRows];
      if (matrix_unit)
        tile_dot_matrix(weights, scales, w.groups(), w.group, acts, row, rows, out);
      else
        (w.bits == 8 || unpack ? tile_dots.rows8 : tile_dots.rows4)[rows](weights, scales, w.groups(), w.group, acts,
                                                                          row, out);
      epilogue(tile, row, rows, out);
    }
  }
}

static void linear(const Matrix& w, int begin, int end, const Acts& acts, int m, uint8_t* scratch, const float* bias,
                   float* out, size_t ld) {
  for_tiles(w, begin, end, acts, m, scratch, [&](int tile, int row, int rows, const F16* v) {
    const F16 b = bias ? load(bias + tile * kTileRows) : set(0.f);
    for (int i = 0; i < rows; i++) store(out + (row + i) * ld + tile * kTileRows, v[i] + b);
  });
}

static void linear_add(const Matrix& w, int begin, int end, const Acts& acts, int m, uint8_t* scratch, float* out,
                       size_t ld) {
  for_tiles(w, begin, end, acts, m, scratch, [&](int tile, int row, int rows, const F16* v) {
    for (int i = 0; i < rows; i++) {
      float* p = out + (row + i) * ld + tile * kTileRows;
      store(p, load(p) + v[i]);
    }
  });
}

static void linear_swiglu(const Matrix& w, int begin, int end, const Acts& acts, int m, uint8_t* scratch, float* out,
                          size_t ld) {
  for_tiles(w, 2 * begin, 2 * end, acts, m, scratch, [&](int tile, int row, int rows, const F16* v) {
    for (int i = 0; i < rows; i++) {
      float* p = out + (row + i) * ld + tile / 2 * kTileRows;
      if (tile % 2 == 0) {  // the gate waits in its place for the up tile that follows
        store(p, v[i]);
      } else {
        const F16 gate = load(p);
        const F16 e = exp2(min(gate * set(-1.44269504f), set(120.f)));
        store(p, gate * v[i] / (e + set(1.f)));
      }
    }
  });
}

static void linear_argmax(const Matrix& w, int begin, int end, const Acts& acts, int m, uint8_t* scratch, Best* best,
                          float* logits, size_t ld) {
  for_tiles(w, begin, end, acts, m, scratch, [&](int tile, int row, int rows, const F16* v) {
    const int first = tile * kTileRows;
    const int valid = w.rows - first < kTileRows ? w.rows - first : kTileRows;
    for (int i = 0; i < rows; i++) {
      const F16 x = valid == kTileRows ? v[i] : keep(v[i], valid, -3.0e38f);
      Best& b = best[row + i];
      const F16 old = load(b.value);
      storei(b.index, where_greater(x, old, seti(first), loadi(b.index)));
      store(b.value, max(x, old));
      if (logits) {
        float* p = logits + (row + i) * ld + first;
        if (valid == kTileRows) {
          store(p, x);
        } else {
          float tail[kTileRows];
          store(tail, x);
          for (int r = 0; r < valid; r++) p[r] = tail[r];
        }
      }
    }
  });
}

static void embed(const Matrix& w, int row, float* out) {
  const int lane = row % kTileRows;
  const uint8_t* base = w.data + row / kTileRows * w.tile_bytes();
  const auto scales = reinterpret_cast<const uint16_t*>(base);
  const uint8_t* p = base + w.scale_bytes() + lane * 4;
  for (int k = 0; k < w.cols; p += 64) {
    float lanes[kTileRows];
    store(lanes, load_half(scales + k / w.group * kTileRows));
    const float scale = lanes[lane];
    const int end = k + w.group;  // a group is a whole number of 64-byte vectors
    for (;; p += 64) {
      if (w.bits == 8) {
        for (int j = 0; j < 4; j++) out[k + j] = static_cast<float>(p[j] - 128) * scale;
        k += 4;
      } else {
        for (int j = 0; j < 4; j++) {
          out[k + j] = static_cast<float>((p[j] & 15) - 8) * scale;
          out[k + 4 + j] = static_cast<float>((p[j] >> 4) - 8) * scale;
        }
        k += 8;
      }
      if (k == end) break;
    }
  }
}
