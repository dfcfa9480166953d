#include "brigade/generate/end_tokens.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/json/parse.h"

namespace brigade {

namespace {

// `ids`: one, several or null, as Hugging Face writes eos_token_id.
void add_ids(const nlohmann::json& config, std::set<int64_t>& ids) {
  const auto found = config.find("eos_token_id");
  if (found == config.end())
    return;
  if (found->is_number_integer())
    ids.insert(found->get<int64_t>());
  for (const auto& each : *found) {
    if (found->is_array() && each.is_number_integer())
      ids.insert(each.get<int64_t>());
  }
}

}  // namespace

std::set<int64_t> end_tokens(
    const StoredModel& stored,
    const Tokenizer& tokenizer) {
  std::set<int64_t> ids;
  if (tokenizer.eos_id())
    ids.insert(*tokenizer.eos_id());
  add_ids(stored.config(), ids);
  const auto path = stored.directory() / "generation_config.json";
  if (std::filesystem::exists(path)) {
    const auto json = parse_json_or_nothing(read_text_file(path));
    if (!json || !json->is_object())
      throw DataError(fmt::format(
          "[generate] '{}' does not hold a JSON object", path.string()));
    add_ids(*json, ids);
  }
  return ids;
}

}  // namespace brigade
