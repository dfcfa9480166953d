#include "brigade/flight/analysis.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace brigade {
namespace {

// Shorter ones are a busy machine's.
constexpr int64_t kLongPauseNs = 1'000'000'000;

using Recordings = std::map<int, const FlightRecording*>;  // by rank

// Without those that were asked for in a step before the failure's.
Recordings by_rank(const std::vector<FlightRecording>& recordings) {
  int64_t first_failed = tell_failure(recordings) ? INT64_MAX : INT64_MIN;
  for (const FlightRecording& recording : recordings) {
    if (recording.cause == FlightCause::kFailure)
      first_failed = std::min(first_failed, recording.step);
  }
  Recordings result;
  for (const FlightRecording& recording : recordings) {
    if (recording.step >= first_failed)
      result[recording.rank] = &recording;
  }
  return result;
}

std::string name_of(int rank, const Recordings& recordings) {
  for (const auto& [_, recording] : recordings) {
    for (const FlightGroup& group : recording->groups) {
      const auto at =
          std::find(group.members.begin(), group.members.end(), rank);
      if (at != group.members.end() && !group.member_names.empty())
        return group
            .member_names[static_cast<size_t>(at - group.members.begin())];
    }
  }
  return fmt::format("rank {}", rank);
}

std::string names_of(
    const std::vector<int>& ranks,
    const Recordings& recordings) {
  std::vector<std::string> names;
  for (const int rank : ranks)
    names.push_back(name_of(rank, recordings));
  return fmt::format("{}", fmt::join(names, ", "));
}

// "all_reduce #41 of 1024 x Float in group 'dp' at step 12"
std::string describe(const FlightOperation& operation, const FlightGroup& of) {
  return fmt::format(
      "{} #{} of {} x {} in group '{}' at step {}",
      operation.kind,
      operation.sequence_number,
      operation.numel,
      operation.dtype,
      of.name,
      operation.step);
}

// The operations of one group that all members share, on one of them.
struct Collectives {
  std::map<int64_t, const FlightOperation*> by_number;
  int64_t last() const {
    return by_number.empty() ? -1 : by_number.rbegin()->first;
  }
  int64_t first() const {
    return by_number.empty() ? 0 : by_number.begin()->first;
  }
};

bool is_same_call(const FlightOperation& a, const FlightOperation& b) {
  return std::tie(a.kind, a.dtype, a.numel, a.peer) ==
         std::tie(b.kind, b.dtype, b.numel, b.peer);
}

class Analyzer {
 public:
  explicit Analyzer(const std::vector<FlightRecording>& recordings)
      : recordings_(by_rank(recordings)) {}

  FlightAnalysis run() {
    for (const auto& [rank, recording] : recordings_) {
      for (const FlightGroup& group : recording->groups)
        groups_[group.members] = &group;
    }
    std::set<int> everyone;
    for (const auto& [members, group] : groups_)
      everyone.insert(members.begin(), members.end());
    for (const int rank : everyone) {
      if (!recordings_.contains(rank))
        result_.without_recording.push_back(rank);
    }
    for (const auto& [members, group] : groups_)
      compare_collectives(*group);
    for (const auto& [rank, recording] : recordings_)
      follow_messages(*recording);
    find_suspects();
    find_paused();
    return std::move(result_);
  }

 private:
  std::map<int, Collectives> collectives_of(const FlightGroup& group) const {
    std::map<int, Collectives> result;
    for (const int rank : group.members) {
      const auto found = recordings_.find(rank);
      if (found == recordings_.end())
        continue;
      Collectives& collectives = result[rank];
      for (const FlightOperation& operation : found->second->operations) {
        const auto index = static_cast<size_t>(operation.group);
        const bool is_of_group =
            found->second->groups[index].members == group.members;
        if (is_of_group && !operation.is_message())
          collectives.by_number[operation.sequence_number] = &operation;
      }
    }
    return result;
  }

  // The first collective of the group that did not end everywhere, or that the
  // ranks do not agree on; what comes after follows from it.
  void compare_collectives(const FlightGroup& group) {
    const auto ranks = collectives_of(group);
    std::set<int64_t> numbers;
    for (const auto& [rank, collectives] : ranks) {
      for (const auto& [number, operation] : collectives.by_number)
        numbers.insert(number);
    }
    for (const int64_t number : numbers) {
      std::map<int, const FlightOperation*> launched;
      std::vector<int> waiting;
      std::vector<int> absent;
      for (const int rank : group.members) {
        const auto known = ranks.find(rank);
        if (known == ranks.end()) {
          absent.push_back(rank);
          continue;
        }
        const auto found = known->second.by_number.find(number);
        if (found != known->second.by_number.end()) {
          launched[rank] = found->second;
          if (found->second->state != FlightState::kFinished)
            waiting.push_back(rank);
        } else if (known->second.last() < number) {
          absent.push_back(rank);
        }
        // Otherwise it is older than what the rank's recording goes back to.
      }
      if (differs(group, launched))
        return;
      if (waiting.empty())
        continue;
      add_unfinished(group, *launched.at(waiting.front()), waiting, absent);
      return;
    }
  }

