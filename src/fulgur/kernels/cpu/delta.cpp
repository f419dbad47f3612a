// A gated delta net. A thread owns key heads with their value heads: convolution, norms, recurrence and output gate of
// a head do not depend on other heads, so one barrier after the projection is enough.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "runtime.h"

namespace fulgur {

void Runtime::project_delta(const Layer& layer, Rows x, const Acts& acts, int rows, int thread) {
  const Dims& d = model_.dims;
  const Range r = tiles(layer.qkv, thread), mine = share(2 * d.v_heads, thread);
  Worker& me = workers_[thread];
  ops_->linear(layer.qkv, r.begin, r.end, acts, rows, me.tile, nullptr, qkv_.data, qkv_.ld);
  for (int m = 0; m < rows; m++) {
    ops_->norm(x.data + m * x.ld, layer.attn_norm, d.eps, d.d_model, me.row);
    ops_->dot_rows(layer.ba, mine.begin, mine.end, d.d_model, me.row, ba_ + m * 2 * d.v_heads);
  }
  team_.barrier(thread);
}

void Runtime::delta(const StepInput& in, const Layer& layer, Rows out, int thread) {
  const Range mine = share(model_.dims.k_heads, thread);
  for (int row = 0, next; row < in.rows; row = next) {
    for (next = row + 1; next < in.rows && in.sequences[next] == in.sequences[row];) next++;
    for (int head = mine.begin; head < mine.end; head++) delta_head(in, layer, out, head, row, next - row, thread);
  }
}

// Rows [first, first + rows) of one sequence, for one key head and its value heads.
void Runtime::delta_head(const StepInput& in, const Layer& layer, Rows out, int head, int first, int rows, int thread) {
  const Dims& d = model_.dims;
  constexpr int kLog = DeltaStates::kLog;
  const int slot = in.sequences[first], per = d.v_heads / d.k_heads, kept = d.taps - 1;
  const int folds = states_.slot(slot).folds, direct = std::max(rows - kLog, 0);  // rows that go into S at once
  const DeltaStates::State state = states_.state(slot, layer.state);
  const size_t channels = d.channels(), keys = d.delta_keys(), values = d.delta_values();
  const size_t size = static_cast<size_t>(d.k_dim) * d.v_dim;

  float* work = workers_[thread].state;
  float *value = work + size, *seen = value + d.v_dim, *read = seen + d.v_dim, *error = read + d.v_dim;
  float *queries = error + d.v_dim, *key_rows = queries + static_cast<size_t>(d.max_rows) * d.k_dim;
  // The channels of this head: its query, its key, its values.
  const size_t query_at = static_cast<size_t>(head) * d.k_dim, key_at = keys + query_at;
  const size_t value_at = 2 * keys + static_cast<size_t>(head) * per * d.v_dim;
  const std::pair<size_t, int> parts[] = {{query_at, d.k_dim}, {key_at, d.k_dim}, {value_at, per * d.v_dim}};

  // Inputs before these rows: those of the accepted tokens move to the front.
  for (const auto& [at, count] : parts)
    for (int t = 0; folds && t < kept; t++)
      std::memcpy(state.inputs + t * channels + at, state.inputs + (t + folds) * channels + at, count * 4);
  const auto input = [&](int row) {  // the channels of a row, or of one before the first
    return row < 0 ? state.inputs + (row + kept) * channels : qkv_.data + (first + row) * qkv_.ld;
  };
  const auto convolve = [&](int row, size_t at, int count, float* to) {
    const float* inputs[kMostTaps];
    for (int t = 0; t < d.taps; t++) inputs[t] = input(row + t - kept) + at;
    ops_->convolve(inputs, layer.conv + at, channels, d.taps, count, to);
  };
  for (int r = 0; r < rows; r++) {
    convolve(r, query_at, d.k_dim, queries + r * d.k_dim);
    convolve(r, key_at, d.k_dim, key_rows + r * d.k_dim);
    ops_->unit(queries + r * d.k_dim, d.k_dim, 1.f / std::sqrt(static_cast<float>(d.k_dim)));
    ops_->unit(key_rows + r * d.k_dim, d.k_dim, 1.f);
  }

  for (int v = 0; v < per; v++) {
    const size_t at = static_cast<size_t>(head) * per + v;
    float* s = state.s + at * size;
    float previous_decay = 0;
    for (int r = 0; r < rows; r++) {
      const float *key = key_rows + r * d.k_dim, *query = queries + r * d.k_dim;
      convolve(r, value_at + v * d.v_dim, d.v_dim, value);
      const float* ba = ba_ + (first + r) * 2 * d.v_heads;
      const float shifted = ba[d.v_heads + at] + layer.dt_bias[at];
      const float softplus = shifted > 20.f ? shifted : std::log1p(std::exp(shifted));
      const float decay = std::exp(layer.decay[at] * softplus), beta = 1.f / (1.f + std::exp(-ba[at]));

      // The first row adds the accepted tokens of the log to S, each later row the token of the row before it: to S
      // itself while no draft can reach back to it, otherwise to a working copy.
      DeltaPass pass{s,
                     s,
                     folds,
                     state.keys + query_at,
                     state.errors + at * d.v_dim,
                     state.decays + at,
                     keys,
                     values,
                     static_cast<size_t>(d.v_heads),
                     key,
                     query,
                     d.k_dim,
                     d.v_dim,
                     seen,
                     read};
      if (r) {
        pass.from = r - 1 <= direct ? s : work, pass.to = r - 1 < direct ? s : work;
        pass.folds = 1, pass.keys = key - d.k_dim, pass.errors = error, pass.decays = &previous_decay;
      }
      ops_->delta_pass(pass);
      ops_->delta_read(key, query, value, decay, beta, d.k_dim, d.v_dim, seen, read, error);
      previous_decay = decay;
      if (r >= direct) {
        std::memcpy(state.errors + (r - direct) * values + at * d.v_dim, error, d.v_dim * 4);
        state.decays[(r - direct) * d.v_heads + at] = decay;
      }
      ops_->norm_gated(read, layer.delta_norm, d.eps, input(r) + channels + at * d.v_dim, d.v_dim,
                       out.data + (first + r) * out.ld + at * d.v_dim);
    }
  }
  // Write the log: keys, and the inputs of the convolution with those before them.
  for (int r = direct; r < rows; r++)
    std::memcpy(state.keys + (r - direct) * keys + query_at, key_rows + r * d.k_dim, d.k_dim * 4);
  for (const auto& [at, count] : parts)
    for (int r = direct ? direct - kept : 0; r < rows; r++) {
      float* to = state.inputs + (r - direct + kept) * channels + at;
      if (to != input(r) + at) std::memmove(to, input(r) + at, count * 4);
    }
}

}  // namespace fulgur
