// The Python module fulgur.kernels.cpu._native. Shapes are checked here, once; the kernels trust them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "arrange.h"
#include "runtime.h"

namespace nb = nanobind;
using namespace fulgur;

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Halves = nb::ndarray<const uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using IntsOut = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

namespace {

std::vector<const Ops*> available() {  // best first; the emulated one is for tests and never chosen
  std::vector<const Ops*> list;
  for (const Ops* ops : {ops_amx(), ops_avx512bf16(), ops_avx512(), ops_avxvnni(), ops_avx2(), ops_portable()})
    if (ops) list.push_back(ops);
  return list;
}

const Ops* find_ops(const std::string& name) {
  if (name.empty()) return available().front();
  for (const Ops* ops : available())
    if (name == ops->name) return ops;
  if (name == "amx_emulated" && ops_amx_emulated()) return ops_amx_emulated();
  throw std::invalid_argument("this CPU or build has no kernels named '" + name + "'");
}

// A matrix in the file's layout; `data` still points into the file.
Matrix view(const Bytes& data, int bits, int group, int rows, int cols, const char* name) {
  Matrix m{data.data(), bits, group, rows, cols, 1};
  if ((bits != 4 && bits != 8) || group < 32 || group % 32 || cols % group || rows <= 0)
    throw std::invalid_argument(std::string(name) +
                                ": bits must be 4 or 8 and group a multiple of 32 that divides the columns");
  if (data.size() != m.file_bytes())
    throw std::invalid_argument(std::string(name) + ": " + std::to_string(data.size()) + " packed bytes, " +
                                std::to_string(m.file_bytes()) + " expected");
  return m;
}

// A model under construction: matrices and vectors by name, then one runtime over copies of them on huge pages.
class NativeRuntime {
 public:
  NativeRuntime(const nb::dict& dims, const nb::dict& matrices, const nb::dict& vectors,
                const std::optional<Halves>& embed, const Floats& cos, const Floats& sin, int kv_blocks, int threads,
                const std::string& isa) {
    const auto number = [&](const char* key) { return nb::cast<int>(dims[key]); };
    Dims d{number("vocab"),    number("d_model"), number("layers"),  number("heads"),    number("kv_heads"),
           number("head_dim"), number("d_ffn"),   number("context"), number("max_rows"), nb::cast<float>(dims["eps"])};
    if (d.heads % d.kv_heads || d.heads / d.kv_heads > 64 || d.head_dim % 16 || d.head_dim > 256 || d.d_model % 32 ||
        d.d_ffn % 32)
      throw std::invalid_argument(
          "the kernels need head_dim to be a multiple of 16, d_model and d_ffn of 32, and whole KV groups");

    const Ops* ops = find_ops(isa);
    size_t total = 0;
    std::map<std::string, Matrix> views;
    for (auto [key, value] : matrices) {
      const auto name = nb::cast<std::string>(key);
      const auto t = nb::cast<nb::tuple>(value);
      Matrix& m = views[name] = view(nb::cast<Bytes>(t[0]), nb::cast<int>(t[1]), nb::cast<int>(t[2]),
                                     nb::cast<int>(t[3]), nb::cast<int>(t[4]), name.c_str());
      m.interleave = choose_interleave(*ops, m, threads);
      total += m.bytes();
    }
    weights_ = std::make_unique<Arena>(total);
    const auto matrix = [&](const std::string& name, int rows, int cols) -> Matrix {
      const auto found = views.find(name);
      if (found == views.end()) throw std::invalid_argument("matrix '" + name + "' is missing");
      const Matrix& m = found->second;
      if (m.rows != rows || m.cols != cols)
        throw std::invalid_argument("matrix '" + name + "' is " + std::to_string(m.rows) + "x" +
                                    std::to_string(m.cols) + ", expected " + std::to_string(rows) + "x" +
                                    std::to_string(cols));
      return m;
    };
    const auto vector = [&](const std::string& name, size_t size, bool required) -> const float* {
      if (!vectors.contains(name.c_str())) {
        if (required) throw std::invalid_argument("vector '" + name + "' is missing");
        return nullptr;
      }
      return keep(nb::cast<Floats>(vectors[name.c_str()]), size, name);
    };

    Model model;
    model.dims = d;
    const int q_width = d.heads * d.head_dim, width = q_width + 2 * d.kv_heads * d.head_dim;
    for (int i = 0; i < d.layers; i++) {
      const std::string p = "layers." + std::to_string(i) + ".";
      Layer layer;
      layer.qkv = matrix(p + "qkv", width, d.d_model);
      layer.o = matrix(p + "o", d.d_model, q_width);
      layer.gate_up = matrix(p + "gate_up", 2 * d.d_ffn, d.d_model);
      layer.down = matrix(p + "down", d.d_model, d.d_ffn);
      layer.attn_norm = vector(p + "attn_norm", d.d_model, true);
      layer.ffn_norm = vector(p + "ffn_norm", d.d_model, true);
      layer.q_norm = vector(p + "q_norm", d.head_dim, false);
      layer.k_norm = vector(p + "k_norm", d.head_dim, false);
      layer.qkv_bias = vector(p + "qkv_bias", width, false);
      model.layers.push_back(layer);
    }
    model.head = matrix("head", d.vocab, d.d_model);
    model.final_norm = vector("final_norm", d.d_model, true);
    if (embed) {
      if (embed->size() != static_cast<size_t>(d.vocab) * d.d_model)
        throw std::invalid_argument("the embedding has the wrong size");
      embed_ = *embed;
      model.embed = embed_->data();
    } else {
      model.embed = nullptr;
    }
    blocks_ = arrange(model, threads, weights_->data());
    const size_t rope = static_cast<size_t>(d.context) * d.head_dim / 2;
    model.cos = keep(cos, rope, "cos");
    model.sin = keep(sin, rope, "sin");
    runtime_ = std::make_unique<Runtime>(std::move(model), kv_blocks, threads, ops);
    dims_ = d;
    kv_blocks_ = kv_blocks;
  }

