// What the gated delta nets of a model remember of every sequence.
//
// A slot holds the state S of every value head as of `base` tokens, and a log of the tokens that came after: their
// keys, errors and decays, and the inputs of the convolution. The position of the next step tells how many of them were
// accepted. That step adds those to S in its one pass over it, so a wrong draft costs nothing and leaves no trace. A
// long prompt is added to S while it is computed, except for its last kLog tokens.
#pragma once
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "model.h"
#include "ops.h"

namespace fulgur {

class Arena;

class DeltaStates {
 public:
  static constexpr int kLog = 40;  // more than the rows of any draft

  struct Slot {
    int base = 0, count = 0;  // tokens in S, tokens in the log
    int folds = 0;            // tokens of the log that the current step adds to S
  };
  // One layer of one slot.
  struct State {
    float *s, *inputs, *keys, *errors, *decays;
  };

  DeltaStates(const Dims& dims, int layers, int snapshots);
  ~DeltaStates();
  DeltaStates(const DeltaStates&) = delete;
  DeltaStates& operator=(const DeltaStates&) = delete;

  bool empty() const { return layers_ == 0; }
  int snapshots() const { return static_cast<int>(positions_.size()); }
  size_t snapshot_bytes() const { return snapshot_floats() * 4; }
  State state(int slot, int layer) const;
  Slot& slot(int index) { return slots_[index]; }

  // Before a step: checks that rows of this slot may start at `position`, and notes how much of the log they accept.
  void begin(int slot, int position);
  // After it: notes that `rows` tokens from `position` on are computed.
  void advance(int slot, int position, int rows);

  // A snapshot is S and the inputs of the convolution at one position, without a log.
  void save(const Ops& ops, int slot, int position, int snapshot);
  void restore(int snapshot, int slot);
  void copy(int source, int target);

 private:
  size_t state_floats() const;
  size_t layer_floats() const;
  size_t snapshot_floats() const;
  void check_slot(int slot) const;
  void check_snapshot(int snapshot) const;

  Dims d_{};
  int layers_ = 0;
  std::vector<Slot> slots_;
  std::vector<int> positions_;  // of the snapshots
  std::unique_ptr<Arena> live_, saved_;
};

}  // namespace fulgur
