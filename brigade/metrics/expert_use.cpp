#include "brigade/metrics/expert_use.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

namespace brigade {
namespace {

double sum_of_rows(const std::vector<int64_t>& rows) {
  return static_cast<double>(
      std::accumulate(rows.begin(), rows.end(), int64_t{0}));
}

}  // namespace

double ExpertUse::max_over_mean() const {
  const double sum = sum_of_rows(rows);
  if (sum == 0)
    return 1;
  const auto most =
      static_cast<double>(*std::max_element(rows.begin(), rows.end()));
  return most * static_cast<double>(rows.size()) / sum;
}

double ExpertUse::entropy() const {
  const double sum = sum_of_rows(rows);
  if (sum == 0 || rows.size() == 1)
    return 1;
  double entropy = 0;
  for (const int64_t count : rows) {
    const double share = static_cast<double>(count) / sum;
    if (count > 0)
      entropy -= share * std::log(share);
  }
  return entropy / std::log(static_cast<double>(rows.size()));
}

int64_t ExpertUse::dead() const {
  return std::count(rows.begin(), rows.end(), 0);
}

ExpertRows rows_in_line(const std::vector<ExpertUse>& layers, int64_t line) {
  constexpr size_t kPerLine = 256;
  size_t experts = 0;
  for (const ExpertUse& layer : layers)
    experts += layer.rows.size();
  const auto every = static_cast<int64_t>(
      std::max<size_t>(1, (experts + kPerLine - 1) / kPerLine));
  return (line - 1) % every == 0 ? ExpertRows::kSay : ExpertRows::kLeaveOut;
}

nlohmann::ordered_json to_json(
    const std::vector<ExpertUse>& layers,
    ExpertRows rows) {
  nlohmann::ordered_json json = {{"dropped", worst_of(layers).dropped}};
  for (const ExpertUse& layer : layers) {
    json["layers"].push_back(layer.layer);
    json["max_over_mean"].push_back(layer.max_over_mean());
    json["entropy"].push_back(layer.entropy());
    json["dead"].push_back(layer.dead());
    json["router_norm"].push_back(layer.router_norm);
    if (rows == ExpertRows::kSay)
      json["tokens_per_expert"].push_back(layer.rows);
  }
  return json;
}

WorstExpertUse worst_of(const std::vector<ExpertUse>& layers) {
  WorstExpertUse worst;
  for (const ExpertUse& layer : layers) {
    worst.max_over_mean = std::max(worst.max_over_mean, layer.max_over_mean());
    worst.entropy = std::min(worst.entropy, layer.entropy());
    worst.dead += layer.dead();
    worst.dropped += layer.dropped;
    worst.router_norm = std::max(worst.router_norm, layer.router_norm);
  }
  return worst;
}

std::vector<std::string> IdleExperts::add(
    int64_t step,
    const std::vector<ExpertUse>& layers) {
  std::vector<std::string> messages;
  for (const ExpertUse& layer : layers) {
    for (size_t expert = 0; expert < layer.rows.size(); ++expert) {
      int64_t& idle = idle_steps_[{layer.layer, expert}];
      idle = layer.rows[expert] > 0 ? 0 : idle + 1;
      if (idle == kSteps)
        messages.push_back(fmt::format(
            "step {}: expert {} of layer {} got no token in the last {} steps; "
            "raise training.router_aux_loss if it should be used",
            step,
            expert,
            layer.layer,
            kSteps));
    }
  }
  return messages;
}

}  // namespace brigade