  void step(const Ints& tokens, const Ints& positions, const Ints& sequences, const Table& tables, const Ints& wanted,
            const IntsOut& argmax, const std::optional<FloatsOut>& logits) {
    Runtime& runtime = alive();
    const int n = static_cast<int>(tokens.size()), m = static_cast<int>(wanted.size());
    if (n < 1 || n > dims_.max_rows)
      throw std::invalid_argument("a step takes 1 to " + std::to_string(dims_.max_rows) + " rows, not " +
                                  std::to_string(n));
    if (positions.size() != tokens.size() || sequences.size() != tokens.size() || argmax.size() < wanted.size() ||
        m > n)
      throw std::invalid_argument(
          "tokens, positions and sequences must have one length, and argmax room for every wanted row");
    for (int i = 0; i < n; i++) {
      const int token = tokens.data()[i], position = positions.data()[i], sequence = sequences.data()[i];
      if (token < 0 || token >= dims_.vocab)
        throw std::out_of_range("token " + std::to_string(token) + " is not in the vocabulary");
      if (sequence < 0 || sequence >= static_cast<int>(tables.shape(0)))
        throw std::out_of_range("row " + std::to_string(i) + " names sequence " + std::to_string(sequence) +
                                ", which has no table");
      if (position < 0 || position >= dims_.context || position / kBlockTokens >= static_cast<int>(tables.shape(1)))
        throw std::out_of_range("position " + std::to_string(position) + " is outside the context or the block table");
      const int32_t* table = tables.data() + sequence * tables.shape(1);
      // The rows of a sequence ascend, so only its first row needs a check of the whole table.
      for (int b = i && sequences.data()[i - 1] == sequence ? position / kBlockTokens : 0; b <= position / kBlockTokens;
           b++)
        if (table[b] < 0 || table[b] >= kv_blocks_)
          throw std::out_of_range("KV block " + std::to_string(table[b]) + " of sequence " + std::to_string(sequence) +
                                  " does not exist");
    }
    for (int i = 0; i < m; i++)
      if (wanted.data()[i] < (i ? wanted.data()[i - 1] + 1 : 0) || wanted.data()[i] >= n)
        throw std::out_of_range("logits wanted of row " + std::to_string(wanted.data()[i]) +
                                ": rows of the step in ascending order are wanted");
    if (logits && (static_cast<int>(logits->shape(0)) < m || static_cast<int>(logits->shape(1)) != dims_.vocab))
      throw std::invalid_argument("logits must be [at least " + std::to_string(m) + ", " + std::to_string(dims_.vocab) +
                                  "]");
    const StepInput in{n, tokens.data(), positions.data(), sequences.data(), tables.data(), tables.shape(1),
                       m, wanted.data()};
    nb::gil_scoped_release release;
    runtime.step(in, argmax.data(), logits ? logits->data() : nullptr, logits ? logits->shape(1) : 0);
  }

