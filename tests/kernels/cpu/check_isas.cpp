// Every instruction set of this machine against the portable kernels, on whole models: for machines that the tests in
// Python do not run on, such as ARM under qemu-user (`make arm`). The portable kernels are held against the numpy
// reference by those tests.
//
// Random hybrids with experts, gated attention, delta nets and a drafting head, in 4 and 8 bits. Logits of a text must
// agree within 2%: a value between two integers may be rounded either way, and the layers amplify it. Steps of any
// width must give the bits of single steps.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "arrange.h"
#include "runtime.h"

using namespace fulgur;

namespace {

constexpr int kTokens = 90, kBlocks = 4;

// A model's numbers; the same seed gives the same ones.
struct Numbers {
  std::mt19937 rng{7};
  std::deque<std::vector<uint8_t>> packed;
  std::deque<std::vector<float>> vectors;
  std::deque<std::vector<uint16_t>> halves;

  float normal() { return std::normal_distribution<float>()(rng); }
  Matrix matrix(int bits, int rows, int cols, int interleave = 1) {
    Matrix w{nullptr, bits, 32, rows, cols, 1};
    std::vector<uint8_t>& data = packed.emplace_back(w.file_bytes());
    // fp16 scales by which a product keeps the size of its input: powers of two near 1 / (largest * sqrt(cols)).
    const int exponent = 15 - (bits == 8 ? 6 : 2) - static_cast<int>(std::lround(std::log2(std::sqrt(cols))));
    for (int tile = 0; tile < w.tiles(); tile++) {
      uint8_t* at = data.data() + tile * w.tile_bytes();
      for (size_t i = 0; i < w.tile_bytes(); i++) at[i] = static_cast<uint8_t>(rng());
      for (int i = 0; i < w.groups() * kTileRows; i++) {
        const uint16_t scale = static_cast<uint16_t>(exponent << 10 | (rng() & 1023));
        std::memcpy(at + 2 * i, &scale, 2);
      }
    }
    w.data = data.data();
    w.interleave = interleave;
    return w;
  }
  Experts experts(int bits, int count, int rows, int cols) {
    std::vector<uint8_t>* all = nullptr;
    Matrix first;
    for (int e = 0; e < count; e++) {
      Matrix w = matrix(bits, rows, cols, 2);
      if (!all) all = &packed.emplace_back(w.bytes() * count), first = w;
      Matrix laid = w;
      arrange(laid, all->data() + e * w.bytes());
    }
    first.data = all->data();
    return {first};
  }
  const float* vector(int size, float centre, float spread = 0.1f) {
    std::vector<float>& v = vectors.emplace_back(size);
    for (float& x : v) x = centre + spread * normal();
    return v.data();
  }
  const uint16_t* bf16(int rows, int cols) {
    std::vector<uint16_t>& v = halves.emplace_back(static_cast<size_t>(rows) * cols);
    for (uint16_t& x : v) x = to_bf16(normal() / std::sqrt(static_cast<float>(cols)));
    return v.data();
  }
};

Dims dims_of(bool experts) {
  Dims d{};
  d.vocab = 300, d.d_model = 64, d.layers = 4, d.heads = 4, d.kv_heads = 2, d.head_dim = 32, d.d_ffn = 64;
  d.context = kBlocks * kBlockTokens, d.max_rows = 64, d.eps = 1e-6f, d.rotary = 16, d.gated = true,
  d.query_context = 1;
  if (experts) d.experts = 6, d.chosen = 2, d.d_expert = 32;
  d.kv_bits = experts ? 8 : 16;  // of keys and values: both are checked
  d.k_heads = 2, d.v_heads = 4, d.k_dim = 32, d.v_dim = 16, d.taps = 4, d.slots = 2, d.draft_vocab = 200;
  return d;
}

class Machine {
 public:
  Machine(int bits, bool experts, int threads, const Ops* ops) {
    const Dims d = dims_of(experts);
    Model model{};
    model.dims = d;
    const auto layer_of = [&](bool delta, int number) {
      Layer l{};
      l.delta = delta;
      if (delta) {
        l.state = number;
        l.qkv = numbers_.matrix(bits, d.channels() + d.delta_values(), d.d_model);
        l.o = numbers_.matrix(bits, d.d_model, d.delta_values());
        l.ba = numbers_.bf16(2 * d.v_heads, d.d_model);
        l.conv = numbers_.vector(d.taps * d.channels(), 0.f, 0.5f);
        l.decay = numbers_.vector(d.v_heads, -0.05f, 0.005f);
        l.dt_bias = numbers_.vector(d.v_heads, 0.f);
        l.delta_norm = numbers_.vector(d.v_dim, 1.f);
      } else {
        l.cache = number;
        l.qkv = numbers_.matrix(bits, (2 * d.heads + 2 * d.kv_heads) * d.head_dim, d.d_model);
        l.o = numbers_.matrix(bits, d.d_model, d.heads * d.head_dim);
        l.q_norm = numbers_.vector(d.head_dim, 1.f), l.k_norm = numbers_.vector(d.head_dim, 1.f);
      }
      l.gate_up = numbers_.matrix(bits, 2 * d.d_ffn, d.d_model);
      l.down = numbers_.matrix(bits, d.d_model, d.d_ffn);
      if (d.experts) {
        l.expert_gate_up = numbers_.experts(bits, d.experts, 2 * d.d_expert, d.d_model);
        l.expert_down = numbers_.experts(bits, d.experts, d.d_model, d.d_expert);
        l.router = numbers_.bf16(d.experts + 1, d.d_model);
      }
      l.attn_norm = numbers_.vector(d.d_model, 1.f), l.ffn_norm = numbers_.vector(d.d_model, 1.f);
      return l;
    };
    for (int i = 0; i < d.layers; i++) model.layers.push_back(layer_of(i % 2 == 0, i / 2));
    model.drafting.layer = layer_of(false, d.layers / 2);
    model.drafting.fc = numbers_.matrix(bits, d.d_model, 2 * d.d_model);
    model.drafting.head = numbers_.matrix(4, d.draft_vocab, d.d_model);
    model.drafting.embed_norm = numbers_.vector(d.d_model, 1.f);
    model.drafting.hidden_norm = numbers_.vector(d.d_model, 1.f);
    model.drafting.final_norm = numbers_.vector(d.d_model, 1.f);
    model.head = numbers_.matrix(bits, d.vocab, d.d_model);
    model.final_norm = numbers_.vector(d.d_model, 1.f);
    size_t total = 0;
    const auto count = [&](Matrix& w) {
      w.interleave = choose_interleave(*ops, w, threads);
      total += w.rows ? w.bytes() : 0;
    };
    for (Layer& l : model.layers) count(l.qkv), count(l.o), count(l.gate_up), count(l.down);
    Drafting& drafting = model.drafting;
    count(drafting.layer.qkv), count(drafting.layer.o), count(drafting.layer.gate_up), count(drafting.layer.down);
    count(drafting.fc), count(drafting.head), count(model.head);
    weights_ = std::make_unique<Arena>(total);
    blocks_ = arrange(model, threads, weights_->data());
    std::vector<float>&cos = numbers_.vectors.emplace_back(), &sin = numbers_.vectors.emplace_back();
    for (int p = 0; p < d.context; p++)
      for (int i = 0; i < d.rotary / 2; i++) {
        const float angle = static_cast<float>(p) * std::pow(10000.f, -2.f * static_cast<float>(i) / d.rotary);
        cos.push_back(std::cos(angle)), sin.push_back(std::sin(angle));
      }
    model.cos = cos.data(), model.sin = sin.data();
    runtime_ = std::make_unique<Runtime>(std::move(model), kBlocks, threads, 1, ops);
  }

