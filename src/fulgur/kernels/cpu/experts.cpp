// A mixture of experts. Rows are grouped by expert, so that each chosen expert is read once a step.
//
//   shared gate/up | router | choice | gate/up of every expert | quantise | down of every expert | shared down
//
// A routing weight multiplies the scales of the quantised activations of `down`. Every thread adds the experts of a row
// to its own columns in ascending order, so neither the other rows nor the number of threads change a row's bits.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime.h"

namespace fulgur {

void Runtime::route(const Layer& layer, Rows x, int rows, int thread) {
  const Dims& d = model_.dims;
  const int outputs = d.experts + (d.d_ffn ? 1 : 0);
  const Range mine = share(outputs, thread);
  float* normed = workers_[thread].row;
  for (int m = 0; m < rows; m++) {
    ops_->norm(x.data + m * x.ld, layer.ffn_norm, d.eps, d.d_model, normed);
    ops_->dot_rows(layer.router, mine.begin, mine.end, d.d_model, normed, logits_ + m * (d.experts + 1));
  }
  team_.barrier(thread);
  const Range some = share(rows, thread);
  for (int m = some.begin; m < some.end; m++)
    choose(logits_ + m * (d.experts + 1), layer.router_bias, routes_ + m * d.chosen);
  team_.barrier(thread);
}

// The experts with the largest logits, best first; the lowest index wins ties.
void Runtime::choose(const float* logits, const float* bias, Route* out) const {
  const Dims& d = model_.dims;
  const auto logit = [&](int e) { return bias ? logits[e] + bias[e] : logits[e]; };
  for (int k = 0; k < d.chosen; k++) out[k] = {-1, -3.4e38f};
  for (int e = 0; e < d.experts; e++) {
    const float value = logit(e);
    if (out[d.chosen - 1].expert >= 0 && value <= out[d.chosen - 1].weight) continue;
    int k = d.chosen - 1;
    for (; k > 0 && (out[k - 1].expert < 0 || value > out[k - 1].weight); k--) out[k] = out[k - 1];
    out[k] = {e, value};
  }
  const float top = out[0].weight;
  float total = 0;
  if (d.softmax_all)
    for (int e = 0; e < d.experts; e++) total += std::exp(logit(e) - top);
  else
    for (int k = 0; k < d.chosen; k++) total += std::exp(out[k].weight - top);
  for (int k = 0; k < d.chosen; k++) out[k].weight = std::exp(out[k].weight - top) / total;
}

// Pairs (row, rank) in the order of their experts; those of one expert by row.
void Runtime::group_by_expert(int rows, int thread) {
  const Dims& d = model_.dims;
  Worker& me = workers_[thread];
  const int pairs = rows * d.chosen;
  std::fill(me.starts, me.starts + d.experts + 1, 0);
  for (int i = 0; i < pairs; i++) me.starts[routes_[i].expert + 1]++;
  for (int e = 0; e < d.experts; e++) me.starts[e + 1] += me.starts[e];
  for (int i = 0; i < pairs; i++) me.pairs[me.starts[routes_[i].expert]++] = i;
  for (int e = d.experts; e > 0; e--) me.starts[e] = me.starts[e - 1];
  me.starts[0] = 0;
}

// The activations of some rows, side by side; one row stays where it is.
Acts Runtime::rows_of(const Acts& acts, const int32_t* pairs, int count, const Matrix& w, int thread) {
  const int chosen = model_.dims.chosen;
  if (count == 1) {
    const int row = pairs[0] / chosen;
    Acts one = acts;
    one.q += row * acts.stride, one.scale += row, one.correction += row;
    return one;
  }
  const Acts& out = workers_[thread].gathered;
  for (int i = 0; i < count; i++) {
    const int row = pairs[i] / chosen;
    std::memcpy(out.q + i * out.stride, acts.q + row * acts.stride, w.cols);
    for (int g = 0; g < w.groups(); g++) {
      out.scale[g * out.group_stride + i] = acts.scale[g * acts.group_stride + row];
      out.correction[g * out.group_stride + i] = acts.correction[g * acts.group_stride + row];
    }
  }
  return out;
}

void Runtime::experts(const Layer& layer, Rows x, int rows, Range mine, int thread) {
  const Dims& d = model_.dims;
  Worker& me = workers_[thread];
  Range shared{0, 0};
  if (d.d_ffn) {
    const Acts acts = hand_over(x, layer.ffn_norm, layer.gate_up, acts_, rows, mine, thread);
    const Range r = tiles(layer.gate_up, thread);
    shared = hidden_columns(layer, thread);
    ops_->linear_swiglu(layer.gate_up, r.begin / 2, r.end / 2, acts, rows, me.tile, hidden_.data, hidden_.ld);
  }
  const Experts &up = layer.expert_gate_up, &down = layer.expert_down;
  const Acts acts = hand_over(x, layer.ffn_norm, up.first, acts_, rows, mine, thread);
  route(layer, x, rows, thread);
  group_by_expert(rows, thread);

  const auto each = [&](auto&& visit) {  // expert, first of its pairs, how many
    for (int e = 0; e < d.experts; e++)
      if (me.starts[e + 1] > me.starts[e]) visit(e, me.starts[e], me.starts[e + 1] - me.starts[e]);
  };
  const Range pairs = tiles(up.first, thread);
  each([&](int e, int first, int count) {
    const Acts some = rows_of(acts, me.pairs + first, count, up.first, thread);
    float* out = pair_hidden_.data + first * pair_hidden_.ld;
    if (d.limit > 0) {
      const Clamp clamp{layer.expert_gate_up_bias + static_cast<size_t>(e) * up.first.rows, d.limit, d.alpha};
      ops_->linear_clamped(up[e], pairs.begin / 2, pairs.end / 2, some, count, me.tile, clamp, out, pair_hidden_.ld);
    } else {
      ops_->linear_swiglu(up[e], pairs.begin / 2, pairs.end / 2, some, count, me.tile, out, pair_hidden_.ld);
    }
  });
  team_.barrier(thread);
  const Range some = share(rows * d.chosen, thread);
  for (int i = some.begin; i < some.end; i++) {
    ops_->quantise(pair_hidden_.data + i * pair_hidden_.ld, nullptr, down.first, pair_acts_, i, 0, d.d_expert);
    for (int g = 0; g < down.first.groups(); g++)
      pair_acts_.scale[g * pair_acts_.group_stride + i] *= routes_[me.pairs[i]].weight;
  }
  team_.barrier(thread);

  const Range r = tiles(down.first, thread);
  const Range columns{r.begin * kTileRows, std::min(r.end * kTileRows, d.d_model)};
  each([&](int e, int first, int count) {
    Acts part = pair_acts_;
    part.q += first * part.stride, part.scale += first, part.correction += first;
    if (count == 1) {
      const int row = me.pairs[first] / d.chosen;
      ops_->linear_add(down[e], r.begin, r.end, part, 1, me.tile, x.data + row * x.ld, x.ld);
    } else {
      ops_->linear(down[e], r.begin, r.end, part, count, me.tile, nullptr, expert_out_.data, expert_out_.ld);
    }
    const float* bias = layer.expert_down_bias ? layer.expert_down_bias + static_cast<size_t>(e) * d.d_model : nullptr;
    for (int i = 0; i < count; i++) {
      const int pair = me.pairs[first + i];
      float* to = x.data + pair / d.chosen * x.ld;
      const float* from = expert_out_.data + i * expert_out_.ld;
      if (count > 1)
        for (int c = columns.begin; c < columns.end; c++) to[c] += from[c];
      if (bias)
        for (int c = columns.begin; c < columns.end; c++) to[c] += bias[c] * routes_[pair].weight;
    }
  });
  if (!d.d_ffn) return;
  for (int m = 0; m < rows; m++) {
    const float gate = 1.f / (1.f + std::exp(-logits_[m * (d.experts + 1) + d.experts]));
    for (int c = shared.begin; c < shared.end; c++) hidden_.data[m * hidden_.ld + c] *= gate;
  }
  const Acts last = hand_over({hidden_.data, hidden_.ld}, nullptr, layer.down, other_acts_, rows, shared, thread);
  const Range out = tiles(layer.down, thread);
  ops_->linear_add(layer.down, out.begin, out.end, last, rows, me.tile, x.data, x.ld);
}

}  // namespace fulgur