  void copy_block(int source, int target) {
    if (std::min(source, target) < 0 || std::max(source, target) >= kv_blocks_)
      throw std::out_of_range("no such KV block");
    alive().copy_block(source, target);
  }
  double scan(int context, bool multiply) {
    Runtime& runtime = alive();
    nb::gil_scoped_release release;
    return static_cast<double>(runtime.scan(std::clamp(context, 0, dims_.context), multiply)) / 1e9;
  }
  void close() {
    runtime_.reset();
    weights_.reset();
    vectors_.clear();
    embed_.reset();
  }

  std::string isa() { return alive().ops().name; }
  int threads() { return alive().threads(); }
  size_t weight_bytes() const { return weights_ ? weights_->bytes() : 0; }
  size_t kv_bytes() { return alive().kv_bytes(); }

 private:
  Runtime& alive() {
    if (!runtime_) throw std::runtime_error("this runtime is closed");
    return *runtime_;
  }
  const float* keep(const Floats& values, size_t size, const std::string& name) {
    if (values.size() != size)
      throw std::invalid_argument("'" + name + "' has " + std::to_string(values.size()) + " values, expected " +
                                  std::to_string(size));
    vectors_.emplace_back(values.data(), values.data() + size);
    return vectors_.back().data();
  }

  Dims dims_{};
  int kv_blocks_ = 0;
  std::unique_ptr<Arena> weights_;
  std::vector<const uint8_t*> blocks_;
  std::optional<Halves> embed_;  // large and rarely read: used in place
  std::vector<std::vector<float>> vectors_;
  std::unique_ptr<Runtime> runtime_;  // declared last: its threads end before the memory they read is freed
};

// Runs work(thread), which returns how much it did, on all threads several times; returns the best rate per nanosecond.
template <class Work>
double best_rate(int threads, double seconds, Work&& work) {
  nb::gil_scoped_release release;
  Team team(threads);
  double best = 0;
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    std::atomic<uint64_t> done{0};
    const auto start = Clock::now();
    team.run([&](int t) { done += work(t); });
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, static_cast<double>(done) / took / 1e9);
  } while (Clock::now() < end);
  return best;
}

// Read bandwidth over `bytes`, in GB/s: the bound of any decoder on this machine.
double read_bandwidth(size_t bytes, int threads, double seconds) {
  const Ops* ops = available().front();
  Arena arena(bytes);
  std::memset(arena.data(), 1, bytes);
  const size_t part = bytes / threads & ~size_t{511};
  std::atomic<uint64_t> sink{0};
  return best_rate(threads, seconds, [&](int t) {
    sink += ops->read(arena.data() + t * part, part);
    return part;
  });
}

// Byte multiply-adds per nanosecond: the bound of any step of many rows.
double multiply_rate(int threads, double seconds) {
  const Ops* ops = available().front();
  return best_rate(threads, seconds, [&](int) { return ops->multiply(20000); });
}

