// Integer products of several activation rows with a block of weight tiles, on AMX. A tile register multiplies sixteen
// weight rows by 64 columns of bytes. int4 is unpacked group by group into a buffer that stays in L1, with its sign, so
// no correction is needed. Registers: 0 and 1 sums, 2 and 3 activations, 4 to 7 weights.
//
// Loads, products and stores take about fifty cycles each, and a core looks only two or three products ahead. So the
// code is software-pipelined: weights are unpacked eight products before they are multiplied and loaded four before,
// across the end of a block too; sums are stored two products later, and scaled and added three later.
//
// With FULGUR_AMX_EMULATED the tile instructions are plain C++, so that the kernels are tested on every machine.

#ifdef FULGUR_AMX_EMULATED
struct Tile {
  int rows;
  uint8_t bytes[16][64];
};
static thread_local Tile tile_registers[8];
static void load_tile_rows(int rows) {
  for (int i = 0; i < 8; i++) tile_registers[i].rows = i < 4 ? rows : 16;
}
#define _tile_zero(t) std::memset(tile_registers[t].bytes, 0, sizeof tile_registers[t].bytes)
#define _tile_loadd(t, base, stride)                  \
  for (int r_ = 0; r_ < tile_registers[t].rows; r_++) \
  std::memcpy(tile_registers[t].bytes[r_], (const char*)(base) + r_ * (stride), 64)
#define _tile_stored(t, base, stride)                 \
  for (int r_ = 0; r_ < tile_registers[t].rows; r_++) \
  std::memcpy((char*)(base) + r_ * (stride), tile_registers[t].bytes[r_], 64)
template <class Weight>
static void tile_dot_bytes(int c, int a, int b) {
  for (int m = 0; m < tile_registers[c].rows; m++)
    for (int n = 0; n < 16; n++) {
      int32_t s;
      std::memcpy(&s, &tile_registers[c].bytes[m][4 * n], 4);
      for (int k = 0; k < 64; k++)
        s += static_cast<int8_t>(tile_registers[a].bytes[m][k]) *
             static_cast<Weight>(tile_registers[b].bytes[k / 4][4 * n + k % 4]);
      std::memcpy(&tile_registers[c].bytes[m][4 * n], &s, 4);
    }
}
static float bf16_at(const uint8_t* p) {
  const uint8_t bytes[4] = {0, 0, p[0], p[1]};
  float value;
  std::memcpy(&value, bytes, 4);
  return value;
}
static void tile_dot_bf16(int c, int a, int b) {
  for (int m = 0; m < tile_registers[c].rows; m++)
    for (int n = 0; n < 16; n++) {
      float s;
      std::memcpy(&s, &tile_registers[c].bytes[m][4 * n], 4);
      for (int k = 0; k < 32; k++)
        s +=
            bf16_at(&tile_registers[a].bytes[m][2 * k]) * bf16_at(&tile_registers[b].bytes[k / 2][4 * n + 2 * (k % 2)]);
      std::memcpy(&tile_registers[c].bytes[m][4 * n], &s, 4);
    }
}
#define _tile_dpbssd(c, a, b) tile_dot_bytes<int8_t>(c, a, b)
#define _tile_dpbsud(c, a, b) tile_dot_bytes<uint8_t>(c, a, b)
#define _tile_dpbf16ps(c, a, b) tile_dot_bf16(c, a, b)
#else
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};
};
static void load_tile_rows(int rows) {
  TileConfig config;
  for (int i = 0; i < 8; i++) {
    config.bytes_per_row[i] = 64;
    config.rows[i] = static_cast<uint8_t>(i < 4 ? rows : 16);
  }
  // gcc 12 declares only part of the configuration as an input and might drop the stores above.
  asm volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
}
#endif

// Sums and left factors have `rows` rows, right factors sixteen.
static void tile_rows(int rows) {
  static thread_local int configured = 0;
  if (configured != rows) load_tile_rows(configured = rows);
}

// gcc 12 does not know that a tile load reads memory: all stores must be done before it.
INLINE void tiles_written() { asm volatile("" ::: "memory"); }

// Up to four rows, AVX-512 multiplies as fast as memory delivers the weights.
constexpr bool use_tiles(int rows, int group) { return rows >= 5 && group == 64; }

