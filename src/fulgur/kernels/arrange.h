// Weights from the layout of a file into the one the kernels read (layout.h).
#pragma once
#include <cstring>

#include "layout.h"

namespace fulgur {

// `out`: w.bytes() zeroed bytes.
inline void arrange(const uint8_t* file, const Matrix& w, uint8_t* out) {
  const size_t scales = kTileRows * 2, step = w.abreast * kLine;
  for (int tile = 0; tile < w.tiles(); tile++) {
    const uint8_t* from = file + tile * w.tile_bytes();
    const uint8_t* line = from + w.scale_bytes();
    const int lane = tile % w.abreast;
    uint8_t* to = out + tile / w.abreast * w.block_bytes();
    for (int g = 0; g < w.groups(); g++, to += w.group_bytes()) {
      std::memcpy(to + lane * scales, from + g * scales, scales);
      uint8_t* p = to + w.abreast * scales + lane * kLine;
      for (size_t i = 0; i < w.lines(); i++, p += step, line += kLine) std::memcpy(p, line, kLine);
    }
  }
}

}  // namespace fulgur
