// SPDX-License-Identifier: Apache-2.0
/// \file
/// Whose message a server takes next, and whom it can do without.

#include <algorithm>

#include "roles/server.hpp"

namespace train {

bool Server::here(std::size_t worker) {
  return receiver_.arrived(worker) &&
         (!leads() || transport_.done(seats_[worker].oldest().transfer));
}

std::size_t Server::first_to_arrive() {
  Transport::Patience patience(transport_);
  std::vector<int> awaited;
  for (;;) {
    awaited.clear();
    for (std::size_t i = 1; i <= workers(); ++i) {
      const std::size_t k = (source_ + i) % workers();  // so that everybody's turn comes
      if (receiver_.outstanding(k) == 0) continue;
      if (here(k)) return k;
      awaited.push_back(rank_of(k));
    }
    patience.idle(awaited);
  }
}

std::vector<std::size_t> Server::choose(std::size_t count) {
  std::vector<std::size_t> chosen;
  Transport::Patience patience(transport_);
  std::vector<int> awaited;
  for (;;) {
    bool moved = false;
    awaited.clear();
    for (std::size_t k = 0; k < workers() && chosen.size() < count; ++k) {
      const bool taken = std::find(chosen.begin(), chosen.end(), k) != chosen.end();
      if (receiver_.outstanding(k) == 0 || taken) continue;
      if (!here(k)) {
        awaited.push_back(rank_of(k));
        continue;
      }
      moved = true;
      const bool late = seats_[k].oldest().step != step_;
      const bool counts = !late || run_.options.late == "add";
      order_servers(
          {.what = counts ? What::accept : What::drop, .worker = static_cast<std::uint32_t>(k)});
      if (counts) {
        chosen.push_back(k);
      } else {
        drop(k);
      }
    }
    if (chosen.size() == count) break;
    if (!moved) patience.idle(needed_of(awaited, count - chosen.size()));
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

std::vector<std::size_t> Server::follow_choice(std::size_t count) {
  std::vector<std::size_t> chosen;
  while (chosen.size() < count) {
    const Order order = receive_order();
    if (order.what == What::accept) {
      chosen.push_back(order.worker);
      continue;
    }
    Transport::Patience patience(transport_);
    const int rank = rank_of(order.worker);
    while (!here(order.worker)) patience.idle(std::span(&rank, 1));
    drop(order.worker);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

/// It is late: it skips forward to the step under way.
void Server::drop(std::size_t worker) {
  receiver_.drop(worker);
  take_report(worker, dropped_);
  give(std::span(&worker, 1), step_, weights());
}

std::vector<int> Server::needed_of(const std::vector<int>& awaited, std::size_t needed) const {
  std::vector<int> alive;
  for (const int rank : awaited) {
    if (!transport_.silent(rank)) alive.push_back(rank);
  }
  return alive.size() < needed ? awaited : alive;
}

std::vector<std::size_t> Server::wait_for_arrivals() {
  Transport::Patience patience(transport_);
  for (;;) {
    std::vector<std::size_t> there;
    std::vector<int> awaited;
    for (const std::size_t k : everybody_) {
      if (receiver_.outstanding(k) == 0 || here(k)) {
        there.push_back(k);
      } else {
        awaited.push_back(rank_of(k));
      }
    }
    if (spares()) {
      const std::size_t wanted = run_.options.aggregate;
      awaited = needed_of(awaited, wanted - std::min(wanted, there.size()));
    }
    if (awaited.empty()) return there;
    patience.idle(awaited);
  }
}

}  // namespace train
