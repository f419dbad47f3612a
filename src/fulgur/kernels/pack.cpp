#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace fulgur {

namespace {

float half_to_float(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 0) {
    const float f = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return sign ? -f : f;
  }
  const uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

uint16_t float_to_half(float f) {  // non-negative scales only; round to nearest even, saturating
  uint32_t x;
  std::memcpy(&x, &f, 4);
  if (x >= 0x477ff000u) return 0x7bff;
  if (x < 0x38800000u) {  // subnormal half: a multiple of 2^-24
    return static_cast<uint16_t>(std::nearbyintf(f * 16777216.f));
  }
  const uint32_t rounded = x + 0xfff + ((x >> 13) & 1);
  return static_cast<uint16_t>((rounded - 0x38000000u) >> 13);
}

}  // namespace

void quantise_rows(const float* w, int rows, int cols, int bits, int group, int8_t* q, uint16_t* scale) {
  const float top = bits == 8 ? 127.f : 7.f, low = bits == 8 ? -127.f : -8.f;
  for (int64_t g = 0; g < static_cast<int64_t>(rows) * (cols / group); g++) {
    const float* x = w + g * group;
    float largest = 0.f;
    for (int k = 0; k < group; k++) largest = std::max(largest, std::fabs(x[k]));
    scale[g] = float_to_half(largest / top);
    const float s = half_to_float(scale[g]);
    for (int k = 0; k < group; k++)
      q[g * group + k] = static_cast<int8_t>(s > 0.f ? std::clamp(std::nearbyintf(x[k] / s), low, top) : 0.f);
  }
}

void pack_rows(const int8_t* q, const uint16_t* scale, const Matrix& shape, uint8_t* out) {
  const int groups = shape.groups(), offset = shape.bits == 8 ? 128 : 8;
  std::memset(out, 0, shape.bytes());
  for (int tile = 0; tile < shape.tiles(); tile++, out += shape.tile_bytes()) {
    auto scales = reinterpret_cast<uint16_t*>(out);
    uint8_t* weights = out + shape.scale_bytes();
    for (int r = 0; r < kTileRows; r++) {
      const int64_t row = tile * kTileRows + r;
      const bool real = row < shape.rows;
      for (int g = 0; g < groups && real; g++) scales[g * kTileRows + r] = scale[row * groups + g];
      for (int k = 0; k < shape.cols; k++) {
        const int value = (real ? q[row * shape.cols + k] : 0) + offset;
        if (shape.bits == 8) weights[k / 4 * 64 + r * 4 + k % 4] = static_cast<uint8_t>(value);
        else weights[k / 8 * 64 + r * 4 + k % 4] |= static_cast<uint8_t>(value << (k % 8 >= 4 ? 4 : 0));
      }
    }
  }
}

}  // namespace fulgur
