// Weights, model configs, training configs, checkpoints.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "brigade/base/checked_math.h"
#include "brigade/base/error.h"
#include "brigade/base/file.h"
#include "brigade/checkpoint/safetensors.h"
#include "brigade/checkpoint/safetensors_folder.h"
#include "brigade/model/llama_config.h"
#include "brigade/train/train_config.h"
#include "cli/inspect.h"

namespace brigade::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// ---- weights

// Tensors that differ only in one number of their names, such as the layer.
struct TensorGroup {
  std::string name;  // with * for the number
  std::string dtype;
  std::string shape;
  std::vector<uint64_t> numbers;
  uint64_t size_bytes = 0;
};

// Splits "model.layers.12.mlp.weight" at its first number between dots.
struct NumberedName {
  std::string before;
  std::optional<uint64_t> number;
  std::string after;
};

NumberedName split_number(const std::string& name) {
  size_t begin = 0;
  while (begin < name.size()) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool is_number = !part.empty() && part.size() < 10 &&
                           std::all_of(part.begin(), part.end(), [](char c) {
                             return c >= '0' && c <= '9';
                           });
    if (is_number)
      return {name.substr(0, begin), std::stoull(part), name.substr(end)};
    begin = end + 1;
  }
  return {name, std::nullopt, ""};
}

// "0-31", "0,2,5-7".
std::string as_ranges(std::vector<uint64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1)
      ++last;
    text += text.empty() ? "" : ",";
    text += last == i ? fmt::to_string(numbers[i])
                      : fmt::format("{}-{}", numbers[i], numbers[last]);
    i = last + 1;
  }
  return text;
}

std::vector<TensorGroup> group_tensors(
    const std::vector<const SafetensorsTensor*>& tensors,
    bool list_all) {
  std::vector<TensorGroup> groups;
  std::map<std::string, size_t> places;
  for (const SafetensorsTensor* tensor : tensors) {
    TensorGroup group{
        .name = tensor->name,
        .dtype = std::string(name_of(tensor->dtype)),
        .shape = fmt::format("[{}]", fmt::join(tensor->shape, ", ")),
        .size_bytes = tensor->data.size()};
    const NumberedName split = split_number(tensor->name);
    if (split.number && !list_all) {
      group.name = split.before + "*" + split.after;
      group.numbers = {*split.number};
    }
    const auto [place, is_new] = places.emplace(
        group.name + ' ' + group.dtype + ' ' + group.shape, groups.size());
    if (is_new) {
      groups.push_back(std::move(group));
    } else {
      TensorGroup& known = groups[place->second];
      known.size_bytes += group.size_bytes;
      known.numbers.insert(
          known.numbers.end(), group.numbers.begin(), group.numbers.end());
    }
  }
  return groups;
}

void print_tensors(
    const std::vector<const SafetensorsTensor*>& tensors,
    bool list_all) {
  uint64_t numel = 0;
  uint64_t size_bytes = 0;
  std::map<std::string, uint64_t> numel_of;
  for (const SafetensorsTensor* tensor : tensors) {
    const uint64_t tensor_numel =
        tensor->data.size() / item_bytes(tensor->dtype);
    numel += tensor_numel;
    size_bytes += tensor->data.size();
    numel_of[std::string(name_of(tensor->dtype))] += tensor_numel;
  }
  std::string dtypes;
  for (const auto& [dtype, count] : numel_of)
    dtypes += fmt::format(
        "{}{} {}", dtypes.empty() ? "" : ", ", grouped(count), dtype);
  fmt::print(
      "{} tensors, {} elements ({}), {}\n",
      grouped(tensors.size()),
      grouped(numel),
      dtypes,
      readable_bytes(size_bytes));

  const auto groups = group_tensors(tensors, list_all);
  size_t name_width = 0;
  size_t shape_width = 0;
  for (const TensorGroup& group : groups) {
    name_width = std::max(name_width, group.name.size());
    shape_width = std::max(shape_width, group.shape.size());
  }
  for (const TensorGroup& group : groups) {
    fmt::print(
        "  {:<{}}  {:<5} {:<{}}  {}{}\n",
        group.name,
        name_width,
        group.dtype,
        group.shape,
        shape_width,
        readable_bytes(group.size_bytes),
        group.numbers.empty()
            ? ""
            : fmt::format(", * = {}", as_ranges(group.numbers)));
  }
}

