// The operations of a decode step, once per instruction set. The step (runtime.cpp) knows only this table.
//
// Contract of every entry: the result of a row does not depend on how many rows are passed with it. Integer dot
// products are exact, and every float sum has one fixed order. Speculation, prefix reuse and batching rely on it.
#pragma once
#include "layout.h"

namespace fulgur {

struct Best {  // a running argmax in each lane of a tile; the lowest index wins ties
  float value[kTileRows];
  int32_t index[kTileRows];
};

inline void clear(Best& best) {
  for (int r = 0; r < kTileRows; r++) best.value[r] = -3.4e38f, best.index[r] = 0;
}
// Merges `other` lane by lane.
inline void merge(Best& best, const Best& other) {
  for (int r = 0; r < kTileRows; r++)
    if (other.value[r] > best.value[r] || (other.value[r] == best.value[r] && other.index[r] < best.index[r]))
      best.value[r] = other.value[r], best.index[r] = other.index[r];
}
inline int32_t argmax(const Best& best) {
  int top = 0;
  for (int r = 1; r < kTileRows; r++)
    if (best.value[r] > best.value[top] ||
        (best.value[r] == best.value[top] && best.index[r] + r < best.index[top] + top))
      top = r;
  return best.index[top] + top;
}

// The query heads of one KV head for consecutive rows of one sequence: row i sees `length` + i tokens.
struct Queries {
  const float* q;
  size_t q_ld;
  float* out;
  size_t out_ld;
  int rows, heads, length;
  int window = 0;                // tokens that a row sees, its own included; 0: all
  const float* sinks = nullptr;  // one logit per head, times log2(e), that is in the softmax but has no value
};

// How a gate and what it multiplies are bounded: (up + 1) * gate * sigmoid(alpha * gate).
struct Clamp {
  const float* bias;  // in the order of the rows
  float limit, alpha;
};

// One pass over the state of a value head, S [k_dim][v_dim]: `folds` tokens are added to it, S = decay * S + key
// error^T for each, and what a key and a query read from the result is returned: seen = S^T key, read = S^T query.
struct DeltaPass {
  const float* from;
  float* to;  // may be `from`
  int folds;
  const float *keys, *errors, *decays;  // of the first token to add
  size_t key_ld, error_ld, decay_ld;    // to the next
  const float *key, *query;
  int k_dim, v_dim;
  float *seen, *read;
};

struct Ops {
  const char* name;
  // Tiles that are interleaved in memory (layout.h), by the bits of a weight; int4 also supports 2.
  int interleave4, interleave8;

  // Quantises columns [begin, end) of x, whole groups, into row `row` of `acts` for a product with `w`. With the weight
  // of a norm: quantises x * weight and adds up the squares of x, from which norm_factor follows once all columns are
  // done.
  void (*quantise)(const float* x, const float* weight, const Matrix& w, const Acts& acts, int row, int begin, int end);

  // out[m][r] = w[r] . acts[m] for the rows of tiles [begin, end); `scratch` holds a block of tiles as bytes.
  void (*linear)(const Matrix& w, int begin, int end, const Acts& acts, int m, uint8_t* scratch, const float* bias,
                 float* out, size_t ld);
  // out[m][r] += ...
  void (*linear_add)(const Matrix& w, int begin, int end, const Acts& acts, int m, uint8_t* scratch, float* out,
                     size_t ld);
  // Tiles alternate gate, up: out[m][r] = silu(gate) * up, for tile pairs [begin, end).
  void (*linear_swiglu)(const Matrix& w, int begin, int end, const Acts& acts, int m, uint8_t* scratch, float* out,
                        size_t ld);
  // Updates best[m] with the rows of the tiles; also writes logits[m][r] if logits is given.
  void (*linear_argmax)(const Matrix& w, int begin, int end, const Acts& acts, int m, uint8_t* scratch, Best* best,
                        float* logits, size_t ld);

