// One model in memory and its step: tokens in, the KV cache grown, logits out.
#pragma once
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "ops.h"
#include "pace.h"
#include "team.h"

namespace fulgur {

// How many tiles of a matrix to lay side by side: what the kernels like best, or half where few blocks of that size
// would leave some of the threads with less to do.
inline int choose_abreast(const Ops& ops, const Matrix& w, int threads) {
  if (w.bits == 8) return ops.abreast8;
  const int blocks = (w.tiles() + ops.abreast4 - 1) / ops.abreast4;
  return ops.abreast4 > 2 && blocks % threads && blocks < 8 * threads ? 2 : ops.abreast4;
}
// Bytes of scratch that a product with `cols` columns needs: a block of tiles as bytes.
inline size_t scratch_bytes(const Ops& ops, int cols) {
  return static_cast<size_t>(cols) * kTileRows * std::max(ops.abreast4, ops.abreast8);
}

// Zeroed memory on huge pages where the system grants them; the weights are read end to end every step.
class Arena {
 public:
  explicit Arena(size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* data_;
  size_t bytes_;
};

struct Dims {
  int vocab, d_model, layers, heads, kv_heads, head_dim, d_ffn, context, max_rows;
  float eps;
};

struct Layer {
  Matrix qkv, o, gate_up, down;
  const float *attn_norm, *ffn_norm;
  const float *q_norm, *k_norm, *qkv_bias;  // null where the family has none
};

struct Model {
  Dims dims;
  std::vector<Layer> layers;
  Matrix head;
  const float* final_norm;
  const uint16_t* embed;   // fp16 [vocab][d_model], or null: rows are read from the packed head (tied)
  const float *cos, *sin;  // [context][head_dim / 2]
};

struct StepInput {
  int rows;
  const int32_t *tokens, *positions, *sequences;
  const int32_t* tables;
  size_t table_stride;
  int wanted;
  const int32_t* wanted_rows;
};

class Runtime {
 public:
  Runtime(Model model, int kv_blocks, int threads, const Ops* ops);

  // Writes the argmax of each wanted row to out and, where logits is given, logits[wanted][ld].
  void step(const StepInput& in, int32_t* out, float* logits, size_t ld);
  void copy_block(int source, int target);

  const Ops& ops() const { return *ops_; }
  int threads() const { return team_.threads(); }
  const KvCache& cache() const { return cache_; }
  size_t kv_bytes() const { return kv_.bytes(); }
  size_t work_bytes() const { return work_->bytes(); }

 private:
  struct Worker {  // what one thread writes alone
    Acts acts;
    float* attention;
    uint8_t* tile;
    Best* best;
  };
  struct Range {
    int begin, end;
  };

  size_t carve(uint8_t* base);
  Range share(int count, int thread) const;
  Range tiles(const Matrix& w, int thread) const;
  const Acts& quantise(const float* x, size_t ld, const float* weight, const Matrix& w, int rows, int thread);
  void body(const StepInput& in, float* logits, size_t ld, int thread);
  bool owns_heads() const { return model_.dims.kv_heads % team_.size() == 0; }
  void project(const Layer& layer, const Acts& acts, int rows, int thread);
  void attention(const StepInput& in, const Layer& layer, int index, int thread);
  float* gather(const float* from, size_t width, float* to, const StepInput& in, int thread) const;
  void rotate(const StepInput& in, const Layer& layer, int index, int row, int kv_head);

  Model model_;
  const Ops* ops_;
  Team team_;
  Pace pace_;
  KvCache cache_;
  Arena kv_;
  std::unique_ptr<Arena> work_;
  Acts acts_;  // shared by all threads when a step is wide
  float *x_, *qkv_, *attn_, *hidden_, *wanted_x_;
  size_t x_ld_, qkv_ld_, attn_ld_, hidden_ld_;  // floats from row to row
  std::vector<Worker> workers_;
};

}  // namespace fulgur
