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

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

namespace fulgur {

constexpr int kNarrow = 4;
constexpr size_t kHuge = size_t{2} << 20;

Arena::Arena(size_t bytes) : bytes_((bytes + kHuge - 1) & ~(kHuge - 1)) {
  void* p = mmap(nullptr, bytes_ + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  const auto address = reinterpret_cast<uintptr_t>(p);
  const auto aligned = (address + kHuge - 1) & ~(kHuge - 1);
  if (aligned > address) munmap(p, aligned - address);
  const auto rest = address + kHuge - aligned;
  if (rest) munmap(reinterpret_cast<void*>(aligned + bytes_), rest);
  data_ = reinterpret_cast<uint8_t*>(aligned);
#ifdef MADV_HUGEPAGE
  madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
}
Arena::~Arena() { munmap(data_, bytes_); }

namespace {

struct Carver {
  uintptr_t base;
  size_t used = 0;
  template <class T>
  T* take(size_t count) {
    T* p = reinterpret_cast<T*>(base + used);
    used += (count * sizeof(T) + 127) & ~size_t{127};
    return p;
  }
};

size_t widest(const Dims& d) { return std::max({d.d_model, d.heads * d.head_dim, d.d_ffn}); }

Acts take_acts(Carver& c, const Dims& d, int rows) {
  Acts a;
  const size_t groups = widest(d) / 32;
  a.stride = widest(d) + 64;  // off the power of two, so that rows do not share cache sets
  a.group_stride = rows;
  a.q = c.take<int8_t>(a.stride * rows);
  a.scale = c.take<float>(groups * rows);
  a.correction = c.take<int32_t>(groups * rows);
  a.square = c.take<float>(groups * rows);
  return a;
}

KvCache cache_of(const Dims& d, int blocks) { return {nullptr, d.layers, d.kv_heads, d.head_dim, blocks}; }

}  // namespace

Runtime::Runtime(Model model, int kv_blocks, int threads, const Ops* ops)
    : model_(std::move(model)),
      ops_(ops),
      team_(threads),
      cache_(cache_of(model_.dims, kv_blocks)),
      kv_(cache_.size() * 4),
      workers_(threads) {
  cache_.data = reinterpret_cast<uint32_t*>(kv_.data());
  work_ = std::make_unique<Arena>(carve(nullptr));
  carve(work_->data());
  whole_ = whole_groups();
}

// Carves the buffers of a step out of `base` and returns the bytes they take; a first pass measures.
size_t Runtime::carve(uint8_t* base) {
  const Dims& d = model_.dims;
  const size_t rows = d.max_rows;
  Carver c{reinterpret_cast<uintptr_t>(base)};
  const auto take = [&](size_t width, auto&& mine) {
    int most = 0;
    for (int t = 0; t < team_.threads(); t++) most = std::max(most, mine(t).end - mine(t).begin);
    const size_t part = most + kTileRows, ld = width + kTileRows;  // padded: rows do not share cache sets
    return Buffer{c.take<float>(rows * std::max(ld, part * team_.threads())), ld, part};
  };
  const Layer& layer = model_.layers[0];
  const auto x_columns = [&](int t) { return columns(layer.down, t); };
  x_ = take(d.d_model, x_columns);
  qkv_ = take((d.heads + 2 * d.kv_heads) * d.head_dim, [&](int t) {
    const Range r = share(d.kv_heads, t);
    return Range{0, (r.end - r.begin) * (d.heads / d.kv_heads + 2) * d.head_dim};
  });
  attn_ = take(d.heads * d.head_dim, [&](int t) { return head_columns(t); });
  hidden_ = take(std::max(d.d_ffn, d.d_model), [&](int t) { return hidden_columns(layer, t); });
  acts_ = take_acts(c, d, d.max_rows);
  other_acts_ = take_acts(c, d, d.max_rows);
  for (Worker& w : workers_) {
    w.acts = take_acts(c, d, kNarrow);
    w.scales = c.take<float>(widest(d) / 32 * rows);
    w.best = c.take<Best>(rows);
    w.tile = c.take<uint8_t>(scratch_bytes(*ops_, static_cast<int>(widest(d))));
    w.attention = c.take<float>(attention_scratch(d.context));
  }
  return c.used;
}

// The columns that this thread writes of the result of a product, of SwiGLU, of attention.
Range Runtime::columns(const Matrix& w, int thread) const {
  const Range r = tiles(w, thread);
  return {r.begin * kTileRows, std::min(r.end * kTileRows, w.rows)};
}
Range Runtime::hidden_columns(const Layer& layer, int thread) const {
  const Range r = columns(layer.gate_up, thread);
  return {r.begin / 2, r.end / 2};
}
Range Runtime::head_columns(int thread) const {
  const Range r = share(model_.dims.kv_heads, thread);
  const int width = model_.dims.heads / model_.dims.kv_heads * model_.dims.head_dim;
  return {r.begin * width, r.end * width};
}

bool Runtime::whole_groups() const {
  const auto divides = [](int group, Range r) { return r.begin % group == 0 && r.end % group == 0; };
  bool whole = owns_heads();
  for (int t = 0; t < team_.threads(); t++) {
    const Range x = columns(model_.layers[0].down, t), hidden = hidden_columns(model_.layers[0], t);
    whole = whole && divides(model_.head.group, x);
    for (const Layer& l : model_.layers)
      whole = whole && columns(l.o, t) == x && columns(l.down, t) == x && hidden_columns(l, t) == hidden &&
              divides(l.qkv.group, x) && divides(l.gate_up.group, x) && divides(l.down.group, hidden) &&
              divides(l.o.group, head_columns(t));
  }
  return whole;
}

// Where this thread's columns lie; the first of them is `first`.
Runtime::Rows Runtime::view(const Buffer& buffer, int first, int thread) const {
  if (!apart_) return {buffer.data, buffer.ld};
  return {buffer.data + static_cast<size_t>(thread) * model_.dims.max_rows * buffer.part_ld - first, buffer.part_ld};
}

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

void Runtime::rotate(const StepInput& in, const Layer& layer, int index, int row, int kv_head, int thread) {
  const Dims& d = model_.dims;
  const int position = in.positions[row], hd = d.head_dim, per = d.heads / d.kv_heads;
  const auto at = [&](int first) {
    const Rows rows = view(qkv_, first, thread);
    return rows.data + row * rows.ld;
  };
  float* q = at(query_first(thread));
  float* k = at(key_first(thread)) + (d.heads + kv_head) * hd;
  const float* v = at(value_first(thread)) + (d.heads + d.kv_heads + kv_head) * hd;
  const float* cos = model_.cos + static_cast<size_t>(position) * (hd / 2);
  const float* sin = model_.sin + static_cast<size_t>(position) * (hd / 2);
  const float scale = 1.44269504f / std::sqrt(static_cast<float>(hd));  // softmax in base 2
  for (int h = kv_head * per; h < (kv_head + 1) * per; h++)
    ops_->norm_rope(q + h * hd, layer.q_norm, d.eps, cos, sin, hd, scale);
  ops_->norm_rope(k, layer.k_norm, d.eps, cos, sin, hd, 1.f);
  const int32_t* table = in.tables + in.sequences[row] * in.table_stride;
  ops_->store_kv(cache_, table[position / kBlockTokens], index, kv_head, position % kBlockTokens, k, v);
}

void Runtime::attention(const StepInput& in, const Layer& layer, int index, Rows out, int thread) {
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
    const Queries queries{q.data + row * q.ld + head * hd,
                          q.ld,
                          out.data + row * out.ld + head * hd,
                          out.ld,
                          rows,
                          heads,
                          in.positions[row] + 1};
    ops_->attend(cache_, in.tables + in.sequences[row] * in.table_stride, index, kv_head, queries,
                 workers_[thread].attention);
  };
  if (owns_heads()) {
    const Range mine = share(d.kv_heads, thread);
    for (int h = mine.begin; h < mine.end; h++) {
      for (int row = 0; row < in.rows; row++) rotate(in, layer, index, row, h, thread);
      for (int row = 0, rows; row < in.rows; row += rows) attend(row, rows = together(row, in.rows), h, 0, per);
    }
    return;
  }
  const Range mine = share(in.rows * d.kv_heads, thread);
  for (int u = mine.begin; u < mine.end; u++) rotate(in, layer, index, u / d.kv_heads, u % d.kv_heads, thread);
  team_.barrier(thread);
  // Few rows: split the query heads of a KV head as well, so that every thread has work.
  constexpr int kTogether = 4;
  const int units = (in.rows + kTogether - 1) / kTogether * d.kv_heads;
  const int parts = std::clamp(threads / units, 1, per);
  for (int row = 0, rows, unit = 0; row < in.rows; row += rows) {
    rows = together(row, kTogether);
    for (int u = 0; u < d.kv_heads * parts; u++, unit++) {
      if (unit % threads != thread) continue;
      const int part = u % parts, first = per * part / parts;
      attend(row, rows, u / parts, first, per * (part + 1) / parts - first);
    }
  }
}

void Runtime::embed(const StepInput& in, Rows x, Range mine, int thread) {
  const Dims& d = model_.dims;
  const Buffer& whole = apart_ ? hidden_ : x_;
  const Range r = share(in.rows, thread);
  for (int m = r.begin; m < r.end; m++) {
    float* row = whole.data + m * whole.ld;
    if (model_.embed)
      ops_->widen(model_.embed + static_cast<size_t>(in.tokens[m]) * d.d_model, d.d_model, row);
    else
      ops_->embed(model_.head, in.tokens[m], row);
  }
  if (!apart_) return;
  team_.barrier(thread);
  for (int m = 0; m < in.rows; m++)
    std::copy(whole.data + m * whole.ld + mine.begin, whole.data + m * whole.ld + mine.end,
              x.data + m * x.ld + mine.begin);
}

void Runtime::body(const StepInput& in, float* logits, size_t ld, int thread) {
  const Dims& d = model_.dims;
  int rows = in.rows;
  uint8_t* tile = workers_[thread].tile;
  const Layer& first = model_.layers[0];
  const Range heads = head_columns(thread), mine = columns(first.down, thread);
  Rows x = view(x_, mine.begin, thread), attn = view(attn_, heads.begin, thread);
  embed(in, x, mine, thread);
  Acts acts = hand_over(x, first.attn_norm, first.qkv, acts_, rows, mine, thread);

  for (int l = 0; l < d.layers; l++) {
    const Layer& layer = model_.layers[l];
    project(layer, acts, rows, thread);
    attention(in, layer, l, attn, thread);
    if (l == d.layers - 1 && in.wanted != rows) {
      // The keys and values of every row are stored; the rest is computed only for the rows whose logits are needed.
      rows = in.wanted;
      if (rows == 0) return;
      if (!apart_) team_.barrier(thread);
      gather(x, apart_ ? mine : share_columns(d.d_model, thread), in);
      gather(attn, apart_ ? heads : share_columns(d.heads * d.head_dim, thread), in);
    }
    acts = hand_over(attn, nullptr, layer.o, other_acts_, rows, heads, thread);
    Range r = tiles(layer.o, thread);
    ops_->linear_add(layer.o, r.begin, r.end, acts, rows, tile, x.data, x.ld);

    acts = hand_over(x, layer.ffn_norm, layer.gate_up, acts_, rows, mine, thread);
    r = tiles(layer.gate_up, thread);
    const Range hidden = hidden_columns(layer, thread);
    const Rows out = view(hidden_, hidden.begin, thread);
    ops_->linear_swiglu(layer.gate_up, r.begin / 2, r.end / 2, acts, rows, tile, out.data, out.ld);

    acts = hand_over(out, nullptr, layer.down, other_acts_, rows, hidden, thread);
    r = tiles(layer.down, thread);
    ops_->linear_add(layer.down, r.begin, r.end, acts, rows, tile, x.data, x.ld);

    const bool last = l + 1 == d.layers;
    const float* weight = last ? model_.final_norm : model_.layers[l + 1].attn_norm;
    acts = hand_over(x, weight, last ? model_.head : model_.layers[l + 1].qkv, acts_, rows, mine, thread);
  }

  Best* best = workers_[thread].best;
  for (int i = 0; i < rows; i++) clear(best[i]);
  const Range r = tiles(model_.head, thread);
  ops_->linear_argmax(model_.head, r.begin, r.end, acts, rows, tile, best, logits, ld);
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
  team_.set_alone(pace_.alone(team_.threads()));
  apart_ = whole_ && team_.size() > 1 && in.rows > kNarrow;
  const auto start = Pace::Clock::now();
  team_.run([&](int thread) { body(in, logits, ld, thread); });
  if (in.rows == 1) pace_.observe(team_.size() == 1, Pace::Clock::now() - start);
  for (int i = 0; i < in.wanted; i++) {
    Best& best = workers_[0].best[i];
    for (int t = 1; t < team_.size(); t++) merge(best, workers_[t].best[i]);
    out[i] = argmax(best);
  }
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
    for (int l = 0; l < d.layers; l++) {
      const Layer& layer = model_.layers[l];
      for (const Range r : division().projections(layer.qkv, thread)) product(layer.qkv, r);
      for (int h = heads.begin; h < heads.end; h++)
        for (int b = 0; b < std::min(cache_.blocks, context / kBlockTokens); b++)
          for (const uint32_t* part : {cache_.keys(b, l, h), cache_.values(b, l, h)})
            sum += ops_->read(reinterpret_cast<const uint8_t*>(part), cache_.half() * 4);
      product(layer.o, tiles(layer.o, thread));
      product(layer.gate_up, tiles(layer.gate_up, thread));
      product(layer.down, tiles(layer.down, thread));
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
