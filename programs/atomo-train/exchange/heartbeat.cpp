// SPDX-License-Identifier: Apache-2.0
/// \file
/// The part of the transport that looks after the other processes: beats, questions, ends, and who
/// is lost. Where the job outlives processes, rank 0 alone decides who is lost, so that all agree.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "exchange/transport.hpp"

namespace train {
namespace {

constexpr int kNoteTag = 1, kFarewellTag = 2, kGoneTag = 3;
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

/// Whether mpirun lets the other processes live when one of them ends.
bool launcher_outlives() {
  const char* value = std::getenv("OMPI_MCA_orte_enable_recovery");
  return value != nullptr && std::string_view(value) == "1";
}

/// Whether the launcher of this process has started `process`, too: its number may be another's now.
bool is_sibling(int process) {
  std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(stat, text);
  const auto end = text.rfind(')');
  if (end == std::string::npos) return false;
  std::istringstream rest(text.substr(end + 1));
  std::string state;
  int parent = 0;
  return static_cast<bool>(rest >> state >> parent) && parent == getppid();
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
  if (outlives_ && job_ends_) leave(1);
}

void Transport::breathe() { beat(); }

void Transport::end_set_up() {
  const auto now = Clock::now();
  awake_ = set_up_ = now;
  woke_ = {};
  for (auto& life : lives_) life = {.last_sign = now};
}

/// `note` must live as long as this object.
void Transport::tell(int rank, const Note& note) {
  MPI_Request request;
  const int code =
      MPI_Isend(&note, sizeof note, MPI_BYTE, rank, kNoteTag, MPI_COMM_WORLD, &request);
  if (code != MPI_SUCCESS && outlives_ && rank != 0) return;  // its silence will be noticed
  check(code, rank, "sending to");
  MPI_Request_free(&request);
}

void Transport::tell_all(const Note& note) {
  for (int r = 0; r < size_; ++r) {
    if (r != rank_ && !lost(r)) tell(r, note);
  }
}

/// Where the job ends, that is heard first: who leaves for it is not lost.
void Transport::listen() {
  std::vector<std::pair<int, Note>> notes;
  if (!held_.empty() && !cut_off(held_.front().first)) notes.swap(held_);
  for (;;) {
    int there = 0;
    MPI_Status status;
    check(MPI_Iprobe(MPI_ANY_SOURCE, kNoteTag, MPI_COMM_WORLD, &there, &status), kEverybody,
          "receiving from");
    if (there == 0) break;
    Note note;
    MPI_Recv(&note, sizeof note, MPI_BYTE, status.MPI_SOURCE, kNoteTag, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
    (cut_off(status.MPI_SOURCE) ? held_ : notes).emplace_back(status.MPI_SOURCE, note);
  }
  std::ranges::stable_partition(notes, [](const auto& n) { return n.second.word == Word::ending; });
  for (const auto& [from, note] : notes) hear(from, note);
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
      job_ends_ = job_ends_ || note.about == kJob;
      return;
    case Word::accuse:
      if (!lost(from) && !job_ends_) {
        declare_lost(note.about,
                     name(note.about) + (is_dead(note.about)
                                             ? " has died"
                                             : " has given " + name(from) + " no sign of life"));
      }
      return;
    case Word::lost:
      lost_[static_cast<std::size_t>(note.about)] = 1;
      if (note.about != rank_) return;
      say(name(rank_) +
          " gave no sign of life for so long that the others go on without it: it ends");
      leave(1);
  }
}

void Transport::note_sign(int rank) {
  auto& life = lives_[static_cast<std::size_t>(rank)];
  if (lost(rank)) return;
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

void Transport::watch(int rank, Clock::time_point since) {
  if (lost(rank) || lives_[static_cast<std::size_t>(rank)].accused) return;
  try {
    check_alive(rank, since);
  } catch (const Fault& fault) {
    if (rank == 0) {
      lost_[0] = 1;
      throw Fault(0, std::string(fault.what()) + ", and the others cannot go on without rank 0");
    }
    listen();
    if (job_ends_) leave(1);
    accuse(rank, fault.what());
  }
}

void Transport::accuse(int rank, const std::string& why) {
  if (rank_ == 0) return declare_lost(rank, why);
  auto& life = lives_[static_cast<std::size_t>(rank)];
  if (std::exchange(life.accused, true)) return;
  auto& note = notes_[static_cast<std::size_t>(rank)];
  note = {Word::accuse, rank};
  tell(0, note);
}

void Transport::declare_lost(int rank, const std::string& why) {
  if (lost(rank)) return;
  auto& note = verdicts_[static_cast<std::size_t>(rank)];
  note = {Word::lost, rank};
  tell_all(note);  // it as well
  lost_[static_cast<std::size_t>(rank)] = 1;
  if (!closing_) say(why + ": the others go on without it");
}

void Transport::check_not_lost(int rank) const {
  if (rank != kEverybody && lost(rank)) throw Lost(rank, name(rank) + " is lost");
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
    // Without rank 0 everybody ends by itself, when it finds that out.
    static constexpr Note kEnding{Word::ending, kJob}, kEndingItself{Word::ending, kItself};
    const bool itself = outlives_ && lost(0);
    if (!others_end && !accused) tell_all(itself ? kEndingItself : kEnding);
    const auto outspoken = [&] { return ending_ != kEverybody && (accused || ending_ < rank_); };
    while (!others_end && rank_ != first_speaker(culprit) && Clock::now() - began < kSameMoment &&
           !outspoken()) {
      listen();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (others_end || outspoken()) {
      if (outlives_ && launcher_outlives()) leave(1);
      std::this_thread::sleep_for(kLastMoments);
    }
  } catch (const Fault&) {
    // Nobody can be told any more.
  }
  say(message);
  if (!outlives_ || !launcher_outlives()) end_job(1);
  linger();
  leave(1);
}

/// What this process has told the others needs a moment to reach them.
void Transport::linger() {
  for (const auto began = Clock::now(); Clock::now() - began < kSameMoment;) {
    listen();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

bool Transport::say_farewell() {
  const auto told = [this](int rank, int tag) {
    try {
      (void)receive_any_length(rank, tag);
    } catch (const Lost&) {
      // It is gone already.
    }
  };
  if (rank_ != 0) {
    deliver(0, kFarewellTag, {});
    const bool any_lost = receive_any_length(0, kFarewellTag).at(0) != std::byte{0};
    deliver(0, kGoneTag, {});
    return any_lost;
  }
  for (int r = 1; r < size_; ++r) told(r, kFarewellTag);
  closing_ = true;
  const bool any_lost = std::ranges::find(lost_, 1) != lost_.end();
  for (int r = 1; r < size_; ++r) {
    if (lost(r)) continue;
    try {
      deliver(r, kFarewellTag, {std::byte{any_lost}});
    } catch (const Lost&) {
      // As above.
    }
  }
  // They need rank 0 no longer when they have heard.
  for (int r = 1; r < size_; ++r) told(r, kGoneTag);
  return any_lost;
}

void Transport::end_frozen() const {
  for (int r = 0; r < size_; ++r) {
    const int process = homes_.empty() ? 0 : homes_[static_cast<std::size_t>(r)].process;
    if (lost(r) && shares_machine(r) && is_sibling(process)) kill(process, SIGKILL);
  }
}

void Transport::leave(int status) {
  std::fflush(stdout);
  if (launcher_outlives()) {
    if (!lost(rank_)) end_frozen();
    _exit(status);
  }
  if (rank_ == 0 || (status != 0 && !lost(rank_))) end_job(status);
  await_end();
}

void Transport::end_without(std::span<const int> ranks, int status) {
  for (const int rank : ranks) lost_[static_cast<std::size_t>(rank)] = 1;
  linger();
  leave(status);
}

void Transport::await_end() {
  if (launcher_outlives()) {
    std::this_thread::sleep_for(kSameMoment);
    _exit(0);
  }
  for (;;) pause();
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
