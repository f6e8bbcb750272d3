// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// MPI without waiting: every transfer is posted and then polled, and who is waited for must show
/// signs of life.
///
/// While a process waits or calls `breathe` it sends every other process an empty message, a beat,
/// a few times within the time-out. A process that is frozen sends none; one that was killed is
/// missing from its machine's process table. Either ends the run through `Fault`, which names it.
/// Peers that are merely waiting for somebody else keep beating, so that the one who holds
/// everybody up is named and not the messenger.

#include <mpi.h>

#include <chrono>
#include <cstddef>
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

inline constexpr int kEverybody = -1;

/// One posted transfer. It must be done before its buffer goes away.
struct Transfer {
  MPI_Request request = MPI_REQUEST_NULL;
  int peer = kEverybody;     ///< whom it waits for
  std::size_t received = 0;  ///< bytes, once done
};

/// First tag of a layer's payload: layer i travels under kLayerTag + i.
inline constexpr int kLayerTag = 1000;

class Transport {
 public:
  Transport(int* argc, char*** argv, double timeout_seconds, int servers);
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

  /// Ends the grace that processes have for loading libraries and data.
  void end_set_up();
  /// Gives MPI a chance to move data and sends beats that are due. Called in long computations.
  void breathe();

  /// One wait, over whatever its owner polls.
  class Patience {
   public:
    explicit Patience(Transport& transport);
    /// Nothing has come: sleeps a moment. \throws Fault when one of `awaited` gives no sign of
    /// life.
    void idle(std::span<const int> awaited);

   private:
    Transport& transport_;
    std::chrono::steady_clock::time_point since_, looked_;
    unsigned idle_rounds_ = 0;
  };

  /// Waits for all processes and shuts MPI down.
  void close();
  /// Prints one line to standard error and ends all processes of the job. `culprit`: the rank
  /// that caused it. All its neighbours notice, so only the lowest survivor speaks at once; nor
  /// does a process that was itself frozen and woke up because the job is being ended.
  [[noreturn]] void abort(const std::string& message, int culprit = kEverybody);

 private:
  using Clock = std::chrono::steady_clock;
  /// Where a process lives, exchanged at the start.
  struct Home {
    char machine[128];  ///< host name and process-number space, equal when process numbers can be
                        ///< compared
    char host[64];
    int process;
  };

  void check(int code, int peer, const char* action) const;
  void beat();
  void look_around();
  [[nodiscard]] bool is_dead(int rank) const;
  void check_alive(int rank, Clock::time_point since) const;
  [[nodiscard]] int count(std::size_t bytes) const;

  int rank_ = 0, size_ = 1;
  int servers_;
  std::chrono::duration<double> timeout_;
  std::vector<Home> homes_;
  std::vector<Clock::time_point> last_sign_;
  Clock::time_point last_beat_;
  Clock::time_point awake_;  ///< when this process last looked around
  bool was_frozen_ = false;  ///< for so long that others may have given it up
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
