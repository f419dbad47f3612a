// A step, phase by phase. Every phase splits its output rows among the threads, so no partial sums are exchanged and
// the weights of a thread are one contiguous stream:
//
//   norm + quantise -> qkv, rotate, store KV, attend | quantise -> o, residual |
//   norm + quantise -> gate/up, silu | quantise -> down, residual |          ("|" is a barrier)
//   norm + quantise -> head, argmax
//
// Narrow steps quantise redundantly in every thread, which costs less than one more barrier; wide ones share it out.
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
  a.stride = widest(d) + 64;  // off the power of two, so that rows do not share cache sets
  a.group_stride = widest(d) / 32 + 16;
  a.q = c.take<int8_t>(a.stride * rows);
  a.scale = c.take<float>(a.group_stride * rows);
  a.correction = c.take<int32_t>(a.group_stride * rows);
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
}

// Hands out the buffers of a step from `base`; returns the bytes they take, so that a first pass can measure.
size_t Runtime::carve(uint8_t* base) {
  const Dims& d = model_.dims;
  const size_t rows = d.max_rows;
  Carver c{reinterpret_cast<uintptr_t>(base)};
  const auto padded = [](size_t width) { return width + kTileRows; };  // rows do not share cache sets
  x_ld_ = padded(d.d_model);
  qkv_ld_ = padded(static_cast<size_t>(d.heads + 2 * d.kv_heads) * d.head_dim);
  attn_ld_ = padded(static_cast<size_t>(d.heads) * d.head_dim);
  hidden_ld_ = padded(d.d_ffn);
  x_ = c.take<float>(rows * x_ld_);
  wanted_x_ = c.take<float>(rows * x_ld_);
  qkv_ = c.take<float>(rows * qkv_ld_);
  attn_ = c.take<float>(rows * attn_ld_);
  hidden_ = c.take<float>(rows * hidden_ld_);
  acts_ = take_acts(c, d, d.max_rows);
  for (Worker& w : workers_) {
    w.acts = take_acts(c, d, kNarrow);
    w.best = c.take<Best>(rows);
    w.tile = c.take<uint8_t>(scratch_bytes(*ops_, static_cast<int>(widest(d))));
    w.attention = c.take<float>(attention_scratch(d.context));
  }
  return c.used;
}

Runtime::Range Runtime::share(int count, int thread) const {
  const int n = team_.size();
  return {static_cast<int>(static_cast<int64_t>(count) * thread / n),
          static_cast<int>(static_cast<int64_t>(count) * (thread + 1) / n)};
}

// Whole blocks of tiles, and gate with up.
Runtime::Range Runtime::tiles(const Matrix& w, int thread) const {
  const int unit = std::max(w.abreast, 2), count = w.tiles();
  const Range r = share((count + unit - 1) / unit, thread);
  return {std::min(r.begin * unit, count), std::min(r.end * unit, count)};
}

// Rows of x (as long as w has columns), normed where a weight is given, quantised for the product with w.
const Acts& Runtime::quantise(const float* x, size_t ld, const float* weight, const Matrix& w, int rows, int thread) {
  if (rows <= kNarrow) {
    const Acts& acts = workers_[thread].acts;
    for (int m = 0; m < rows; m++) ops_->norm_quantise(x + m * ld, weight, model_.dims.eps, w, acts, m);
    return acts;
  }
  const Range mine = share(rows, thread);
  for (int m = mine.begin; m < mine.end; m++) ops_->norm_quantise(x + m * ld, weight, model_.dims.eps, w, acts_, m);
  team_.barrier(thread);
  return acts_;
}

// Where the threads divide the KV heads evenly, each computes the query, key and value rows of its own heads and needs
// no barrier before it attends.
void Runtime::project(const Layer& layer, const Acts& acts, int rows, int thread) {
  const Dims& d = model_.dims;
  const auto part = [&](int begin, int end) {
    ops_->linear(layer.qkv, begin, end, acts, rows, workers_[thread].tile, layer.qkv_bias, qkv_, qkv_ld_);
  };
  if (!owns_heads()) {
    const Range r = tiles(layer.qkv, thread);
    part(r.begin, r.end);
    team_.barrier(thread);
    return;
  }
  const int per_head = d.head_dim / kTileRows, group = d.heads / d.kv_heads;
  const Range mine = share(d.kv_heads, thread);
  part(mine.begin * group * per_head, mine.end * group * per_head);
  for (int offset : {d.heads, d.heads + d.kv_heads})
    part((offset + mine.begin) * per_head, (offset + mine.end) * per_head);
}

void Runtime::rotate(const StepInput& in, const Layer& layer, int index, int row, int kv_head) {
  const Dims& d = model_.dims;
  const int position = in.positions[row], hd = d.head_dim, per = d.heads / d.kv_heads;
  float* q = qkv_ + row * qkv_ld_;
  float* k = q + (d.heads + kv_head) * hd;
  const float* v = q + (d.heads + d.kv_heads + kv_head) * hd;
  const float* cos = model_.cos + static_cast<size_t>(position) * (hd / 2);
  const float* sin = model_.sin + static_cast<size_t>(position) * (hd / 2);
  const float scale = 1.44269504f / std::sqrt(static_cast<float>(hd));  // softmax in base 2
  for (int h = kv_head * per; h < (kv_head + 1) * per; h++)
    ops_->norm_rope(q + h * hd, layer.q_norm, d.eps, cos, sin, hd, scale);
  ops_->norm_rope(k, layer.k_norm, d.eps, cos, sin, hd, 1.f);
  const int32_t* table = in.tables + in.sequences[row] * in.table_stride;
  ops_->store_kv(cache_, table[position / kBlockTokens], index, kv_head, position % kBlockTokens, k, v);
}

