#include "brigade/report/report_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "brigade/base/version.h"
#include "brigade/report/embedded.h"
#include "brigade/report/html.h"
#include "brigade/topology/parallel_dims.h"

namespace brigade {
namespace {

using nlohmann::json;

ParallelDims dims_of(const json& config) {
  const auto size = [&](const char* key) {
    return static_cast<int>(std::clamp<int64_t>(
        config_number(config, "distributed", key, 1), 1, 1 << 20));
  };
  return {
      .dp = size("dp_size"),
      .tp = size("tp_size"),
      .pp = size("pp_size"),
      .cp = size("cp_size")};
}

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

json describe(const RunRecord& run) {
  constexpr int kMostRanksShown = 512;
  json described = {
      {"name", run.name},
      {"path", run.path.string()},
      {"steps", run.steps},
      {"checkpoints", run.checkpoints},
      {"config", flat(run.config)}};
  const ParallelDims dims = dims_of(run.config);
  described["layout"] = dims.product();
  if (dims.world_size() <= kMostRanksShown)
    described["ranks"] = dims.table();
  return described;
}

}  // namespace

std::string report_page(const std::vector<RunRecord>& runs) {
  json data = json::array();
  std::string names;
  for (const RunRecord& run : runs) {
    data.push_back(describe(run));
    names += (names.empty() ? "" : ", ") + run.name;
  }
  std::string page;
  const auto add = [&](std::string_view text) { page += text; };
  add("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<title>");
  add(escaped_html(names));
  add("</title>\n<style>");
  add(embedded::dygraph_css);
  add(embedded::page_css);
  add("</style></head><body>\n<h1>");
  add(escaped_html(names));
  add("</h1>\n<main id=\"page\"></main>\n<footer>brigade ");
  add(version());
  add("</footer>\n<script type=\"application/json\" id=\"data\">");
  add(escaped_json(data.dump()));
  add("</script>\n<script>");
  add(embedded::dygraph_js);
  add("</script>\n<script>");
  add(embedded::page_js);
  add("</script></body></html>\n");
  return page;
}

}  // namespace brigade
