// SPDX-License-Identifier: Apache-2.0
/// \file
/// The part of the transport that looks after the other processes: beats, questions, ends.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include "exchange/transport.hpp"

namespace train {
namespace {

constexpr int kNoteTag = 1;
constexpr int kBeatsPerTimeout = 8;
/// Processes that notice the same thing do so within this time of each other.
constexpr auto kSameMoment = std::chrono::milliseconds(400);
/// Longer than a launcher takes to end a job.
constexpr auto kLastMoments = std::chrono::seconds(5);

void say(const std::string& message) {
  const std::string line = "atomo-train: " + message + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

std::string in_seconds(std::chrono::duration<double> time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f seconds", time.count());
  return text;
}

}  // namespace

/// Who has not looked around for long has not listened either, and cannot tell who was silent.
void Transport::look_around() {
  const auto now = Clock::now();
  if (now - awake_ > timeout_ / 2) {
    woke_ = now;
    for (auto& life : lives_) life.last_sign = std::max(life.last_sign, now);
  }
  awake_ = now;
}

void Transport::beat() {
  look_around();
  if (const auto now = Clock::now(); now - last_beat_ > timeout_ / kBeatsPerTimeout) {
    last_beat_ = now;
    static constexpr Note kBeat{Word::beat, 0};
    tell_all(kBeat);
  }
  listen();
}

void Transport::breathe() { beat(); }

void Transport::end_set_up() {
  const auto now = Clock::now();
  awake_ = now;
  woke_ = {};
  for (auto& life : lives_) life = {.last_sign = now};
}

/// `note` must live as long as this object.
void Transport::tell(int rank, const Note& note) {
  MPI_Request request;
  check(MPI_Isend(&note, sizeof note, MPI_BYTE, rank, kNoteTag, MPI_COMM_WORLD, &request), rank,
        "sending to");
  MPI_Request_free(&request);
}

void Transport::tell_all(const Note& note) {
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) tell(r, note);
  }
}

void Transport::listen() {
  for (;;) {
    int there = 0;
    MPI_Status status;
    check(MPI_Iprobe(MPI_ANY_SOURCE, kNoteTag, MPI_COMM_WORLD, &there, &status), kEverybody,
          "receiving from");
    if (there == 0) return;
    Note note;
    MPI_Recv(&note, sizeof note, MPI_BYTE, status.MPI_SOURCE, kNoteTag, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
    hear(status.MPI_SOURCE, note);
  }
}

void Transport::hear(int from, const Note& note) {
  note_sign(from);
  switch (note.word) {
    case Word::beat:
      return;
    case Word::ask: {
      static constexpr Note kBeat{Word::beat, 0};
      return tell(from, kBeat);
    }
    case Word::asked:
      lives_[static_cast<std::size_t>(note.about)].told_by_another = Clock::now();
      return;
    case Word::ending:
      ending_ = ending_ == kEverybody ? from : std::min(ending_, from);
      return;
  }
}

void Transport::note_sign(int rank) {
  auto& life = lives_[static_cast<std::size_t>(rank)];
  const auto now = Clock::now();
  if (life.told > 0) say(name(rank) + " is back after " + in_seconds(now - life.silent_from));
  life.last_sign = std::max(life.last_sign, now);
  life.asked = life.told = 0;
}

bool Transport::shares_machine(int rank) const {
  return std::strcmp(homes_[static_cast<std::size_t>(rank_)].machine,
                     homes_[static_cast<std::size_t>(rank)].machine) == 0;
}

bool Transport::is_dead(int rank) const {
  if (homes_.empty() || !shares_machine(rank)) return false;
  return kill(homes_[static_cast<std::size_t>(rank)].process, 0) != 0 && errno == ESRCH;
}

bool Transport::silent(int rank) const {
  if (rank == rank_) return false;
  return is_dead(rank) ||
         Clock::now() - lives_[static_cast<std::size_t>(rank)].last_sign > timeout_;
}

void Transport::check_alive(int rank, Clock::time_point since) {
  if (rank == rank_) return;
  if (is_dead(rank)) throw Fault(rank, name(rank) + " has died");
  auto& life = lives_[static_cast<std::size_t>(rank)];
  const auto from = std::max(since, life.last_sign);
  if (from > life.asked_at) life.asked = life.told = 0;  // another wait, another silence
  const std::chrono::duration<double> silence = Clock::now() - from;
  if (silence > timeout_ * (life.asked + 1.0)) {
    if (life.asked == retries_) {
      throw Fault(rank, name(rank) + " has given no sign of life for " + in_seconds(silence) +
                            " (--timeout, --retries): it is frozen or cut off");
    }
    ask(rank, from);
  }
  if (life.asked > 0) tell_user_of_silence(rank);
}

void Transport::ask(int rank, Clock::time_point silent_from) {
  auto& life = lives_[static_cast<std::size_t>(rank)];
  ++life.asked;
  life.asked_at = Clock::now();
  life.silent_from = silent_from;
  static constexpr Note kAsk{Word::ask, 0};
  tell(rank, kAsk);
}

/// One line for everybody who waits: who hears that another has told the user does not.
void Transport::tell_user_of_silence(int rank) {
  auto& life = lives_[static_cast<std::size_t>(rank)];
  const auto now = Clock::now();
  if (life.told == life.asked || life.told_by_another + timeout_ / 2 > life.asked_at) return;
  if (rank_ != first_speaker(rank) && now - life.asked_at < kSameMoment) return;
  life.told = life.asked;
  say(name(rank) + " has given no sign of life for " + in_seconds(now - life.silent_from) +
      ": asking again (" + std::to_string(life.asked) + " of " + std::to_string(retries_) + ")");
  auto& note = notes_[static_cast<std::size_t>(rank)];
  note = {Word::asked, rank};
  tell_all(note);
}

void Transport::abort(const std::string& message, int culprit) {
  const auto began = Clock::now();
  const bool woken_by_the_end =
      culprit != kEverybody && (began - awake_ > timeout_ / 2 || began - woke_ < kLastMoments);
  try {
    listen();
    const bool others_end = ending_ != kEverybody || woken_by_the_end;
    const bool accused = rank_ == culprit;
    static constexpr Note kEnding{Word::ending, 0};
    if (!others_end && !accused) tell_all(kEnding);
    const auto outspoken = [&] { return ending_ != kEverybody && (accused || ending_ < rank_); };
    while (!others_end && rank_ != first_speaker(culprit) && Clock::now() - began < kSameMoment &&
           !outspoken()) {
      listen();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (others_end || outspoken()) std::this_thread::sleep_for(kLastMoments);
  } catch (const Fault&) {
    // Nobody can be told any more.
  }
  say(message);
  end_job(1);
}

void Transport::abort_for_exception() {
  try {
    throw;
  } catch (const Fault& fault) {
    abort(fault.what(), fault.rank());
  } catch (const std::exception& e) {
    abort(name(rank_) + ": " + e.what());
  }
}

void Transport::end_job(int status) {
  std::fflush(stdout);
  MPI_Abort(MPI_COMM_WORLD, status);
  _exit(status);
}

}  // namespace train