  bool differs(
      const FlightGroup& group,
      const std::map<int, const FlightOperation*>& launched) {
    if (launched.empty())
      return false;
    const FlightOperation& first = *launched.begin()->second;
    std::vector<std::string> lines;
    std::vector<int> others;
    std::vector<int> all;
    for (const auto& [rank, operation] : launched) {
      all.push_back(rank);
      lines.push_back(fmt::format(
          "{} {} of {} x {}",
          name_of(rank, recordings_),
          operation->kind,
          operation->numel,
          operation->dtype));
      if (!is_same_call(*operation, first))
        others.push_back(rank);
    }
    if (others.empty())
      return false;
    // Which of two is wrong, nobody can say; of more, the fewer.
    if (2 * others.size() >= all.size()) {
      others.clear();
      for (const auto& [rank, operation] : launched) {
        if (is_same_call(*operation, first) && all.size() > 2)
          others.push_back(rank);
      }
    }
    result_.findings.push_back(
        {.text = fmt::format(
             "the ranks of group '{}' launched different operations as #{} at "
             "step {}: {}",
             group.name,
             first.sequence_number,
             first.step,
             fmt::join(lines, "; ")),
         .waiting = all,
         .absent = others});
    return true;
  }

  void add_unfinished(
      const FlightGroup& group,
      const FlightOperation& operation,
      const std::vector<int>& waiting,
      const std::vector<int>& absent) {
    const std::string what = describe(operation, group);
    std::string text;
    if (absent.empty()) {
      text = fmt::format(
          "all ranks launched {}, and it did not end on {}",
          what,
          names_of(waiting, recordings_));
    } else {
      text = fmt::format(
          "{} did not arrive at {}; {} waited there",
          names_of(absent, recordings_),
          what,
          names_of(waiting, recordings_));
    }
    result_.findings.push_back(
        {.text = std::move(text), .waiting = waiting, .absent = absent});
  }

  // The first message in each direction that has no other end, or that has one
  // and is waited for: without a wait, nobody may have looked at its end yet.
  void follow_messages(const FlightRecording& recording) {
    std::set<std::pair<std::string, int>> reported;
    for (const FlightOperation& operation : recording.operations) {
      if (!operation.is_message() || operation.state == FlightState::kFinished)
        continue;
      const auto& group =
          recording.groups[static_cast<size_t>(operation.group)];
      const auto peer = recordings_.find(operation.peer);
      const bool is_known = peer != recordings_.end();
      const bool is_matched =
          is_known && has_other_end(*peer->second, recording.rank, operation);
      if (is_matched && !operation.is_awaited)
        continue;
      if (!reported.emplace(operation.kind, operation.peer).second)
        continue;
      const bool receives = operation.kind == "recv";
      const char* their_end =
          !is_known ? "left no recording"
          : is_matched
              ? (receives ? "had begun to send it" : "had begun to receive it")
              : (receives ? "had not sent it" : "had not received it");
      result_.findings.push_back(
          {.text = fmt::format(
               "{} {}, {}, {} {}, which {}",
               name_of(recording.rank, recordings_),
               receives ? "waited for a message" : "sent a message",
               describe(operation, group),
               receives ? "from" : "to",
               name_of(operation.peer, recordings_),
               their_end),
           .waiting = {recording.rank},
           .absent = {operation.peer}});
    }
  }

  static bool has_other_end(
      const FlightRecording& peer,
      int rank,
      const FlightOperation& operation) {
    const std::string kind = operation.kind == "recv" ? "send" : "recv";
    return std::ranges::any_of(
        peer.operations, [&](const FlightOperation& theirs) {
          return theirs.kind == kind && theirs.peer == rank &&
                 theirs.sequence_number >= operation.sequence_number;
        });
  }

