// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the decentralised algorithms share: every rank is a node of a graph, trains weights of its
/// own and talks to its neighbours alone. Rank 0 also writes what is kept and seen.
///
/// An algorithm is a class that derives from Node and says what a step is:
/// ```cpp
/// bool train(std::uint32_t step) {
///   const auto edges = due(step);
///   send(step, edges, here());          // to every neighbour whose slot it is
///   back_propagate(step);               // gradient_
///   for (const auto& j : edges) if (receive(j, theirs_)) ...
///   take_step(step);                    // here() moves along gradient_
///   return end_step(step);
/// }
/// ```
/// Nobody waits for all the others in a step: what nodes report is gathered while they go on, and
/// told some steps later. Interruptions are agreed on there, so that all stop behind the same step.
/// All of it goes through rank 0.
///
/// Where a run goes on without lost nodes, a node drops the edge to one in the step in which it
/// waits for it in vain: what was the edge's weight goes to the node itself. With the next reports
/// all learn of it, and behind the same step all take the weights of the graph without it.

#include <atomo/types.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "exchange/graph.hpp"
#include "exchange/mail.hpp"
#include "learning/learner.hpp"
#include "learning/optimiser.hpp"
#include "run/run.hpp"
#include "run/timeline.hpp"

namespace train {

/// Weights, or differences of weights, and the running statistics of batch normalisation with them.
struct Point {
  std::vector<float> weights, buffers;

  void clear();
  /// this += factor (a - b)
  void add_difference(double factor, const Point& a, const Point& b);
};

class Node {
 public:
  /// Loads the data, makes the network and the graph; `begin` must follow.
  explicit Node(Run& run);
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// Steps that are done, those of the checkpoint included.
  [[nodiscard]] std::uint32_t done() const noexcept { return done_; }
  [[nodiscard]] std::span<float> weights() { return learner_.replica().weights(); }
  /// Whether the checkpoint is of a run that owes the test after its last step.
  [[nodiscard]] bool owes_test() const noexcept { return owes_test_; }
  /// Each node's own model on all samples of the test, and the mean model. False on all: it was broken
  /// off.
  [[nodiscard]] bool test(std::uint32_t done);
  /// Writes a checkpoint. Every rank calls it.
  void save(std::uint32_t done, bool owes_test);
  void finish(std::uint32_t done, bool stopped);

 protected:
  /// What becomes of a state that a checkpoint lacks, as its node was lost.
  enum class Without { zeros, mean_weights, mean_buffers };
  /// Part of this node's state: checkpoints keep it under `name`. `of`: the neighbour it is about,
  /// without which it goes. Of a node that begins afresh it is what the neighbour has under
  /// `theirs`, if that is not empty; else, and where the neighbour begins afresh, it is what
  /// `without` says. Before `begin`.
  void keep(const std::string& name, std::vector<float>& values, Without without, int of = kNobody,
            const std::string& theirs = "") {
    kept_[name] = {&values, without, of, theirs};
  }
  /// Goes on from the checkpoint, if there is one, and opens the log. The last thing a role does
  /// when it is made.
  void begin();

  [[nodiscard]] bool first() const noexcept { return transport_.rank() == 0; }
  /// Without those to which the edge was dropped.
  [[nodiscard]] std::vector<Neighbour> neighbours() const {
    return graph_.neighbours(transport_.rank());
  }
  /// Whether the edge to a neighbour was.
  [[nodiscard]] bool dropped(const Neighbour& j) const {
    return dropped_[static_cast<std::size_t>(j.node)] != kNever;
  }
  /// The graph has lost nodes, and all weights are new.
  virtual void graph_changed() {}
  /// The neighbours whose slot a step is.
  [[nodiscard]] std::vector<Neighbour> due(std::uint32_t step) const {
    return graph_.due(transport_.rank(), step);
  }

  [[nodiscard]] std::size_t elements() { return learner_.replica().weights().size(); }
  /// A copy of where this node is.
  [[nodiscard]] Point here();
  /// Weights and statistics += change.
  void move_by(const Point& change);
  /// A point of this node's size.
  [[nodiscard]] Point zeros();

  /// Forward and backward over this node's samples: `gradient_` at the weights as they are. What
  /// was sent and expected travels meanwhile. Begins the step's report.
  void back_propagate(std::uint32_t step);
  /// The optimiser moves the weights along `gradient_`.
  void take_step(std::uint32_t step);
  /// Tells what this node did. Returns whether the run ends behind this step.
  [[nodiscard]] bool end_step(std::uint32_t step);

