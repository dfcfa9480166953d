#include "brigade/train/replica_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"

namespace brigade {
namespace {

torch::ScalarType bits_of(const torch::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 1:
      return torch::kChar;
    case 2:
      return torch::kShort;
    case 4:
      return torch::kInt;
    default:
      BRIGADE_ASSERT(
          tensor.element_size() == 8,
          "elements of {} bytes",
          tensor.element_size());
      return torch::kLong;
  }
}

}  // namespace

int64_t sum_of_bits(const torch::Tensor& tensor) {
  return tensor.detach()
      .view(bits_of(tensor))
      .sum(torch::kLong)
      .item<int64_t>();
}

std::optional<UnlikeReplica> find_unlike_replica(
    const std::vector<State>& replicas,
    Communicator& group) {
  const size_t count = replicas.size();
  std::vector<int64_t> sums(2 * count);
  for (size_t i = 0; i < count; ++i) {
    sums[i] = sum_of_bits(replicas[i].tensor);
    sums[count + i] = -sums[i];
  }
  const Agreement agreement(group);
  const std::vector<int64_t> highest = agreement.max(sums);
  size_t unlike = 0;
  while (unlike < count && highest[unlike] == -highest[count + unlike])
    ++unlike;
  if (unlike == count)
    return std::nullopt;
  std::vector<int64_t> of_ranks;
  std::map<int64_t, int> votes;
  for (int rank = 0; rank < group.size(); ++rank) {
    of_ranks.push_back(agreement.values_of(rank, {sums[unlike]})[0]);
    ++votes[of_ranks.back()];
  }
  int most = 0;
  for (const auto& [sum, ranks] : votes)
    most = std::max(most, ranks);
  UnlikeReplica result{.name = replicas[unlike].name, .ranks = {}};
  for (int rank = 0; rank < group.size(); ++rank) {
    const bool is_of_majority =
        2 * most > group.size() &&
        votes[of_ranks[static_cast<size_t>(rank)]] == most;
    if (!is_of_majority)
      result.ranks.push_back(rank);
  }
  return result;
}

void check_replicas(const ParamSet& params, int64_t step, int64_t check_every) {
  for (const auto& [ranks, states] : params.replicas()) {
    const auto unlike = find_unlike_replica(states, *ranks);
    if (!unlike)
      continue;
    std::vector<std::string> names;
    for (const int rank : unlike->ranks)
      names.push_back(ranks->options().member_names[static_cast<size_t>(rank)]);
    throw Error(
        ExitCode::kUnexpected,
        fmt::format(
            "[trainer] step {}: '{}' is no longer the same on all its "
            "replicas; {} {}. Memory that fails does that: check that host, "
            "and continue from a checkpoint of before step {}",
            step,
            unlike->name,
            fmt::join(names, " and "),
            names.size() == 1 ? "differs" : "differ",
            step - check_every + 1));
  }
}

}  // namespace brigade
