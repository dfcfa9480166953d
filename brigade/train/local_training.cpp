#include "brigade/train/local_training.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

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
    const FragmentParams params = params_of(static_cast<size_t>(i));
    fragments_.push_back(
        params.empty()
            ? nullptr
            : std::make_unique<OuterFragment>(params, options, mesh, worker_));
  }
}

FragmentParams LocalTraining::params_of(size_t fragment) const {
  FragmentParams params;
  for (const auto& stage : stages_) {
    stage->params().visit([&](const Param& param) {
      if (param.row->trains && fragment_of(*param.row, schedule_.fragments) ==
                                   static_cast<int>(fragment))
        params.push_back(param);
    });
  }
  return params;
}

int64_t LocalTraining::after_step(int64_t step) {
  const int64_t begin_ns = steady_now_ns();
  left_out_.clear();
  if (is_parallel(step))
    restart();
  for (const FragmentEvent& event : fragment_events(schedule_, step)) {
    const auto index = static_cast<size_t>(event.fragment);
    // A stage may have nothing of it: so have all ranks that it would talk to.
    OuterFragment* fragment = fragments_[index].get();
    if (event.action == FragmentAction::kSend)
      send(index);
    else if (fragment != nullptr && event.action == FragmentAction::kMerge)
      fragment->merge(params_of(index));
    else if (fragment != nullptr)
      fragment->average(params_of(index));
  }
  return steady_now_ns() - begin_ns;
}

void LocalTraining::send(size_t fragment) {
  const std::vector<bool> left_out = judge(fragment);
  if (fragments_[fragment])
    fragments_[fragment]->send(params_of(fragment), left_out);
}

std::vector<bool> LocalTraining::judge(size_t fragment) {
  if (norm_limit_ == 0)
    return {};
  auto squares = torch::zeros({groups()}, torch::kDouble);
  if (fragments_[fragment])
    squares[group()] =
        fragments_[fragment]->squared_change(params_of(fragment));
  squares = squares.to(mesh_.device());
  mesh_.world()->all_reduce(squares)->wait();
  const torch::Tensor roots = squares.sqrt().cpu();
  std::vector<double> norms;
  for (int64_t i = 0; i < roots.numel(); ++i)
    norms.push_back(roots[i].item<double>());
  const std::vector<bool> outliers = find_outliers(norms, norm_limit_);
  for (size_t i = 0; i < outliers.size(); ++i) {
    if (outliers[i])
      left_out_.push_back(fmt::format(
          "group {} is left out of the exchange of fragment {}: its change has "
          "norm {:.4g}, the groups' are {:.4g} (distributed.outer_norm_limit = "
          "{})",
          i,
          fragment,
          norms[i],
          fmt::join(norms, ", "),
          norm_limit_));
  }
  return outliers;
}

void LocalTraining::visit(
    const std::function<void(const Param& param)>& visit) {
  for (size_t index = 0; index < fragments_.size(); ++index) {
    if (!fragments_[index])
      continue;
    FragmentParams params = params_of(index);
    for (size_t i = 0; i < params.size(); ++i) {
      for (State& state : fragments_[index]->states(i))
        params[i].states.push_back(std::move(state));
      visit(params[i]);
    }
  }
}

bool LocalTraining::is_under_way(const Param& param) const {
  const int fragment = fragment_of(*param.row, schedule_.fragments);
  return fragments_[static_cast<size_t>(fragment)]->is_under_way();
}

void LocalTraining::restart() {
  for (size_t index = 0; index < fragments_.size(); ++index) {
    if (fragments_[index])
      fragments_[index]->restart(params_of(index));
  }
}

bool LocalTraining::will_be_under_way(const Param& param, int64_t step) const {
  return brigade::is_under_way(
      schedule_, fragment_of(*param.row, schedule_.fragments), step);
}

void LocalTraining::resume_under_way(int64_t step) {
  for (size_t index = 0; index < fragments_.size(); ++index) {
    if (fragments_[index] &&
        brigade::is_under_way(schedule_, static_cast<int>(index), step))
      fragments_[index]->resume_under_way();
  }
}

}  // namespace brigade
