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
  struct Worker {   // what one thread writes alone
    Acts acts;      // of narrow steps
    float* scales;  // of normed activations of wide ones
    float* attention;
    uint8_t* tile;
    Best* best;
  };
  struct Range {
    int begin, end;
    bool operator==(const Range&) const = default;
  };
  struct Rows {  // some columns of a buffer; they are counted as in a whole row
    float* data;
    size_t ld;
  };
  struct Buffer {
    float* data;
    size_t ld, part_ld;  // floats from row to row: whole rows, or the columns of one thread
  };

  size_t carve(uint8_t* base);
  Range share(int count, int thread) const;
  Range tiles(const Matrix& w, int thread) const;
  Range columns(const Matrix& w, int thread) const;
  Range hidden_columns(const Layer& layer, int thread) const;
  Range head_columns(int thread) const;
  bool whole_groups() const;
  int query_first(int thread) const;
  int key_first(int thread) const;
  int value_first(int thread) const;
  Rows view(const Buffer& buffer, int first, int thread) const;
  Acts hand_over(Rows x, const float* weight, const Matrix& w, const Acts& acts, int rows, Range mine, int thread);
  Acts normed(const Acts& acts, float* scales, const Matrix& w, int rows) const;
  void embed(const StepInput& in, Rows x, Range mine, int thread);
  void body(const StepInput& in, float* logits, size_t ld, int thread);
  bool owns_heads() const { return model_.dims.kv_heads % team_.size() == 0; }
  void project(const Layer& layer, const Acts& acts, int rows, int thread);
  void attention(const StepInput& in, const Layer& layer, int index, Rows out, int thread);
  Range share_columns(int width, int thread) const;
  void gather(Rows x, Range columns, const StepInput& in) const;
  void rotate(const StepInput& in, const Layer& layer, int index, int row, int kv_head, int thread);

  Model model_;
  const Ops* ops_;
  Team team_;
  Pace pace_;
  KvCache cache_;
  Arena kv_;
  std::unique_ptr<Arena> work_;
  // By turns: the input of qkv and gate/up, and that of o and down. While some threads still read one, others write the
  // other.
  Acts acts_, other_acts_;
  Buffer x_, qkv_, attn_, hidden_;
  bool whole_ = false;  // each thread writes whole groups of columns, the same in every layer
  bool apart_ = false;  // in this step every thread keeps the columns it writes to itself
  std::vector<Worker> workers_;
};

}  // namespace fulgur
