// Weights, model configs, training configs, checkpoints.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "brigade/base/error.h"
#include "brigade/base/readable.h"
#include "brigade/config/train_config.h"
#include "brigade/files/file.h"
#include "brigade/files/tokenizer_names.h"
#include "brigade/json/node.h"
#include "brigade/model_spec/active_parameters.h"
#include "brigade/model_spec/decoder_config.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/run/checkpoint_folder.h"
#include "brigade/safetensors/folder.h"
#include "brigade/safetensors/safetensors.h"
#include "cli/inspect.h"

namespace brigade::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// ---- weights

CheckpointTensor listed(const SafetensorsTensor& tensor) {
  return {
      .name = tensor.name,
      .dtype = tensor.dtype,
      .shape = {tensor.shape.begin(), tensor.shape.end()},
      .size_bytes = tensor.data.size()};
}

void inspect_weights_of(
    const fs::path& folder,
    const InspectArguments& arguments) {
  const SafetensorsFolder weights(folder);
  std::vector<CheckpointTensor> tensors;
  uint64_t size_bytes = 0;
  for (const SafetensorsFile& file : weights.files()) {
    size_bytes += file.size_bytes();
    for (const SafetensorsTensor& tensor : file.tensors())
      tensors.push_back(listed(tensor));
  }
  fmt::print(
      "weights  {} file(s), {}\n",
      weights.files().size(),
      readable_bytes(static_cast<double>(size_bytes)));
  print_tensors(tensors, arguments.list_all);
}

// ---- JSON

void inspect_model_config(const fs::path& file, const Json& json) {
  std::vector<std::string> problems;
  const DecoderConfig config =
      parse_decoder_config(json, file.string() + ": ", problems);
  if (!problems.empty())
    throw DataError(fmt::format("[inspect] {}", fmt::join(problems, "; ")));
  Rows rows = {{"file", file.string()}};
  for (auto& row : model_rows(config))
    rows.push_back(std::move(row));
  print_rows(rows);
}

int world_size_of(const Json& json) {
  const Json distributed = json.value("distributed", Json::object());
  const ParallelDims dims = read_dims([&](const std::string& key) -> int64_t {
    const auto found = distributed.find(key);
    const bool is_size = found != distributed.end() &&
                         found->is_number_integer() &&
                         found->get<int64_t>() < 100'000;
    return is_size ? found->get<int64_t>() : 1;
  });
  return static_cast<int>(std::min(dims.rank_count(), double{1 << 20}));
}

void inspect_train_config(const fs::path& file, const Json& json) {
  const LoadedConfig loaded =
      load_train_config({.path = file, .world_size = world_size_of(json)});
  fmt::print("training config  {}\n{}", file.string(), describe_values(loaded));
}

// Any other JSON: its outline.
void print_outline(const Json& json, const std::string& indent, int depth) {
  size_t shown = 0;
  for (const auto& [key, value] : json.items()) {
    if (++shown > 40) {
      fmt::print("{}... and {} more\n", indent, json.size() - 40);
      return;
    }
    if (value.is_object() && depth > 0) {
      fmt::print("{}{}\n", indent, key);
      print_outline(value, indent + "  ", depth - 1);
    } else if (value.is_structured()) {
      fmt::print(
          "{}{}  {} {}\n",
          indent,
          key,
          grouped(value.size()),
          value.is_array() ? "entries" : "members");
    } else {
      fmt::print("{}{}  {}\n", indent, key, quoted(value.dump(), 120));
    }
  }
}

Json read_json(const fs::path& file) {
  const std::string text = read_text_file(file);
  const JsonDocument document(
      text, {.module = "inspect", .file = file.string()});
  return document.root().value();
}

}  // namespace

std::string experts_row(const DecoderConfig& config) {
  const ExpertsConfig& experts = *config.experts;
  int64_t layers = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    layers += experts.is_sparse(layer) ? 1 : 0;
  return fmt::format(
      "{} of {} per token in {} layers, {} in each{}",
      experts.num_experts_per_tok,
      experts.num_experts,
      layers,
      experts.width,
      experts.shared_width > 0
          ? fmt::format(", {} in the shared one", experts.shared_width)
          : "");
}

