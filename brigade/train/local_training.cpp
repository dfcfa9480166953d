#include "brigade/train/local_training.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/comm/agreement.h"
#include "brigade/metrics/clock.h"
#include "brigade/schedule/outliers.h"
#include "brigade/train/from_config.h"

namespace brigade {
namespace {

// The embedding, tied or not, goes with the first layer, the head and its norm
// with the last fragment.
int fragment_of(const ParameterRow& row, int fragments) {
  switch (row.place) {
    case Place::kEmbedding:
      return 0;
    case Place::kLayer:
      return fragment_of_layer(row.layer, fragments);
    case Place::kHead:
      break;
  }
  return fragments - 1;
}

}  // namespace

LocalTraining::LocalTraining(
    const TrainConfig& config,
    const ProcessMesh& mesh,
    const Stages& stages)
    : schedule_(config.distributed.rounds),
      mesh_(mesh),
      stages_(stages),
      norm_limit_(config.distributed.outer.norm_limit) {
  const OuterFragmentOptions options = outer_fragment_options(config);
  for (int i = 0; i < schedule_.fragments; ++i) {
    for (const bool is_divided : {false, true}) {
      Part part{i, is_divided, nullptr};
      const FragmentParams params = params_of(part);
      if (params.empty())
        continue;
      part.exchange = std::make_unique<OuterFragment>(
          params,
          options,
          mesh,
          is_divided ? mesh.expert_replicas() : mesh.replicas(),
          worker_);
      parts_.push_back(std::move(part));
    }
  }
}

bool LocalTraining::is_divided(const Param& param) const {
  return mesh_.dims().ep > 1 && param.row->expert != kNoExpert;
}

FragmentParams LocalTraining::params_of(const Part& part) const {
  FragmentParams params;
  for (const auto& stage : stages_) {
    stage->params().visit([&](const Param& param) {
      if (param.row->trains && is_divided(param) == part.is_divided &&
          fragment_of(*param.row, schedule_.fragments) == part.fragment)
        params.push_back(param);
    });
  }
  return params;
}

const LocalTraining::Part& LocalTraining::part_of(const Param& param) const {
  const int fragment = fragment_of(*param.row, schedule_.fragments);
  const auto found =
      std::find_if(parts_.begin(), parts_.end(), [&](const Part& part) {
        return part.fragment == fragment &&
               part.is_divided == is_divided(param);
      });
  BRIGADE_ASSERT(found != parts_.end(), "'{}' is in no fragment", param.name);
  return *found;
}

int64_t LocalTraining::after_step(int64_t step) {
  const int64_t begin_ns = steady_now_ns();
  left_out_.clear();
  if (is_parallel(step))
    restart();
  for (const FragmentEvent& event : fragment_events(schedule_, step)) {
    if (event.action == FragmentAction::kSend) {
      send(event.fragment);
      continue;
    }
    // A stage may have nothing of it: so have all ranks that it would talk to.
    for (const Part& part : parts_) {
      if (part.fragment != event.fragment)
        continue;
      if (event.action == FragmentAction::kMerge)
        part.exchange->merge(params_of(part));
      else
        part.exchange->average(params_of(part));
    }
  }
  return steady_now_ns() - begin_ns;
}

void LocalTraining::send(int fragment) {
  const std::vector<bool> left_out = judge(fragment);
  for (const Part& part : parts_) {
    if (part.fragment == fragment)
      part.exchange->send(params_of(part), left_out);
  }
}

std::vector<bool> LocalTraining::judge(int fragment) {
  auto squares = torch::zeros({groups()}, torch::kDouble);
  for (const Part& part : parts_) {
    if (part.fragment == fragment)
      squares[group()] += part.exchange->squared_change(params_of(part));
  }
  squares = squares.to(mesh_.device());
  mesh_.world()->all_reduce(squares)->wait();
  const torch::Tensor roots = squares.sqrt().cpu();
  std::vector<double> norms;
  for (int64_t i = 0; i < roots.numel(); ++i)
    norms.push_back(roots[i].item<double>());
  const std::vector<bool> outliers = find_outliers(
      norms,
      norm_limit_ > 0 ? norm_limit_ : std::numeric_limits<double>::infinity());
  for (size_t i = 0; i < outliers.size(); ++i) {
    if (outliers[i])
      left_out_.push_back(fmt::format(
          "group {} is left out of the exchange of fragment {}: its change has "
          "norm {:.4g}, the groups' are {:.4g}{}",
          i,
          fragment,
          norms[i],
          fmt::join(norms, ", "),
          norm_limit_ == 0
              ? ""
              : fmt::format(
                    " (distributed.outer_norm_limit = {})", norm_limit_)));
  }
  return outliers;
}

void LocalTraining::visit(
    const std::function<void(const Param& param)>& visit) {
  for (const Part& part : parts_) {
    for (Param& param : params_of(part)) {
      for (State& state : part.exchange->states(param))
        param.states.push_back(std::move(state));
      visit(param);
    }
  }
}

bool LocalTraining::is_under_way(const Param& param) const {
  return part_of(param).exchange->is_under_way();
}

void LocalTraining::restart() {
  for (const Part& part : parts_)
    part.exchange->restart(params_of(part));
}

bool LocalTraining::will_be_under_way(const Param& param, int64_t step) const {
  return brigade::is_under_way(
      schedule_, fragment_of(*param.row, schedule_.fragments), step);
}

void LocalTraining::resume_under_way(int64_t step, bool is_there) {
  if (Agreement(*mesh_.world()).min(is_there ? 1 : 0) == 0)
    return;
  for (const Part& part : parts_) {
    if (brigade::is_under_way(schedule_, part.fragment, step))
      part.exchange->resume_under_way();
  }
}

}  // namespace brigade
