#include "brigade/topology/layer_partition.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "brigade/base/check.h"

namespace brigade {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Prefix sums, so that the work of any stage is one subtraction.
class StageCost {
 public:
  StageCost(const LayerCosts& costs, int stages)
      : costs_(costs), stages_(stages), prefix_(costs.layers.size() + 1, 0.0) {
    std::partial_sum(
        costs.layers.begin(), costs.layers.end(), prefix_.begin() + 1);
  }
  double operator()(int stage, int begin, int end) const {
    return prefix_[static_cast<size_t>(end)] -
           prefix_[static_cast<size_t>(begin)] +
           (stage == 0 ? costs_.embedding : 0.0) +
           (stage == stages_ - 1 ? costs_.head : 0.0);
  }

 private:
  const LayerCosts& costs_;
  int stages_;
  std::vector<double> prefix_;
};

bool may_be_empty(int stage, int stages) {
  return stages > 1 && (stage == 0 || stage == stages - 1);
}

// best[s][n]: the least value of stages 0 .. s holding layers 0 .. n-1, where
// `combine` joins the value so far with a stage's cost; first[s][n]: where
// stage s begins there. O(S L^2): L is at most a few hundred.
template <typename Combine>
std::vector<LayerRange>
least_cut(int layers, int stages, const StageCost& cost, Combine combine) {
  const auto rows = static_cast<size_t>(stages);
  const auto columns = static_cast<size_t>(layers) + 1;
  std::vector<std::vector<double>> best(
      rows, std::vector<double>(columns, kInfinity));
  std::vector<std::vector<int>> first(rows, std::vector<int>(columns, -1));
  for (int s = 0; s < stages; ++s) {
    for (int end = 0; end <= layers; ++end) {
      const auto row = static_cast<size_t>(s);
      const auto column = static_cast<size_t>(end);
      const int latest = may_be_empty(s, stages) ? end : end - 1;
      // Ascending begin and a strict comparison: of equal cuts the one whose
      // earlier stages hold fewer layers stays.
      for (int begin = 0; begin <= latest; ++begin) {
        if (s == 0 && begin > 0)
          break;
        const double before =
            s == 0 ? 0.0 : best[row - 1][static_cast<size_t>(begin)];
        const double value = combine(before, cost(s, begin, end));
        if (value < best[row][column]) {
          best[row][column] = value;
          first[row][column] = begin;
        }
      }
    }
  }
  std::vector<LayerRange> partition(rows);
  int end = layers;
  for (int s = stages - 1; s >= 0; --s) {
    const int begin = first[static_cast<size_t>(s)][static_cast<size_t>(end)];
    BRIGADE_ASSERT(begin >= 0, "{} layers on {} stages", layers, stages);
    partition[static_cast<size_t>(s)] = {begin, end};
    end = begin;
  }
  return partition;
}

std::vector<LayerRange> from_user(
    const std::vector<int>& pp_layers,
    int layers,
    int stages,
    std::vector<std::string>& problems) {
  const std::string list = fmt::format("[{}]", fmt::join(pp_layers, ", "));
  if (static_cast<int>(pp_layers.size()) != stages) {
    problems.push_back(fmt::format(
        "[layer_partition] pp_layers {} has {} entries, but there are {} "
        "stages (pp * virtual stages)",
        list,
        pp_layers.size(),
        stages));
    return {};
  }
  std::vector<LayerRange> partition;
  int64_t begin = 0;
  for (int s = 0; s < stages; ++s) {
    const int count = pp_layers[static_cast<size_t>(s)];
    const int least = may_be_empty(s, stages) ? 0 : 1;
    if (count < least || count > layers) {
      problems.push_back(fmt::format(
          "[layer_partition] pp_layers {} gives stage {} {} layers; it holds "
          "{} to {}",
          list,
          s,
          count,
          least,
          layers));
      return {};
    }
    partition.push_back(
        {static_cast<int>(begin), static_cast<int>(begin + count)});
    begin += count;
  }
  if (begin != layers) {
    problems.push_back(fmt::format(
        "[layer_partition] pp_layers {} adds up to {}, but the model has {} "
        "layers",
        list,
        begin,
        layers));
    return {};
  }
  return partition;
}

}  // namespace

LayerCosts estimate_layer_costs(const TransformerSizes& sizes) {
  const double weights =
      // q and o, k and v, then gate, up and down.
      2.0 * static_cast<double>(sizes.hidden_size * sizes.attention_width) +
      2.0 * static_cast<double>(sizes.hidden_size * sizes.key_value_width) +
      3.0 * static_cast<double>(sizes.hidden_size * sizes.intermediate_size);
  // Scores and weighted values: 2 * T/2 * width each (half of it is masked).
  const double attention =
      2.0 * static_cast<double>(sizes.sequence_tokens * sizes.attention_width);
  return {
      .layers = std::vector<double>(
          static_cast<size_t>(sizes.num_layers), 2.0 * weights + attention),
      .embedding = static_cast<double>(sizes.hidden_size),
      .head = 2.0 * static_cast<double>(sizes.hidden_size * sizes.vocab_size)};
}

std::vector<LayerRange> partition_layers(
    const LayerCosts& costs,
    const LayerPartitionOptions& options,
    std::vector<std::string>& problems) {
  const auto layers = static_cast<int>(costs.layers.size());
  if (options.pp < 1 || options.virtual_stages < 1) {
    problems.push_back(fmt::format(
        "[layer_partition] pp {} and {} virtual stages, but both are at least "
        "1",
        options.pp,
        options.virtual_stages));
    return {};
  }
  const int64_t wanted =
      static_cast<int64_t>(options.pp) * options.virtual_stages;
  // The embedding and the head can each be a stage of their own.
  const int most = layers == 0 ? 0 : layers + 2;
  if (wanted > most) {
    problems.push_back(fmt::format(
        "[layer_partition] {} stages (pp {} * {} virtual), but a model of {} "
        "layers makes at most {}",
        wanted,
        options.pp,
        options.virtual_stages,
        layers,
        most));
    return {};
  }
  const auto stages = static_cast<int>(wanted);
  if (options.pp_layers)
    return from_user(*options.pp_layers, layers, stages, problems);

  const StageCost cost(costs, stages);
  const std::vector<LayerRange> least_maximum =
      least_cut(layers, stages, cost, [](double before, double stage_cost) {
        return std::max(before, stage_cost);
      });
  double maximum = 0;
  for (double stage : stage_costs(costs, least_maximum))
    maximum = std::max(maximum, stage);
  // Sums of the same layers differ in their last bits by where they start.
  const double bound = maximum * (1 + 1e-9);
  return least_cut(
      layers, stages, cost, [bound](double before, double stage_cost) {
        return stage_cost > bound ? kInfinity
                                  : before + stage_cost * stage_cost;
      });
}

std::vector<double> stage_costs(
    const LayerCosts& costs,
    const std::vector<LayerRange>& partition) {
  const auto stages = static_cast<int>(partition.size());
  const StageCost cost(costs, stages);
  std::vector<double> result;
  for (int s = 0; s < stages; ++s) {
    const LayerRange& range = partition[static_cast<size_t>(s)];
    result.push_back(cost(s, range.begin, range.end));
  }
  return result;
}

}  // namespace brigade
