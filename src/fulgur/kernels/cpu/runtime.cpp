// A step, phase by phase. Every phase splits its output rows among the threads, so no partial sums are exchanged and
// the weights of a thread are one contiguous stream:
//
//   qkv, RoPE, store KV, attend | o, residual | gate/up, SwiGLU | down, residual | ... head, argmax  ("|": barrier)
//
// Before each product its input is normed and quantised. In narrow steps every thread does all of it after the barrier,
// which is cheapest there. In wide steps a thread quantises the columns it has written before the barrier, so that
// bytes instead of floats pass between cores. It keeps those columns in its own memory, not next to another thread's in
// one row: CPUs prefetch a few lines beyond what is read, and would fetch lines that another core is writing.
#include "runtime.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace fulgur {

// The same activations with the scales of normed rows.
Acts Runtime::normed(const Acts& acts, float* scales, const Matrix& w, int rows) const {
  Acts result = acts;
  result.scale = scales;
  for (int m = 0; m < rows; m++) {
    const float factor = norm_factor(acts, m, w, model_.dims.eps);
    for (size_t g = 0, at = m; g < static_cast<size_t>(w.groups()); g++, at += acts.group_stride)
      scales[at] = acts.scale[at] * factor;
  }
  return result;
}

// Rows of x, of which this thread has written the columns `mine`, become the input of the product with w.
Acts Runtime::hand_over(Rows x, const float* weight, const Matrix& w, const Acts& acts, int rows, Range mine,
                        int thread) {
  Worker& me = workers_[thread];
  if (!apart_) team_.barrier(thread);
  if (!apart_ && rows <= kNarrow) {
    for (int m = 0; m < rows; m++) ops_->quantise(x.data + m * x.ld, weight, w, me.acts, m, 0, w.cols);
    return weight ? normed(me.acts, me.acts.scale, w, rows) : me.acts;
  }
  if (apart_) {
    for (int m = 0; m < rows; m++) ops_->quantise(x.data + m * x.ld, weight, w, acts, m, mine.begin, mine.end);
  } else {
    const Range r = share(rows, thread);
    for (int m = r.begin; m < r.end; m++) ops_->quantise(x.data + m * x.ld, weight, w, acts, m, 0, w.cols);
  }
  team_.barrier(thread);
  return weight ? normed(acts, me.scales, w, rows) : acts;
}

void Runtime::project(const Layer& layer, const Acts& acts, int rows, int thread) {
  const auto part = [&](Range tiles, int first) {
    const Rows out = view(qkv_, first, thread);
    ops_->linear(layer.qkv, tiles.begin, tiles.end, acts, rows, workers_[thread].tile, layer.qkv_bias, out.data,
                 out.ld);
  };
  const auto [queries, keys, values] = division().projections(layer.qkv, thread);
  if (!owns_heads()) {
    part(queries, 0);
    team_.barrier(thread);
    return;
  }
  part(queries, query_first(thread));
  part(keys, key_first(thread));
  part(values, value_first(thread));
}

// The column of a whole row that would lie at the start of this thread's memory. Its queries lie there, then its keys,
// then its values.
int Runtime::query_first(int thread) const { return head_columns(thread).begin; }
int Runtime::key_first(int thread) const {
  const Range heads = head_columns(thread), mine = share(model_.dims.kv_heads, thread);
  return (model_.dims.heads + mine.begin) * model_.dims.head_dim - (heads.end - heads.begin);
}
int Runtime::value_first(int thread) const {
  const Range mine = share(model_.dims.kv_heads, thread);
  return key_first(thread) + (model_.dims.kv_heads - (mine.end - mine.begin)) * model_.dims.head_dim;
}

void Runtime::rotate(const StepInput& in, const Layer& layer, int row, int kv_head, int thread) {
  const Dims& d = model_.dims;
  const int position = in.positions[row], hd = d.head_dim, per = d.heads / d.kv_heads;
  const auto at = [&](int first) {
    const Rows rows = view(qkv_, first, thread);
    return rows.data + row * rows.ld;
  };
  float* q = at(query_first(thread));
  float* k = at(key_first(thread)) + (d.heads + kv_head) * hd;
  const float* v = at(value_first(thread)) + (d.heads + d.kv_heads + kv_head) * hd;
  const float* cos = model_.cos + static_cast<size_t>(position) * (d.rotary / 2);
  const float* sin = model_.sin + static_cast<size_t>(position) * (d.rotary / 2);
  float scale = 1.44269504f / std::sqrt(static_cast<float>(hd));  // softmax in base 2
  if (d.query_beta != 0.f) scale *= 1.f + d.query_beta * std::log(1.f + static_cast<float>(position / d.query_context));
  for (int h = kv_head * per; h < (kv_head + 1) * per; h++)
    ops_->norm_rope(q + h * hd, layer.q_norm, d.eps, cos, sin, hd, d.rotary, scale);
  ops_->norm_rope(k, layer.k_norm, d.eps, cos, sin, hd, d.rotary, 1.f);
  const int32_t* table = in.tables + in.sequences[row] * in.table_stride;
  ops_->store_kv(cache_, table[position / kBlockTokens], layer.cache, kv_head, position % kBlockTokens, k, v);
}

