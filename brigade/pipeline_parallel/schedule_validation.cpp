#include <fmt/format.h>

#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "brigade/pipeline_parallel/schedule.h"
#include "brigade/pipeline_parallel/simulator.h"

namespace brigade {
namespace {

using Problems = std::vector<std::string>;

bool shape_is_valid(const Schedule& schedule, Problems& problems) {
  if (schedule.ranks < 1 || schedule.virtual_stages < 1 ||
      schedule.micro_batches < 1) {
    problems.push_back(fmt::format(
        "{} ranks, {} virtual stages and {} micro-batches, but each is at "
        "least 1",
        schedule.ranks,
        schedule.virtual_stages,
        schedule.micro_batches));
  } else if (static_cast<int>(schedule.per_rank.size()) != schedule.ranks) {
    problems.push_back(fmt::format(
        "the table has {} rows, but there are {} ranks",
        schedule.per_rank.size(),
        schedule.ranks));
  }
  for (size_t rank = 0; problems.empty() && rank < schedule.per_rank.size();
       ++rank) {
    for (const Action& action : schedule.per_rank[rank]) {
      if (action.stage < 0 || action.stage >= schedule.stages() ||
          action.micro_batch < 0 ||
          action.micro_batch >= schedule.micro_batches) {
        problems.push_back(fmt::format(
            "rank {}: {}, but there are {} stages and {} micro-batches",
            rank,
            describe(action),
            schedule.stages(),
            schedule.micro_batches));
      } else if (schedule.rank_of(action.stage) != static_cast<int>(rank)) {
        problems.push_back(fmt::format(
            "rank {}: {}, but that stage lies on rank {}",
            rank,
            describe(action),
            schedule.rank_of(action.stage)));
      }
    }
  }
  return problems.empty();
}

// How often each computation of one (stage, micro-batch) has been met.
struct Visits {
  int forward = 0;
  int backward = 0;
  int backward_input = 0;
  int backward_weight = 0;
};

// Exactly once, and in order on the rank itself.
void check_visits(const Schedule& schedule, Problems& problems) {
  const bool backward = schedule.passes == Passes::kForwardAndBackward;
  std::vector<Visits> visits(
      static_cast<size_t>(schedule.stages() * schedule.micro_batches));
  const auto at = [&](int stage, int micro_batch) -> Visits& {
    return visits[static_cast<size_t>(
        stage * schedule.micro_batches + micro_batch)];
  };
  for (const std::vector<Action>& actions : schedule.per_rank) {
    for (const Action& action : actions) {
      Visits& seen = at(action.stage, action.micro_batch);
      switch (action.kind) {
        case ActionKind::kForward:
          ++seen.forward;
          break;
        case ActionKind::kBackward:
        case ActionKind::kBackwardInput:
          ++(action.kind == ActionKind::kBackward ? seen.backward
                                                  : seen.backward_input);
          if (seen.forward == 0)
            problems.push_back(describe(action) + " comes before its forward");
          break;
        case ActionKind::kBackwardWeight:
          ++seen.backward_weight;
          if (seen.backward_input == 0)
            problems.push_back(
                describe(action) + " comes before its input half");
          break;
        default:
          break;
      }
    }
  }
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    for (int micro_batch = 0; micro_batch < schedule.micro_batches;
         ++micro_batch) {
      const Visits& seen = at(stage, micro_batch);
      const int wanted = backward ? 1 : 0;
      const bool whole = seen.backward == wanted && seen.backward_input == 0 &&
                         seen.backward_weight == 0;
      const bool halves = seen.backward == 0 && seen.backward_input == wanted &&
                          seen.backward_weight == wanted;
      if (seen.forward == 1 && (whole || halves))
        continue;
      problems.push_back(fmt::format(
          "micro-batch {} on stage {}: {} forward, {} backward, {} input and "
          "{} weight halves, but {}",
          micro_batch,
          stage,
          seen.forward,
          seen.backward,
          seen.backward_input,
          seen.backward_weight,
          backward ? "one forward and one backward, whole or in two halves, "
                     "are needed"
                   : "one forward alone is needed"));
    }
  }
}

void check_reductions(const Schedule& schedule, Problems& problems) {
  if (schedule.passes == Passes::kForwardOnly)
    return;
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const std::vector<Action>& actions =
        schedule.per_rank[static_cast<size_t>(schedule.rank_of(stage))];
    int reductions = 0;
    int whole_left = schedule.micro_batches;
    int halves_left = schedule.micro_batches;
    for (const Action& action : actions) {
      if (action.stage != stage)
        continue;
      if (action.kind == ActionKind::kBackward)
        --whole_left;
      if (action.kind == ActionKind::kBackwardWeight)
        --halves_left;
      if (action.kind != ActionKind::kReduceGradients)
        continue;
      ++reductions;
      if (whole_left != 1 && halves_left != 0)
        problems.push_back(fmt::format(
            "the gradients of stage {} are reduced neither right before its "
            "last backward nor after its last weight half",
            stage));
    }
    if (reductions != 1)
      problems.push_back(fmt::format(
          "the gradients of stage {} are reduced {} times, but once is needed",
          stage,
          reductions));
  }
}

