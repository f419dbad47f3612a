// Single operations of one instruction set, for the table-driven test against the reference, and what a CPU can do at
// most, for the bench.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>

#include "arrange.h"
#include "module.h"

namespace {

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
                  const FloatsOut& out, int kv_bits) {
  // keys, values [length][head_dim]; q [heads][head_dim], unscaled; every token in its own place of a shuffled table.
  const Ops* ops = find_ops(isa);
  const int length = static_cast<int>(keys.shape(0)), dim = static_cast<int>(keys.shape(1)),
            heads = static_cast<int>(q.shape(0));
  const int blocks = (length + kBlockTokens - 1) / kBlockTokens;
  KvCache cache{nullptr, 1, 1, dim, blocks, kv_bits};
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
                           static_cast<int>(head.size()), static_cast<int>(2 * cos.size()), 1.f);
}

}  // namespace

void define_operations(nb::module_& m) {
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
  m.def("op_attention", &op_attention, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg("kv_bits") = 16);
  m.def("op_norm_rope", &op_norm_rope, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
}
