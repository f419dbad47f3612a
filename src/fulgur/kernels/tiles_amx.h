// Integer products of 5 to 16 activation rows with a tile of 16 weight rows, on AMX: the tile layout is the one AMX
// multiplies, so weights go straight from memory into a tile register. Registers: 0 to 3 sums, 4 and 5 activations,
// 6 and 7 weights. With FULGUR_AMX_EMULATED the four tile instructions are plain C++, so that the kernel is tested on
// every machine.

#ifdef FULGUR_AMX_EMULATED
struct Tile {
  int rows;
  uint8_t bytes[16][64];
};
static thread_local Tile tile_registers[8];
static void tile_rows(int rows) {
  for (int i = 0; i < 8; i++) tile_registers[i].rows = i < 6 ? rows : 16;
}
#define _tile_zero(t) std::memset(tile_registers[t].bytes, 0, sizeof tile_registers[t].bytes)
#define _tile_loadd(t, base, stride)                  \
  for (int r_ = 0; r_ < tile_registers[t].rows; r_++) \
  std::memcpy(tile_registers[t].bytes[r_], (const char*)(base) + r_ * (stride), 64)
#define _tile_stored(t, base, stride)                 \
  for (int r_ = 0; r_ < tile_registers[t].rows; r_++) \
  std::memcpy((char*)(base) + r_ * (stride), tile_registers[t].bytes[r_], 64)
static void tile_dot_signed_unsigned(int c, int a, int b) {
  for (int m = 0; m < tile_registers[c].rows; m++)
    for (int n = 0; n < 16; n++) {
      int32_t s;
      std::memcpy(&s, &tile_registers[c].bytes[m][4 * n], 4);
      for (int k = 0; k < 64; k++)
        s += static_cast<int8_t>(tile_registers[a].bytes[m][k]) * tile_registers[b].bytes[k / 4][4 * n + k % 4];
      std::memcpy(&tile_registers[c].bytes[m][4 * n], &s, 4);
    }
}
#define _tile_dpbsud(c, a, b) tile_dot_signed_unsigned(c, a, b)
#else
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};
};
static void tile_rows(int rows) {
  TileConfig config;
  for (int i = 0; i < 8; i++) {
    config.bytes_per_row[i] = 64;
    config.rows[i] = static_cast<uint8_t>(i < 6 ? rows : 16);
  }
  // gcc 12 declares only part of the configuration as an input and may drop the stores above.
  asm volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
}
#endif

constexpr bool use_tiles(int rows, int group) { return rows >= 5 && group % 64 == 0; }

// One group into sum tile C, 64 columns at a time, alternating the operand registers. Lines of a tile are as far apart
// as the tiles side by side make them.
#define DOT_GROUP(C, G)                                         \
  {                                                             \
    const int8_t* q = acts.q + row * acts.stride + (G) * group; \
    const uint8_t* w = weights + (G) * block.step;              \
    _tile_zero(C);                                              \
    for (int k = 0; k < group; k += 128) {                      \
      _tile_loadd(4, q + k, acts.stride);                       \
      _tile_loadd(6, w + k / 4 * kStep, kStep);                 \
      _tile_dpbsud(C, 4, 6);                                    \
      if (k + 64 < group) {                                     \
        _tile_loadd(5, q + k + 64, acts.stride);                \
        _tile_loadd(7, w + (k / 4 + 16) * kStep, kStep);        \
        _tile_dpbsud(C, 5, 7);                                  \
      }                                                         \
    }                                                           \
  }

// Tile `t` of a block of bytes.
static void tile_dot_matrix(const Block& block, int t, int groups, int group, const Acts& acts, int row, int rows,
                            F16* out) {
  constexpr size_t kStep = kAbreast8 * kLine;
  static thread_local int configured = 0;
  if (configured != rows) {
    tile_rows(rows);
    configured = rows;
  }
  alignas(64) int32_t sums[4][16][16];
  const uint8_t* weights = block.weights + t * kLine;
  for (int m = 0; m < rows; m++) out[m] = set(0.f);
  for (int g = 0; g < groups;) {
    // Four groups at once: a tile product takes fifty cycles, and four sums do not wait for each other.
    const int count = groups - g >= 4 ? 4 : 1;
    DOT_GROUP(0, g);
    if (count == 4) {
      DOT_GROUP(1, g + 1);
      DOT_GROUP(2, g + 2);
      DOT_GROUP(3, g + 3);
      _tile_stored(1, sums[1], 64);
      _tile_stored(2, sums[2], 64);
      _tile_stored(3, sums[3], 64);
    }
    _tile_stored(0, sums[0], 64);
    for (int i = 0; i < count; i++, g++) {
      const F16 scale = scale_of(block.scales + t * kTileRows * 2 + g * block.scale_step);
      for (int m = 0; m < rows; m++) {
        const size_t at = (row + m) * acts.group_stride + g;
        const I16 dot = addi(I16{_mm512_load_si512(sums[i][m])}, seti(acts.correction[at]));
        out[m] = dequantise(dot, scale, acts.scale[at], out[m]);
      }
    }
  }
}
#undef DOT_GROUP