// Runs the ranks against each other: posting never blocks, computation waits
// for its input and for old sends, and a pair of ranks transfers in the order
// of posting.
class Rehearsal {
 public:
  Rehearsal(const Schedule& schedule, Problems& problems)
      : schedule_(schedule),
        problems_(problems),
        sends_(schedule.per_rank.size()) {}

  void run() {
    std::vector<size_t> next(schedule_.per_rank.size(), 0);
    for (bool moved = true; moved && problems_.empty();) {
      moved = false;
      for (size_t rank = 0; rank < next.size(); ++rank) {
        const std::vector<Action>& actions = schedule_.per_rank[rank];
        while (next[rank] < actions.size() &&
               carry_out(static_cast<int>(rank), actions[next[rank]])) {
          ++next[rank];
          moved = true;
        }
      }
    }
    if (!problems_.empty())
      return;
    for (size_t rank = 0; rank < next.size(); ++rank) {
      if (next[rank] < schedule_.per_rank[rank].size())
        problems_.push_back(fmt::format(
            "rank {} waits for ever before {}",
            rank,
            describe(schedule_.per_rank[rank][next[rank]])));
    }
    for (const auto& [pair, queue] : posted_) {
      if (!queue.empty())
        problems_.push_back(fmt::format(
            "rank {} posts {}, and rank {} never answers",
            pair.first,
            describe(queue.front()),
            pair.second));
    }
  }

 private:
  // What exists: the output of a computation, or a tensor that arrived.
  using Item = std::tuple<ActionKind, int, int>;
  static Item item(ActionKind kind, int stage, int micro_batch) {
    return {kind, stage, micro_batch};
  }
  bool exists(ActionKind kind, int stage, int micro_batch) const {
    return done_.count(item(kind, stage, micro_batch)) > 0;
  }
  bool gradient_exists(int stage, int micro_batch) const {
    return exists(ActionKind::kBackward, stage, micro_batch) ||
           exists(ActionKind::kBackwardInput, stage, micro_batch);
  }

  bool carry_out(int rank, const Action& action) {
    if (is_communication(action.kind)) {
      post(rank, action);
      return problems_.empty();
    }
    if (action.kind == ActionKind::kReduceGradients)
      return true;
    if (!inputs_exist(action) || !old_sends_ended(rank))
      return false;
    for (Sent& sent : sends_[static_cast<size_t>(rank)])
      ++sent.computations_since;
    done_.insert(item(action.kind, action.stage, action.micro_batch));
    return true;
  }

  bool inputs_exist(const Action& action) const {
    const int stage = action.stage;
    const int micro_batch = action.micro_batch;
    if (action.kind == ActionKind::kForward) {
      if (stage == 0)
        return true;
      return is_local(stage, stage - 1)
                 ? exists(ActionKind::kForward, stage - 1, micro_batch)
                 : exists(ActionKind::kRecvActivation, stage, micro_batch);
    }
    if (action.kind == ActionKind::kBackwardWeight ||
        stage == schedule_.stages() - 1)
      return true;  // of this rank's own making: check_visits()
    return is_local(stage, stage + 1)
               ? gradient_exists(stage + 1, micro_batch)
               : exists(ActionKind::kRecvGradient, stage, micro_batch);
  }

