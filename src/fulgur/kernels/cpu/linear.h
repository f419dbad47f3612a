// A matrix times a few activation rows, over tiles of 16 weight rows. Included by each isa_*.cpp after its simd header.
//
// out[m][r] = sum over groups g of  weight_scale[r][g] * act_scale[m][g] * (integer dot of the group)
//
// The integer dot is exact, and the groups are added in ascending order with one fused multiply-add each. So a row's
// result has the same bits whether it is computed alone, with others, or by another instruction set's integer unit.

// M activation rows times a block of A tiles, T of them at a time; out[tile][row]. GROUP: the columns of a group if the
// compiler may know them, otherwise 0. For 8-bit weights it must not: it would read whole groups in another order, a
// quarter slower from memory.
//
// If the registers cannot hold the sums of all tiles, the tiles take turns of a few groups. The lines of a tile are
// then read with gaps, which the hardware prefetcher does not follow. So the first tiles of a turn prefetch what lies a
// turn ahead into L2: every line, in address order.
constexpr int kTurn = 4;

template <int BITS, int M, int A, int GROUP>
static __attribute__((noinline)) void block_dot(const Block& block, int groups, int columns, const Acts& acts, int row,
                                                F16* out) {
  const int group = GROUP ? GROUP : columns;
  constexpr int most = tiles_at_once(BITS, M), T = most < A ? most : A;
  const auto add = [&](auto fetch, int first, int begin, int end) __attribute__((always_inline)) {
    const uint8_t* scales = block.scales + begin * block.step + first * kTileRows * 2;
    const uint8_t* w = block.weights + begin * block.step + first * kLine;
    const int8_t* q = acts.q + row * acts.stride + begin * group;
    const float* act_scale = acts.scale + row + begin * acts.group_stride;
    const int32_t* correction = acts.correction + row + begin * acts.group_stride;
    F16 sum[T * M];  // in registers
#pragma GCC unroll 16
    for (int i = 0; i < T * M; i++) sum[i] = begin ? out[first * M + i] : set(0.f);
    for (int g = begin; g < end; g++) {
      I16 dot[M][T];
#pragma GCC unroll 16
      for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) dot[m][t] = seti(correction[m]);
      dot_group<BITS, M, T, decltype(fetch)::value>(w, A * kLine, kTurn * block.step, group, q, acts.stride, dot);
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) {
        const F16 scale = scale_of(scales + t * kTileRows * 2);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
          F16& s = sum[t * M + m];
          s = dequantise(dot[m][t], scale, act_scale[m], s);
        }
      }
      w += block.step;
      scales += block.step;
      q += group;
      act_scale += acts.group_stride;
      correction += acts.group_stride;
    }
#pragma GCC unroll 16
    for (int i = 0; i < T * M; i++) out[first * M + i] = sum[i];
  };
  if constexpr (T == A) return add(Count<0>{}, 0, 0, groups);
  for (int begin = 0; begin < groups; begin += kTurn) {
    const int end = std::min(begin + kTurn, groups);
    add(Count<A>{}, 0, begin, end);
#pragma GCC unroll 4
    for (int first = T; first < A; first += T) add(Count<0>{}, first, begin, end);
  }
}

using BlockDot = void (*)(const Block&, int, int, const Acts&, int, F16*);

template <int BITS, int A, int MOST, int GROUP>
struct BlockDots {  // by the number of rows
  BlockDot rows[MOST + 1] = {};
  BlockDots() { fill(std::make_integer_sequence<int, MOST>()); }
  template <int... M>
  void fill(std::integer_sequence<int, M...>) {
    ((rows[M + 1] = block_dot<BITS, M + 1, A, GROUP>), ...);
  }
};
template <int GROUP>
static const BlockDot* block_dots(const Matrix& w) {
  static const BlockDots<8, kInterleave8, kMaxRows8, 0> bytes;
  static const BlockDots<8, 2, kMaxRows8, 0> bytes_2;
  static const BlockDots<4, kInterleave4, kMaxRows4, GROUP> nibbles;
  static const BlockDots<4, 2, kMaxRows4, GROUP> nibbles_2;
  if (w.bits == 8) return w.interleave == kInterleave8 ? bytes.rows : bytes_2.rows;
  return w.interleave == kInterleave4 ? nibbles.rows : nibbles_2.rows;
}

