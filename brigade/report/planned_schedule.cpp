#include "brigade/report/planned_schedule.h"

#include "brigade/base/error.h"
#include "brigade/report/run_record.h"
#include "brigade/schedule/make_schedule.h"
#include "brigade/schedule/simulator.h"

namespace brigade {

using nlohmann::json;

json planned_schedule(const json& config) {
  constexpr int64_t kMostActions = 8000;
  const int64_t ranks = config_number(config, "distributed", "pp_size", 1);
  const int64_t stages =
      config_number(config, "distributed", "pp_virtual_stages", 1);
  const int64_t micro_batches =
      config_number(config, "training", "gradient_accumulation_steps", 1);
  if (ranks < 2 || stages < 1 || micro_batches < 1 || stages > kMostActions ||
      micro_batches > kMostActions ||
      ranks > kMostActions / (2 * stages * micro_batches))
    return nullptr;
  const auto kind = find_choice<ScheduleKind>(
      config_text(config, "distributed", "pp_engine", "1f1b"));
  if (!kind)
    return nullptr;
  try {
    const Schedule schedule = make_schedule(
        *kind,
        {static_cast<int>(ranks),
         static_cast<int>(stages),
         static_cast<int>(micro_batches)});
    const Simulation simulation = simulate(schedule, {});
    json result = {
        {"name", to_string(*kind)},
        {"total", simulation.makespan},
        {"bubble", simulation.bubble},
        {"ranks", json::array()}};
    for (const auto& rank : simulation.per_rank) {
      json spans = json::array();
      for (const TimedAction& timed : rank)
        spans.push_back(
            {{"kind", std::string(1, letter_of(timed.action.kind))},
             {"name", to_string(timed.action.kind)},
             {"begin", timed.start},
             {"end", timed.end},
             {"micro_batch", timed.action.micro_batch},
             {"stage", timed.action.stage}});
      result["ranks"].push_back(std::move(spans));
    }
    return result;
  } catch (const ConfigError&) {
    return nullptr;  // a config.json that no run was made with
  }
}

}  // namespace brigade