  bool old_sends_ended(int rank) {
    std::deque<Sent>& sends = sends_[static_cast<size_t>(rank)];
    while (!sends.empty() && sends.front().computations_since >= kSendSlack) {
      if (done_.count(sends.front().received) == 0)
        return false;
      sends.pop_front();
    }
    return true;
  }

  bool is_local(int stage, int other) const {
    return schedule_.rank_of(stage) == schedule_.rank_of(other);
  }

  void post(int rank, const Action& action) {
    const int other_stage = is_send(action.kind) == is_activation(action.kind)
                                ? action.stage + 1
                                : action.stage - 1;
    if (other_stage < 0 || other_stage >= schedule_.stages() ||
        is_local(action.stage, other_stage)) {
      problems_.push_back(
          describe(action) + ", but no stage on another rank is there");
      return;
    }
    if (!posted_once_
             .insert(item(action.kind, action.stage, action.micro_batch))
             .second) {
      problems_.push_back(describe(action) + " is posted twice");
      return;
    }
    const int stage = action.stage;
    const int micro_batch = action.micro_batch;
    if ((action.kind == ActionKind::kSendActivation &&
         !exists(ActionKind::kForward, stage, micro_batch)) ||
        (action.kind == ActionKind::kSendGradient &&
         !gradient_exists(stage, micro_batch))) {
      problems_.push_back(
          describe(action) + " is posted before its tensor exists");
      return;
    }
    if (is_send(action.kind))
      sends_[static_cast<size_t>(rank)].push_back(
          {item(
               is_activation(action.kind) ? ActionKind::kRecvActivation
                                          : ActionKind::kRecvGradient,
               other_stage,
               micro_batch),
           0});
    const int peer = schedule_.rank_of(other_stage);
    std::deque<Action>& mine = posted_[{rank, peer}];
    std::deque<Action>& theirs = posted_[{peer, rank}];
    mine.push_back(action);
    if (mine.size() > 1 || theirs.empty())
      return;  // behind an unanswered one, or the first to arrive
    match(rank, peer, mine, theirs);
  }

  void match(
      int rank,
      int peer,
      std::deque<Action>& mine,
      std::deque<Action>& theirs) {
    while (!mine.empty() && !theirs.empty()) {
      const Action& a = mine.front();
      const Action& b = theirs.front();
      const Action& send = is_send(a.kind) ? a : b;
      const Action& recv = is_send(a.kind) ? b : a;
      const bool fits =
          is_send(send.kind) && !is_send(recv.kind) &&
          is_activation(send.kind) == is_activation(recv.kind) &&
          send.micro_batch == recv.micro_batch &&
          recv.stage ==
              (is_activation(send.kind) ? send.stage + 1 : send.stage - 1);
      if (!fits) {
        problems_.push_back(fmt::format(
            "rank {} posts {} where rank {} posts {}",
            rank,
            describe(a),
            peer,
            describe(b)));
        return;
      }
      done_.insert(item(recv.kind, recv.stage, recv.micro_batch));
      mine.pop_front();
      theirs.pop_front();
    }
  }

  struct Sent {
    Item received;  // exists once the send has ended
    int computations_since = 0;
  };

  const Schedule& schedule_;
  Problems& problems_;
  std::vector<std::deque<Sent>> sends_;  // of each rank, oldest first
  std::set<Item> done_;
  std::set<Item> posted_once_;
  // Unanswered posts of the first rank towards the second, in order.
  std::map<std::pair<int, int>, std::deque<Action>> posted_;
};

}  // namespace

std::vector<std::string> validate_computation(const Schedule& schedule) {
  Problems problems;
  if (!shape_is_valid(schedule, problems))
    return problems;
  check_visits(schedule, problems);
  if (!problems.empty())
    return problems;
  std::vector<Action> stuck;
  simulate_until_stuck(schedule, SimulationCosts{}, stuck);
  for (const Action& action : stuck)
    problems.push_back(
        describe(action) + " waits for ever: the ranks wait for each other");
  return problems;
}

std::vector<std::string> validate(const Schedule& schedule) {
  Problems problems = validate_computation(schedule);
  if (!problems.empty())
    return problems;
  check_reductions(schedule, problems);
  Rehearsal(schedule, problems).run();
  return problems;
}

}  // namespace brigade
