// One model in memory and its step: tokens in, the KV cache grown, logits out.
#pragma once
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "delta_states.h"
#include "draft_log.h"
#include "model.h"
#include "ops.h"
#include "pace.h"
#include "team.h"

namespace fulgur {

constexpr int kNarrow = 4;  // up to this many rows, every thread quantises all of a step's inputs itself

// How many tiles of a matrix to interleave: what the kernels prefer, or half of it if few large blocks would leave some
// threads with less to do.
inline int choose_interleave(const Ops& ops, const Matrix& w, int threads) {
  if (w.bits == 8) return ops.interleave8;
  const int blocks = (w.tiles() + ops.interleave4 - 1) / ops.interleave4;
  return ops.interleave4 > 2 && blocks % threads && blocks < 8 * threads ? 2 : ops.interleave4;
}
// Bytes of scratch for a product with `cols` columns: a block of tiles as bytes, or a few groups of one.
inline size_t scratch_bytes(const Ops& ops, int cols) {
  return static_cast<size_t>(std::max(cols, 256)) * kTileRows * std::max(ops.interleave4, ops.interleave8);
}

// Zeroed memory, on huge pages if the system grants them; the weights are read end to end in every step.
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
  // `snapshots`: states of delta nets that can be kept besides those of the running sequences.
  Runtime(Model model, int kv_blocks, int threads, int snapshots, const Ops* ops);

  // Writes the argmax of each requested row to out and, if logits is given, logits[requested][ld].
  void step(const StepInput& in, int32_t* out, float* logits, size_t ld);
  void copy_block(int source, int target);
  // Keeps the recurrent state that a sequence has after `position` tokens, resumes it, copies it to another sequence.
  void save(int slot, int position, int snapshot);
  void restore(int snapshot, int slot);
  void copy(int source, int target);
  const DeltaStates& states() const { return states_; }
  // Writes `length` guesses of what follows `token`, the last of a sequence, at `position`; returns how many there are,
  // 0 if too little is known.
  int draft(int sequence, const int32_t* tables, size_t stride, int32_t token, int position, int32_t* out, int length);
  // Before a sequence is released: runs the drafting head on the rest of it, so that its blocks can be shared.
  void catch_up(int sequence, const int32_t* tables, size_t stride);
  int logged(int sequence) { return drafts_[sequence].waiting() > 0 ? drafts_[sequence].end() : 0; }
  // A lower bound for a step of one row after `context` tokens, without its results: every thread reads (and
  // multiplies, if asked to) its own weights, reads the keys and values of its heads, and waits for no other thread.
  // Returns nanoseconds.
  int64_t scan(int context, bool multiply);

  const Ops& ops() const { return *ops_; }
  int threads() const { return team_.threads(); }
  const KvCache& cache() const { return cache_; }
  size_t kv_bytes() const { return kv_.bytes(); }
  size_t work_bytes() const { return work_->bytes(); }

 private:
  struct Worker {   // what only one thread writes
    Acts acts;      // of narrow steps
    float* scales;  // scales of normed activations, of wide steps
    float* attention;
    uint8_t* tile;
    Best* best;
    float* row;               // a normed row
    Acts gathered;            // the rows of one expert
    int32_t *pairs, *starts;  // (row, rank) by expert; where each expert's begin
    float* state;             // of a delta head: working copy, what is read from it, queries and keys of the rows
  };
  struct Route {  // one of the experts of a row
    int32_t expert;
    float weight;
  };
  struct Rows {  // some columns of a buffer, numbered as in a whole row
    float* data;
    size_t ld;
  };
  struct Buffer {
    float* data;
    size_t ld, part_ld;  // floats from row to row: in whole rows; in the columns of one thread
  };

  size_t carve(uint8_t* base);
  Division division() const { return {&model_.dims, team_.size()}; }
  Range share(int count, int thread) const { return division().share(count, thread); }
  Range tiles(const Matrix& w, int thread) const { return division().tiles(w, thread); }
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
  bool owns_heads() const { return division().owns_heads(); }
  void project(const Layer& layer, const Acts& acts, int rows, int thread);
  void attention(const StepInput& in, const Layer& layer, Rows out, int from, int thread);
  void finish(const Layer& layer, Rows attn, Rows x, int rows, Range heads, Range mine, int thread);
  void embed_row(int32_t token, float* row) const;
  void record(Rows x, int rows, int thread);
  void predict(const StepInput& in, bool guess, int thread);
  int predict(const std::vector<int32_t>& tokens, const std::vector<int32_t>& positions,
              const std::vector<int32_t>& owners, const int32_t* tables, size_t stride, bool guess);
  int catch_up(int sequence, const int32_t* tables, size_t stride, int end, int32_t token);
  Range share_columns(int width, int thread) const;
  void gather(Rows x, Range columns, const StepInput& in) const;
  bool plain() const { return !model_.dims.experts && !model_.dims.k_heads; }
  void experts(const Layer& layer, Rows x, int rows, Range mine, int thread);
  void route(const Layer& layer, Rows x, int rows, int thread);
  void choose(const float* logits, const float* bias, Route* out) const;
  void group_by_expert(int rows, int thread);
  Acts rows_of(const Acts& acts, const int32_t* pairs, int count, const Matrix& w, int thread);
  void project_delta(const Layer& layer, Rows x, const Acts& acts, int rows, int thread);
  void delta(const StepInput& in, const Layer& layer, Rows out, int thread);
  void delta_head(const StepInput& in, const Layer& layer, Rows out, int head, int first, int rows, int thread);
  void rotate(const StepInput& in, const Layer& layer, int row, int kv_head, int thread);

  Model model_;
  const Ops* ops_;
  Team team_;
  Pace pace_;
  KvCache cache_;
  Arena kv_;
  std::unique_ptr<Arena> work_;
  // Double buffer: the input of qkv and gate/up, and that of o and down. While some threads still read one, others
  // write the other.
  Acts acts_, other_acts_;
  Buffer x_, qkv_, attn_, hidden_;
  Buffer pair_hidden_, expert_out_;  // of experts: one row per pair (row, expert); the rows of one expert
  Acts pair_acts_;
  float *logits_ = nullptr, *ba_ = nullptr;  // of routers [row][experts + 1], of delta nets [row][b and a of each head]
  Route* routes_ = nullptr;                  // [row][rank]
  DeltaStates states_;
  DraftLogs drafts_;
  std::vector<float*> recorded_;  // by row of a step: where its hidden state is written or read
  std::vector<float> drafted_;    // the drafting head's own hidden state, of its last guess
  bool whole_ = false;            // each thread writes whole groups of columns, the same in every layer
  bool apart_ = false;            // in this step every thread keeps the columns it writes in its own memory
  std::vector<Worker> workers_;
};

}  // namespace fulgur