  void find_suspects() {
    std::set<int> waiting;
    std::set<int> absent;
    for (const FlightFinding& finding : result_.findings) {
      if (!finding.absent.empty())
        waiting.insert(finding.waiting.begin(), finding.waiting.end());
      absent.insert(finding.absent.begin(), finding.absent.end());
    }
    for (const FlightFinding& finding : result_.findings) {
      for (const int rank : finding.absent) {
        // Ranks that launched something else stand on both sides.
        const bool is_in_both =
            std::ranges::find(finding.waiting, rank) != finding.waiting.end();
        if (is_in_both)
          waiting.erase(rank);
      }
    }
    for (const int rank : absent) {
      if (!waiting.contains(rank))
        result_.suspects.push_back(rank);
    }
    if (!result_.suspects.empty())
      return;
    // All have operations that did not end. Where some wait for theirs, look at
    // the others: they launched theirs and went on.
    for (const int rank : absent) {
      if (!awaits_any(rank))
        result_.suspects.push_back(rank);
    }
    if (result_.suspects.size() == absent.size())
      result_.suspects.clear();
  }

  // Whether somebody on the rank waits for an operation that did not end.
  bool awaits_any(int rank) const {
    const auto found = recordings_.find(rank);
    if (found == recordings_.end())
      return false;
    return std::ranges::any_of(
        found->second->operations, [](const FlightOperation& operation) {
          return operation.is_awaited &&
                 operation.state != FlightState::kFinished;
        });
  }

  // A process that did not run is the cause, wherever it was.
  void find_paused() {
    std::vector<int> paused;
    for (const auto& [rank, recording] : recordings_) {
      if (recording->paused_ns < kLongPauseNs)
        continue;
      paused.push_back(rank);
      result_.findings.insert(
          result_.findings.begin(),
          {.text = fmt::format(
               "{} did not run for {:.1f} s in step {}: it was stopped, or had "
               "no processor",
               name_of(rank, recordings_),
               static_cast<double>(recording->paused_ns) / 1e9,
               recording->step),
           .waiting = {},
           .absent = {rank}});
    }
    if (!paused.empty())
      result_.suspects = paused;
  }

  Recordings recordings_;
  std::map<std::vector<int>, const FlightGroup*> groups_;
  FlightAnalysis result_;
};

// "in step 12 for 31.2 s, last all_reduce #40 ... (finished)"
std::string describe(const FlightRecording& recording) {
  const double seconds =
      static_cast<double>(recording.written_ns - recording.begun_step_ns) / 1e9;
  std::string text =
      recording.step > 0
          ? fmt::format("in step {} for {:.1f} s", recording.step, seconds)
          : "before its first step";
  if (recording.operations.empty())
    return text + ", launched no operation";
  const FlightOperation& last = recording.operations.back();
  return fmt::format(
      "{}, last {} ({})",
      text,
      describe(last, recording.groups[static_cast<size_t>(last.group)]),
      to_string(last.state));
}

}  // namespace

bool tell_failure(const std::vector<FlightRecording>& recordings) {
  return std::ranges::any_of(recordings, [](const FlightRecording& recording) {
    return recording.cause == FlightCause::kFailure;
  });
}

FlightAnalysis analyze_flights(const std::vector<FlightRecording>& recordings) {
  return Analyzer(recordings).run();
}

std::string describe(
    const FlightAnalysis& analysis,
    const std::vector<FlightRecording>& recordings) {
  const Recordings known = by_rank(recordings);
  std::string text;
  for (const auto& [rank, recording] : known) {
    text += fmt::format(
        "{}: {}\n  {}\n",
        name_of(rank, known),
        recording->reason,
        describe(*recording));
  }
  for (const int rank : analysis.without_recording) {
    text += fmt::format(
        "{}: left no recording; it was killed, or its host is gone\n",
        name_of(rank, known));
  }
  text += '\n';
  for (const FlightFinding& finding : analysis.findings)
    text += finding.text + '\n';
  if (analysis.findings.empty())
    text += "every operation that was launched came to its end on all ranks\n";
  if (!analysis.suspects.empty()) {
    text += fmt::format(
        "look first at {}: others waited for {}, and {} for nobody\n",
        names_of(analysis.suspects, known),
        analysis.suspects.size() == 1 ? "it" : "them",
        analysis.suspects.size() == 1 ? "it waited" : "they waited");
  }
  return text;
}

std::string summarize(const FlightAnalysis& analysis) {
  const auto is_of_suspect = [&](const FlightFinding& finding) {
    return std::any_of(
        finding.absent.begin(), finding.absent.end(), [&](int rank) {
          return std::binary_search(
              analysis.suspects.begin(), analysis.suspects.end(), rank);
        });
  };
  for (const FlightFinding& finding : analysis.findings) {
    if (is_of_suspect(finding))
      return finding.text;
  }
  return analysis.findings.empty() ? "" : analysis.findings.front().text;
}

}  // namespace brigade
