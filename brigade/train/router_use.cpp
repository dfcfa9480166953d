#include "brigade/train/router_use.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/config/model_layout.h"

namespace brigade {

std::string RouterUse::describe_bad_layer() const {
  BRIGADE_ASSERT(bad_layer.has_value());
  const auto found =
      std::find_if(layers.begin(), layers.end(), [&](const ExpertUse& use) {
        return use.layer == *bad_layer;
      });
  BRIGADE_ASSERT(found != layers.end());
  return fmt::format(
      "the router of layer {} gave weights that are not finite, as its {} is "
      "not",
      *bad_layer,
      std::isfinite(found->router_norm) ? "input" : "weight");
}

bool is_balanced_over_batch(const TrainConfig& config) {
  return config.training.router_aux_loss > 0 &&
         config.training.router_aux_loss_over == BalanceOver::kGlobalBatch;
}

bool asks_for_choices(const TrainConfig& config) {
  const std::vector<LayerDescription> layers = description_of(config).layers;
  const bool has_bias = std::any_of(
      layers.begin(), layers.end(), [](const LayerDescription& layer) {
        return layer.experts && layer.experts->router.has_bias;
      });
  // Beside an adapter a bias is of the base model, which stays as it is.
  const bool moves = has_bias && config.training.router_bias_rate > 0 &&
                     !config.adapter.is_used();
  return is_balanced_over_batch(config) || moves;
}

RouterUse sum_up_routers(
    const DecoderConfig& decoder,
    const ProcessMesh& mesh,
    LearnedChoices choices,
    const RouterStatisticsByLayer& noted) {
  if (!decoder.experts)
    return {};
  // A row per layer; those of other stages are theirs to fill in. Exact: counts
  // are far below 2^53.
  const int64_t experts = decoder.experts->num_experts;
  const int64_t squares = experts;
  const int64_t is_bad = experts + 1;
  const int64_t dropped = experts + 2;
  const int64_t learned = experts + 3;
  const int64_t columns =
      choices == LearnedChoices::kSumUp ? learned + experts : learned;
  const auto sums =
      torch::zeros({decoder.num_hidden_layers, columns}, torch::kDouble);
  auto at = sums.accessor<double, 2>();
  // One of the ranks that have the same router says its norm, the others say
  // what is wrong with theirs.
  const Coordinate& here = mesh.coordinate();
  const bool is_first = here.leads_stage() && mesh.dims().replica(here) == 0;
  for (const auto& [layer, of_layer] : noted) {
    for (size_t i = 0; i < of_layer.chosen.size(); ++i)
      at[layer][static_cast<int64_t>(i)] =
          static_cast<double>(of_layer.chosen[i]);
    at[layer][dropped] = static_cast<double>(of_layer.dropped);
    const auto own_squares = of_layer.squares.item<double>();
    if (is_first || !std::isfinite(own_squares))
      at[layer][squares] = own_squares;
    if (!std::isfinite(of_layer.given.item<double>()))
      at[layer][is_bad] = 1;
    if (choices == LearnedChoices::kSumUp && of_layer.learned.defined())
      sums[layer].narrow(0, learned, experts).copy_(of_layer.learned);
  }
  mesh.world()->all_reduce(sums)->wait_on_host();
  RouterUse whole;
  for (int64_t layer = 0; layer < sums.size(0); ++layer) {
    if (!decoder.experts->is_sparse(layer))
      continue;
    ExpertUse use{
        .layer = layer,
        .rows = {},
        .dropped = static_cast<int64_t>(at[layer][dropped]),
        .router_norm = std::sqrt(at[layer][squares])};
    for (int64_t expert = 0; expert < experts; ++expert)
      use.rows.push_back(static_cast<int64_t>(at[layer][expert]));
    whole.layers.push_back(std::move(use));
    if (at[layer][is_bad] > 0 && !whole.bad_layer)
      whole.bad_layer = layer;
    for (int64_t column = learned; column < columns; ++column)
      whole.learned[layer].push_back(static_cast<int64_t>(at[layer][column]));
  }
  return whole;
}

torch::Tensor bias_update(const std::vector<int64_t>& choices, double rate) {
  // Against the mean without a division: integers say which side it is on.
  const int64_t sum =
      std::accumulate(choices.begin(), choices.end(), int64_t{0});
  const auto experts = static_cast<int64_t>(choices.size());
  const torch::Tensor missing =
      sum - torch::tensor(choices, torch::kLong) * experts;
  return missing.sign().to(torch::kFloat) * rate;
}

}  // namespace brigade