// A line of int4 as two lines of bytes: 16 times the weight, which stays exact in every sum.
INLINE void unpack_line(const uint8_t* p, uint8_t* out) {
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x88)), high = _mm512_set1_epi8(static_cast<char>(0xf0));
  const __m512i x = _mm512_loadu_si512(p);
  _mm512_store_si512(out, _mm512_ternarylogic_epi32(_mm512_slli_epi16(x, 4), sign, high, 0x28));  // (a ^ b) & c
  _mm512_store_si512(out + kLine, _mm512_ternarylogic_epi32(x, sign, high, 0x28));
}
// Unpacks eight lines of a group of A tiles, from line 8 * part on. They are read in address order, although
// neighbouring lines belong to different tiles, because memory is fastest that way. `out`: the tiles of the group as
// bytes.
template <int A>
INLINE void unpack_part(const uint8_t* group, int part, uint8_t* out) {
#pragma GCC unroll 8
  for (int i = 8 * part; i < 8 * part + 8; i++)
    unpack_line(group + i * kLine, out + i % A * 64 * kTileRows + i / A * 2 * kLine);
}

// The blocks of a product form a chain: at the end of one, the first groups of the next are unpacked and loaded.
struct Chain {
  const uint8_t* next = nullptr;  // its weights; null: this is the last
  int phase = 0;                  // groups before this block
  bool primed = false;            // the previous block has prepared this one
};

// `rows` (at most 16) activation rows times a block of A tiles, in groups of 64 columns; out[tile][row]. BITS 4: the
// block is unpacked into `ring` on the way. BITS 8: bytes as they lie in the matrix. BITS 0: a block that unpack_block
// has left in `ring`.
template <int BITS, int A>
static __attribute__((noinline)) void tiles_dot(const Block& block, int groups, const Acts& acts, int row, int rows,
                                                uint8_t* ring, F16* out, const Chain& chain = {}) {
  constexpr int kGroup = 64, kLead = 4 / A;  // groups from the one that is multiplied to the one that is loaded
  constexpr int kRing = kLead + 1, kAhead = kLead + 2;  // and to the one that is unpacked or, as bytes, prefetched
  constexpr size_t kTile = kGroup * kTileRows;
  constexpr size_t kLineStep = BITS == 8 ? A * kLine : kLine;  // from one line of a tile to the next
  alignas(64) int32_t dots[8][16][16];                         // the last eight products
  tile_rows(rows);
  for (int i = 0; i < A * rows; i++) out[i] = set(0.f);
  const int end = chain.next ? groups + kRing : groups;  // of what is unpacked and loaded

  const auto unpack = [&](int g, int t) {
    const uint8_t* from = g < groups ? block.weights + g * block.step : chain.next + (g - groups) * block.step;
    unpack_part<A>(from, t, ring + (chain.phase + g) % kRing * A * kTile);
  };
  const auto weights = [&](int g, int t) -> const uint8_t* {
    if constexpr (BITS == 8) return block.weights + g * block.step + t * kLine;
    return ring + ((BITS == 4 ? (chain.phase + g) % kRing : g) * A + t) * kTile;
  };
  const auto ask = [&](int g, int t) {
    const uint8_t* p = block.weights + g * block.step + t * kTile;
    for (size_t i = 0; i < kTile; i += kLine) _mm_prefetch(p + i, _MM_HINT_T1);
  };
  const auto add = [&](int product) {
    const int g = product / A, t = product % A;
    const F16 scale = scale_of(block.scales + t * kTileRows * 2 + g * block.step);
    const F16 weight = BITS == 8 ? scale : scale * set(1.f / 16);
    const float* act = acts.scale + g * acts.group_stride + row;
    const int32_t* correction = acts.correction + g * acts.group_stride + row;
    F16* sum = out + t * rows;
    for (int m = 0; m < rows; m++) {
      I16 dot = {_mm512_load_si512(dots[product % 8][m])};
      if constexpr (BITS == 8) dot = addi(dot, seti(correction[m]));
      sum[m] = dequantise(dot, weight, act[m], sum[m]);
    }
  };
  const int8_t* q = acts.q + row * acts.stride;
  if (BITS == 4 && !chain.primed)
    for (int g = 0; g < kRing && g < end; g++)
      for (int t = 0; t < A; t++) unpack(g, t);
  tiles_written();
  _tile_loadd(2, q, acts.stride);
  if constexpr (A == 4) {
    if (!chain.primed) {
      _tile_loadd(4, weights(0, 0), kLineStep);
      _tile_loadd(5, weights(0, 1), kLineStep);
      _tile_loadd(6, weights(0, 2), kLineStep);
      _tile_loadd(7, weights(0, 3), kLineStep);
    }
  } else {
    _tile_loadd(4, weights(0, 0), kLineStep);
    _tile_loadd(5, weights(0, 1), kLineStep);
    if (groups > 1) {
      _tile_loadd(6, weights(1, 0), kLineStep);
      _tile_loadd(7, weights(1, 1), kLineStep);
    }
  }
  // Product T of group g: sum in C, activations in Q, weights in W.
#define PRODUCT(T, C, Q, W)                                                \
  {                                                                        \
    const int product = g * A + T;                                         \
    if (product >= 2) _tile_stored(C, dots[(product - 2) % 8], 64);        \
    _tile_zero(C);                                                         \
    if constexpr (BITS == 8) {                                             \
      _tile_dpbsud(C, Q, W);                                               \
    } else {                                                               \
      _tile_dpbssd(C, Q, W);                                               \
    }                                                                      \
    if (g + kLead < end) _tile_loadd(W, weights(g + kLead, T), kLineStep); \
    if (BITS == 4 && g + kRing < end) unpack(g + kRing, T);                \
    if (BITS == 8) ask(g + kAhead, T);                                     \
    if (product >= 3) add(product - 3);                                    \
  }
#define GROUP(Q, NEXT, W0, W1)                                                \
  {                                                                           \
    PRODUCT(0, 0, Q, W0)                                                      \
    if (g + 1 < groups) _tile_loadd(NEXT, q + (g + 1) * kGroup, acts.stride); \
    PRODUCT(1, 1, Q, W1)                                                      \
    if constexpr (A == 4) {                                                   \
      PRODUCT(2, 0, Q, 6)                                                     \
      PRODUCT(3, 1, Q, 7)                                                     \
    }                                                                         \
  }
  for (int g = 0; g < groups; g++) {
    GROUP(2, 3, 4, 5)
    if (++g == groups) break;
    if constexpr (A == 4)
      GROUP(3, 2, 4, 5)
    else
      GROUP(3, 2, 6, 7)
  }
#undef GROUP
#undef PRODUCT
  const int count = groups * A;
  _tile_stored(0, dots[(count - 2) % 8], 64);
  _tile_stored(1, dots[(count - 1) % 8], 64);
  for (int product = count > 3 ? count - 3 : 0; product < count; product++) add(product);
}

