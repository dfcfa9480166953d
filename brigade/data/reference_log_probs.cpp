#include "brigade/data/reference_log_probs.h"

#include <fmt/format.h>

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>

#include "brigade/base/error.h"
#include "brigade/data/dataset_info.h"
#include "brigade/files/file.h"
#include "brigade/json/node.h"
#include "brigade/json/parse.h"

namespace brigade {
namespace {

constexpr const char* kReferenceFormat = "brigade-reference";
constexpr int kReferenceVersion = 1;

void require_count(const JsonNode& node, uint64_t found, uint64_t expected) {
  if (found != expected)
    node.fail(fmt::format(
        "{}, but the dataset beside it has {}: it was made for other pairs; "
        "make it again with `brigade evaluate --write-reference`",
        found,
        expected));
}

}  // namespace

std::filesystem::path reference_path(const std::filesystem::path& dataset) {
  return with_suffix(dataset_prefix(dataset), ".reference.json");
}

ReferenceLogProbs read_reference(const TokenDataset& dataset) {
  const std::filesystem::path path = reference_path(dataset.path());
  const std::string prefix = dataset_prefix(dataset.path()).string();
  if (!std::filesystem::exists(path))
    throw ConfigError(fmt::format(
        "[config] /training/loss \"dpo\" compares with a reference model, "
        "but '{}' is not there: make it once with `brigade evaluate --run "
        "MODEL --dataset {} --write-reference`, where MODEL is what training "
        "begins with; orpo and simpo need none",
        path.string(),
        prefix));
  const std::string text = read_text_file(path);
  const JsonDocument document(text, {"reference", path.string()});
  const JsonNode root = document.root();
  if (root.at("format").string() != kReferenceFormat)
    root.at("format").fail(fmt::format("not \"{}\"", kReferenceFormat));
  root.at("version").integer(kReferenceVersion, kReferenceVersion);
  const JsonNode tokens = root.at("num_tokens");
  require_count(
      tokens,
      static_cast<uint64_t>(
          tokens.integer(0, std::numeric_limits<int64_t>::max())),
      dataset.num_tokens());
  const JsonNode values = root.at("log_probs");
  require_count(values, values.size(), dataset.documents().size());
  ReferenceLogProbs reference{.model = root.at("model").string()};
  reference.log_probs.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const JsonNode value = values.element(i);
    if (!value.value().is_number())
      value.fail("not a number");
    reference.log_probs.push_back(value.value().get<double>());
  }
  return reference;
}

void write_reference(
    const TokenDataset& dataset,
    const ReferenceLogProbs& reference) {
  nlohmann::ordered_json json;
  json["format"] = kReferenceFormat;
  json["version"] = kReferenceVersion;
  json["model"] = reference.model;
  json["num_tokens"] = dataset.num_tokens();
  json["log_probs"] = reference.log_probs;
  write_text_file(reference_path(dataset.path()), json_to_text(json) + "\n");
}

}  // namespace brigade
