#include "brigade/config/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "brigade/config/keys.h"
#include "brigade/config/model_layout.h"
#include "brigade/model_spec/adapter.h"
#include "brigade/model_spec/parameter_table.h"

namespace brigade {

namespace {

using Problems = std::vector<std::string>;

// Keys of routers in the training of a model that has none; 0 turns them off.
void refuse_router_keys(
    const TrainConfig& config,
    const DecoderConfig& decoder,
    Problems& problems) {
  const TrainConfig defaults;
  const auto refuse = [&](const char* name, const char* why) {
    const ConfigKey* key = find_config_key("training", name);
    const nlohmann::json value = key->get(config);
    if (value != 0 && value != key->get(defaults))
      problems.push_back(fmt::format(
          "[config] {} = {}: {}; leave it out",
          key->pointer(),
          value.dump(),
          why));
  };
  if (!decoder.experts) {
    for (const char* name :
         {"router_aux_loss",
          "router_aux_loss_over",
          "router_z_loss",
          "expert_capacity_factor"})
      refuse(name, "this model has no experts");
  }
  if (!decoder.experts || !has_deepseek_router(decoder.architecture))
    refuse("router_bias_rate", "this model has no routers with a bias");
  else if (config.adapter.rank > 0)
    refuse(
        "router_bias_rate",
        "this model has no bias that moves: beside an adapter the base "
        "model's stay as they are");
}

void check_routers(
    const TrainingConfig& training,
    bool has_experts,
    Problems& problems) {
  if (has_experts && training.loss.is_of_pairs() &&
      training.router_losses.balance + training.router_losses.z > 0)
    problems.push_back(fmt::format(
        "[config] /training/loss = \"{}\" beside /training/router_aux_loss = "
        "{} "
        "and /training/router_z_loss = {}: the routers' losses are means over "
        "tokens, not over pairs; set both to 0",
        to_string(training.loss.kind),
        training.router_losses.balance,
        training.router_losses.z));
  if (has_experts && training.loss.is_of_pairs() &&
      training.expert_capacity_factor > 0)
    problems.push_back(fmt::format(
        "[config] /training/loss = \"{}\" beside "
        "/training/expert_capacity_factor = {}: the reference model drops no "
        "token, so that the two would differ before the first step; set it to "
        "0",
        to_string(training.loss.kind),
        training.expert_capacity_factor));
}

// Ranks that divide experts exchange gradients of rows and norms, whether what
// trains is theirs or not: all of them have adapters of the same linears.
void check_divided_adapters(
    const TrainConfig& config,
    const ModelDescription& model,
    int64_t experts,
    Problems& problems) {
  const int ep = config.distributed.dims.ep;
  std::map<std::pair<int64_t, std::string>, int64_t> adapted;  // experts
  for (const ParameterRow& row : list_parameters(model)) {
    if (row.expert == kNoExpert || row.stored_in != StoredIn::kAdapter)
      continue;
    const std::string number = fmt::format(".{}.", row.expert);
    const size_t end = row.name.rfind(number) + number.size();
    ++adapted[{row.layer, row.name.substr(end)}];
  }
  for (const auto& [linear, count] : adapted) {
    if (ep == 1 || count == experts)
      continue;
    problems.push_back(fmt::format(
        "[config] /adapter/targets with /distributed/ep_size = {}: they name "
        "'{}' of {} of the {} experts of layer {}, but ranks that divide "
        "experts must train the same linears of each; name that of all "
        "experts, or set ep_size to 1",
        ep,
        adapted_module(linear.second),
        count,
        experts,
        linear.first));
    return;
  }
}

}  // namespace

bool goes_beyond_dynamic_rope(
    const TrainConfig& config,
    const DecoderConfig& decoder) {
  return decoder.rope_scaling &&
         decoder.rope_scaling->type == RopeType::kDynamic &&
         config.training.seq_length > decoder.max_position_embeddings;
}

void check_model_keys(
    const TrainConfig& config,
    const DecoderConfig& decoder,
    Problems& problems) {
  check_routers(config.training, decoder.experts.has_value(), problems);
  refuse_router_keys(config, decoder, problems);
  const int fragments = config.distributed.rounds.fragments;
  if (fragments > decoder.num_hidden_layers)
    problems.push_back(fmt::format(
        "[config] /distributed/outer_fragments = {} is more than the model's "
        "{} layers",
        fragments,
        decoder.num_hidden_layers));
  // Answers are padded to seq_length here, and as long as they are to the
  // reference model.
  if (goes_beyond_dynamic_rope(config, decoder) &&
      config.training.loss.is_of_pairs())
    problems.push_back(fmt::format(
        "[config] /training/loss = \"{}\": rope_scaling \"dynamic\" depends on "
        "how far a sequence goes beyond max_position_embeddings {}, and "
        "answers are padded to seq_length; set seq_length to at most {}",
        to_string(config.training.loss.kind),
        decoder.max_position_embeddings,
        decoder.max_position_embeddings));
}

void check_adapter(
    const TrainConfig& config,
    const DecoderConfig& decoder,
    Problems& problems) {
  if (!config.adapter.is_used()) {
    if (config.adapter != AdapterOptions{})
      problems.emplace_back(
          "[config] /adapter: what else it says means nothing with "
          "/adapter/rank = 0, which trains the model itself; set adapter.rank, "
          "or leave it out");
    return;
  }
  if (config.model.init != WeightInit::kPretrained)
    problems.emplace_back(
        "[config] /adapter/rank: an adapter is trained beside the weights of a "
        "base model; set model.init to \"pretrained\" and model.name to its "
        "folder");
  ModelDescription model = describe_model(decoder);
  model.adapter = config.adapter;
  if (const std::string linear =
          linear_without_magnitude(model, config.adapter);
      config.adapter.use_dora && !linear.empty())
    problems.push_back(fmt::format(
        "[config] /adapter/use_dora with /adapter/targets that name '{}': "
        "routers and experts have no magnitudes; name other linears, or set "
        "use_dora to false",
        linear));
  if (decoder.experts)
    check_divided_adapters(
        config, model, decoder.experts->num_experts, problems);
  Problems found;
  check_targets(model, config.adapter, found);
  problems.insert(problems.end(), found.begin(), found.end());
  // Problems of the stages are reported with the layout.
  const auto ranges = stage_layers(config, decoder, found);
  for (size_t i = 0; found.empty() && i < ranges.size(); ++i) {
    const ModelPart part{ranges[i], i == 0, i + 1 == ranges.size()};
    const auto rows = list_parameters(model, part);
    if (std::none_of(rows.begin(), rows.end(), [](const ParameterRow& row) {
          return row.trains;
        }))
      problems.push_back(fmt::format(
          "[config] /adapter/targets: stage {} with layers [{}, {}) has no "
          "linear with an adapter, so nothing of it would train; name targets "
          "in it, or say by distributed.pp_layers which layers stages have",
          i,
          ranges[i].begin,
          ranges[i].end));
  }
}

void check_mup(
    const TrainConfig& config,
    const DecoderConfig& decoder,
    Problems& problems) {
  if (!config.training.mup.is_used())
    return;
  if (config.adapter.is_used())
    problems.emplace_back(
        "[config] /training/parametrization = \"mup\" with /adapter/rank: its "
        "rules are of a model's own weights; set parametrization to "
        "\"standard\"");
  if (describe_model(decoder).embedding_scale)
    problems.push_back(fmt::format(
        "[config] /training/parametrization = \"mup\" with a {}, which "
        "multiplies embeddings by the root of its width; set it to "
        "\"standard\"",
        name_of(decoder.architecture).class_name));
}

}  // namespace brigade
