// A model's matrices and how threads divide its step.
#pragma once
#include <algorithm>
#include <array>
#include <vector>

#include "layout.h"

namespace fulgur {

constexpr int kMostTaps = 8;  // of a convolution

struct Dims {
  int vocab, d_model, layers, heads, kv_heads, head_dim;
  int d_ffn;  // width of the dense feed-forward network: the only one, or the shared expert; 0: none
  int context, max_rows;
  float eps;
  int rotary;        // leading dimensions of a head that RoPE rotates
  bool gated;        // qkv also gives a gate for each head, as wide as it, which multiplies the attention output
  float query_beta;  // queries * (1 + beta * ln(1 + position / query_context)); 0: not scaled
  int query_context;
  // A mixture of experts, if experts > 0.
  int experts, chosen, d_expert;
  bool softmax_all;    // routing weights from a softmax over all experts, not over the chosen ones
  float limit, alpha;  // clamped SwiGLU; limit 0: the plain one
  // Gated delta nets, if k_heads > 0.
  int k_heads, v_heads, k_dim, v_dim, taps;
  int slots;        // sequences that can have a state at once
  int draft_vocab;  // tokens that the drafting head chooses from; 0: there is none
  int kv_bits;      // of a key or value in the cache: 16 (bf16) or 8

  int delta_keys() const { return k_heads * k_dim; }
  int delta_values() const { return v_heads * v_dim; }
  int channels() const { return 2 * delta_keys() + delta_values(); }  // of the convolution
};

// One matrix of every expert of a layer, in place in the memory map of a file: the pages of an expert are touched only
// when it is chosen. Tiles lie in pairs (layout.h, interleave 2).
struct Experts {
  Matrix first;  // of expert 0
  Matrix operator[](int expert) const {
    Matrix w = first;
    w.data += expert * first.bytes();
    return w;
  }
};

struct Layer {
  Matrix qkv, o, gate_up, down;  // of a delta net: qkv also gives z; o is its output projection
  const float *attn_norm, *ffn_norm;
  // Null if the family has none.
  const float *q_norm, *k_norm, *qkv_bias, *o_bias, *sinks;
  int window;  // keys that a token sees, its own included; 0: all
  int cache;   // number among the layers with keys and values
  // A mixture of experts. The router is bf16 [experts, + 1 for the gate of the shared expert][d_model].
  Experts expert_gate_up, expert_down;
  const float *router_bias, *expert_gate_up_bias, *expert_down_bias;
  const uint16_t* router;
  // A gated delta net.
  bool delta;
  int state;                                         // number among the delta nets
  const uint16_t* ba;                                // bf16 [every b, every a][d_model]
  const float *conv, *decay, *dt_bias, *delta_norm;  // conv: [taps][channels]
};

struct Drafting {  // the head of draft.cpp, if there is one
  Layer layer;
  Matrix fc, head;  // [d_model][2 d_model]; the first rows of the model's head, in fewer bits
  const float *embed_norm, *hidden_norm, *final_norm;
};

struct Model {
  Dims dims;
  std::vector<Layer> layers;
  Drafting drafting;
  Matrix head;
  const float* final_norm;
  const uint16_t* embed;   // fp16 [vocab][d_model], or null: rows are read from the packed head (tied)
  const float *cos, *sin;  // [context][rotary / 2]
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
  // (Not with gates or delta nets: rows of qkv are then divided otherwise.)
  bool owns_heads() const { return dims->kv_heads % threads == 0 && !dims->gated && !dims->k_heads; }
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
