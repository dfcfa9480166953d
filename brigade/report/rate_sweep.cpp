#include "brigade/report/rate_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/json/parse.h"
#include "brigade/report/line_chart.h"

namespace brigade {
namespace {

nlohmann::ordered_json to_json(const RateTrial& trial) {
  nlohmann::ordered_json json = {
      {"width", trial.width},
      {"rate", trial.rate},
      {"loss", trial.loss ? nlohmann::ordered_json(*trial.loss) : nullptr}};
  for (const ActivationChange& each : trial.activations)
    json["activations"].push_back(
        {{"name", each.name},
         {"before", each.before},
         {"change", each.change}});
  return json;
}

RateTrial trial_of(const nlohmann::json& json) {
  RateTrial trial{
      .width = json.at("width").get<int64_t>(),
      .rate = json.at("rate").get<double>()};
  if (!json.at("loss").is_null())
    trial.loss = json.at("loss").get<double>();
  if (!json.contains("activations"))
    return trial;
  for (const auto& each : json.at("activations"))
    trial.activations.push_back(
        {each.at("name").get<std::string>(),
         each.at("before").get<double>(),
         each.at("change").get<double>()});
  return trial;
}

// By width, the change of one class; absent: not finite.
std::vector<std::optional<double>> changes_of(
    const RateSweep& sweep,
    size_t activation) {
  std::vector<std::optional<double>> changes;
  for (const int64_t width : sweep.widths) {
    const RateTrial* trial = sweep.find(width, sweep.checked_rate);
    const bool has = trial != nullptr &&
                     activation < trial->activations.size() &&
                     std::isfinite(trial->activations[activation].change);
    changes.push_back(
        has ? std::optional(trial->activations[activation].change)
            : std::nullopt);
  }
  return changes;
}

std::vector<std::string> names_of(const RateSweep& sweep) {
  std::vector<std::string> names;
  for (const RateTrial& trial : sweep.trials) {
    if (trial.activations.size() <= names.size())
      continue;
    names.clear();
    for (const ActivationChange& each : trial.activations)
      names.push_back(each.name);
  }
  return names;
}

std::vector<std::string> width_labels(const RateSweep& sweep) {
  std::vector<std::string> labels;
  for (const int64_t width : sweep.widths)
    labels.push_back(std::to_string(width));
  return labels;
}

std::string header(const RateSweep& sweep, const char* first) {
  std::string line = fmt::format("{:<12}", first);
  for (const int64_t width : sweep.widths)
    line += fmt::format("{:>11}", width);
  return line;
}

std::optional<double> slope_of(
    const RateSweep& sweep,
    const std::vector<std::optional<double>>& changes) {
  std::vector<double> widths;
  std::vector<double> values;
  for (size_t i = 0; i < changes.size(); ++i) {
    if (!changes[i])
      continue;
    widths.push_back(static_cast<double>(sweep.widths[i]));
    values.push_back(*changes[i]);
  }
  return log_slope(widths, values);
}

// Changes over that of the narrowest, in doublings.
LineChart coordinate_chart(const RateSweep& sweep) {
  LineChart chart{
      fmt::format(
          "change of activations after {} steps at {:g}, log2 over the first",
          sweep.checked_steps,
          sweep.checked_rate),
      width_labels(sweep),
      {}};
  const std::vector<std::string> names = names_of(sweep);
  for (size_t i = 0; i < names.size(); ++i) {
    auto values = changes_of(sweep, i);
    const double first = values.empty() ? 0 : values[0].value_or(0);
    for (auto& value : values)
      value = value && *value > 0 && first > 0
                  ? std::optional(std::log2(*value / first))
                  : std::nullopt;
    chart.lines.push_back({names[i], std::move(values)});
  }
  return chart;
}

LineChart loss_chart(const RateSweep& sweep) {
  LineChart chart{
      fmt::format("loss after {} steps over the learning rate", sweep.steps),
      {},
      {}};
  for (const double rate : sweep.rates)
    chart.labels.push_back(fmt::format("{:g}", rate));
  for (const int64_t width : sweep.widths) {
    ChartLine line{fmt::format("width {}", width), {}};
    for (const double rate : sweep.rates) {
      const RateTrial* trial = sweep.find(width, rate);
      line.values.push_back(trial == nullptr ? std::nullopt : trial->loss);
    }
    chart.lines.push_back(std::move(line));
  }
  return chart;
}

}  // namespace

const RateTrial* RateSweep::find(int64_t width, double rate) const {
  const auto found = std::ranges::find_if(trials, [&](const RateTrial& trial) {
    return trial.width == width && trial.rate == rate;
  });
  return found == trials.end() ? nullptr : &*found;
}

std::optional<double> RateSweep::best_rate(int64_t width) const {
  const RateTrial* best = nullptr;
  for (const double rate : rates) {
    const RateTrial* trial = find(width, rate);
    if (trial != nullptr && trial->loss &&
        (best == nullptr || *trial->loss < *best->loss))
      best = trial;
  }
  return best == nullptr ? std::nullopt : std::optional(best->rate);
}

std::string sweep_to_text(const RateSweep& sweep) {
  nlohmann::ordered_json json = {
      {"config_hash", sweep.config_hash},
      {"steps", sweep.steps},
      {"checked_steps", sweep.checked_steps},
      {"checked_rate", sweep.checked_rate},
      {"widths", sweep.widths},
      {"rates", sweep.rates},
      {"best_rates", nlohmann::ordered_json::object()},
      {"trials", nlohmann::ordered_json::array()}};
  for (const int64_t width : sweep.widths) {
    if (const auto best = sweep.best_rate(width))
      json["best_rates"][std::to_string(width)] = *best;
  }
  for (const RateTrial& trial : sweep.trials)
    json["trials"].push_back(to_json(trial));
  return json.dump(2) + "\n";
}

std::vector<RateTrial> trials_of(
    const std::string& text,
    const std::string& path,
    const RateSweep& sweep) {
  std::vector<RateTrial> trials;
  std::string hash;
  int64_t steps = 0;
  int64_t checked_steps = 0;
  try {
    const auto json = parse_json_or_nothing(text);
    if (!json)
      throw DataError(fmt::format("'{}' is not JSON", path));
    hash = json->at("config_hash").get<std::string>();
    steps = json->at("steps").get<int64_t>();
    checked_steps = json->at("checked_steps").get<int64_t>();
    for (const auto& trial : json->at("trials"))
      trials.push_back(trial_of(trial));
  } catch (const nlohmann::json::exception&) {
    throw DataError(fmt::format(
        "'{}' is no result of `brigade tune-rate`; name another file with "
        "--out",
        path));
  }
  if (hash != sweep.config_hash || steps != sweep.steps ||
      checked_steps != sweep.checked_steps)
    throw ConfigError(fmt::format(
        "[tune-rate] '{}' has trials of another config, --steps or "
        "--check-after; remove it, or name another file with --out",
        path));
  return trials;
}

std::optional<double> log_slope(
    const std::vector<double>& x,
    const std::vector<double>& y) {
  double n = 0;
  double sum_x = 0;
  double sum_y = 0;
  double sum_xx = 0;
  double sum_xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] <= 0 || y[i] <= 0)
      continue;
    const double log_x = std::log2(x[i]);
    const double log_y = std::log2(y[i]);
    n += 1;
    sum_x += log_x;
    sum_y += log_y;
    sum_xx += log_x * log_x;
    sum_xy += log_x * log_y;
  }
  const double spread = n * sum_xx - sum_x * sum_x;
  if (n < 2 || spread <= 0)
    return std::nullopt;
  return (n * sum_xy - sum_x * sum_y) / spread;
}

