// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// MPI without waiting: every transfer is posted and then polled, and who is waited for must show
/// signs of life.
///
/// While a process waits or calls `breathe` it sends every other process a beat, a few times within
/// the time-out. A process that is frozen sends none; one that was killed is missing from its
/// machine's process table. Who waits for the dead stops at once; who waits for the silent asks
/// first, as often as there are retries, and waits the time-out again each time. MPI loses no
/// message, so nothing is sent twice: asking is all that a retry can do, and any process that waits
/// or breathes answers. What ends the run is a `Fault`, which names the process. Peers that are
/// merely waiting for somebody else keep beating, so that the one who holds everybody up is named
/// and not the messenger.
///
/// A job may instead outlive processes (`outlive_lost`), all but rank 0. Who misses one then accuses
/// it before rank 0, which declares it lost to all, once and for all: who waits for it gets a `Lost`,
/// it is told nothing more, and when it comes back it ends by itself. A launcher ends a job when one
/// of its processes dies, as long as it is not told otherwise: `mpirun --enable-recovery`.

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "atomo/types.hpp"

namespace train {

/// A process that ends the run: it died, froze, cannot be reached, or sent what cannot be used.
class Fault : public std::runtime_error {
 public:
  Fault(int rank, const std::string& what) : std::runtime_error(what), rank_(rank) {}
  [[nodiscard]] int rank() const noexcept { return rank_; }

 private:
  int rank_;
};

/// A process that the job goes on without.
class Lost : public Fault {
 public:
  using Fault::Fault;
};

inline constexpr int kEverybody = -1;

/// Two processes that hear nothing of each other for a while. What they send arrives later.
struct Cut {
  int a = kEverybody, b = kEverybody;
  double after = 0, lasts = 0;  ///< seconds: since the end of the set-up, and from then on
};

/// One posted transfer. It must be done before its buffer goes away.
struct Transfer {
  MPI_Request request = MPI_REQUEST_NULL;
  int peer = kEverybody;     ///< whom it waits for
  bool failed = false;       ///< it will never be done
  std::size_t received = 0;  ///< bytes, once done
};

/// First tag of a layer's payload: layer i travels under kLayerTag + i.
inline constexpr int kLayerTag = 1000;

class Transport {
 public:
  /// `retries`: how often a process is asked for a sign of life before it is given up.
  Transport(int* argc, char*** argv, double timeout_seconds, std::uint32_t retries, int servers);
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// Ranks 0 to servers() - 1 serve, the others train.
  [[nodiscard]] int servers() const noexcept { return servers_; }
  [[nodiscard]] int workers() const noexcept { return size_ - servers_; }
  /// Rank of worker k, counted from 0.
  [[nodiscard]] int rank_of_worker(int worker) const noexcept { return servers_ + worker; }
  /// "the server (rank 0, process 17 on host)", "worker 2 (rank 2, process 19 on host)": workers
  /// count from 1.
  [[nodiscard]] std::string name(int rank) const;

  /// Whether a rank is a process of this machine whose number means something here.
  [[nodiscard]] bool shares_machine(int rank) const;

  [[nodiscard]] Transfer send(int to, int tag, atomo::ConstBytes bytes);
  /// `into` may be longer than the message.
  [[nodiscard]] Transfer receive(int from, int tag, atomo::Bytes into);
  /// `everybody` holds `mine.size()` bytes a rank, in rank order.
  [[nodiscard]] Transfer all_gather(atomo::ConstBytes mine, atomo::Bytes everybody);

  /// Whether a transfer is done; never waits.
  [[nodiscard]] bool done(Transfer& transfer);
  /// Without a server everybody waits for everybody in the end, so all have to show signs of life,
  /// and the one who holds everybody up is named by all. \throws Fault
  void wait(Transfer& transfer);
  void wait(std::span<Transfer> transfers);
  /// A message of any length. \throws Fault
  [[nodiscard]] std::vector<std::byte> receive_any_length(int from, int tag);
  /// The same without waiting for it to arrive.
  [[nodiscard]] std::optional<std::vector<std::byte>> receive_if_there(int from, int tag);
  /// Sends and waits until that is done. \throws Fault
  void deliver(int to, int tag, std::vector<std::byte> bytes);

  /// From here on the job goes on without processes that died or fell silent, but not without
  /// rank 0. Transfers with one of them throw `Lost`; what all processes take part in throws a
  /// `Fault`, as before, so it has no place behind the set-up.
  void outlive_lost() noexcept { outlives_ = true; }
  [[nodiscard]] bool outlives_lost() const noexcept { return outlives_; }
  /// Whether rank 0 has declared it lost, as far as this process has listened.
  [[nodiscard]] bool lost(int rank) const { return lost_[static_cast<std::size_t>(rank)]; }
  /// Keeps memory in which transfers with a lost process may still read and write.
  void keep(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }
  /// For tests.
  void cut(const Cut& cut) noexcept { cut_ = cut; }

  /// Ends the grace that processes have for loading libraries and data.
  void end_set_up();
  /// Gives MPI a chance to move data and sends beats that are due. Called in long computations.
  void breathe();
  /// Whether a process has died, or given no sign of life for longer than the time-out, as far as
  /// this one has listened: it must have waited or breathed a moment ago. For algorithms that go on
  /// without the silent; one that comes back is silent no longer.
  [[nodiscard]] bool silent(int rank) const;