  /// Encodes the point's weights once and posts them, with its statistics, to `to`, and gets ready
  /// for theirs. `sent` becomes what they decode. Further messages of the same step each want a
  /// `channel` of their own. Asynchronously, who has not taken the last one is passed over.
  void send(std::uint32_t step, const std::vector<Neighbour>& to, const Point& point, Point& sent,
            std::uint16_t channel = 0);
  /// The same where nobody needs to know what is decoded.
  void send(std::uint32_t step, const std::vector<Neighbour>& to, const Point& point,
            std::uint16_t channel = 0);
  /// Waits for the next message of a neighbour. Asynchronously, takes the latest that has arrived.
  /// Returns whether there was one, and leaves `theirs` as it is when not: when none has arrived, or
  /// the neighbour is lost and the edge to it dropped.
  bool receive(const Neighbour& from, Point& theirs);

  Run& run_;
  Transport& transport_;
  Graph graph_;
  Learner learner_;
  std::unique_ptr<Optimiser> optimiser_;
  std::vector<float> gradient_;

  static constexpr int kNobody = -1;

 private:
  static constexpr std::uint32_t kNever = UINT32_MAX;
  /// What a node tells about a step.
  struct Told {
    StepReport report;
    double wait = 0, decode = 0;  ///< milliseconds
  };
  struct Kept {
    std::vector<float>* values = nullptr;
    Without without = Without::zeros;
    int of = kNobody;
    std::string theirs;
  };
  /// What rank 0 makes of the reports of a gather, the same for all. The lost nodes follow, a byte a
  /// node.
  struct Verdict {
    std::uint32_t stops = 0;
    std::uint32_t steps_a_gather = 0;
  };

  void begin_step(std::uint32_t step);
  void post(std::uint32_t step, const std::vector<Neighbour>& to, const Point& point,
            std::uint16_t channel, std::span<float> decoded);
  /// A neighbour is lost: the step under way, and all behind it, go without it.
  void drop(int node, std::uint32_t step);

  void post_reports();
  /// As rank 0: takes the reports that have arrived, and once all have, logs them and tells the
  /// verdict.
  void collect_reports();
  void conclude();
  void log_reports(Verdict& verdict);
  /// Waits for the verdict and does what it says.
  void take_reports();
  /// Brings all reports to the log.
  void flush();
  /// The nodes that transport knows to be lost, a byte a node.
  [[nodiscard]] std::vector<std::byte> lost_nodes() const;
  /// Takes the weights without them from the next step on. Returns whether there are new ones.
  bool go_on_without(std::span<const std::byte> lost);
  void log_lost(bool all);
  /// What was gathered of the nodes has to be gathered again: one was lost since all agreed before
  /// on who is. Every node calls it.
  [[nodiscard]] bool lost_meanwhile();
  /// The nodes that all agree are left, in ascending order.
  [[nodiscard]] std::vector<int> left() const;
  /// What a node sends to rank 0; nothing where it is lost.
  [[nodiscard]] std::optional<std::vector<std::byte>> from(int node, int tag);
  [[nodiscard]] std::optional<std::vector<std::byte>> from_if_there(int node, int tag);
  void send_to_all(int tag, atomo::ConstBytes bytes);
  /// Of the nodes left, in their order. Rank 0 gets them.
  template <class T>
  std::vector<T> gather(const T& mine);
  /// What rank 0 says, on every node.
  [[nodiscard]] bool as_first_says(bool answer);
  /// Mean over the nodes left; every node gets it.
  [[nodiscard]] std::vector<float> mean_over_nodes(std::span<const float> own);
  [[nodiscard]] WorkerState state();
  /// Returns the bytes that were sent before.
  std::uint64_t restore();
  void share_events(std::uint32_t step);

  std::map<std::string, Kept> kept_;
  std::uint32_t done_ = 0;
  std::optional<std::uint32_t> step_;  ///< the one under way
  bool stopped_ = false, owes_test_ = false;
  Mail mail_;
  Timeline timeline_{false, 0, ""};
  Told now_;
  std::vector<Told> told_, posted_;                ///< not yet posted; under way
  std::uint32_t told_from_ = 0, posted_from_ = 0;  ///< the first steps of them
  std::size_t steps_a_gather_ = 2;
  std::map<int, std::vector<Told>> gathered_;  ///< by node; the others are still awaited
  std::vector<std::byte> report_;              ///< on its way to rank 0
  Transfer reporting_;
  std::optional<std::vector<std::byte>> verdict_;
  std::vector<std::uint32_t> dropped_;  ///< by node: the first step without the edge to it
  std::set<int> lost_;                  ///< as all agree
  std::vector<LostNode> unlogged_;      ///< until all have told when they dropped their edges
  std::optional<Log> log_;
};

}  // namespace train