// Stores the keys and values of all rows; those from `from` on attend.
void Runtime::attention(const StepInput& in, const Layer& layer, Rows out, int from, int thread) {
  const Dims& d = model_.dims;
  const int per = d.heads / d.kv_heads, threads = team_.size();
  const size_t hd = d.head_dim;
  const Rows q = view(qkv_, query_first(thread), thread);
  // At most `most` rows of one sequence from `row` on: they read its keys and values together.
  const auto together = [&](int row, int most) {
    int count = 1;
    while (count < most && row + count < in.rows && in.sequences[row + count] == in.sequences[row]) count++;
    return count;
  };
  const auto attend = [&](int row, int rows, int kv_head, int first, int heads) {
    const size_t head = kv_head * per + first;
    const Queries queries{
        q.data + row * q.ld + head * hd, q.ld,         out.data + row * out.ld + head * hd,       out.ld, rows, heads,
        in.positions[row] + 1,           layer.window, layer.sinks ? layer.sinks + head : nullptr};
    ops_->attend(cache_, in.tables + in.sequences[row] * in.table_stride, layer.cache, kv_head, queries,
                 workers_[thread].attention);
    if (!d.gated) return;
    const size_t gates = (d.heads + 2 * d.kv_heads) * hd;  // heads are not owned: whole rows
    for (int m = row; m < row + rows; m++)
      ops_->gate(out.data + m * out.ld + head * hd, q.data + m * q.ld + gates + head * hd, heads * d.head_dim);
  };
  if (owns_heads()) {
    const Range mine = share(d.kv_heads, thread);
    for (int h = mine.begin; h < mine.end; h++) {
      for (int row = 0; row < in.rows; row++) rotate(in, layer, row, h, thread);
      for (int row = from, rows; row < in.rows; row += rows) attend(row, rows = together(row, in.rows), h, 0, per);
    }
    return;
  }
  const Range mine = share(in.rows * d.kv_heads, thread);
  for (int u = mine.begin; u < mine.end; u++) rotate(in, layer, u / d.kv_heads, u % d.kv_heads, thread);
  team_.barrier(thread);
  // Few rows: split the query heads of a KV head as well, so that every thread has work.
  constexpr int kTogether = 4;
  const int units = (in.rows - from + kTogether - 1) / kTogether * d.kv_heads;
  const int parts = std::clamp(threads / std::max(units, 1), 1, per);
  for (int row = from, rows, unit = 0; row < in.rows; row += rows) {
    rows = together(row, kTogether);
    for (int u = 0; u < d.kv_heads * parts; u++, unit++) {
      if (unit % threads != thread) continue;
      const int part = u % parts, first = per * part / parts;
      attend(row, rows, u / parts, first, per * (part + 1) / parts - first);
    }
  }
}

void Runtime::embed_row(int32_t token, float* row) const {
  const int width = model_.dims.d_model;
  if (model_.embed)
    ops_->widen(model_.embed + static_cast<size_t>(token) * width, width, row);
  else
    ops_->embed(model_.head, token, row);
}

void Runtime::embed(const StepInput& in, Rows x, Range mine, int thread) {
  const Buffer& whole = apart_ ? hidden_ : x_;
  const Range r = share(in.rows, thread);
  for (int m = r.begin; m < r.end; m++) embed_row(in.tokens[m], whole.data + m * whole.ld);
  if (!apart_) return;
  team_.barrier(thread);
  for (int m = 0; m < in.rows; m++)
    std::copy(whole.data + m * whole.ld + mine.begin, whole.data + m * whole.ld + mine.end,
              x.data + m * x.ld + mine.begin);
}

