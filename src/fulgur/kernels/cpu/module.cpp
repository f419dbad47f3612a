// The Python module fulgur.kernels.cpu._native. Shapes are checked here, once; the kernels trust them.
#include "module.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <optional>

#include "arrange.h"

namespace {

// A model under construction: matrices and vectors by name, then one runtime over them, or over copies on huge pages.
class NativeRuntime {
 public:
  NativeRuntime(const nb::dict& dims, const nb::dict& matrices, const nb::dict& vectors, const nb::dict& plain,
                const nb::dict& experts, const std::optional<Halves>& embed, const Floats& cos, const Floats& sin,
                int kv_blocks, int threads, int snapshots, const std::string& isa) {
    const auto number = [&](const char* key) { return nb::cast<int>(dims[key]); };
    const auto windows = nb::cast<nb::list>(dims["windows"]);  // one per layer; 0: none
    const auto real = [&](const char* key) { return nb::cast<float>(dims[key]); };
    Dims d{};
    d.vocab = number("vocab"), d.d_model = number("d_model"), d.layers = number("layers");
    d.heads = number("heads"), d.kv_heads = number("kv_heads"), d.head_dim = number("head_dim");
    d.d_ffn = number("d_ffn"), d.context = number("context"), d.max_rows = number("max_rows"), d.eps = real("eps");
    d.rotary = number("rotary"), d.gated = number("gated");
    d.query_beta = real("query_beta"), d.query_context = number("query_context");
    d.experts = number("experts"), d.chosen = number("chosen"), d.d_expert = number("d_expert");
    d.softmax_all = number("softmax_all"), d.limit = real("limit"), d.alpha = real("alpha");
    d.k_heads = number("k_heads"), d.v_heads = number("v_heads"), d.k_dim = number("k_dim");
    d.v_dim = number("v_dim"), d.taps = number("taps"), d.slots = number("slots");
    d.draft_vocab = number("draft_vocab"), d.kv_bits = number("kv_bits");
    if (d.heads % d.kv_heads || d.heads / d.kv_heads > 64 || d.head_dim % 16 || d.head_dim > 256 || d.d_model % 32 ||
        d.d_ffn % 32 || d.d_expert % 32)
      throw std::invalid_argument(
          "the kernels need head_dim to be a multiple of 16, d_model and feed-forward widths of 32, and whole KV "
          "groups");
    if (d.k_heads && (d.v_heads % d.k_heads || d.k_dim % 16 || d.v_dim % 16 || d.taps < 2 || d.taps > kMostTaps))
      throw std::invalid_argument("the kernels need delta heads to be multiples of 16 wide, and 2 to 8 taps");

    const Ops* ops = find_ops(isa);
    size_t total = 0;
    bool in_place = false;  // matrices in pairs of tiles stay where they are, as experts do
    std::map<std::string, Matrix> views;
    for (auto [key, value] : matrices) {
      const auto name = nb::cast<std::string>(key);
      const auto t = nb::cast<nb::tuple>(value);
      const auto data = nb::cast<Bytes>(t[0]);
      Matrix m{data.data(), nb::cast<int>(t[1]), nb::cast<int>(t[2]), nb::cast<int>(t[3]), nb::cast<int>(t[4]), 2};
      if (views.empty()) in_place = nb::cast<bool>(t[5]);
      if (in_place != nb::cast<bool>(t[5]))
        throw std::invalid_argument("either all dense matrices or none must be stored in pairs of tiles");
      if (in_place) {
        check_kind(m, name.c_str());
        if (data.size() != m.bytes()) throw std::invalid_argument("matrix '" + name + "' has the wrong size");
        kept_.push_back(nb::cast(data));
      } else {
        m = view(data, m.bits, m.group, m.rows, m.cols, name.c_str());
        m.interleave = choose_interleave(*ops, m, threads);
        total += m.bytes();
      }
      weight_bytes_ += m.bytes();
      views[name] = m;
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

    const auto small = [&](const std::string& name, size_t rows) -> const uint16_t* {
      const auto values = nb::cast<Halves>(plain[name.c_str()]);
      if (values.shape(0) != rows || values.shape(1) != static_cast<size_t>(d.d_model))
        throw std::invalid_argument("matrix '" + name + "' has the wrong shape");
      kept_.push_back(nb::cast(values));
      return values.data();
    };
    const auto expert = [&](const std::string& name, int rows, int cols) -> Experts {
      const auto t = nb::cast<nb::tuple>(experts[name.c_str()]);
      const auto data = nb::cast<Table8>(t[0]);
      Matrix m{data.data(), nb::cast<int>(t[1]), nb::cast<int>(t[2]), nb::cast<int>(t[3]), nb::cast<int>(t[4]), 2};
      check_kind(m, name.c_str());
      if (m.rows != rows || m.cols != cols || data.shape(0) != static_cast<size_t>(d.experts) ||
          data.shape(1) != m.bytes())
        throw std::invalid_argument("experts '" + name + "' have the wrong shape");
      kept_.push_back(nb::cast(data));
      return {m};
    };

    Model model;
    model.dims = d;
    const int q_width = d.heads * d.head_dim, kv_width = 2 * d.kv_heads * d.head_dim;
    int caches = 0, states = 0;
    const auto layer_of = [&](const std::string& p, int window) {
      Layer layer{};
      layer.delta = plain.contains((p + "ba").c_str());
      if (layer.delta) {
        layer.state = states++;
        layer.qkv = matrix(p + "qkv", d.channels() + d.delta_values(), d.d_model);
        layer.o = matrix(p + "o", d.d_model, d.delta_values());
        layer.ba = small(p + "ba", 2 * d.v_heads);
        layer.conv = vector(p + "conv", static_cast<size_t>(d.taps) * d.channels(), true);
        layer.decay = vector(p + "decay", d.v_heads, true);
        layer.dt_bias = vector(p + "dt_bias", d.v_heads, true);
        layer.delta_norm = vector(p + "delta_norm", d.v_dim, true);
      } else {
        layer.cache = caches++;
        const int width = q_width * (d.gated ? 2 : 1) + kv_width;
        layer.qkv = matrix(p + "qkv", width, d.d_model);
        layer.o = matrix(p + "o", d.d_model, q_width);
        layer.q_norm = vector(p + "q_norm", d.head_dim, false);
        layer.k_norm = vector(p + "k_norm", d.head_dim, false);
        layer.qkv_bias = vector(p + "qkv_bias", width, false);
        layer.o_bias = vector(p + "o_bias", d.d_model, false);
        layer.sinks = vector(p + "sinks", d.heads, false);
        layer.window = window;
      }
      if (d.d_ffn) {
        layer.gate_up = matrix(p + "gate_up", 2 * d.d_ffn, d.d_model);
        layer.down = matrix(p + "down", d.d_model, d.d_ffn);
      }
      if (d.experts) {
        layer.expert_gate_up = expert(p + "experts.gate_up", 2 * d.d_expert, d.d_model);
        layer.expert_down = expert(p + "experts.down", d.d_model, d.d_expert);
        layer.router = small(p + "router", d.experts + (d.d_ffn ? 1 : 0));
        layer.router_bias = vector(p + "router_bias", d.experts, false);
        const size_t n = d.experts;
        layer.expert_gate_up_bias = vector(p + "experts.gate_up_bias", n * 2 * d.d_expert, d.limit > 0);
        layer.expert_down_bias = vector(p + "experts.down_bias", n * d.d_model, false);
      }
      layer.attn_norm = vector(p + "attn_norm", d.d_model, true);
      layer.ffn_norm = vector(p + "ffn_norm", d.d_model, true);
      return layer;
    };
    for (int i = 0; i < d.layers; i++)
      model.layers.push_back(layer_of("layers." + std::to_string(i) + ".", nb::cast<int>(windows[i])));
    model.drafting = {};
    if (d.draft_vocab) {
      model.drafting = {layer_of("mtp.", 0),
                        matrix("mtp.fc", d.d_model, 2 * d.d_model),
                        matrix("mtp.head", d.draft_vocab, d.d_model),
                        vector("mtp.embed_norm", d.d_model, true),
                        vector("mtp.hidden_norm", d.d_model, true),
                        vector("mtp.final_norm", d.d_model, true)};
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
    if (!in_place) blocks_ = arrange(model, threads, weights_->data());
    const size_t rope = static_cast<size_t>(d.context) * d.rotary / 2;
    model.cos = keep(cos, rope, "cos");
    model.sin = keep(sin, rope, "sin");
    runtime_ = std::make_unique<Runtime>(std::move(model), kv_blocks, threads, snapshots, ops);
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
          "tokens, positions and sequences must have the same length, and argmax must have room for every logit row");
    for (int i = 0; i < n; i++) {
      const int token = tokens.data()[i], position = positions.data()[i], sequence = sequences.data()[i];
      if (token < 0 || token >= dims_.vocab)
        throw std::out_of_range("token " + std::to_string(token) + " is not in the vocabulary");
      if (sequence < 0 || sequence >= static_cast<int>(tables.shape(0)))
        throw std::out_of_range("row " + std::to_string(i) + " belongs to sequence " + std::to_string(sequence) +
                                ", which has no block table");
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
        throw std::out_of_range("logit row " + std::to_string(wanted.data()[i]) +
                                " is invalid: logit rows must be rows of the step, in ascending order");
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
      throw std::out_of_range("KV block " + std::to_string(source) + " or " + std::to_string(target) +
                              " does not exist");
    alive().copy_block(source, target);
  }
  void save_state(int slot, int position, int snapshot) { alive().save(slot, position, snapshot); }
  void restore_state(int snapshot, int slot) { alive().restore(snapshot, slot); }
  void copy_state(int source, int target) { alive().copy(source, target); }
  // Writes guesses of what follows `token` to `out`; returns how many. The table has blocks for all but the last.
  int draft(int token, int position, int sequence, const Table& tables, const IntsOut& out) {
    const int length = static_cast<int>(out.size());
    check_draft(sequence, tables, position + length);
    if (token < 0 || token >= dims_.vocab || position < 1 || length < 1)
      throw std::out_of_range("cannot draft after token " + std::to_string(token) + " at position " +
                              std::to_string(position));
    Runtime& runtime = alive();
    nb::gil_scoped_release release;
    return runtime.draft(sequence, tables.data(), tables.shape(1), token, position, out.data(), length);
  }
  void catch_up(int sequence, const Table& tables) {
    check_draft(sequence, tables, 0);
    Runtime& runtime = alive();
    check_draft(sequence, tables, runtime.logged(sequence));
    nb::gil_scoped_release release;
    runtime.catch_up(sequence, tables.data(), tables.shape(1));
  }
  size_t snapshot_bytes() { return alive().states().empty() ? 0 : alive().states().snapshot_bytes(); }
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
    kept_.clear();
  }

  std::string isa() { return alive().ops().name; }
  int threads() { return alive().threads(); }
  size_t weight_bytes() const { return runtime_ ? weight_bytes_ : 0; }
  size_t kv_bytes() { return alive().kv_bytes(); }

 private:
  void check_draft(int sequence, const Table& tables, int tokens) {
    if (!dims_.draft_vocab) throw std::invalid_argument("this model has no drafting head");
    if (sequence < 0 || sequence >= std::min(static_cast<int>(tables.shape(0)), dims_.slots) || tokens > dims_.context)
      throw std::out_of_range("cannot draft for sequence " + std::to_string(sequence));
    const int32_t* table = tables.data() + sequence * tables.shape(1);
    for (int b = 0; b * kBlockTokens < tokens; b++)
      if (b >= static_cast<int>(tables.shape(1)) || table[b] < 0 || table[b] >= kv_blocks_)
        throw std::out_of_range("a draft needs KV blocks that sequence " + std::to_string(sequence) + " does not have");
  }
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
  size_t weight_bytes_ = 0;  // of dense matrices
  std::unique_ptr<Arena> weights_;
  std::vector<const uint8_t*> blocks_;
  std::optional<Halves> embed_;   // large and rarely read: used in place
  std::vector<nb::object> kept_;  // experts and small matrices, used in place too
  std::vector<std::vector<float>> vectors_;
  std::unique_ptr<Runtime> runtime_;  // declared last: its threads end before the memory they read is freed
};

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Fulgur's CPU kernels: one model's decode step on a few persistent threads.";
  m.attr("BLOCK_TOKENS") = kBlockTokens;
  define_operations(m);
  nb::class_<NativeRuntime>(m, "NativeRuntime")
      .def(nb::init<const nb::dict&, const nb::dict&, const nb::dict&, const nb::dict&, const nb::dict&,
                    const std::optional<Halves>&, const Floats&, const Floats&, int, int, int, const std::string&>(),
           nb::arg("dims"), nb::arg("matrices"), nb::arg("vectors"), nb::arg("plain"), nb::arg("experts"),
           nb::arg("embed").none(), nb::arg("cos"), nb::arg("sin"), nb::arg("kv_blocks"), nb::arg("threads"),
           nb::arg("snapshots"), nb::arg("isa"))
      .def("step", &NativeRuntime::step, nb::arg("tokens"), nb::arg("positions"), nb::arg("sequences"),
           nb::arg("tables"), nb::arg("wanted"), nb::arg("argmax"), nb::arg("logits").none())
      .def("copy_block", &NativeRuntime::copy_block)
      .def("save_state", &NativeRuntime::save_state, nb::arg("slot"), nb::arg("position"), nb::arg("snapshot"))
      .def("restore_state", &NativeRuntime::restore_state, nb::arg("snapshot"), nb::arg("slot"))
      .def("copy_state", &NativeRuntime::copy_state, nb::arg("source"), nb::arg("target"))
      .def("draft", &NativeRuntime::draft, nb::arg("token"), nb::arg("position"), nb::arg("sequence"),
           nb::arg("tables"), nb::arg("out"))
      .def("catch_up", &NativeRuntime::catch_up, nb::arg("sequence"), nb::arg("tables"))
      .def_prop_ro("snapshot_bytes", &NativeRuntime::snapshot_bytes)
      .def("scan", &NativeRuntime::scan, nb::arg("context"), nb::arg("multiply"))
      .def("close", &NativeRuntime::close)
      .def_prop_ro("isa", &NativeRuntime::isa)
      .def_prop_ro("threads", &NativeRuntime::threads)
      .def_prop_ro("weight_bytes", &NativeRuntime::weight_bytes)
      .def_prop_ro("kv_bytes", &NativeRuntime::kv_bytes);
}
