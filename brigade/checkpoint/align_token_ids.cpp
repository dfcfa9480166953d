#include "brigade/checkpoint/align_token_ids.h"

#include <algorithm>

namespace brigade {
namespace {

using nlohmann::json;

json as_list(const json& ids) {
  if (ids.is_null())
    return json::array();
  return ids.is_array() ? ids : json::array({ids});
}

bool holds(const json& ids, int64_t id) {
  const json list = as_list(ids);
  return std::find(list.begin(), list.end(), id) != list.end();
}

// `id`, then the others among `ids`.
json with_first(int64_t id, const json& ids) {
  json list = json::array({id});
  for (const json& other : as_list(ids)) {
    if (other != id)
      list.push_back(other);
  }
  return list.size() == 1 ? json(id) : list;
}

}  // namespace

bool align_token_ids(
    std::optional<int64_t> bos,
    std::optional<int64_t> eos,
    json& config,
    json& generation) {
  const auto is_known = [&](const char* key, int64_t id) {
    return holds(config.value(key, json()), id) &&
           holds(generation.value(key, json()), id);
  };
  const bool changes_bos = bos && !is_known("bos_token_id", *bos);
  const bool changes_eos = eos && !is_known("eos_token_id", *eos);
  if (changes_bos)
    config["bos_token_id"] = generation["bos_token_id"] = *bos;
  if (changes_eos) {
    json& ends = config["eos_token_id"];
    ends = ends.is_array() ? with_first(*eos, ends) : json(*eos);
    generation["eos_token_id"] =
        with_first(*eos, generation.value("eos_token_id", json()));
  }
  return changes_bos || changes_eos;
}

}  // namespace brigade
