#include "brigade/train/gradient_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/train/replica_check.h"

namespace brigade {
namespace {

std::vector<int64_t> bits_of_parameter(
    const std::string& name,
    const GradientNotes& notes) {
  std::vector<int64_t> bits;
  for (const auto& [noted, sum] : notes) {
    if (noted == name)
      bits.push_back(sum);
  }
  return bits;
}

// What a third computation says about two that differ.
std::string verdict_on(const UnlikeGradients& mine) {
  const auto again = bits_of_parameter(mine.name, mine.again);
  if (again == bits_of_parameter(mine.name, mine.rehearsed))
    return "a third computation gave what the first one did, so that the "
           "second, which would have been used, was wrong once";
  if (again == bits_of_parameter(mine.name, mine.used))
    return "a third computation gave what the second one did, which would have "
           "been used, so that the first was wrong once";
  return "a third computation differed from both: it happens again and again";
}

std::string name_of_rank(const Communicator& world, size_t rank) {
  const auto& names = world.options().member_names;
  return rank < names.size() ? names[rank] : fmt::format("rank {}", rank);
}

}  // namespace

void note_gradients(const BucketView& bucket, GradientNotes& notes) {
  for (size_t i = 0; i < bucket.names.size(); ++i)
    notes.emplace_back(bucket.names[i], sum_of_bits(bucket.grads[i]));
}

std::string find_unlike_gradient(
    const GradientNotes& first,
    const GradientNotes& second) {
  BRIGADE_ASSERT(
      first.size() == second.size(),
      "{} gradients were noted, then {}",
      first.size(),
      second.size());
  const auto unlike =
      std::mismatch(first.begin(), first.end(), second.begin()).first;
  return unlike == first.end() ? std::string() : unlike->first;
}

void fail_with_unlike_gradients(
    int64_t step,
    const UnlikeGradients& mine,
    Communicator& world) {
  const Agreement agreement(world);
  const auto names = agreement.texts(mine.name);
  const auto verdicts =
      agreement.texts(mine.name.empty() ? std::string() : verdict_on(mine));
  std::vector<std::string> found;
  for (size_t rank = 0; rank < names.size(); ++rank) {
    if (!names[rank].empty())
      found.push_back(fmt::format(
          "'{}' on {} ({})",
          names[rank],
          name_of_rank(world, rank),
          verdicts[rank]));
  }
  throw Error(
      ExitCode::kUnexpected,
      fmt::format(
          "[trainer] step {}: computed twice, a gradient had different bits: "
          "{}. Nothing was updated. A processor or memory that fails does "
          "that: check that host, and continue from the newest checkpoint",
          step,
          fmt::join(found, "; ")));
}

}  // namespace brigade
