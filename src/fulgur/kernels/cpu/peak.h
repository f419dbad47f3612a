// Upper bounds of this CPU, for the bench: reading memory, multiplying bytes, both at once.

static uint64_t read_bytes(const uint8_t* data, size_t bytes) {
  F16 s[8];
  for (auto& x : s) x = set(0.f);
  for (size_t i = 0; i + 512 <= bytes; i += 512)
    for (int j = 0; j < 8; j++) s[j] = s[j] + load(reinterpret_cast<const float*>(data + i + 64 * j));
  const float total = hsum(((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])));
  uint32_t bits;
  __builtin_memcpy(&bits, &total, 4);
  return bits;
}

#ifdef TILES_HEADER
static uint64_t multiply_bytes(int rounds) {
  tile_rows(kTileRows);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(4);
  for (int i = 0; i < rounds; i++) {
    _tile_dpbssd(0, 2, 4);
    _tile_dpbssd(1, 2, 4);
  }
  return static_cast<uint64_t>(rounds) * 2 * kTileRows * kTileRows * 64;
}
#else
static uint64_t multiply_bytes(int rounds) {
  constexpr int kSums = 12;  // enough that none depends on its own last result
  const volatile int32_t four_ones = 0x01010101;
  const I16 ones = seti(four_ones);
  I16 sum[kSums];
  for (auto& s : sum) s = seti(0);
  for (int i = 0; i < rounds; i++)
#pragma GCC unroll 12
    for (auto& s : sum) s = multiply_add(s, ones, ones);
  I16 total = seti(0);
  for (const auto& s : sum) total = addi(total, s);
  return static_cast<uint32_t>(hsumi(total));  // every product is 1
}
#endif

// Reads every line of the blocks of tiles [begin, end), unpacks it and multiplies it with a row that stays in L1, in
// the loop of the one-row products. Scales are treated as weights, and the sums are discarded.
template <int BITS, int A>
static uint64_t scan_blocks(const Matrix& w, int begin, int end) {
  constexpr int T = std::min(tiles_at_once(BITS, 1), A), kColumns = 512;
  static const int8_t q[kColumns] = {};
  I16 sum[1][T];
  for (auto& s : sum[0]) s = seti(0);
  for (int tile = begin / A * A; tile < end; tile += A) {
    const uint8_t* p = w.block(tile);
    for (size_t left = w.block_bytes() / (T * kLine) * 32 / BITS, k; left; left -= k) {  // in columns
      k = std::min<size_t>(kColumns, left);
      dot_group<BITS, 1, T, 0>(p, T * kLine, 0, static_cast<int>(k), q, 0, sum);
      p += k * T * kLine * BITS / 32;
    }
  }
  I16 total = seti(0);
  for (const auto& s : sum[0]) total = addi(total, s);
  return static_cast<uint32_t>(hsumi(total));
}
static uint64_t scan(const Matrix& w, int begin, int end) {
  if (w.bits == 8) return scan_blocks<8, kInterleave8>(w, begin, end);
  return w.interleave == 2 ? scan_blocks<4, std::min(kInterleave4, 2)>(w, begin, end)
                           : scan_blocks<4, kInterleave4>(w, begin, end);
}