void Runtime::body(const StepInput& in, float* logits, size_t ld, int thread) {
  const Dims& d = model_.dims;
  int rows = in.rows;
  const Layer& first = model_.layers[0];
  const Range heads = head_columns(thread), mine = columns(first.o, thread);
  Rows x = view(x_, mine.begin, thread), attn = view(attn_, heads.begin, thread);
  embed(in, x, mine, thread);
  Acts acts = hand_over(x, first.attn_norm, first.qkv, acts_, rows, mine, thread);

  for (int l = 0; l < d.layers; l++) {
    const Layer& layer = model_.layers[l];
    if (layer.delta) {
      project_delta(layer, x, acts, rows, thread);
      delta(in, layer, attn, thread);
    } else {
      project(layer, acts, rows, thread);
      attention(in, layer, attn, 0, thread);
    }
    const bool last = l + 1 == d.layers;
    if (last && in.wanted != rows && !d.draft_vocab) {
      // The keys and values of every row are stored; the rest is computed only for the rows whose logits are needed.
      rows = in.wanted;
      if (rows == 0) return;
      if (!apart_) team_.barrier(thread);
      gather(x, apart_ ? mine : share_columns(d.d_model, thread), in);
      gather(attn, apart_ ? heads : share_columns(layer.o.cols, thread), in);
    }
    finish(layer, attn, x, rows, heads, mine, thread);
    if (last && d.draft_vocab) {
      record(x, rows, thread);
      if (in.wanted != rows) {
        rows = in.wanted;
        if (rows == 0) return;
        team_.barrier(thread);
        gather(x, share_columns(d.d_model, thread), in);
      }
    }
    const float* weight = last ? model_.final_norm : model_.layers[l + 1].attn_norm;
    acts = hand_over(x, weight, last ? model_.head : model_.layers[l + 1].qkv, acts_, rows, mine, thread);
  }

  Best* best = workers_[thread].best;
  for (int i = 0; i < rows; i++) clear(best[i]);
  const Range r = tiles(model_.head, thread);
  ops_->linear_argmax(model_.head, r.begin, r.end, acts, rows, workers_[thread].tile, best, logits, ld);
}

// The rest of a layer after attention: the output projection and the residual, then the feed-forward network.
void Runtime::finish(const Layer& layer, Rows attn, Rows x, int rows, Range heads, Range mine, int thread) {
  uint8_t* tile = workers_[thread].tile;
  Acts acts = hand_over(attn, nullptr, layer.o, other_acts_, rows, heads, thread);
  Range r = tiles(layer.o, thread);
  ops_->linear_add(layer.o, r.begin, r.end, acts, rows, tile, x.data, x.ld);
  if (layer.o_bias)
    for (int m = 0; m < rows; m++)
      for (int c = columns(layer.o, thread).begin; c < columns(layer.o, thread).end; c++)
        x.data[m * x.ld + c] += layer.o_bias[c];
  if (model_.dims.experts) {
    experts(layer, x, rows, mine, thread);
    return;
  }
  acts = hand_over(x, layer.ffn_norm, layer.gate_up, acts_, rows, mine, thread);
  r = tiles(layer.gate_up, thread);
  const Range hidden = hidden_columns(layer, thread);
  const Rows out = view(hidden_, hidden.begin, thread);
  ops_->linear_swiglu(layer.gate_up, r.begin / 2, r.end / 2, acts, rows, tile, out.data, out.ld);

  acts = hand_over(out, nullptr, layer.down, other_acts_, rows, hidden, thread);
  r = tiles(layer.down, thread);
  ops_->linear_add(layer.down, r.begin, r.end, acts, rows, tile, x.data, x.ld);
}

Range Runtime::share_columns(int width, int thread) const {
  const Range r = share(width / kTileRows, thread);
  return {r.begin * kTileRows, r.end * kTileRows};
}

// Moves some columns of the requested rows to the front. They ascend, so none is overwritten before it is read.
void Runtime::gather(Rows x, Range columns, const StepInput& in) const {
  for (int i = 0; i < in.wanted; i++) {
    const float* from = x.data + in.wanted_rows[i] * x.ld;
    float* to = x.data + i * x.ld;
    if (from != to) std::copy(from + columns.begin, from + columns.end, to + columns.begin);
  }
}

