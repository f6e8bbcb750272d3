// SPDX-License-Identifier: Apache-2.0
/// \file
/// Sends, receives and gathers are posted as non-blocking calls of MPI, and whoever waits polls
/// them, first giving way to other processes and then sleeping between polls. Every 50 ms a waiting
/// process calls functions of heartbeat.cpp, which send the beats that are due and check
/// whether those it waits for are alive. An error of MPI becomes a `Fault` that names the other
/// process.

#include "exchange/transport.hpp"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <thread>

namespace train {
namespace {

constexpr auto kSetUpGrace = std::chrono::seconds(60);
constexpr auto kNap = std::chrono::microseconds(100);
constexpr auto kLook = std::chrono::milliseconds(50);  ///< between looks at the process table

void copy_text(std::span<char> to, const std::string& from) {
  const std::size_t n = std::min(from.size(), to.size() - 1);
  std::memcpy(to.data(), from.data(), n);
  to[n] = 0;
}

std::string process_number_space() {
  char name[64] = "";
  const auto n = readlink("/proc/self/ns/pid", name, sizeof name - 1);
  return {name, n > 0 ? static_cast<std::size_t>(n) : 0};
}

}  // namespace

Transport::Transport(int* argc, char*** argv, double timeout_seconds, std::uint32_t retries,
                     int servers)
    : servers_(servers), timeout_(timeout_seconds), retries_(retries) {
  int started = 0, provided = 0;
  MPI_Initialized(&started);
  starts_mpi_ = started == 0;
  if (starts_mpi_) MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  last_beat_ = awake_ = Clock::now();
  lives_.assign(static_cast<std::size_t>(size_), {.last_sign = last_beat_ + kSetUpGrace});
  notes_.resize(static_cast<std::size_t>(size_));

  Home home{};
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  copy_text(home.host, host);
  copy_text(home.machine, std::string(host) + " " + process_number_space());
  home.process = getpid();
  std::vector<Home> homes(static_cast<std::size_t>(size_));
  auto transfer = all_gather(bytes_of(home), std::as_writable_bytes(std::span(homes)));
  wait(transfer);
  homes_ = std::move(homes);
}

std::string Transport::name(int rank) const {
  std::string place = "rank " + std::to_string(rank);
  if (!homes_.empty()) {
    const Home& home = homes_[static_cast<std::size_t>(rank)];
    place += ", process " + std::to_string(home.process) + " on " + home.host;
  }
  if (rank < servers_) {
    return (servers_ == 1 ? "the server (" : "server " + std::to_string(rank + 1) + " (") + place +
           ")";
  }
  return "worker " + std::to_string(rank - servers_ + 1) + " (" + place + ")";
}

int Transport::count(std::size_t bytes) const {
  if (bytes > INT_MAX) {
    throw std::runtime_error("a message of " + std::to_string(bytes) + " bytes is above MPI's " +
                             std::to_string(INT_MAX));
  }
  return static_cast<int>(bytes);
}

void Transport::check(int code, int peer, const char* action) const {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  const std::string whom = peer == kEverybody ? "all processes" : name(peer);
  throw Fault(peer, std::string(action) + " " + whom + " failed: " + text);
}

Transfer Transport::send(int to, int tag, atomo::ConstBytes bytes) {
  Transfer t{.peer = to};
  check(MPI_Isend(bytes.data(), count(bytes.size()), MPI_BYTE, to, tag, MPI_COMM_WORLD, &t.request),
        to, "sending to");
  return t;
}

Transfer Transport::receive(int from, int tag, atomo::Bytes into) {
  Transfer t{.peer = from};
  check(MPI_Irecv(into.data(), count(into.size()), MPI_BYTE, from, tag, MPI_COMM_WORLD, &t.request),
        from, "receiving from");
  return t;
}

Transfer Transport::all_gather(atomo::ConstBytes mine, atomo::Bytes everybody) {
  Transfer t;
  const int each = count(mine.size());
  check(MPI_Iallgather(mine.data(), each, MPI_BYTE, everybody.data(), each, MPI_BYTE,
                       MPI_COMM_WORLD, &t.request),
        kEverybody, "gathering from");
  return t;
}

bool Transport::done(Transfer& transfer) {
  if (transfer.request == MPI_REQUEST_NULL) return true;
  int flag = 0;
  MPI_Status status;
  check(MPI_Test(&transfer.request, &flag, &status), transfer.peer, "a transfer with");
  if (flag == 0) return false;
  if (transfer.peer != kEverybody) {
    int received = 0;
    MPI_Get_count(&status, MPI_BYTE, &received);
    transfer.received = static_cast<std::size_t>(std::max(received, 0));
    note_sign(transfer.peer);
  }
  return true;
}

void Transport::wait(Transfer& transfer) { wait(std::span(&transfer, 1)); }

void Transport::wait(std::span<Transfer> transfers) {
  Patience patience(*this);
  std::vector<int> awaited;
  for (;;) {
    awaited.clear();
    for (auto& transfer : transfers) {
      if (done(transfer)) continue;
      if (transfer.peer != kEverybody && servers_ > 0) {
        awaited.push_back(transfer.peer);
      } else {
        for (int r = 0; r < size_; ++r) awaited.push_back(r);
      }
    }
    if (awaited.empty()) return;
    patience.idle(awaited);
  }
}

std::vector<std::byte> Transport::receive_any_length(int from, int tag) {
  Patience patience(*this);
  for (;;) {
    int there = 0, length = 0;
    MPI_Status status;
    check(MPI_Iprobe(from, tag, MPI_COMM_WORLD, &there, &status), from, "receiving from");
    if (there != 0) {
      MPI_Get_count(&status, MPI_BYTE, &length);
      std::vector<std::byte> bytes(static_cast<std::size_t>(length));
      auto transfer = receive(from, tag, bytes);
      wait(transfer);
      return bytes;
    }
    patience.idle(std::span(&from, 1));
  }
}

Transport::Patience::Patience(Transport& transport)
    : transport_(transport), since_(Clock::now()), looked_(since_) {
  transport.look_around();
}

void Transport::Patience::idle(std::span<const int> awaited) {
  // Waiting processes share cores with computing ones: give way at once, then sleep.
  if (++idle_rounds_ < 20) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(kNap);
  }
  const auto now = Clock::now();
  if (now - looked_ < kLook) return;
  looked_ = now;
  transport_.beat();
  for (const int rank : awaited) transport_.check_alive(rank, since_);
}

void Transport::close() {
  Transfer transfer;
  check(MPI_Ibarrier(MPI_COMM_WORLD, &transfer.request), kEverybody, "closing with");
  wait(transfer);
  beat();  // takes notes that are still on their way
  if (starts_mpi_) MPI_Finalize();
}

}  // namespace train
