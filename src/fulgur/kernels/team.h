// A few persistent threads that meet at barriers. They spin for some tens of microseconds, because the next phase is
// that close, and then sleep, because on a busy machine a spinning thread holds the core the others need.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace fulgur {

class Team {
 public:
  explicit Team(int size) : size_(size) {
    for (int t = 1; t < size; t++) threads_.emplace_back([this, t] { work(t); });
  }
  ~Team() {
    job_ = nullptr;
    advance(epoch_);
    for (auto& thread : threads_) thread.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // Runs job(thread) on every thread; the caller is thread 0. Returns when all are done.
  template <class Job>
  void run(Job&& job) {
    if (size_ == 1) return job(0);
    context_ = &job;
    job_ = [](void* context, int thread) { (*static_cast<std::remove_reference_t<Job>*>(context))(thread); };
    advance(epoch_);
    job(0);
    barrier();
  }

  void barrier() {
    if (size_ == 1) return;
    const uint32_t now = generation_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      advance(generation_);
    } else {
      await(generation_, now);
    }
  }

 private:
  static constexpr int kSpins = 2000;

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  // Sequentially consistent on both sides: either the waker sees the sleeper or the sleeper sees the new value.
  void advance(std::atomic<uint32_t>& value) {
    value.fetch_add(1);
    if (sleepers_.load()) value.notify_all();
  }
  void await(std::atomic<uint32_t>& value, uint32_t old) {
    for (int i = 0; i < kSpins; i++) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause();
    }
    sleepers_.fetch_add(1);
    while (value.load() == old) value.wait(old);
    sleepers_.fetch_sub(1);
  }
  void work(int thread) {
    for (uint32_t seen = 0;; seen++) {
      await(epoch_, seen);
      if (!job_) return;
      job_(context_, thread);
      barrier();
    }
  }

  const int size_;
  void (*job_)(void*, int) = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::vector<std::thread> threads_;
};

}  // namespace fulgur