// Calls epilogue(tile, first_row, rows, F16 out[rows]) for every tile of [begin, end) and every block of rows. The
// tiles of a block follow each other for the same rows, and the sums of the previous tile lie right before these.
template <class Epilogue>
INLINE void for_tiles(const Matrix& w, int begin, int end, const Acts& acts, int m, uint8_t* scratch,
                      Epilogue&& epilogue) {
  const int most = w.bits == 8 ? kMaxRows8 : kMaxRows4;
  const int parts = (m + most - 1) / most, part = (m + parts - 1) / parts;
  const BlockDot* dots = w.group == 64 ? block_dots<64>(w) : block_dots<0>(w);
  for (int tile = begin / w.interleave * w.interleave; tile < end; tile += w.interleave) {
    const uint8_t* base = w.block(tile);
    const Block block{base, base + w.interleave * kTileRows * 2, w.group_bytes()};
    if (use_tiles(m, w.group)) {
      if (w.bits == 8)
        tiles_product<8, 2>(w, block, tile, begin, end, acts, m, scratch, epilogue);
      else if (w.interleave == 2)
        tiles_product<4, 2>(w, block, tile, begin, end, acts, m, scratch, epilogue);
      else
        tiles_product<4, kInterleave4>(w, block, tile, begin, end, acts, m, scratch, epilogue);
      continue;
    }
    F16 out[std::max(kMaxRows4 * std::max(kInterleave4, 2), kMaxRows8 * std::max(kInterleave8, 2))];
    for (int row = 0; row < m; row += part) {
      const int rows = m - row < part ? m - row : part;
      dots[rows](block, w.groups(), w.group, acts, row, out);
      for (int t = 0; t < w.interleave; t++)
        if (tile + t >= begin && tile + t < end) epilogue(tile + t, row, rows, out + t * rows);
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
      if (tile % 2) {
        const F16 gate = w.interleave > 1 ? v[i - rows] : load(p);
        const F16 e = exp2(min(gate * set(-1.44269504f), set(120.f)));
        store(p, gate * v[i] / (e + set(1.f)));
      } else if (w.interleave == 1) {  // the gate is kept in `out` until the up tile, which has its own block
        store(p, v[i]);
      }
    }
  });
}

static void linear_clamped(const Matrix& w, int begin, int end, const Acts& acts, int m, uint8_t* scratch,
                           const Clamp& clamp, float* out, size_t ld) {
  const F16 limit = set(clamp.limit), one = set(1.f);
  for_tiles(w, 2 * begin, 2 * end, acts, m, scratch, [&](int tile, int row, int rows, const F16* v) {
    if (tile % 2 == 0) return;  // the gate: multiplied together with its neighbour
    const float* bias = clamp.bias + (tile - 1) * kTileRows;
    for (int i = 0; i < rows; i++) {
      const F16 gate = min(v[i - rows] + load(bias), limit);
      const F16 up = max(min(v[i] + load(bias + kTileRows), limit), set(0.f) - limit);
      const F16 e = exp2(min(gate * set(-1.44269504f * clamp.alpha), set(120.f)));
      store(out + (row + i) * ld + tile / 2 * kTileRows, (up + one) * gate / (e + one));
    }
  });
}

static void linear_argmax(const Matrix& w, int begin, int end, const Acts& acts, int m, uint8_t* scratch, Best* best,
                          float* logits, size_t ld) {
  for_tiles(w, begin, end, acts, m, scratch, [&](int tile, int row, int rows, const F16* v) {
    const int first = tile * kTileRows;
    const int valid = w.rows - first < kTileRows ? w.rows - first : kTileRows;
    for (int i = 0; i < rows; i++) {
      const F16 x = valid == kTileRows ? v[i] : keep(v[i], valid, -3.4e38f);
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
  const int tile = row / kTileRows, lane = row % kTileRows, t = tile % w.interleave;
  const uint8_t* block = w.block(tile);
  for (int g = 0; g < w.groups(); g++, block += w.group_bytes()) {
    float lanes[kTileRows];
    store(lanes, scale_of(block + t * kTileRows * 2));
    const auto put = [&](int value) { *out++ = static_cast<float>(value) * lanes[lane]; };
    const uint8_t* p = block + w.interleave * kTileRows * 2 + t * kLine + lane * 4;
    for (size_t i = 0; i < w.lines(); i++, p += w.interleave * kLine) {
      if (w.bits == 8) {
        for (int j = 0; j < 4; j++) put(p[j] - 128);
      } else {
        for (int j = 0; j < 4; j++) put((p[j] & 15) - 8);
        for (int j = 0; j < 4; j++) put((p[j] >> 4) - 8);
      }
    }
  }
}
