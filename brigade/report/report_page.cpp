#include "brigade/report/report_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "brigade/base/embedded.h"
#include "brigade/base/version.h"
#include "brigade/json/parse.h"
#include "brigade/report/html.h"
#include "brigade/report/planned_schedule.h"

namespace brigade {
namespace {

using nlohmann::json;

constexpr int kMostRanksShown = 512;

// "group.key": value, for comparing configs key by key.
json flat(const json& config) {
  json result = json::object();
  if (!config.is_object())
    return result;
  for (const auto& [group, keys] : config.items()) {
    if (!keys.is_object())
      continue;
    for (const auto& [key, value] : keys.items())
      result[group + "." + key] = value;
  }
  return result;
}

// Buckets are shown of the last step that has them: they would be most of the
// page.
void keep_last_buckets(json& steps) {
  bool has_buckets = false;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (std::exchange(has_buckets, has_buckets || step->contains("buckets")))
      step->erase("buckets");
  }
}

// Only steps evenly chosen over the run, the last one among them, keep the
// tokens of each expert, for the same reason.
void thin_out_expert_rows(json& steps) {
  constexpr size_t kMostSteps = 100;
  constexpr size_t kMostNumbers = 100'000;
  const json::json_pointer rows("/experts/tokens_per_expert");
  std::vector<json*> with_rows;
  size_t numbers = 1;  // of the largest step
  for (json& step : steps) {
    if (!step.contains(rows))
      continue;
    with_rows.push_back(&step);
    size_t of_step = 0;
    for (const json& layer : step[rows])
      of_step += layer.size();
    numbers = std::max(numbers, of_step);
  }
  const size_t kept = std::clamp<size_t>(kMostNumbers / numbers, 1, kMostSteps);
  const size_t every = (with_rows.size() + kept - 1) / kept;
  for (size_t i = 0; i < with_rows.size(); ++i) {
    if ((with_rows.size() - 1 - i) % every != 0)
      with_rows[i]->at("experts").erase("tokens_per_expert");
  }
}

json steps_of(const RunRecord& run) {
  json steps = run.steps;
  keep_last_buckets(steps);
  thin_out_expert_rows(steps);
  return steps;
}

json describe(const RunRecord& run) {
  json described = {
      {"name", run.name},
      {"path", run.path.string()},
      {"steps", steps_of(run)},
      {"events", run.events},
      {"timeline", run.timeline},
      {"planned", planned_schedule(run.config)},
      {"failure", run.failure},
      {"checkpoints", run.checkpoints},
      {"last_step", last_step_of(run)},
      {"config", flat(run.config)}};
  const ParallelDims dims = dims_of(run.config);
  described["layout"] = dims.product();
  if (dims.rank_count() <= kMostRanksShown)
    described["ranks"] = dims.table();
  return described;
}

}  // namespace

std::string report_data(const std::vector<RunRecord>& runs) {
  json data = json::array();
  for (const RunRecord& run : runs)
    data.push_back(describe(run));
  return json_to_text(data);
}

std::string report_page(const std::vector<RunRecord>& runs, int refresh_ms) {
  std::string names;
  for (const RunRecord& run : runs)
    names += (names.empty() ? "" : ", ") + run.name;
  std::string page;
  const auto add = [&](std::string_view text) { page += text; };
  add("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<link rel=\"icon\" href=\"data:,\">\n<title>");
  add(escaped_html(names));
  add("</title>\n<style>");
  add(embedded::dygraph_css);
  add(embedded::page_css);
  add("</style></head><body");
  if (refresh_ms > 0)
    add(fmt::format(" data-live=\"{}\"", refresh_ms));
  add(">\n<h1>");
  add(escaped_html(names));
  add("</h1>\n<main id=\"page\"></main>\n<footer>brigade ");
  add(version());
  add("</footer>\n<script type=\"application/json\" id=\"data\">");
  add(escaped_json(report_data(runs)));
  for (const std::string_view script :
       {embedded::dygraph_js,
        embedded::page_js,
        embedded::page_time_js,
        embedded::page_experts_js,
        embedded::page_tables_js}) {
    add("</script>\n<script>");
    add(script);
  }
  add("</script></body></html>\n");
  return page;
}

}  // namespace brigade