// Single operations, for the table-driven test of every instruction set against the reference.
void op_norm_quantise(const std::string& isa, const Floats& x, const std::optional<Floats>& weight, float eps, int bits,
                      int group, const nb::ndarray<int8_t, nb::c_contig>& q,
                      const nb::ndarray<float, nb::c_contig>& scale,
                      const nb::ndarray<int32_t, nb::c_contig>& correction) {
  const int n = static_cast<int>(x.size());
  std::vector<float> squares(n / group);
  const Acts acts{q.data(), scale.data(), correction.data(), squares.data(), static_cast<size_t>(n), 1};
  const Matrix w{nullptr, bits, group, 16, n};
  find_ops(isa)->quantise(x.data(), weight ? weight->data() : nullptr, w, acts, 0, 0, n);
  if (weight)
    for (float factor = norm_factor(acts, 0, w, eps); float& s : std::span(scale.data(), squares.size())) s *= factor;
}

// Packed weights laid out as the kernels of one instruction set read them.
class ArrangedMatrix {
 public:
  ArrangedMatrix(const std::string& isa, const Bytes& data, int bits, int group, int rows, int cols, int threads)
      : ops(find_ops(isa)), matrix(view(data, bits, group, rows, cols, "weights")) {
    matrix.interleave = choose_interleave(*ops, matrix, threads);
    memory_ = std::make_unique<Arena>(matrix.bytes());
    arrange(matrix, memory_->data());
  }
  const Ops* ops;
  Matrix matrix;

 private:
  std::unique_ptr<Arena> memory_;
};

void op_linear(const ArrangedMatrix& weights, const std::string& kind,
               const nb::ndarray<int8_t, nb::ndim<2>, nb::c_contig>& q,
               const nb::ndarray<float, nb::ndim<2>, nb::c_contig>& scale,
               const nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig>& correction, const FloatsOut& out,
               const std::optional<IntsOut>& out_index) {
  const Ops* ops = weights.ops;
  const Matrix& w = weights.matrix;
  const int m = static_cast<int>(q.shape(0));
  // The kernels expect the rows of a group next to each other.
  std::vector<float> scales(scale.size());
  std::vector<int32_t> corrections(scale.size());
  for (size_t i = 0, groups = scale.shape(1); i < scale.size(); i++) {
    const size_t at = i % groups * m + i / groups;
    scales[at] = scale.data()[i], corrections[at] = correction.data()[i];
  }
  const Acts acts{q.data(), scales.data(), corrections.data(), nullptr, q.shape(1), static_cast<size_t>(m)};
  std::vector<uint8_t> scratch(scratch_bytes(*ops, w.cols) + 64);
  uint8_t* tile = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64);
  const size_t ld = out.shape(1);
  if (kind == "store")
    ops->linear(w, 0, w.tiles(), acts, m, tile, nullptr, out.data(), ld);
  else if (kind == "add")
    ops->linear_add(w, 0, w.tiles(), acts, m, tile, out.data(), ld);
  else if (kind == "swiglu")
    ops->linear_swiglu(w, 0, w.tiles() / 2, acts, m, tile, out.data(), ld);
  else if (kind == "argmax") {
    std::vector<Best> best(m);
    for (auto& b : best) clear(b);
    ops->linear_argmax(w, 0, w.tiles(), acts, m, tile, best.data(), out.data(), ld);
    for (int i = 0; i < m; i++) out_index.value().data()[i] = argmax(best[i]);
  } else
    throw std::invalid_argument("unknown kind '" + kind + "'");
}