template <int A>
static void unpack_block(const Block& block, int groups, uint8_t* ring) {
  for (int g = 0; g < groups; g++)
    for (int t = 0; t < A; t++) unpack_part<A>(block.weights + g * block.step, t, ring + g * A * 64 * kTileRows);
}

// All `m` rows against the tiles of a block, at most sixteen at a time; epilogue as in for_tiles.
template <int BITS, int A, class Epilogue>
INLINE void tiles_product(const Matrix& w, const Block& block, int tile, int begin, int end, const Acts& acts, int m,
                          uint8_t* ring, Epilogue&& epilogue) {
  F16 out[A * kTileRows];
  const int parts = (m + kTileRows - 1) / kTileRows, part = (m + parts - 1) / parts;
  const bool once = BITS == 4 && parts > 1;  // several parts read the block: unpack it once
  if (once) unpack_block<A>(block, w.groups(), ring);
  Chain chain;
  if (BITS == 4 && A == 4 && w.groups() > 1) {
    const int first = begin / A * A;
    if (tile + A < end) chain.next = w.block(tile + A) + (block.weights - block.scales);
    chain.phase = (tile - first) / A * w.groups();
    chain.primed = tile > first;
  }
  for (int row = 0; row < m; row += part) {
    const int rows = m - row < part ? m - row : part;
    if (once)
      tiles_dot<0, A>(block, w.groups(), acts, row, rows, ring, out);
    else
      tiles_dot<BITS, A>(block, w.groups(), acts, row, rows, ring, out, chain);
    for (int t = 0; t < A; t++)
      if (tile + t >= begin && tile + t < end) epilogue(tile + t, row, rows, out + t * rows);
  }
}
