// All threads or one? On a machine where others want the cores too, threads that meet at fifty barriers a step wait for
// each other's time slices and are slower than one thread alone. The bits of a step do not depend on the number of
// threads, so the choice may follow the clock: single-row steps are timed, and the slower way is left and tried again
// now and then.
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
    total_ += seconds;
    steps_++;
    if (!alone) quickest_ = quickest_ > 0 ? std::min(quickest_, seconds) : seconds;
    if (steps_ < (alone ? stay_ : kTrial)) return;
    const double mean = total_ / steps_;
    total_ = 0;
    steps_ = 0;
    if (alone) {  // time to try the others again
      alone_mean_ = mean;
      alone_ = false;
    } else if (mean > (alone_mean_ > 0 ? alone_mean_ : kSuspect * quickest_)) {
      alone_ = true;
      stay_ = std::min(2 * stay_, kLongest);
    } else {
      stay_ = kShortest;
    }
  }

 private:
  static constexpr int kTrial = 16, kShortest = 64, kLongest = 1024;
  static constexpr double kSuspect = 2.5;  // this much over the quickest step, one thread may well be better

  bool alone_ = false;
  int steps_ = 0, stay_ = kShortest;
  double total_ = 0, quickest_ = 0, alone_mean_ = 0;
};

}  // namespace fulgur