std::string coordinate_table(const RateSweep& sweep) {
  std::string table = header(sweep, "activation") + "      slope\n";
  const std::vector<std::string> names = names_of(sweep);
  for (size_t i = 0; i < names.size(); ++i) {
    const auto changes = changes_of(sweep, i);
    table += fmt::format("{:<12}", names[i]);
    for (const auto& change : changes)
      table += change ? fmt::format("{:>11.4f}", *change)
                      : fmt::format("{:>11}", "not finite");
    const auto slope = slope_of(sweep, changes);
    table += slope ? fmt::format("{:>+11.2f}\n", *slope)
                   : fmt::format("{:>11}\n", "-");
  }
  return table;
}

std::string loss_table(const RateSweep& sweep) {
  std::string table = header(sweep, "rate") + "\n";
  for (const double rate : sweep.rates) {
    table += fmt::format("{:<12g}", rate);
    for (const int64_t width : sweep.widths) {
      const RateTrial* trial = sweep.find(width, rate);
      const bool is_best = sweep.best_rate(width) == rate;
      const std::string loss = trial == nullptr ? "-"
                               : trial->loss
                                   ? fmt::format("{:.4f}", *trial->loss)
                                   : "not finite";
      table += fmt::format("{:>10}{}", loss, is_best ? '*' : ' ');
    }
    table += "\n";
  }
  return table;
}

std::string sweep_svg(const RateSweep& sweep) {
  return line_charts_svg({coordinate_chart(sweep), loss_chart(sweep)});
}

}  // namespace brigade
