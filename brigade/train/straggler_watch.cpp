#include "brigade/train/straggler_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "brigade/base/median.h"
#include "brigade/comm/agreement.h"

namespace brigade {
namespace {

std::vector<int> stages_of_ranks(const ProcessMesh& mesh) {
  std::vector<int> stages;
  for (int rank = 0; rank < mesh.world()->size(); ++rank)
    stages.push_back(mesh.dims().coordinate(rank).pp);
  return stages;
}

}  // namespace

StragglerWatch::StragglerWatch(const ProcessMesh& mesh)
    : world_(*mesh.world()), detector_(stages_of_ranks(mesh)) {}

std::vector<std::string> StragglerWatch::add_step(
    int64_t step,
    double busy_seconds) {
  if (world_.size() == 1)
    return {};
  busy_seconds_.push_back(busy_seconds);
  if (step % StragglerDetector::kSteps != 0)
    return {};
  std::vector<int64_t> busy_ns(static_cast<size_t>(world_.size()), 0);
  busy_ns[static_cast<size_t>(world_.rank())] = static_cast<int64_t>(
      1e9 * std::max(0.0, upper_median(std::exchange(busy_seconds_, {}))));
  busy_ns = Agreement(world_).max(busy_ns);
  std::vector<std::string> lines;
  for (const Straggler& straggler :
       detector_.add_window({busy_ns.begin(), busy_ns.end()})) {
    lines.push_back(fmt::format(
        "{} is slow: in the last {} steps it computed {:.1f} times as long "
        "as {}, who wait for it",
        world_.options().member_names[static_cast<size_t>(straggler.rank)],
        StragglerDetector::kSteps * StragglerDetector::kWindows,
        straggler.ratio,
        straggler.is_alone ? "the ranks of other pipeline stages (it may "
                             "have more to compute, or be slow)"
                           : "its peers"));
  }
  return lines;
}

}  // namespace brigade