  /// One wait, over whatever its owner polls.
  class Patience {
   public:
    explicit Patience(Transport& transport);
    /// Nothing has come: sleeps a moment. \throws Fault when one of `awaited` gives no sign of
    /// life. `all`: what is awaited cannot be done without any of them.
    void idle(std::span<const int> awaited, bool all = false);

   private:
    Transport& transport_;
    std::chrono::steady_clock::time_point since_, looked_;
    unsigned idle_rounds_ = 0;
  };

  /// Waits for all processes, but those that are lost, and shuts MPI down if this started it. Where one is lost, MPI
  /// would wait for it, so MPI stays, and `leave` has to follow: returns whether that is so.
  [[nodiscard]] bool close();
  /// The end of a process where others are lost: rank 0 goes last, and takes those that are frozen
  /// along. Where the launcher does not outlive a process, all wait for rank 0 to end the job.
  [[noreturn]] void leave(int status);
  /// As rank 0: ends the job without these, while the others `await_end`.
  [[noreturn]] void end_without(std::span<const int> ranks, int status);
  /// Waits for rank 0 to end the job.
  [[noreturn]] void await_end();
  /// Ends all processes of the job without waiting for any: `status` is the launcher's.
  [[noreturn]] static void end_job(int status);
  /// Prints one line to standard error and ends all processes of the job. `culprit`: the rank
  /// that caused it. Several notice, so they tell each other, and the lowest of those who noticed
  /// at the same time speaks; the culprit only when nobody else does. A process that has just woken
  /// up leaves it to others, because it may have been woken by the job's end.
  [[noreturn]] void abort(const std::string& message, int culprit = kEverybody);
  /// Ends the job for the exception that is being handled.
  [[noreturn]] void abort_for_exception();

 private:
  using Clock = std::chrono::steady_clock;
  /// Where a process lives, exchanged at the start.
  struct Home {
    char machine[128];  ///< host name and process-number space, equal when process numbers can be
                        ///< compared
    char host[64];
    int process;
  };

  /// What processes tell each other beside the run's own messages.
  enum class Word : std::int32_t {
    beat,
    ask,     ///< for a beat at once
    asked,   ///< the sender has asked rank `about`, and has told the user
    ending,  ///< the sender is about to end the job, or itself where `about` is `kItself`
    accuse,  ///< rank `about` has given the sender no sign of life
    lost     ///< rank 0 goes on without rank `about`, and so has everybody
  };
  static constexpr std::int32_t kJob = 0, kItself = 1;
  struct Note {
    Word word = Word::beat;
    std::int32_t about = 0;
  };
  /// What is known of another process.
  struct Life {
    Clock::time_point last_sign{};
    Clock::time_point silent_from{}, asked_at{};  ///< in this silence
    std::uint32_t asked = 0;                      ///< times, in this silence
    std::uint32_t told = 0;                       ///< the last question of which this process spoke
    Clock::time_point told_by_another{};
    bool accused = false;  ///< by this process
  };

  void check(int code, int peer, const char* action) const;
  [[nodiscard]] int count(std::size_t bytes) const;

  void beat();
  void look_around();
  void tell(int rank, const Note& note);
  void tell_all(const Note& note);
  void listen();
  void hear(int from, const Note& note);
  void note_sign(int rank);
  [[nodiscard]] bool is_dead(int rank) const;
  /// \throws Fault
  void check_alive(int rank, Clock::time_point since);
  /// The same where the job outlives `rank`, which is accused. \throws Fault for rank 0.
  void watch(int rank, Clock::time_point since);
  void accuse(int rank, const std::string& why);
  /// As rank 0: tells everybody.
  void declare_lost(int rank, const std::string& why);
  /// \throws Lost
  void check_not_lost(int rank) const;
  /// The processes that have to show signs of life while this one waits for `peer`.
  void append_awaited(int peer, std::vector<int>& awaited) const;
  [[nodiscard]] bool cut_off(int peer) const;
  /// Everybody tells rank 0 that it is done, and hears from it when all are. Returns whether one
  /// was lost.
  bool say_farewell();
  void linger();
  void end_frozen() const;
  void ask(int rank, Clock::time_point silent_from);
  void tell_user_of_silence(int rank);
  /// The rank that speaks of `culprit` without asking whether another does.
  [[nodiscard]] int first_speaker(int culprit) const noexcept { return culprit == 0 ? 1 : 0; }

  int rank_ = 0, size_ = 1;
  bool starts_mpi_ = true;  ///< false: the program had MPI running, and goes on with it
  int servers_;
  std::chrono::duration<double> timeout_;
  std::uint32_t retries_;
  std::vector<Home> homes_;
  std::vector<Life> lives_;
  std::vector<Note> notes_;  ///< one a rank it is about: a note stays put while it travels
  Clock::time_point last_beat_;
  Clock::time_point awake_;  ///< when this process last looked around
  Clock::time_point woke_;   ///< from what may have been so long that others gave it up
  int ending_ = kEverybody;  ///< the lowest rank that is about to end the job
  bool outlives_ = false;
  bool job_ends_ = false;  ///< some other process has said so
  bool closing_ = false;
  std::vector<char> lost_;      ///< by rank
  std::vector<Note> verdicts_;  ///< of rank 0, one a rank
  std::vector<std::shared_ptr<void>> kept_;
  Cut cut_;
  Clock::time_point set_up_{};              ///< when it ended
  std::vector<std::pair<int, Note>> held_;  ///< notes that a cut holds up, and who sent them
};

/// A trivially copyable value as bytes.
template <class T>
[[nodiscard]] atomo::ConstBytes bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
[[nodiscard]] atomo::Bytes writable_bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

}  // namespace train
