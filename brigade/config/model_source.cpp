#include "brigade/config/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "brigade/base/error.h"
#include "brigade/base/shell_word.h"
#include "brigade/files/file.h"
#include "brigade/files/usual_path.h"
#include "brigade/json/node.h"
#include "brigade/json/python_json.h"

namespace brigade {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Problems = std::vector<std::string>;

void parse_decoder(
    const json& hugging_face_config,
    const std::string& pointer,
    TrainConfig& config,
    Problems& problems) {
  const size_t before = problems.size();
  const DecoderConfig decoder = parse_decoder_config(
      with_model_overrides(config.model, hugging_face_config),
      "[config] " + pointer,
      problems);
  if (problems.size() != before)
    return;
  config.model.decoder = decoder;
  config.model.source = hugging_face_config;
}

void parse_decoder_file(
    const fs::path& path,
    TrainConfig& config,
    Problems& problems) {
  std::string text;
  try {
    text = read_text_file(path);
  } catch (const DataError& error) {
    problems.push_back(fmt::format(
        "[config] /model/name = \"{}\": {}", config.model.name, error.what()));
    return;
  }
  // A damaged file is no problem of the run's config: a DataError.
  const json file = parse_python_json(text, {"config", path.string()});
  parse_decoder(file, path.string() + ": ", config, problems);
  config.model.folder =
      path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// The vocabulary that `brigade prepare` wrote beside a dataset; std::nullopt:
// it wrote none.
std::optional<int64_t> vocabulary_of(const std::string& dataset) {
  fs::path prefix = dataset;
  if (prefix.extension() == ".bin" || prefix.extension() == ".idx")
    prefix.replace_extension();
  const fs::path description = with_suffix(prefix, ".json");
  std::error_code error;
  if (!fs::is_regular_file(description, error))
    return std::nullopt;
  const std::string text = read_text_file(description);
  const JsonDocument file(text, {"config", description.string()});
  const json value = file.root().value();
  if (!value.is_object() || !value.contains("vocab_size") ||
      !value["vocab_size"].is_number_integer())
    return std::nullopt;
  return value["vocab_size"].get<int64_t>();
}

// model.config without vocab_size: that of the largest vocabulary of the
// datasets.
void take_vocabulary(TrainConfig& config, Problems& problems) {
  if (config.dataset.text) {
    problems.emplace_back(
        "[config] /model/config/vocab_size is not given, and /dataset/text "
        "does not say it; give the tokenizer's");
    return;
  }
  std::vector<std::string> names = {config.dataset.name};
  if (!config.dataset.mixture.empty())
    names.clear();
  for (const MixturePart& part : config.dataset.mixture)
    names.push_back(part.name);
  int64_t largest = 0;
  for (const std::string& name : names) {
    const auto size = name.empty() ? std::nullopt : vocabulary_of(name);
    if (!size) {
      problems.push_back(fmt::format(
          "[config] /model/config/vocab_size is not given, and the dataset "
          "'{}' does not say it: there is no '{}.json' of `brigade prepare`",
          name,
          name));
      return;
    }
    largest = std::max(largest, *size);
  }
  config.model.config["vocab_size"] = largest;
}

// "HuggingFaceTB/SmolLM-135M" or "gpt2": what can be looked up elsewhere.
bool is_model_id(const std::string& name) {
  const bool is_path = name.starts_with('/') || name.starts_with('.') ||
                       name.starts_with('~') || name.ends_with('/') ||
                       name.ends_with(".json");
  return !is_path && std::count(name.begin(), name.end(), '/') <= 1;
}

// What a folder is that holds no model, and how its model becomes one with it;
// empty: that cannot be seen.
std::string other_than_model(const fs::path& folder) {
  std::error_code error;
  const auto has = [&](const char* name) {
    return fs::exists(folder / name, error);
  };
  const std::string word = shell_word(folder.string());
  if (!has("config.json") && has("adapter_config.json"))
    return fmt::format(
        "it is an adapter of PEFT; brigade export --run BASE --adapter {} "
        "--merge --out DIR writes a model with it",
        word);
  const bool is_run = has("checkpoints") && has("metrics.jsonl");
  if (is_run || (!has("config.json") && has("manifest.json")))
    return fmt::format(
        "it is a run of Brigade; brigade export --run {} --out DIR writes its "
        "model",
        word);
  return "";
}

}  // namespace

json with_model_overrides(const ModelConfig& model, json hugging_face_config) {
  // What is not an object is reported by the parser.
  if (!hugging_face_config.is_object())
    return hugging_face_config;
  const auto put = [&](const char* key, const std::optional<int64_t>& value) {
    if (value)
      hugging_face_config[key] = *value;
  };
  put("num_hidden_layers", model.num_hidden_layers);
  put("num_attention_heads", model.num_attention_heads);
  put("num_key_value_heads", model.num_key_value_heads);
  return hugging_face_config;
}

void find_decoder_config(
    const FindModel& find_model,
    TrainConfig& config,
    Problems& problems) {
  const ModelConfig& model = config.model;
  if (!model.config.is_null() && !model.name.empty()) {
    problems.push_back(fmt::format(
        "[config] /model/name = \"{}\" and /model/config are both given; leave "
        "one out (model.config=null on the command line does)",
        model.name));
    return;
  }
  if (!model.config.is_null()) {
    if (model.init == WeightInit::kPretrained)
      problems.emplace_back(
          "[config] /model/init = \"pretrained\" needs /model/name, a folder "
          "or "
          "an id with weights; /model/config has none");
    const bool has_vocabulary =
        !model.config.is_object() || (model.config.contains("vocab_size") &&
                                      !model.config["vocab_size"].is_null());
    if (!has_vocabulary) {
      // Other problems are found, and reported, all the same.
      TrainConfig tried = config;
      tried.model.config["vocab_size"] = 1;
      parse_decoder(tried.model.config, "/model/config", tried, problems);
      if (tried.model.decoder)
        take_vocabulary(config, problems);
      if (!problems.empty())
        return;
    }
    parse_decoder(model.config, "/model/config", config, problems);
    return;
  }
  if (model.name.empty()) {
    problems.emplace_back(
        "[config] neither /model/config nor /model/name is given; set one to "
        "a Hugging Face config, inline or as a path");
    return;
  }
  const fs::path path = model.name;
  if (const auto loop = loop_in(path)) {
    problems.push_back(fmt::format(
        "[config] /model/name = \"{}\": {}", model.name, describe_loop(*loop)));
    return;
  }
  std::error_code error;
  if (fs::is_directory(path, error)) {
    if (const std::string other = other_than_model(path); !other.empty()) {
      problems.push_back(
          fmt::format("[config] /model/name = \"{}\": {}", model.name, other));
      return;
    }
    parse_decoder_file(path / "config.json", config, problems);
  } else if (fs::exists(path, error)) {
    parse_decoder_file(path, config, problems);
  } else if (!is_model_id(model.name)) {
    problems.push_back(fmt::format(
        "[config] /model/name = \"{}\": there is no such file or folder",
        model.name));
  } else if (find_model) {
    if (const auto folder = find_model(model.name))
      parse_decoder_file(*folder / "config.json", config, problems);
  }
}

void resolve_model(TrainConfig& config, const fs::path& folder) {
  Problems problems;
  parse_decoder_file(folder / "config.json", config, problems);
  if (config.model.decoder)
    validate_model_layout(config, *config.model.decoder, problems);
  if (!problems.empty())
    throw ConfigError(problems);
}

}  // namespace brigade