void inspect_weights_of(
    const fs::path& folder,
    const InspectArguments& arguments) {
  const SafetensorsFolder weights(folder);
  std::vector<const SafetensorsTensor*> tensors;
  uint64_t size_bytes = 0;
  for (const SafetensorsFile& file : weights.files()) {
    size_bytes += file.size_bytes();
    for (const SafetensorsTensor& tensor : file.tensors())
      tensors.push_back(&tensor);
  }
  fmt::print(
      "weights  {} file(s), {}\n",
      weights.files().size(),
      readable_bytes(size_bytes));
  print_tensors(tensors, arguments.list_all);
}

// ---- JSON

const char* to_text(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
      return "LlamaForCausalLM";
    case Architecture::kMistral:
      return "MistralForCausalLM";
    case Architecture::kQwen2:
      return "Qwen2ForCausalLM";
    case Architecture::kQwen3:
      return "Qwen3ForCausalLM";
  }
  return "?";
}

void inspect_model_config(const fs::path& file, const Json& json) {
  std::vector<std::string> problems;
  const LlamaConfig config = parse_llama_config(json, "", problems);
  if (!problems.empty())
    throw ConfigError(problems);
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
  print_rows(
      {{"model",
        fmt::format("{} ({})", file.string(), to_text(config.architecture))},
       {"parameters", grouped(static_cast<uint64_t>(parameter_count(config)))},
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
            config.rope_scaling
                ? fmt::format(
                      ", llama3 scaling by {}", config.rope_scaling->factor)
                : "")},
       {"vocabulary",
        fmt::format(
            "{}, {} head",
            grouped(static_cast<uint64_t>(config.vocab_size)),
            config.tie_word_embeddings ? "tied" : "untied")}});
}

int world_size_of(const Json& json) {
  int64_t size = 1;
  const Json distributed = json.value("distributed", Json::object());
  for (const char* key : {"tp_size", "cp_size", "pp_size", "dp_size"}) {
    const auto found = distributed.find(key);
    if (found != distributed.end() && found->is_number_integer() &&
        found->get<int64_t>() > 0 && found->get<int64_t>() < 100'000)
      size = std::min<int64_t>(size * found->get<int64_t>(), 1 << 20);
  }
  return static_cast<int>(size);
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
  try {
    return Json::parse(read_text_file(file));
  } catch (const Json::parse_error& error) {
    throw DataError(
        fmt::format("[{}] at byte {}: not JSON", file.string(), error.byte));
  }
}

}  // namespace

void inspect_safetensors(
    const fs::path& path,
    const InspectArguments& arguments) {
  const SafetensorsFile file(path);
  Rows rows = {
      {"safetensors",
       fmt::format(
           "{} ({})", path.string(), readable_bytes(file.size_bytes()))}};
  for (const auto& [key, value] : file.metadata())
    rows.emplace_back(
        "metadata", fmt::format("{} = {}", key, quoted(value, 80)));
  print_rows(rows);
  std::vector<const SafetensorsTensor*> tensors;
  for (const SafetensorsTensor& tensor : file.tensors())
    tensors.push_back(&tensor);
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
  const bool is_train_config =
      json.contains("distributed") || json.contains("training");
  if (is_train_config && file.filename() != "manifest.json")
    return inspect_train_config(file, json);
  fmt::print("{}\n", file.string());
  print_outline(json, "  ", 1);
}

void inspect_folder(const fs::path& folder, const InspectArguments& arguments) {
  bool is_known = false;
  const auto heading = [&](const fs::path& file) {
    fmt::print("{}== {}\n", is_known ? "\n" : "", file.string());
    is_known = true;
  };
  if (fs::exists(folder / "manifest.json")) {
    heading(folder / "manifest.json");
    print_outline(read_json(folder / "manifest.json"), "  ", 1);
  }
  if (fs::exists(folder / "config.json")) {
    heading(folder / "config.json");
    inspect_json(folder / "config.json", arguments);
  }
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (fs::exists(folder / name)) {
      heading(folder / name);
      inspect_tokenizer((folder / name).string());
      break;
    }
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
        "[inspect] the folder '{}' holds no manifest.json, config.json, "
        "tokenizer or safetensors file",
        folder.string()));
  }
}

}  // namespace brigade::cli
