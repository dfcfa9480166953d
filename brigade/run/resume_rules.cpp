#include "brigade/run/resume_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "brigade/config/keys.h"
#include "brigade/options/dataset.h"
#include "brigade/options/mup.h"
#include "brigade/options/preference.h"
#include "brigade/topology/parallel_dims.h"

namespace brigade {
namespace {

using nlohmann::json;

constexpr const char* kOptimizer = "training.optimizer";
constexpr const char* kPacking = "dataset.packing";
constexpr const char* kParametrizationKey = "training.parametrization";
constexpr const char* kLossKey = "training.loss";
constexpr const char* kBatch = "sequences per step";
// What with_past_mixture() adds to group `dataset`.
constexpr const char* kMixesByStep = "mixes by step";
constexpr const char* kModelPrefix = "model.config ";
constexpr const char* kHoldsOutFact =
    "training.eval_every (whether data is held out)";
constexpr const char* kTextFact = "dataset.text (its bytes)";
constexpr const char* kTokensFact = "dataset.name (its number of tokens)";
constexpr const char* kUncountedFact =
    "dataset.name (its tokens that do not count in the loss)";
constexpr const char* kTokenizerFact = "dataset.tokenizer (its SHA-256)";
constexpr const char* kReferenceFact = "dataset.name (its reference's SHA-256)";
constexpr const char* kTeacherFact = "dataset.teacher (its fingerprint)";
constexpr const char* kBaseFact = "model.name (its weights' fingerprint)";

// config.group.key by "group.key"; null where it is absent.
json value_of(const json& config, const std::string& dotted) {
  const size_t dot = dotted.find('.');
  const auto group = config.find(dotted.substr(0, dot));
  if (group == config.end() || !group->is_object())
    return {};
  return group->value(dotted.substr(dot + 1), json());
}

void add_known(
    const json& config,
    const ConfigKey& key,
    std::map<std::string, json>& facts) {
  const auto group = config.find(key.group);
  const bool is_known =
      group != config.end() && group->is_object() && group->contains(key.name);
  if (is_known)
    facts[key.dotted()] = (*group)[key.name];
}

// What is held out for evaluation moves every window of training: whether any,
// and how much.
void add_held_out(const json& config, std::map<std::string, json>& facts) {
  const json every = value_of(config, "training.eval_every");
  if (!every.is_number())
    return;
  facts[kHoldsOutFact] = every > 0;
  if (every > 0)
    facts["dataset.eval_fraction"] = value_of(config, "dataset.eval_fraction");
}

json batch_size(const json& config) {
  if (!value_of(config, "distributed.dp_size").is_number_integer())
    return {};
  // Another axis that a checkpoint lacks is newer than it.
  int64_t product = read_dims([&](const std::string& key) {
                      const json size = value_of(config, "distributed." + key);
                      return size.is_number_integer() ? size.get<int64_t>() : 1;
                    }).batch_parts();
  for (const char* key :
       {"training.micro_batch_size", "training.gradient_accumulation_steps"}) {
    const json value = value_of(config, key);
    if (!value.is_number_integer() ||
        __builtin_mul_overflow(product, value.get<int64_t>(), &product))
      return {};
  }
  return product;
}

bool is_allowed(
    const std::string& fact,
    const std::vector<std::string>& allow_changes) {
  const std::string key = fact.substr(0, fact.find(' '));
  return std::ranges::find(allow_changes, key) != allow_changes.end();
}

std::vector<std::string> differences(
    const std::map<std::string, json>& saved,
    const std::map<std::string, json>& now) {
  std::vector<std::string> result;
  for (const auto& [key, value] : saved) {
    const auto found = now.find(key);
    if (found == now.end() || found->second == value)
      continue;
    result.push_back(fmt::format(
        "{}: {} when saved, {} now", key, value.dump(), found->second.dump()));
  }
  return result;
}

bool is_table(const json& weight) {
  return weight.is_array() && !weight.empty();
}

bool is_by_step(const json& table) {
  return table[0].contains("step");
}

bool is_constant(const json& table) {
  return std::all_of(table.begin(), table.end(), [&](const json& point) {
    return point.at("weight") == table[0].at("weight");
  });
}

// The part of a table of weights that lies before, with the value that it has
// come to.
json past_table(const json& weight, int64_t steps, int64_t tokens) {
  const bool is_in_steps = is_by_step(weight);
  const char* const key = is_in_steps ? "step" : "tokens";
  const auto now = static_cast<double>(is_in_steps ? steps : tokens);
  json past = json::array();
  const auto add = [&](double after, double value) {
    past.push_back({{key, after}, {"weight", value}});
  };
  double before = 0;
  double value = weight[0].at("weight").get<double>();
  for (const json& point : weight) {
    const auto after = point.at(key).get<double>();
    const auto next = point.at("weight").get<double>();
    if (after >= now) {
      if (after > before)
        value += (next - value) * (now - before) / (after - before);
      break;
    }
    add(after, next);
    before = after;
    value = next;
  }
  add(now, value);
  return past;
}

}  // namespace

std::string saved_optimizer(const json& config) {
  // Before there was a choice.
  const json value = config.is_object() ? value_of(config, kOptimizer) : json();
  return value.is_string() ? value.get<std::string>()
                           : to_string(OptimizerKind::kAdamW);
}

RunFacts run_facts(const json& config, const json& model, const json& data) {
  RunFacts facts;
  for (const ConfigKey& key : config_keys()) {
    if (key.resume != Resume::kFree)
      add_known(
          config,
          key,
          key.resume == Resume::kMeaning ? facts.meaning : facts.trajectory);
  }
  facts.meaning[kOptimizer] = saved_optimizer(config);
  // Its average is made of them: with others the saved one is none.
  if (facts.meaning[kOptimizer] ==
      to_string(OptimizerKind::kScheduleFreeAdamW)) {
    for (const char* key :
         {"training.adam_beta1",
          "training.schedule_free_rate_power",
          "training.schedule_free_step_power"}) {
      if (auto node = facts.trajectory.extract(key))
        facts.meaning.insert(std::move(node));
    }
  }
  // Before there was a choice.
  facts.meaning.try_emplace(kPacking, to_string(Packing::kNone));
  facts.meaning.try_emplace(
      kParametrizationKey, to_string(Parametrization::kStandard));
  facts.meaning.try_emplace(kLossKey, to_string(LossKind::kCrossEntropy));
  if (config.contains("adapter"))
    facts.meaning.try_emplace("adapter.use_dora", false);
  add_held_out(config, facts.meaning);
  if (const json batch = batch_size(config); !batch.is_null())
    facts.trajectory[kBatch] = batch;
  facts.mixes_by_step =
      config.contains("dataset") && config["dataset"].contains(kMixesByStep);
  if (model.is_object()) {
    for (const auto& [key, value] : model.items())
      facts.meaning[kModelPrefix + key] = value;
  }
  if (data.is_object()) {
    const json tokens = data.value("num_tokens", json());
    facts.meaning[kTokensFact] = tokens;
    // Without a mask all tokens count, however many there are.
    const json counting = data.value("counting_tokens", tokens);
    if (tokens.is_number_integer() && counting.is_number_integer())
      facts.meaning[kUncountedFact] =
          tokens.get<int64_t>() - counting.get<int64_t>();
    const std::initializer_list<std::pair<const char*, const char*>> contents =
        {{"text_bytes", kTextFact},
         {"tokenizer_sha256", kTokenizerFact},
         {"reference_sha256", kReferenceFact},
         {"teacher", kTeacherFact},
         {"base_model", kBaseFact}};
    for (const auto& [key, fact] : contents) {
      if (const json value = data.value(key, json()); !value.is_null())
        facts.meaning[fact] = value;
    }
  }
  return facts;
}

json with_past_mixture(const json& config, int64_t steps, int64_t tokens) {
  json result = config;
  const json mixture = value_of(config, "dataset.mixture");
  if (!mixture.is_array())
    return result;
  std::vector<json*> tables;
  bool is_past_constant = true;
  for (json& part : result["dataset"]["mixture"]) {
    if (!part.is_object() || !part.contains("weight"))
      continue;
    json& weight = part["weight"];
    if (!is_table(weight))
      continue;
    if (is_by_step(weight) && !is_constant(weight))
      result["dataset"][kMixesByStep] = true;
    weight = past_table(weight, steps, tokens);
    is_past_constant = is_past_constant && is_constant(weight);
    tables.push_back(&weight);
  }
  // A weight that never changed is a number, but where another one did: shares
  // are computed anew at all points, and at the first sequence.
  const auto has_points = [](const json& past) {
    const json& first = past.front();
    return past.size() >
           (first.value("step", first.value("tokens", 1)) == 0 ? 2 : 1);
  };
  for (json* weight : tables) {
    if (is_constant(*weight) && (is_past_constant || !has_points(*weight)))
      *weight = weight->front().at("weight");
    else if (is_by_step(*weight))
      weight->push_back({{kBatch, batch_size(config)}});
  }
  return result;
}

ResumeChanges compare_runs(
    const RunFacts& saved,
    const RunFacts& now,
    const std::vector<std::string>& allow_changes) {
  ResumeChanges changes;
  std::vector<std::string> different = differences(saved.meaning, now.meaning);
  if (now.mixes_by_step) {
    for (const std::string& text :
         differences(saved.trajectory, now.trajectory)) {
      if (text.starts_with(kBatch))
        different.push_back(fmt::format(
            "dataset.mixture (whose points are steps; give tokens): {}", text));
    }
  }
  for (std::string& text : different) {
    const bool allowed =
        is_allowed(text.substr(0, text.find(": ")), allow_changes);
    (allowed ? changes.allowed : changes.refused).push_back(std::move(text));
  }
  changes.trajectory = differences(saved.trajectory, now.trajectory);
  return changes;
}

}  // namespace brigade
