// The pipeline schedule that a config asks for, simulated, for the page.
#pragma once

#include <nlohmann/json.hpp>

namespace brigade {

// {"name", "total", "bubble", "ranks": [[{"kind", "name", "begin", "end",
// "micro_batch", "stage"}]]} of a run's config.json, in units of a forward.
// null without a pipeline, and for schedules too long to be seen.
nlohmann::json planned_schedule(const nlohmann::json& config);

}  // namespace brigade
