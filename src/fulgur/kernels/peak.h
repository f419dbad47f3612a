// What the CPU can do at most, for the bench: reading memory, multiplying bytes.

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
  constexpr int kSums = 12;  // none waits for itself
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
