// What the drafting head (MTP) needs to know of every sequence.
//
// The head reads, in slot t of its own keys and values, token t and the model's hidden state at t - 1 (after the final
// norm). So its keys depend on nothing but the tokens up to t, and blocks can be shared. A log holds the hidden states
// of the last steps until the head has seen them: it catches up when a draft is wanted, or when the log is long.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace fulgur {

class DraftLogs {
 public:
  static constexpr int kLong = 32;  // rows that wait before the head catches up

  struct Log {
    int first = 0, count = 0;  // positions that are logged
    int done = 1;              // the head has seen the slots before this one
    std::vector<float> hidden;
    std::vector<int32_t> tokens;
    int end() const { return first + count; }
    int waiting() const { return end() - done; }
  };

  DraftLogs(int slots, int snapshots, int width) : width_(width), logs_(slots), saved_(snapshots) {}

  Log& operator[](int slot) { return logs_[slot]; }
  float* hidden(Log& log, int position) const { return log.hidden.data() + row(log, position); }
  bool knows(const Log& log, int position) const { return position >= log.first && position < log.end(); }

  // From `position` on the head has seen nothing. It never sees a slot whose hidden state is unknown, such as slot 0.
  void go_back(Log& log, int position) const { log.done = std::max(std::min(log.done, position), log.first + 1); }

  // `rows` tokens from `position` on are about to be computed; drops what was logged from there on.
  void begin(int slot, int position, int rows, const int32_t* tokens) {
    Log& log = logs_[slot];
    if (position == 0 || position > log.end() || position < log.first) log.first = position;
    log.count = position - log.first;
    go_back(log, position);
    // The state before the first slot that waits is still needed, nothing before it.
    const int drop = std::clamp(log.done - 1 - log.first, 0, log.count);
    if (drop) {
      std::memmove(log.hidden.data(), log.hidden.data() + static_cast<size_t>(drop) * width_,
                   static_cast<size_t>(log.count - drop) * width_ * 4);
      std::copy(log.tokens.begin() + drop, log.tokens.begin() + log.count, log.tokens.begin());
      log.first += drop, log.count -= drop;
    }
    const size_t needed = static_cast<size_t>(log.count) + rows;
    if (log.tokens.size() < needed) log.tokens.resize(needed), log.hidden.resize(needed * width_);
    std::copy(tokens, tokens + rows, log.tokens.begin() + log.count);
    log.count += rows;
  }

  // With a snapshot of the recurrent states: the hidden state of the token before `position`.
  void save(int slot, int position, int snapshot) {
    Log& log = logs_[slot];
    Snapshot& to = saved_[snapshot];
    to.position = position;
    to.hidden.clear();
    if (knows(log, position - 1)) to.hidden.assign(hidden(log, position - 1), hidden(log, position - 1) + width_);
  }
  void restore(int snapshot, int slot) {
    const Snapshot& from = saved_[snapshot];
    Log& log = logs_[slot];
    log.count = from.hidden.empty() ? 0 : 1;
    log.first = from.position - log.count;
    log.done = log.first + 1;
    if (log.count) {
      if (log.tokens.empty()) log.tokens.resize(1), log.hidden.resize(width_);
      std::copy(from.hidden.begin(), from.hidden.end(), log.hidden.begin());
    }
  }
  void copy(int source, int target) { logs_[target] = logs_[source]; }

 private:
  struct Snapshot {
    int position = 0;
    std::vector<float> hidden;
  };
  size_t row(const Log& log, int position) const { return static_cast<size_t>(position - log.first) * width_; }

  size_t width_;
  std::vector<Log> logs_;
  std::vector<Snapshot> saved_;
};

}  // namespace fulgur
