// The drafting head (multi-token prediction): one attention layer after the model, with its own keys and values.
//
//   fc [norm(embedding of token t), norm(hidden state of t - 1)] | the layer | norm, a trimmed head: a guess of t + 1
//
// Further guesses use the head's own normed output as the hidden state. Their keys are written again once the tokens
// are certain. Nothing here changes what the model generates, only how well it is guessed.
#include <algorithm>
#include <stdexcept>

#include "runtime.h"

namespace fulgur {

// Writes the hidden states of all rows to their logs.
void Runtime::record(Rows x, int rows, int thread) {
  const Dims& d = model_.dims;
  team_.barrier(thread);
  const Range mine = share(rows, thread);
  for (int m = mine.begin; m < mine.end; m++)
    ops_->norm(x.data + m * x.ld, model_.final_norm, d.eps, d.d_model, recorded_[m]);
}

// Runs rows of one sequence through the head's layer; `recorded_` has the hidden state before each. With `guess` the
// last row is computed to the end, and `drafted_` gets its normed output.
void Runtime::predict(const StepInput& in, bool guess, int thread) {
  const Dims& d = model_.dims;
  const Drafting& head = model_.drafting;
  const Layer& layer = head.layer;
  Worker& me = workers_[thread];
  const Range mine = columns(layer.o, thread), heads = head_columns(thread);
  const Rows x{x_.data, x_.ld}, both{hidden_.data, hidden_.ld}, attn{attn_.data, attn_.ld};
  const Range some = share(in.rows, thread);
  for (int m = some.begin; m < some.end; m++) {
    embed_row(in.tokens[m], me.row);
    ops_->norm(me.row, head.embed_norm, d.eps, d.d_model, both.data + m * both.ld);
    ops_->norm(recorded_[m], head.hidden_norm, d.eps, d.d_model, both.data + m * both.ld + d.d_model);
  }
  Acts acts = hand_over(both, nullptr, head.fc, other_acts_, in.rows, {0, 0}, thread);
  const Range r = tiles(head.fc, thread);
  ops_->linear(head.fc, r.begin, r.end, acts, in.rows, me.tile, nullptr, x.data, x.ld);
  acts = hand_over(x, layer.attn_norm, layer.qkv, acts_, in.rows, mine, thread);
  project(layer, acts, in.rows, thread);
  attention(in, layer, attn, guess ? in.rows - 1 : in.rows, thread);
  if (!guess) return;
  if (in.rows > 1) {
    team_.barrier(thread);
    gather(x, share_columns(d.d_model, thread), in);
    gather(attn, share_columns(layer.o.cols, thread), in);
  }
  finish(layer, attn, x, 1, heads, mine, thread);
  team_.barrier(thread);
  if (thread == 0) ops_->norm(x.data, head.final_norm, d.eps, d.d_model, drafted_.data());
  acts = hand_over(x, head.final_norm, head.head, acts_, 1, mine, thread);
  clear(me.best[0]);
  const Range out = tiles(head.head, thread);
  ops_->linear_argmax(head.head, out.begin, out.end, acts, 1, me.tile, me.best, nullptr, 0);
}

// Runs the waiting slots up to `end`, in as many passes as they need. With `token`, which comes at `end`, runs one more
// row and guesses what follows it.
int Runtime::catch_up(int sequence, const int32_t* tables, size_t stride, int end, int32_t token) {
  DraftLogs::Log& log = drafts_[sequence];
  const bool guess = token >= 0;
  std::vector<int32_t> tokens, positions, owners;
  int best = -1;
  while (log.done < end + guess) {
    const int first = log.done, rows = std::min(end + guess - first, model_.dims.max_rows);
    if (!drafts_.knows(log, first - 1)) return -1;
    tokens.clear(), positions.clear(), owners.assign(rows, sequence);
    for (int m = 0; m < rows; m++) {
      const int position = first + m;
      recorded_[m] = drafts_.hidden(log, position - 1);
      tokens.push_back(position < end ? log.tokens[position - log.first] : token);
      positions.push_back(position);
    }
    const bool last = guess && first + rows == end + 1;
    best = predict(tokens, positions, owners, tables, stride, last);
    log.done = first + rows;
  }
  return best;
}

int Runtime::predict(const std::vector<int32_t>& tokens, const std::vector<int32_t>& positions,
                     const std::vector<int32_t>& owners, const int32_t* tables, size_t stride, bool guess) {
  const int rows = static_cast<int>(tokens.size());
  const int32_t wanted = rows - 1;
  const StepInput in{rows, tokens.data(), positions.data(), owners.data(), tables, stride, 1, &wanted};
  model_.drafting.layer.window = positions.back();  // all but slot 0, which was never written
  apart_ = false;
  team_.run([&](int thread) { predict(in, guess, thread); });
  if (!guess) return -1;
  Best& best = workers_[0].best[0];
  for (int t = 1; t < team_.size(); t++) merge(best, workers_[t].best[0]);
  return argmax(best);
}

int Runtime::draft(int sequence, const int32_t* tables, size_t stride, int32_t token, int position, int32_t* out,
                   int length) {
  DraftLogs::Log& log = drafts_[sequence];
  if (!drafts_.knows(log, position - 1)) return 0;
  drafts_.go_back(log, position);
  int guess = catch_up(sequence, tables, stride, position, token);
  if (guess < 0) return 0;
  int count = 0;
  for (out[count++] = guess; count < length; out[count++] = guess) {
    recorded_[0] = drafted_.data();
    guess = predict({guess}, {position + count}, {sequence}, tables, stride, true);
  }
  return count;
}

void Runtime::catch_up(int sequence, const int32_t* tables, size_t stride) {
  catch_up(sequence, tables, stride, drafts_[sequence].end(), -1);
}

}  // namespace fulgur
