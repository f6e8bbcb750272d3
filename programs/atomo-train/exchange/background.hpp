// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Work beside back-propagation: what is encoded while the network goes on computing.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace train {

/// Does pieces of work one after the other, in the order in which they were posted, on a thread of
/// its own or, without one, in the call that posts them. All calls come from one thread.
class Background {
 public:
  using Clock = std::chrono::steady_clock;
  /// When a piece was worked on.
  struct Times {
    Clock::time_point begin, end;
  };

  explicit Background(bool own_thread);
  /// Waits for the piece under way and leaves out those behind it.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  [[nodiscard]] bool has_thread() const noexcept { return thread_.joinable(); }

  /// Begins to count time anew.
  void begin() noexcept { held_ = worked_ = 0; }
  void post(std::function<void()> piece);
  /// Does a piece here and now. All others are taken.
  void perform(std::function<void()> piece);
  /// Takes the oldest piece that is done, if there is one; never waits. Throws what it threw.
  [[nodiscard]] std::optional<Times> take();
  /// Whether all pieces are taken.
  [[nodiscard]] bool idle() const noexcept { return posted_ == taken_; }
  /// Waits until a piece can be taken, but no longer than some milliseconds.
  void wait_a_moment();

  /// Milliseconds that the calling thread worked on pieces or waited for them.
  [[nodiscard]] double held() const noexcept { return held_; }
  /// Milliseconds of the pieces taken that held it up by nothing.
  [[nodiscard]] double beside() const noexcept { return worked_ > held_ ? worked_ - held_ : 0; }

 private:
  struct Piece {
    std::function<void()> work;
    Times times;
    std::exception_ptr failure;

    void perform() noexcept;
  };
  void loop(const std::stop_token& stop);

  std::mutex mutex_;  ///< guards pieces_, done_ and sleeps_
  std::condition_variable_any changed_;
  std::deque<Piece> pieces_;            ///< not taken; those that are done come first
  std::size_t done_ = 0;                ///< of them
  bool sleeps_ = false;                 ///< the thread has to be woken up
  std::atomic<std::size_t> there_ = 0;  ///< pieces that are not done
  std::size_t posted_ = 0, taken_ = 0;
  double held_ = 0, worked_ = 0;
  std::jthread thread_;  ///< last, so that it ends before what it uses is gone
};

}  // namespace train
