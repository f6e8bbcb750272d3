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
  verdicts_.resize(static_cast<std::size_t>(size_));
  lost_.assign(static_cast<std::size_t>(size_), 0);

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
  const int code =
      MPI_Isend(bytes.data(), count(bytes.size()), MPI_BYTE, to, tag, MPI_COMM_WORLD, &t.request);
  if (code != MPI_SUCCESS && outlives_ && to != 0) return {};  // its silence will be noticed
  check(code, to, "sending to");
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
  if (transfer.failed) return false;
  if (transfer.request == MPI_REQUEST_NULL) return true;
  if (cut_off(transfer.peer)) return false;
  int flag = 0;
  MPI_Status status;
  const int code = MPI_Test(&transfer.request, &flag, &status);
  if (code != MPI_SUCCESS && outlives_ && transfer.peer > 0) {
    transfer.failed = true;
    accuse(transfer.peer, name(transfer.peer) + " cannot be reached");
    return false;
  }
  check(code, transfer.peer, "a transfer with");
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
    bool all = false;
    for (auto& transfer : transfers) {
      if (done(transfer)) continue;
      check_not_lost(transfer.peer);
      append_awaited(transfer.peer, awaited);
      all = all || transfer.peer == kEverybody;
    }
    if (awaited.empty()) return;
    patience.idle(awaited, all);
  }
}

void Transport::append_awaited(int peer, std::vector<int>& awaited) const {
  if (peer != kEverybody && servers_ > 0) return awaited.push_back(peer);
  for (int r = 0; r < size_; ++r) awaited.push_back(r);
}

std::optional<std::vector<std::byte>> Transport::receive_if_there(int from, int tag) {
  int there = 0, length = 0;
  MPI_Status status;
  if (cut_off(from)) return std::nullopt;
  check(MPI_Iprobe(from, tag, MPI_COMM_WORLD, &there, &status), from, "receiving from");
  if (there == 0) return std::nullopt;
  MPI_Get_count(&status, MPI_BYTE, &length);
  auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(length));
  auto transfer = receive(from, tag, *bytes);
  try {
    wait(transfer);
  } catch (const Lost&) {
    keep(bytes);
    throw;
  }
  return std::move(*bytes);
}

std::vector<std::byte> Transport::receive_any_length(int from, int tag) {
  Patience patience(*this);
  std::vector<int> awaited;
  append_awaited(from, awaited);
  for (;;) {
    if (auto bytes = receive_if_there(from, tag)) return *std::move(bytes);
    check_not_lost(from);
    patience.idle(awaited);
  }
}

void Transport::deliver(int to, int tag, std::vector<std::byte> bytes) {
  auto memory = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  auto transfer = send(to, tag, *memory);
  try {
    wait(transfer);
  } catch (const Lost&) {
    keep(memory);
    throw;
  }
}

bool Transport::cut_off(int peer) const {
  const int other = rank_ == cut_.a ? cut_.b : rank_ == cut_.b ? cut_.a : kEverybody;
  if (other == kEverybody || (peer != other && peer != kEverybody)) return false;
  const std::chrono::duration<double> time = Clock::now() - set_up_;
  return set_up_ != Clock::time_point{} && time.count() >= cut_.after &&
         time.count() < cut_.after + cut_.lasts;
}

Transport::Patience::Patience(Transport& transport)
    : transport_(transport), since_(Clock::now()), looked_(since_) {
  transport.look_around();
}

void Transport::Patience::idle(std::span<const int> awaited, bool all) {
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
  for (const int rank : awaited) {
    if (transport_.outlives_ && !all) {
      transport_.watch(rank, since_);
    } else {
      transport_.check_alive(rank, since_);
    }
  }
}

bool Transport::close() {
  if (outlives_) {
    if (say_farewell()) return true;
  } else {
    Transfer transfer;
    check(MPI_Ibarrier(MPI_COMM_WORLD, &transfer.request), kEverybody, "closing with");
    wait(transfer);
    beat();  // takes notes that are still on their way
  }
  if (starts_mpi_) MPI_Finalize();
  return false;
}

}  // namespace train