Rows model_rows(const DecoderConfig& config) {
  std::string parameters =
      grouped(static_cast<uint64_t>(parameter_count(config)));
  if (config.experts)
    parameters += fmt::format(
        ", {} of them per token",
        grouped(static_cast<uint64_t>(active_parameter_count(config))));
  std::string attention = fmt::format(
      "{} heads of {}, {} key/value heads",
      config.num_attention_heads,
      config.head_dim,
      config.num_key_value_heads);
  if (config.qkv_bias)
    attention += ", q/k/v bias";
  if (config.qk_norm)
    attention += ", q/k norm";
  if (config.sliding_window)
    attention += fmt::format(", window of {} tokens", *config.sliding_window);
  Rows rows = {
      {"model", name_of(config.architecture).class_name},
      {"parameters", parameters},
      {"layers",
       fmt::format(
           "{} of {} hidden, {} in the MLP",
           config.num_hidden_layers,
           config.hidden_size,
           config.intermediate_size)},
      {"attention", attention},
      {"positions",
       fmt::format(
           "{}, rope theta {}{}",
           grouped(static_cast<uint64_t>(config.max_position_embeddings)),
           config.rope_theta,
           config.rope_scaling ? fmt::format(
                                     ", {} scaling by {}",
                                     to_string(config.rope_scaling->type),
                                     config.rope_scaling->factor)
                               : "")},
      {"vocabulary",
       fmt::format(
           "{}, {} head",
           grouped(static_cast<uint64_t>(config.vocab_size)),
           config.tie_word_embeddings ? "tied" : "untied")}};
  if (config.experts)
    rows.insert(rows.begin() + 3, {"experts", experts_row(config)});
  return rows;
}

void inspect_safetensors(
    const fs::path& path,
    const InspectArguments& arguments) {
  const SafetensorsFile file(path);
  Rows rows = {
      {"safetensors",
       fmt::format(
           "{} ({})",
           path.string(),
           readable_bytes(static_cast<double>(file.size_bytes())))}};
  for (const auto& [key, value] : file.metadata())
    rows.emplace_back(
        "metadata", fmt::format("{} = {}", key, quoted(value, 80)));
  print_rows(rows);
  std::vector<CheckpointTensor> tensors;
  for (const SafetensorsTensor& tensor : file.tensors())
    tensors.push_back(listed(tensor));
  print_tensors(tensors, arguments.list_all);
}

void inspect_json(const fs::path& file, const InspectArguments& arguments) {
  const Json json = read_json(file);
  if (!json.is_object()) {
    throw DataError(fmt::format(
        "[inspect] '{}' holds no JSON object: not a tokenizer, config or "
        "index",
        file.string()));
  }
  if (json.contains("model") && json["model"].is_object() &&
      (json["model"].contains("vocab") || json["model"].contains("merges")))
    return inspect_tokenizer(file.string());
  if (json.contains("hidden_size") || json.contains("architectures"))
    return inspect_model_config(file, json);
  if (json.contains("weight_map"))
    return inspect_weights_of(
        file.parent_path().empty() ? "." : file.parent_path(), arguments);
  if (json.value("format", Json()) == Json("brigade-dataset")) {
    InspectArguments dataset = arguments;
    dataset.path = (file.parent_path() / file.stem()).string();
    return inspect_dataset(dataset);
  }
  if (json.value("format", Json()) == Json("brigade checkpoint")) {
    const fs::path folder = file.parent_path();
    return inspect_checkpoint(folder.empty() ? "." : folder, arguments);
  }
  if (json.contains("distributed") || json.contains("training"))
    return inspect_train_config(file, json);
  fmt::print("{}\n", file.string());
  print_outline(json, "  ", 1);
}

void inspect_folder(const fs::path& folder, const InspectArguments& arguments) {
  if (find_checkpoint(folder))
    return inspect_checkpoint(folder, arguments);
  bool is_known = false;
  const auto heading = [&](const fs::path& file) {
    fmt::print("{}== {}\n", is_known ? "\n" : "", file.string());
    is_known = true;
  };
  if (fs::exists(folder / "config.json")) {
    heading(folder / "config.json");
    inspect_json(folder / "config.json", arguments);
  }
  if (const fs::path tokenizer = find_tokenizer_file(folder);
      !tokenizer.empty()) {
    heading(tokenizer);
    inspect_tokenizer(tokenizer.string());
  }
  if (fs::exists(folder / kSafetensorsFile) ||
      fs::exists(folder / kSafetensorsIndex)) {
    heading(folder);
    inspect_weights_of(folder, arguments);
    return;
  }
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors")
      others.push_back(entry.path());
  }
  std::sort(others.begin(), others.end());
  for (const fs::path& file : others) {
    heading(file);
    inspect_safetensors(file, arguments);
  }
  if (!is_known) {
    throw DataError(fmt::format(
        "[inspect] the folder '{}' holds no checkpoint, config.json, "
        "tokenizer or safetensors file",
        folder.string()));
  }
}

}  // namespace brigade::cli
