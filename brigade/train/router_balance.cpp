#include "brigade/train/router_balance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/config/model_layout.h"

namespace brigade {
namespace {

// Whether routers have a balance loss over the last step's choices.
bool is_balanced_over_batch(const TrainConfig& config) {
  return config.training.router_losses.balance > 0 &&
         config.training.router_aux_loss_over == BalanceOver::kGlobalBatch;
}

// A router's bias, but not an adapter's base model's, which stays as it is.
bool is_moved_bias(const ParameterRow& row) {
  return row.role == ParameterRole::kRouterBias &&
         row.stored_in != StoredIn::kBaseModel;
}

}  // namespace

bool asks_for_choices(const TrainConfig& config) {
  const auto has_moved_bias = [&] {
    const auto rows = list_parameters(description_of(config));
    return std::any_of(rows.begin(), rows.end(), is_moved_bias);
  };
  return is_balanced_over_batch(config) ||
         (config.training.router_bias_rate > 0 && has_moved_bias());
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

RouterBalance::RouterBalance(const TrainConfig& config, const ProcessMesh& mesh)
    : config_(config), mesh_(mesh) {
  record_->counts_choices = asks_for_choices(config);
  if (model_of(config).experts && is_balanced_over_batch(config))
    record_->shares.emplace();
}

RouterUse RouterBalance::sum_up(const Read& read) const {
  const DecoderConfig& decoder = model_of(config_);
  if (!decoder.experts)
    return {};
  std::vector<torch::Tensor> on_device;
  for (const auto& [layer, noted] : record_->noted) {
    on_device.push_back(noted.squares);
    on_device.push_back(noted.given);
    if (noted.learned.defined())
      on_device.push_back(noted.learned);
  }
  const std::vector<double> values =
      on_device.empty() ? std::vector<double>{} : read(on_device);
  auto value = values.begin();
  // A row per layer; those of other stages are theirs to fill in. Exact: counts
  // are far below 2^53.
  const int64_t experts = decoder.experts->num_experts;
  const int64_t squares = experts;
  const int64_t is_bad = experts + 1;
  const int64_t dropped = experts + 2;
  const int64_t learned = experts + 3;
  const int64_t columns = record_->counts_choices ? learned + experts : learned;
  const auto sums =
      torch::zeros({decoder.num_hidden_layers, columns}, torch::kDouble);
  auto at = sums.accessor<double, 2>();
  // One of the ranks that have the same router says its norm, the others say
  // what is wrong with theirs.
  const Coordinate& here = mesh_.coordinate();
  const bool is_first = here.leads_stage() && mesh_.dims().replica(here) == 0;
  for (const auto& [layer, noted] : record_->noted) {
    for (size_t i = 0; i < noted.chosen.size(); ++i)
      at[layer][static_cast<int64_t>(i)] = static_cast<double>(noted.chosen[i]);
    at[layer][dropped] = static_cast<double>(noted.dropped);
    const double own_squares = *value++;
    if (is_first || !std::isfinite(own_squares))
      at[layer][squares] = own_squares;
    if (!std::isfinite(*value++))
      at[layer][is_bad] = 1;
    const int64_t count = noted.learned.defined() ? experts : 0;
    for (int64_t expert = 0; expert < count; ++expert)
      at[layer][learned + expert] = *value++;
  }
  mesh_.world()->all_reduce(sums)->wait_on_host();
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
    if (at[layer][is_bad] > 0 && whole.problem.empty())
      whole.problem = fmt::format(
          "the router of layer {} gave weights that are not finite, as its {} "
          "is not",
          layer,
          std::isfinite(use.router_norm) ? "input" : "weight");
    whole.layers.push_back(std::move(use));
    for (int64_t column = learned; column < columns; ++column)
      whole.learned[layer].push_back(static_cast<int64_t>(at[layer][column]));
  }
  return whole;
}

void RouterBalance::learn(const ChoicesByLayer& learned, const Stages& stages) {
  set_choices(learned);
  const double rate = config_.training.router_bias_rate;
  if (rate == 0)
    return;
  const torch::NoGradGuard no_grad;
  for (const auto& stage : stages) {
    for (const Param& param : stage->params().frozen()) {
      if (!is_moved_bias(*param.row))
        continue;
      const torch::Tensor update =
          bias_update(learned.at(param.row->layer), rate).to(mesh_.device());
      stage->sync().weights().add_to(param, update);
    }
  }
}

void RouterBalance::set_choices(const ChoicesByLayer& choices) {
  if (!record_->shares)
    return;
  choices_ = choices;
  for (const auto& [layer, of_layer] : choices) {
    const auto counts = torch::tensor(of_layer, torch::kDouble);
    const auto sum = counts.sum();
    if (sum.item<double>() > 0)
      (*record_->shares)[layer] = (counts / sum).to(mesh_.device());
  }
}

nlohmann::json RouterBalance::saved() const {
  nlohmann::json saved;
  for (const auto& [layer, counts] : choices_)
    saved[std::to_string(layer)] = counts;
  return saved;
}

void RouterBalance::load(
    const nlohmann::json& saved,
    const std::filesystem::path& checkpoint) {
  if (!record_->shares || saved.is_null())
    return;
  const ExpertsConfig& experts = *model_of(config_).experts;
  ChoicesByLayer choices;
  try {
    for (int64_t layer = 0; layer < model_of(config_).num_hidden_layers;
         ++layer) {
      if (!experts.is_sparse(layer))
        continue;
      choices[layer] =
          saved.at(std::to_string(layer)).get<std::vector<int64_t>>();
      if (std::ssize(choices[layer]) != experts.num_experts)
        throw DataError(fmt::format(
            "[checkpoint] '{}': \"expert_choices\" of layer {} has {} numbers, "
            "but the model {} experts; continue another checkpoint, or set "
            "training.router_aux_loss_over to \"sequence\"",
            checkpoint.string(),
            layer,
            choices[layer].size(),
            experts.num_experts));
    }
  } catch (const nlohmann::json::exception&) {
    throw DataError(fmt::format(
        "[checkpoint] '{}': \"expert_choices\" has not a list of numbers for "
        "each layer with experts; continue another checkpoint, or set "
        "training.router_aux_loss_over to \"sequence\"",
        checkpoint.string()));
  }
  set_choices(choices);
}

}  // namespace brigade
