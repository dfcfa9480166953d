// config.json on arbitrary bytes: problems are collected, nothing throws, and
// a config without problems can be listed, counted, written and read back.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "brigade/model_spec/decoder_config.h"
#include "brigade/model_spec/parameter_table.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json = nlohmann::json::parse(data, data + size, nullptr, false);
  if (json.is_discarded())
    return 0;
  std::vector<std::string> problems;
  const auto config = brigade::parse_decoder_config(json, "/model", problems);
  if (!problems.empty())
    return 0;
  const auto written = brigade::to_hugging_face_json(config, "float32");
  if (brigade::parse_decoder_config(written, "/model", problems) != config ||
      !problems.empty())
    std::abort();
  std::set<std::string> names;
  for (const auto& row : brigade::list_parameters(config)) {
    if (row.numel() <= 0 || !names.insert(row.name).second)
      std::abort();
  }
  return 0;
}