  // One row of the embedding: read back from the packed output head, or from a table of fp16.
  void (*embed)(const Matrix& w, int row, float* out);
  void (*widen)(const uint16_t* halves, int n, float* out);

  // Optional per-head RMSNorm, then RoPE (rotate-half) of the leading `rotary` dimensions, in place, scaled.
  void (*norm_rope)(float* head, const float* weight, float eps, const float* cos, const float* sin, int head_dim,
                    int rotary, float scale);
  void (*store_kv)(const KvCache& cache, int block, int layer, int head, int slot, const float* key,
                   const float* value);
  // Attention over the cached tokens of `table`. Queries are already scaled by log2(e) / sqrt(head_dim).
  // scratch: attention_scratch(longest) floats.
  void (*attend)(const KvCache& cache, const int32_t* table, int layer, int kv_head, const Queries& queries,
                 float* scratch);

  // Products with clamped SwiGLU, for tile pairs [begin, end) as in linear_swiglu.
  void (*linear_clamped)(const Matrix& w, int begin, int end, const Acts& acts, int m, uint8_t* scratch,
                         const Clamp& clamp, float* out, size_t ld);
  // RMSNorm of a row, as floats.
  void (*norm)(const float* x, const float* weight, float eps, int n, float* out);
  // Rows [begin, end) of a bf16 matrix times a row of floats.
  void (*dot_rows)(const uint16_t* w, int begin, int end, int cols, const float* x, float* out);
  // out *= sigmoid(gate)
  void (*gate)(float* out, const float* gate, int n);
  // Causal convolution of one token: inputs[t] are the channels at tap t, weights [taps][ld]; then SiLU.
  void (*convolve)(const float* const* inputs, const float* weights, size_t ld, int taps, int n, float* out);
  void (*unit)(float* x, int n, float scale);  // to the length `scale`
  void (*delta_pass)(const DeltaPass& pass);
  // error = beta * (value - decay * seen); read = decay * read + (key . query) * error
  void (*delta_read)(const float* key, const float* query, const float* value, float decay, float beta, int k_dim,
                     int v_dim, const float* seen, float* read, float* error);
  // out = RMSNorm(x) * weight * SiLU(z)
  void (*norm_gated)(const float* x, const float* weight, float eps, const float* z, int n, float* out);

  // Reads `bytes` once; for the bandwidth probe.
  uint64_t (*read)(const uint8_t* data, size_t bytes);
  // Multiplies and adds bytes in registers as fast as the CPU can and returns how many: an upper bound for any kernel.
  uint64_t (*multiply)(int rounds);
  // Reads the weights of tiles [begin, end) and multiplies them with one row, nothing else: an upper bound for any
  // product with one row.
  uint64_t (*scan)(const Matrix& w, int begin, int end);
};

// The factor of RMSNorm, which multiplies the scales of the quantised row.
inline float norm_factor(const Acts& acts, int row, const Matrix& w, float eps) {
  float total = 0;
  for (int g = 0; g < w.groups(); g++) total += acts.square[g * acts.group_stride + row];
  return 1.f / __builtin_sqrtf(total / static_cast<float>(w.cols) + eps);
}

// Floats from one row of attention scores to the next; not a power of two, so that rows do not compete for cache sets.
inline size_t attention_ld(int length) {
  return ((static_cast<size_t>(length) + kBlockTokens) & ~static_cast<size_t>(kBlockTokens - 1)) + 32;
}
// Floats of scratch that `attend` needs: scores, probabilities and rounded queries of sixteen queries.
inline size_t attention_scratch(int length) { return kTileRows * (attention_ld(length) * 2 + 256); }

const Ops* ops_portable();
const Ops* ops_neon();
const Ops* ops_neon_i8mm();
const Ops* ops_avx2();  // null if this build or this CPU has none
const Ops* ops_avxvnni();
const Ops* ops_avx512();
const Ops* ops_avx512bf16();
const Ops* ops_amx();
const Ops* ops_amx_emulated();  // the AMX kernels with the tile instructions in plain C++, for tests anywhere

}  // namespace fulgur