  // Logits of a text, in steps of some width, then eight guesses of the drafting head.
  std::vector<float> run(int width) {
    const int vocab = dims_of(false).vocab;
    std::vector<float> logits(static_cast<size_t>(kTokens) * vocab);
    std::vector<int32_t> tokens(kTokens), positions(kTokens), rows(kTokens), owner(kTokens), best(kTokens);
    for (int i = 0; i < kTokens; i++) tokens[i] = i * 37 % vocab, positions[i] = rows[i] = i;
    const int32_t table[kBlocks] = {2, 0, 3, 1};
    for (int at = 0; at < kTokens; at += width) {
      const int count = std::min(width, kTokens - at);
      const StepInput in{count, &tokens[at], &positions[at], &owner[at], table, kBlocks, count, rows.data()};
      runtime_->step(in, best.data(), logits.data() + static_cast<size_t>(at) * vocab, vocab);
    }
    int32_t guesses[8];
    const int count = runtime_->draft(0, table, kBlocks, 5, kTokens, guesses, 8);
    for (int i = 0; i < 8; i++) logits.push_back(i < count ? static_cast<float>(guesses[i]) : -1.f);
    return logits;
  }

 private:
  Numbers numbers_;
  std::unique_ptr<Arena> weights_;
  std::vector<const uint8_t*> blocks_;
  std::unique_ptr<Runtime> runtime_;
};

// Relative, of the median row: experts that are too close to call may be chosen otherwise in a few.
double error_of(const std::vector<float>& a, const std::vector<float>& b) {
  const size_t vocab = dims_of(false).vocab;
  std::vector<double> rows;
  for (size_t at = 0; at < kTokens * vocab; at += vocab) {
    double difference = 0, size = 0;
    for (size_t i = at; i < at + vocab; i++) {
      difference += (a[i] - b[i]) * (a[i] - b[i]);
      size += b[i] * b[i];
    }
    rows.push_back(std::isfinite(difference) ? std::sqrt(difference / size) : 1.);
  }
  std::nth_element(rows.begin(), rows.begin() + kTokens / 2, rows.end());
  return rows[kTokens / 2];
}

}  // namespace

// The argument names the kernels that this machine should choose.
int main(int count, char** arguments) {
  const std::vector<const Ops*> all{ops_avx512(), ops_avx2(), ops_neon_i8mm(), ops_neon(), ops_portable()};
  const Ops* chosen = *std::find_if(all.begin(), all.end(), [](const Ops* ops) { return ops; });
  int failures = count > 1 && std::strcmp(chosen->name, arguments[1]), checked = 0;
  if (failures) std::printf("%s would be chosen, not %s\n", chosen->name, arguments[1]);
  for (const bool experts : {false, true})
    for (const int bits : {4, 8}) {
      const std::vector<float> expected = Machine(bits, experts, 1, ops_portable()).run(kTokens / 2);
      for (const Ops* ops : all) {
        if (!ops) continue;
        const std::vector<float> whole = Machine(bits, experts, 1, ops).run(kTokens / 2);
        const double error = error_of(whole, expected);
        bool same = true;
        for (const auto& [threads, width] : {std::pair{1, 1}, {2, 3}, {3, 7}})
          same = same && Machine(bits, experts, threads, ops).run(width) == whole;
        const bool good = error < 0.02 && same;
        std::printf("%-10s %d bits%s: error %.1e, steps of any width %s\n", ops->name, bits, experts ? ", experts, 8-bit keys" : "",
                    error, same ? "the same bits" : "DIFFER");
        failures += !good, checked++;
      }
    }
  std::printf("%d checked, %d failed\n", checked, failures);
  return failures != 0;
}
