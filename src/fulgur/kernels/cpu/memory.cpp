// The memory of a step: huge pages, the buffers carved out of them, and which columns of a buffer belong to a thread.
#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "runtime.h"

namespace fulgur {

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

size_t widest(const Dims& d) {
  return std::max({d.d_model * (d.draft_vocab ? 2 : 1), d.heads * d.head_dim, d.d_ffn, d.d_expert, d.delta_values()});
}
int qkv_width(const Dims& d) {
  const int attention = (d.heads * (d.gated ? 2 : 1) + 2 * d.kv_heads) * d.head_dim;
  return std::max(attention, d.k_heads ? d.channels() + d.delta_values() : 0);
}
int attention_layers(const Model& model) {
  return static_cast<int>(
      std::count_if(model.layers.begin(), model.layers.end(), [](const Layer& l) { return !l.delta; }));
}

Acts take_acts(Carver& c, const Dims& d, size_t rows) {
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

KvCache cache_of(const Model& model, int blocks) {
  const Dims& d = model.dims;
  return {nullptr, attention_layers(model) + (d.draft_vocab ? 1 : 0), d.kv_heads, d.head_dim, blocks, d.kv_bits};
}

}  // namespace

Runtime::Runtime(Model model, int kv_blocks, int threads, int snapshots, const Ops* ops)
    : model_(std::move(model)),
      ops_(ops),
      team_(threads),
      cache_(cache_of(model_, kv_blocks)),
      kv_(cache_.size() * 4),
      states_(model_.dims, model_.dims.layers - attention_layers(model_), snapshots),
      drafts_(model_.dims.draft_vocab ? model_.dims.slots : 0, snapshots, model_.dims.d_model),
      recorded_(model_.dims.max_rows),
      drafted_(model_.dims.d_model),
      workers_(threads) {
  cache_.data = reinterpret_cast<uint32_t*>(kv_.data());
  work_ = std::make_unique<Arena>(carve(nullptr));
  carve(work_->data());
  whole_ = plain() && whole_groups();
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
  x_ = take(d.d_model, [&](int t) { return columns(layer.o, t); });
  qkv_ = take(qkv_width(d), [&](int t) {
    const Range r = share(d.kv_heads, t);
    return Range{0, (r.end - r.begin) * (d.heads / d.kv_heads + 2) * d.head_dim};
  });
  attn_ = take(std::max(d.heads * d.head_dim, d.delta_values()), [&](int t) { return head_columns(t); });
  hidden_ =
      take(std::max(d.d_ffn, d.d_model * (d.draft_vocab ? 2 : 1)), [&](int t) { return hidden_columns(layer, t); });
  acts_ = take_acts(c, d, d.max_rows);
  other_acts_ = take_acts(c, d, d.max_rows);
  const size_t pairs = rows * d.chosen;
  if (d.experts) {
    pair_hidden_ = {c.take<float>(pairs * (d.d_expert + kTileRows)), static_cast<size_t>(d.d_expert) + kTileRows, 0};
    expert_out_ = {c.take<float>(rows * (d.d_model + kTileRows)), static_cast<size_t>(d.d_model) + kTileRows, 0};
    pair_acts_ = take_acts(c, d, pairs);
    logits_ = c.take<float>(rows * (d.experts + 1));
    routes_ = c.take<Route>(pairs);
  }
  if (d.k_heads) ba_ = c.take<float>(rows * 2 * d.v_heads);
  for (Worker& w : workers_) {
    if (d.experts) {
      w.gathered = take_acts(c, d, rows);
      w.pairs = c.take<int32_t>(pairs);
      w.starts = c.take<int32_t>(d.experts + 1);
    }
    if (d.experts || d.k_heads || d.draft_vocab) w.row = c.take<float>(d.d_model);
    if (d.k_heads) w.state = c.take<float>(static_cast<size_t>(d.k_dim) * d.v_dim + 4 * d.v_dim + 2 * rows * d.k_dim);
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
    const Range x = columns(model_.layers[0].o, t), hidden = hidden_columns(model_.layers[0], t);
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

}  // namespace fulgur
