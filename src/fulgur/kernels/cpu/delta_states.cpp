#include "delta_states.h"

#include <algorithm>
#include <cstring>

#include "runtime.h"

namespace fulgur {

namespace {
size_t padded(size_t floats) { return (floats + 31) & ~size_t{31}; }
}  // namespace

DeltaStates::DeltaStates(const Dims& dims, int layers, int snapshots) : d_(dims), layers_(layers) {
  if (!layers) return;
  slots_.resize(dims.slots);
  positions_.assign(snapshots, -1);
  live_ = std::make_unique<Arena>(layer_floats() * layers * dims.slots * 4);
  saved_ = std::make_unique<Arena>(std::max<size_t>(snapshot_floats() * snapshots * 4, 1));
}
DeltaStates::~DeltaStates() = default;

size_t DeltaStates::state_floats() const { return static_cast<size_t>(d_.v_heads) * d_.k_dim * d_.v_dim; }
size_t DeltaStates::layer_floats() const {
  return padded(state_floats()) + padded(static_cast<size_t>(d_.taps - 1 + kLog) * d_.channels()) +
         padded(static_cast<size_t>(kLog) * d_.delta_keys()) + padded(static_cast<size_t>(kLog) * d_.delta_values()) +
         padded(static_cast<size_t>(kLog) * d_.v_heads);
}
size_t DeltaStates::snapshot_floats() const {
  return layers_ * padded(state_floats() + static_cast<size_t>(d_.taps - 1) * d_.channels());
}

DeltaStates::State DeltaStates::state(int slot, int layer) const {
  float* p = reinterpret_cast<float*>(live_->data()) + (static_cast<size_t>(slot) * layers_ + layer) * layer_floats();
  const auto take = [&](size_t floats) {
    float* here = p;
    p += padded(floats);
    return here;
  };
  State state;
  state.s = take(state_floats());
  state.inputs = take(static_cast<size_t>(d_.taps - 1 + kLog) * d_.channels());
  state.keys = take(static_cast<size_t>(kLog) * d_.delta_keys());
  state.errors = take(static_cast<size_t>(kLog) * d_.delta_values());
  state.decays = take(static_cast<size_t>(kLog) * d_.v_heads);
  return state;
}

void DeltaStates::begin(int index, int position) {
  check_slot(index);
  Slot& slot = slots_[index];
  if (position == 0) {
    slot = {};
    for (int layer = 0; layer < layers_; layer++) {
      const State state = this->state(index, layer);
      std::memset(state.s, 0, state_floats() * 4);
      std::memset(state.inputs, 0, static_cast<size_t>(d_.taps - 1) * d_.channels() * 4);
    }
    return;
  }
  if (position < slot.base || position > slot.base + slot.count)
    throw std::out_of_range("sequence " + std::to_string(index) + " has recurrent states of " +
                            std::to_string(slot.base) + " to " + std::to_string(slot.base + slot.count) +
                            " tokens, not of " + std::to_string(position));
  slot.folds = position - slot.base;
}

void DeltaStates::advance(int index, int position, int rows) {
  Slot& slot = slots_[index];
  slot.base = position + std::max(rows - kLog, 0);
  slot.count = std::min(rows, kLog);
  slot.folds = 0;
}

void DeltaStates::check_slot(int slot) const {
  if (slot < 0 || slot >= static_cast<int>(slots_.size()))
    throw std::out_of_range("sequence " + std::to_string(slot) + " has no recurrent state: there are " +
                            std::to_string(slots_.size()));
}
void DeltaStates::check_snapshot(int snapshot) const {
  if (snapshot < 0 || snapshot >= snapshots())
    throw std::out_of_range("snapshot " + std::to_string(snapshot) + " does not exist: there are " +
                            std::to_string(snapshots()));
}

void DeltaStates::save(const Ops& ops, int index, int position, int snapshot) {
  check_slot(index);
  check_snapshot(snapshot);
  const Slot& slot = slots_[index];
  if (position < slot.base || position > slot.base + slot.count)
    throw std::out_of_range("sequence " + std::to_string(index) + " has no recurrent state of " +
                            std::to_string(position) + " tokens");
  const int folds = position - slot.base, per = d_.v_heads / d_.k_heads;
  const size_t head = static_cast<size_t>(d_.k_dim) * d_.v_dim,
               window = static_cast<size_t>(d_.taps - 1) * d_.channels();
  float* out = reinterpret_cast<float*>(saved_->data()) + snapshot_floats() * snapshot;
  std::vector<float> unused(d_.k_dim + 2 * static_cast<size_t>(d_.v_dim));
  for (int layer = 0; layer < layers_; layer++, out += snapshot_floats() / layers_) {
    const State from = state(index, layer);
    for (int v = 0; v < d_.v_heads; v++)
      ops.delta_pass({from.s + v * head, out + v * head, folds, from.keys + v / per * d_.k_dim,
                      from.errors + v * d_.v_dim, from.decays + v, static_cast<size_t>(d_.delta_keys()),
                      static_cast<size_t>(d_.delta_values()), static_cast<size_t>(d_.v_heads), unused.data(),
                      unused.data(), d_.k_dim, d_.v_dim, unused.data() + d_.k_dim,
                      unused.data() + d_.k_dim + d_.v_dim});
    std::memcpy(out + state_floats(), from.inputs + static_cast<size_t>(folds) * d_.channels(), window * 4);
  }
  positions_[snapshot] = position;
}

void DeltaStates::restore(int snapshot, int index) {
  check_slot(index);
  check_snapshot(snapshot);
  if (positions_[snapshot] < 0) throw std::out_of_range("snapshot " + std::to_string(snapshot) + " is empty");
  const size_t window = static_cast<size_t>(d_.taps - 1) * d_.channels();
  const float* from = reinterpret_cast<const float*>(saved_->data()) + snapshot_floats() * snapshot;
  for (int layer = 0; layer < layers_; layer++, from += snapshot_floats() / layers_) {
    const State to = state(index, layer);
    std::memcpy(to.s, from, state_floats() * 4);
    std::memcpy(to.inputs, from + state_floats(), window * 4);
  }
  slots_[index] = {positions_[snapshot], 0, 0};
}

void DeltaStates::copy(int source, int target) {
  check_slot(source);
  check_slot(target);
  std::memcpy(state(target, 0).s, state(source, 0).s, layer_floats() * layers_ * 4);
  slots_[target] = slots_[source];
}

}  // namespace fulgur
