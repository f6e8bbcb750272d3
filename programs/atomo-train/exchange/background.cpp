// SPDX-License-Identifier: Apache-2.0
/// \file
/// The pieces are a queue whose front is done. A piece that throws keeps its exception until it is
/// taken.

#include "exchange/background.hpp"

#include <utility>

namespace train {
namespace {

constexpr auto kMoment = std::chrono::milliseconds(20);

/// Layers follow each other sooner than a thread is woken up, which holds up the one that computes:
/// who has encoded one looks out for the next before it sleeps.
constexpr auto kLooks = std::chrono::microseconds(500);

template <typename Condition>
void look_for(Condition condition) {
  const auto end = Background::Clock::now() + kLooks;
  while (!condition() && Background::Clock::now() < end) std::this_thread::yield();
}

double milliseconds_since(Background::Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Background::Clock::now() - begin).count();
}

}  // namespace

Background::Background(bool own_thread) {
  if (own_thread) thread_ = std::jthread([this](const std::stop_token& stop) { loop(stop); });
}

Background::~Background() = default;

void Background::post(std::function<void()> piece) {
  if (!has_thread()) return perform(std::move(piece));
  ++posted_;
  bool sleeps = false;
  {
    const std::lock_guard lock(mutex_);
    pieces_.push_back({std::move(piece), {}, nullptr});
    there_ = pieces_.size() - done_;
    sleeps = sleeps_;
  }
  if (sleeps) changed_.notify_all();
}

void Background::perform(std::function<void()> piece) {
  const auto begin = Clock::now();
  ++posted_;
  Piece here{std::move(piece), {}, nullptr};
  here.perform();
  const std::lock_guard lock(mutex_);
  pieces_.push_back(std::move(here));
  ++done_;
  held_ += milliseconds_since(begin);
}

std::optional<Background::Times> Background::take() {
  Piece piece;
  {
    const std::lock_guard lock(mutex_);
    if (done_ == 0) return std::nullopt;
    piece = std::move(pieces_.front());
    pieces_.pop_front();
    --done_;
  }
  ++taken_;
  if (piece.failure) std::rethrow_exception(piece.failure);
  worked_ += std::chrono::duration<double, std::milli>(piece.times.end - piece.times.begin).count();
  return piece.times;
}

void Background::wait_a_moment() {
  const auto begin = Clock::now();
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kMoment, [this] { return done_ > 0; });
  held_ += milliseconds_since(begin);
}

void Background::Piece::perform() noexcept {
  times.begin = Clock::now();
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  times.end = Clock::now();
}

void Background::loop(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const auto any = [this] { return done_ < pieces_.size(); };
  while (true) {
    if (!any()) {
      lock.unlock();
      look_for([&] { return there_ > 0 || stop.stop_requested(); });
      lock.lock();
    }
    sleeps_ = true;
    changed_.wait(lock, stop, any);
    sleeps_ = false;
    if (stop.stop_requested()) return;
    Piece& piece = pieces_[done_];
    lock.unlock();
    piece.perform();
    lock.lock();
    there_ = pieces_.size() - ++done_;
    changed_.notify_all();
  }
}

}  // namespace train