void Runtime::attention(const StepInput& in, const Layer& layer, int index, int thread) {
  const Dims& d = model_.dims;
  const int per = d.heads / d.kv_heads, threads = team_.size();
  const size_t hd = d.head_dim;
  // Rows of one sequence from `row` on, `most` of them at most, read its keys and values together.
  const auto together = [&](int row, int most) {
    int count = 1;
    while (count < most && row + count < in.rows && in.sequences[row + count] == in.sequences[row]) count++;
    return count;
  };
  const auto attend = [&](int row, int rows, int kv_head, int first, int heads) {
    const size_t head = kv_head * per + first;
    const Queries queries{qkv_ + row * qkv_ld_ + head * hd,
                          qkv_ld_,
                          attn_ + row * attn_ld_ + head * hd,
                          attn_ld_,
                          rows,
                          heads,
                          in.positions[row] + 1};
    ops_->attend(cache_, in.tables + in.sequences[row] * in.table_stride, index, kv_head, queries,
                 workers_[thread].attention);
  };
  if (owns_heads()) {
    const Range mine = share(d.kv_heads, thread);
    for (int h = mine.begin; h < mine.end; h++) {
      for (int row = 0; row < in.rows; row++) rotate(in, layer, index, row, h);
      for (int row = 0, rows; row < in.rows; row += rows) attend(row, rows = together(row, in.rows), h, 0, per);
    }
    return;
  }
  const Range mine = share(in.rows * d.kv_heads, thread);
  for (int u = mine.begin; u < mine.end; u++) rotate(in, layer, index, u / d.kv_heads, u % d.kv_heads);
  team_.barrier(thread);
  // Few rows: split the query heads of a KV head too, so that every thread has something to do.
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

void Runtime::body(const StepInput& in, float* logits, size_t ld, int thread) {
  const Dims& d = model_.dims;
  int rows = in.rows;
  uint8_t* tile = workers_[thread].tile;

  const Range mine = share(rows, thread);
  for (int m = mine.begin; m < mine.end; m++) {
    float* x = x_ + m * x_ld_;
    if (model_.embed)
      ops_->widen(model_.embed + static_cast<size_t>(in.tokens[m]) * d.d_model, d.d_model, x);
    else
      ops_->embed(model_.head, in.tokens[m], x);
  }
  team_.barrier(thread);

  float *x = x_, *attn = attn_;
  for (int l = 0; l < d.layers; l++) {
    const Layer& layer = model_.layers[l];
    const Acts* acts = &quantise(x, x_ld_, layer.attn_norm, layer.qkv, rows, thread);
    project(layer, *acts, rows, thread);
    attention(in, layer, l, thread);
    team_.barrier(thread);

    if (l == d.layers - 1 && in.wanted != rows) {
      // The keys and values of every row are stored; what is left is computed only for the rows whose logits count.
      rows = in.wanted;
      if (rows == 0) return;
      x = gather(x_, x_ld_, wanted_x_, in, thread);
      attn = gather(attn_, attn_ld_, qkv_, in, thread);
      team_.barrier(thread);
    }
    acts = &quantise(attn, attn_ld_, nullptr, layer.o, rows, thread);
    Range r = tiles(layer.o, thread);
    ops_->linear_add(layer.o, r.begin, r.end, *acts, rows, tile, x, x_ld_);
    team_.barrier(thread);

    acts = &quantise(x, x_ld_, layer.ffn_norm, layer.gate_up, rows, thread);
    r = tiles(layer.gate_up, thread);
    ops_->linear_swiglu(layer.gate_up, r.begin / 2, r.end / 2, *acts, rows, tile, hidden_, hidden_ld_);
    team_.barrier(thread);

    acts = &quantise(hidden_, hidden_ld_, nullptr, layer.down, rows, thread);
    r = tiles(layer.down, thread);
    ops_->linear_add(layer.down, r.begin, r.end, *acts, rows, tile, x, x_ld_);
    team_.barrier(thread);
  }

  const Acts& acts = quantise(x, x_ld_, model_.final_norm, model_.head, rows, thread);
  Best* best = workers_[thread].best;
  for (int i = 0; i < rows; i++) clear(best[i]);
  const Range r = tiles(model_.head, thread);
  ops_->linear_argmax(model_.head, r.begin, r.end, acts, rows, tile, best, logits, ld);
}

// Copies the wanted rows of `from` to the front of `to`, this thread's share of them.
float* Runtime::gather(const float* from, size_t width, float* to, const StepInput& in, int thread) const {
  const Range mine = share(in.wanted, thread);
  for (int i = mine.begin; i < mine.end; i++) std::memcpy(to + i * width, from + in.wanted_rows[i] * width, width * 4);
  return to;
}

void Runtime::step(const StepInput& in, int32_t* out, float* logits, size_t ld) {
  team_.set_alone(pace_.alone(team_.threads()));
  const auto start = Pace::Clock::now();
  team_.run([&](int thread) { body(in, logits, ld, thread); });
  if (in.rows == 1) pace_.observe(team_.size() == 1, Pace::Clock::now() - start);
  for (int i = 0; i < in.wanted; i++) {
    Best& best = workers_[0].best[i];
    for (int t = 1; t < team_.size(); t++) merge(best, workers_[t].best[i]);
    out[i] = argmax(best);
  }
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