void op_attention(const std::string& isa, const Floats& keys, const Floats& values, const Floats& q,
                  const FloatsOut& out) {
  // keys, values [length][head_dim]; q [heads][head_dim], unscaled; every token in its own place of a shuffled table.
  const Ops* ops = find_ops(isa);
  const int length = static_cast<int>(keys.shape(0)), dim = static_cast<int>(keys.shape(1)),
            heads = static_cast<int>(q.shape(0));
  const int blocks = (length + kBlockTokens - 1) / kBlockTokens;
  KvCache cache{nullptr, 1, 1, dim, blocks};
  std::vector<uint32_t> memory(cache.size());
  cache.data = memory.data();
  std::vector<int32_t> table(blocks);
  for (int b = 0; b < blocks; b++) table[b] = blocks - 1 - b;
  for (int i = 0; i < length; i++)
    ops->store_kv(cache, table[i / kBlockTokens], 0, 0, i % kBlockTokens, keys.data() + i * dim,
                  values.data() + i * dim);
  std::vector<float> scaled(q.data(), q.data() + heads * dim), scratch(attention_scratch(length));
  for (auto& v : scaled) v *= 1.44269504f / __builtin_sqrtf(static_cast<float>(dim));
  const Queries queries{scaled.data(), 0, out.data(), 0, 1, heads, length};
  ops->attend(cache, table.data(), 0, 0, queries, scratch.data());
}

void op_norm_rope(const std::string& isa, const nb::ndarray<float, nb::ndim<1>, nb::c_contig>& head,
                  const std::optional<Floats>& weight, float eps, const Floats& cos, const Floats& sin) {
  find_ops(isa)->norm_rope(head.data(), weight ? weight->data() : nullptr, eps, cos.data(), sin.data(),
                           static_cast<int>(head.size()), 1.f);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Fulgur's CPU kernels: one model's decode step on a few persistent threads.";
  m.attr("BLOCK_TOKENS") = kBlockTokens;
  m.def(
      "isas",
      [] {
        std::vector<std::string> names;
        for (const Ops* ops : available()) names.emplace_back(ops->name);
        return names;
      },
      "Instruction sets with kernels that this CPU runs, best first.");
  m.def("has_emulated_amx", [] { return ops_amx_emulated() != nullptr; });
  m.def("read_bandwidth", &read_bandwidth, nb::arg("bytes"), nb::arg("threads"), nb::arg("seconds") = 0.3);
  m.def("multiply_rate", &multiply_rate, nb::arg("threads"), nb::arg("seconds") = 0.1);
  m.def("op_norm_quantise", &op_norm_quantise, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg());
  nb::class_<ArrangedMatrix>(m, "ArrangedMatrix")
      .def(nb::init<const std::string&, const Bytes&, int, int, int, int, int>());
  m.def("op_linear", &op_linear);
  m.def("op_attention", &op_attention);
  m.def("op_norm_rope", &op_norm_rope, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
  nb::class_<NativeRuntime>(m, "NativeRuntime")
      .def(nb::init<const nb::dict&, const nb::dict&, const nb::dict&, const std::optional<Halves>&, const Floats&,
                    const Floats&, int, int, const std::string&>(),
           nb::arg("dims"), nb::arg("matrices"), nb::arg("vectors"), nb::arg("embed").none(), nb::arg("cos"),
           nb::arg("sin"), nb::arg("kv_blocks"), nb::arg("threads"), nb::arg("isa"))
      .def("step", &NativeRuntime::step, nb::arg("tokens"), nb::arg("positions"), nb::arg("sequences"),
           nb::arg("tables"), nb::arg("wanted"), nb::arg("argmax"), nb::arg("logits").none())
      .def("copy_block", &NativeRuntime::copy_block)
      .def("scan", &NativeRuntime::scan, nb::arg("context"), nb::arg("multiply"))
      .def("close", &NativeRuntime::close)
      .def_prop_ro("isa", &NativeRuntime::isa)
      .def_prop_ro("threads", &NativeRuntime::threads)
      .def_prop_ro("weight_bytes", &NativeRuntime::weight_bytes)
      .def_prop_ro("kv_bytes", &NativeRuntime::kv_bytes);
}
