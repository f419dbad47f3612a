// A few persistent threads that meet at barriers. They spin for a tenth of a millisecond, since the next phase, and
// mostly the next step, comes sooner. Then they sleep: on a busy machine a spinning thread holds a core that the others
// need.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace fulgur {

class Team {
 public:
  explicit Team(int size) : size_(size), flags_(size) {
    for (int t = 1; t < size; t++) threads_.emplace_back([this, t] { work(t); });
  }
  ~Team() {
    job_ = nullptr;
    advance(epoch_);
    for (auto& thread : threads_) thread.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // The threads that take part in the next run: all, or the caller alone (the others stay asleep).
  int size() const { return alone_ ? 1 : size_; }
  int threads() const { return size_; }
  void set_alone(bool alone) { alone_ = alone; }

  // Runs job(thread) on every thread; the caller is thread 0. Returns when all are done.
  template <class Job>
  void run(Job&& job) {
    if (size() == 1) return job(0);
    context_ = &job;
    job_ = [](void* context, int thread) { (*static_cast<std::remove_reference_t<Job>*>(context))(thread); };
    advance(epoch_);
    job(0);
    barrier(0);
  }

  // Every thread raises its own flag and waits for the others' flags: with few threads cheaper than a shared counter.
  void barrier(int thread) {
    if (size() == 1) return;
    const uint32_t now = advance(flags_[thread]);
    for (int other = 0; other < size_; other++)
      if (other != thread) await(flags_[other], now);
  }

 private:
  struct alignas(128) Flag {
    std::atomic<uint32_t> value{0};
  };
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kSpin{100};
  static constexpr int kLook = 64;  // pauses between two looks at the clock

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  // Sequentially consistent on both sides: either the waker sees the sleeper, or the sleeper sees the new value.
  uint32_t advance(Flag& flag) {
    const uint32_t now = flag.value.load(std::memory_order_relaxed) + 1;
    flag.value.store(now);
    if (sleepers_.load()) flag.value.notify_all();
    return now;
  }
  // Waits until the flag has reached `goal`; counters wrap, so compare by difference.
  void await(Flag& flag, uint32_t goal) {
    const auto reached = [&](uint32_t value) { return static_cast<int32_t>(value - goal) >= 0; };
    Clock::time_point end{};
    for (int i = 1;; i++) {
      if (reached(flag.value.load(std::memory_order_acquire))) return;
      pause();
      if (i % kLook) continue;
      const auto now = Clock::now();
      if (end == Clock::time_point{}) end = now + kSpin;
      if (now >= end) break;
    }
    sleepers_.fetch_add(1);
    for (uint32_t value; !reached(value = flag.value.load());) flag.value.wait(value);
    sleepers_.fetch_sub(1);
  }
  void work(int thread) {
    for (uint32_t goal = 1;; goal++) {
      await(epoch_, goal);
      if (!job_) return;
      job_(context_, thread);
      barrier(thread);
    }
  }

  const int size_;
  bool alone_ = false;
  void (*job_)(void*, int) = nullptr;
  void* context_ = nullptr;
  Flag epoch_;
  std::vector<Flag> flags_;
  alignas(128) std::atomic<int> sleepers_{0};
  std::vector<std::thread> threads_;
};

}  // namespace fulgur
