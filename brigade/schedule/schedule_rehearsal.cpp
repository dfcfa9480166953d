#include "brigade/schedule/schedule_rehearsal.h"

#include <fmt/format.h>

#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace brigade {
namespace {

class Rehearsal {
 public:
  Rehearsal(const Schedule& schedule, std::vector<std::string>& problems)
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
            "rank {} waits forever before {}",
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
      return true;  // this rank's own: check_visits() has seen it
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
  std::vector<std::string>& problems_;
  std::vector<std::deque<Sent>> sends_;  // of each rank, oldest first
  std::set<Item> done_;
  std::set<Item> posted_once_;
  // Unanswered posts of the first rank towards the second, in order.
  std::map<std::pair<int, int>, std::deque<Action>> posted_;
};

}  // namespace

void rehearse(const Schedule& schedule, std::vector<std::string>& problems) {
  Rehearsal(schedule, problems).run();
}

}  // namespace brigade
