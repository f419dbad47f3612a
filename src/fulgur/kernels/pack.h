// Float or quantised rows into the kernels' layout "rows16" (see layout.h).
#pragma once
#include "layout.h"

namespace fulgur {

// Symmetric quantisation of w [rows][cols]: per group scale = fp16(largest / 7 or 127), q = round(w / scale).
void quantise_rows(const float* w, int rows, int cols, int bits, int group, int8_t* q, uint16_t* scale);
// q [rows][cols] and fp16 scale [rows][cols / group] into `out` (Matrix::bytes()), rows padded with zeros.
void pack_rows(const int8_t* q, const uint16_t* scale, const Matrix& shape, uint8_t* out);

}  // namespace fulgur
