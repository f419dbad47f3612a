// A model's matrices and how threads divide its step.
#pragma once
#include <algorithm>
#include <array>
#include <vector>

#include "layout.h"

namespace fulgur {

struct Dims {
  int vocab, d_model, layers, heads, kv_heads, head_dim, d_ffn, context, max_rows;
  float eps;
};

struct Layer {
  Matrix qkv, o, gate_up, down;
  const float *attn_norm, *ffn_norm;
  const float *q_norm, *k_norm, *qkv_bias;  // null if the family has none
};

struct Model {
  Dims dims;
  std::vector<Layer> layers;
  Matrix head;
  const float* final_norm;
  const uint16_t* embed;   // fp16 [vocab][d_model], or null: rows are read from the packed head (tied)
  const float *cos, *sin;  // [context][head_dim / 2]
};

struct Range {
  int begin, end;
  bool operator==(const Range&) const = default;
};

// Every product's rows are split among the threads, in whole blocks of tiles, gate together with up.
struct Division {
  const Dims* dims;
  int threads;

  Range share(int count, int thread) const {
    return {static_cast<int>(static_cast<int64_t>(count) * thread / threads),
            static_cast<int>(static_cast<int64_t>(count) * (thread + 1) / threads)};
  }
  Range tiles(const Matrix& w, int thread) const {
    const int unit = std::max(w.interleave, 2), count = w.tiles();
    const Range r = share((count + unit - 1) / unit, thread);
    return {std::min(r.begin * unit, count), std::min(r.end * unit, count)};
  }
  // If the KV heads divide evenly among the threads, each thread computes the query, key and value rows of its own
  // heads and needs no barrier before attention.
  bool owns_heads() const { return dims->kv_heads % threads == 0; }
  // The tiles of queries, keys and values that a thread computes. (All tiles if it does not own heads.)
  std::array<Range, 3> projections(const Matrix& qkv, int thread) const {
    if (!owns_heads()) return {tiles(qkv, thread), Range{0, 0}, Range{0, 0}};
    const int per_head = dims->head_dim / kTileRows, group = dims->heads / dims->kv_heads;
    const Range mine = share(dims->kv_heads, thread);
    const auto part = [&](int first, int each) {
      return Range{(first + mine.begin * each) * per_head, (first + mine.end * each) * per_head};
    };
    return {part(0, group), part(dims->heads, 1), part(dims->heads + dims->kv_heads, 1)};
  }
};

}  // namespace fulgur