void Runtime::step(const StepInput& in, int32_t* out, float* logits, size_t ld) {
  const auto sequences = [&](auto&& visit) {  // slot, first position and rows of each
    for (int row = 0, next; !states_.empty() && row < in.rows; row = next) {
      for (next = row + 1; next < in.rows && in.sequences[next] == in.sequences[row];) next++;
      visit(in.sequences[row], in.positions[row], next - row);
    }
  };
  sequences([&](int slot, int position, int) { states_.begin(slot, position); });
  if (model_.dims.draft_vocab)
    sequences([&, row = 0](int slot, int position, int rows) mutable {
      drafts_.begin(slot, position, rows, in.tokens + row);
      for (int m = 0; m < rows; m++) recorded_[row++] = drafts_.hidden(drafts_[slot], position + m);
    });
  team_.set_alone(pace_.alone(team_.threads()));
  apart_ = whole_ && team_.size() > 1 && in.rows > kNarrow;
  const auto start = Pace::Clock::now();
  team_.run([&](int thread) { body(in, logits, ld, thread); });
  sequences([&](int slot, int position, int rows) { states_.advance(slot, position, rows); });
  if (in.rows == 1) pace_.observe(team_.size() == 1, Pace::Clock::now() - start);
  for (int i = 0; i < in.wanted; i++) {
    Best& best = workers_[0].best[i];
    for (int t = 1; t < team_.size(); t++) merge(best, workers_[t].best[i]);
    out[i] = argmax(best);
  }
  if (model_.dims.draft_vocab)
    sequences([&](int slot, int, int) {
      if (drafts_[slot].waiting() >= DraftLogs::kLong) catch_up(slot, in.tables, in.table_stride);
    });
}

void Runtime::save(int slot, int position, int snapshot) {
  states_.save(*ops_, slot, position, snapshot);
  if (model_.dims.draft_vocab) drafts_.save(slot, position, snapshot);
}
void Runtime::restore(int snapshot, int slot) {
  states_.restore(snapshot, slot);
  if (model_.dims.draft_vocab) drafts_.restore(snapshot, slot);
}
void Runtime::copy(int source, int target) {
  states_.copy(source, target);
  if (model_.dims.draft_vocab) drafts_.copy(source, target);
}

int64_t Runtime::scan(int context, bool multiply) {
  const Dims& d = model_.dims;
  const auto start = Pace::Clock::now();
  team_.set_alone(false);
  team_.run([&](int thread) {
    uint64_t sum = 0;
    const auto product = [&](const Matrix& w, Range r) {
      if (multiply) {
        sum += ops_->scan(w, r.begin, r.end);
      } else {
        for (int tile = r.begin / w.interleave * w.interleave; tile < r.end; tile += w.interleave)
          sum += ops_->read(w.block(tile), w.block_bytes());
      }
    };
    const Range heads = share(d.kv_heads, thread);
    // Experts: as many as a row chooses, in turn from layer to layer.
    const auto chosen = [&](const Experts& experts, int l) {
      for (int i = 0; i < d.chosen; i++) {
        const Matrix w = experts[(l * d.chosen + i) % d.experts];
        const Range r = tiles(w, thread);
        if (w.interleave == 2 && r.end > r.begin)
          sum += ops_->read(w.block(r.begin), w.block_bytes() * ((r.end - r.begin + 1) / 2));
      }
    };
    for (int l = 0; l < d.layers; l++) {
      const Layer& layer = model_.layers[l];
      for (const Range r : division().projections(layer.qkv, thread)) product(layer.qkv, r);
      for (int h = heads.begin; h < heads.end && !layer.delta; h++)
        for (int b = 0; b < std::min(cache_.blocks, context / kBlockTokens); b++)
          for (const uint32_t* part : {cache_.keys(b, layer.cache, h), cache_.values(b, layer.cache, h)})
            sum += ops_->read(reinterpret_cast<const uint8_t*>(part), cache_.half() * 4);
      for (const Matrix* w : {&layer.o, &layer.gate_up, &layer.down})
        if (w->rows) product(*w, tiles(*w, thread));
      if (d.experts) chosen(layer.expert_gate_up, l), chosen(layer.expert_down, l);
    }
    product(model_.head, tiles(model_.head, thread));
    workers_[thread].best[0].index[0] =
        static_cast<int32_t>(sum);  // the result is used, so the compiler keeps the loops
  });
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Pace::Clock::now() - start).count();
}

void Runtime::copy_block(int source, int target) {
  const size_t bytes = cache_.half() * 4;
  for (int l = 0; l < cache_.layers; l++)
    for (int h = 0; h < cache_.kv_heads; h++) {
      std::memcpy(cache_.keys(target, l, h), cache_.keys(source, l, h), bytes);
      std::memcpy(cache_.values(target, l, h), cache_.values(source, l, h), bytes);
    }
}

}  // namespace fulgur
