// All threads or one? If other processes use the cores, threads that meet at fifty barriers a step wait for each
// other's time slices and are slower than one thread alone. The bits of a step do not depend on the number of threads,
// so the choice may follow the clock: steps of one row are timed, the slower way is dropped, and tried again now and
// then.
#pragma once
#include <algorithm>
#include <chrono>

namespace fulgur {

class Pace {
 public:
  using Clock = std::chrono::steady_clock;

  bool alone(int threads) const { return threads > 1 && alone_; }

  void observe(bool alone, Clock::duration took) {
    const double seconds = std::chrono::duration<double>(took).count();
    last_[steps_++ % kTrial] = seconds;
    if (!alone) quickest_ = quickest_ > 0 ? std::min(quickest_, seconds) : seconds;
    if (steps_ < window_) return;
    steps_ = 0;
    // The median: a single step that lost its core says nothing about the others.
    std::nth_element(last_, last_ + kTrial / 2, last_ + kTrial);
    const double typical = last_[kTrial / 2];
    if (!alone) {
      together_ = typical;
      alone_ = typical > (apart_ > 0 ? apart_ : kSuspect * quickest_);
      if (!alone_) stay_ = kShortest;
      window_ = kTrial;  // a short trial either way
      return;
    }
    apart_ = typical;
    if (window_ == kTrial && typical < together_) {  // it paid off: keep it for a while, longer each time
      window_ = stay_;
      stay_ = std::min(2 * stay_, kLongest);
    } else {  // it did not, or it is time to try the other way again
      alone_ = false;
      window_ = kTrial;
    }
  }

 private:
  static constexpr int kTrial = 8, kShortest = 64, kLongest = 1024;
  static constexpr double kSuspect = 4;  // cold caches cost a factor of two or three, contention for cores far more

  bool alone_ = false;
  int steps_ = 0, window_ = kTrial, stay_ = kShortest;
  double last_[kTrial] = {}, quickest_ = 0;  // seconds
  double together_ = 0, apart_ = 0;          // the last trial with all threads, with one; 0: none yet
};

}  // namespace fulgur
