#include "brigade/checkpoint/adapter_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/checkpoint/hugging_face_export.h"
#include "brigade/checkpoint/torch_dtype.h"
#include "brigade/files/file.h"
#include "brigade/files/replace_directory.h"
#include "brigade/json/node.h"
#include "brigade/json/parse.h"
#include "brigade/model_spec/adapter.h"
#include "brigade/ops/adapted_weight.h"
#include "brigade/safetensors/writer.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kTensorFile = "adapter_model.safetensors";

const fs::path& checked_folder(const fs::path& folder) {
  for (const char* name : {kConfigFile, kTensorFile}) {
    if (!fs::is_regular_file(folder / name))
      throw DataError(fmt::format(
          "[adapter] '{}' is no adapter: it has no {}", folder.string(), name));
  }
  return folder;
}

bool asks_for_nothing(const json& value) {
  return value.is_null() || value == false || value == "none" ||
         (value.is_structured() && value.empty());
}

// Refuses keys with which the adapter computes something else.
void check_known(const JsonNode& root) {
  if (const JsonNode type = root.at("peft_type"); type.string() != "LORA")
    type.fail(fmt::format("\"{}\" is no LORA", type.string()));
  for (const char* key :
       {"bias",
        "lora_bias",
        "fan_in_fan_out",
        "modules_to_save",
        "trainable_token_indices",
        "layer_replication",
        "use_qalora",
        "use_bdlora",
        "alora_invocation_tokens",
        "arrow_config",
        "kasa_config",
        "velora_config",
        "monteclora_config"}) {
    const auto node = root.find(key);
    if (node && !asks_for_nothing(node->value()))
      node->fail(
          fmt::format("{} is not supported here", show_json(node->value())));
  }
  // With these PEFT takes the first A and B out of the base model's weights
  // whenever it loads the adapter.
  const auto init = root.find("init_lora_weights");
  const std::string kind =
      init && init->value().is_string() ? init->string() : "";
  if (kind.starts_with("pissa") || kind.starts_with("corda") ||
      kind == "olora" || kind == "loftq")
    init->fail(fmt::format(
        "\"{}\" is not supported here: it changes the base model's weights; "
        "save the adapter with path_initial_model_for_weight_conversion, which "
        "makes it a plain LoRA",
        kind));
}

double number_at(const JsonNode& root, const char* key) {
  const JsonNode node = root.at(key);
  if (!node.value().is_number())
    node.fail("expected a number");
  return node.value().get<double>();
}

// The linears that have adapters, where a list of names alone says it.
std::vector<std::string> target_modules(const JsonNode& root) {
  for (const char* key :
       {"layers_to_transform", "layers_pattern", "exclude_modules"}) {
    const auto node = root.find(key);
    if (node && !asks_for_nothing(node->value()))
      return {};
  }
  std::vector<std::string> names;
  const auto list = root.find("target_modules");
  if (list && list->value().is_array()) {
    for (const JsonNode& name : list->elements())
      names.push_back(name.string());
  }
  return names;
}

// The parameters of experts and routers, whose adapters PEFT names by
// target_parameters.
constexpr std::array<std::string_view, 3> kParameters = {
    kGateUp,
    kDown,
    "gate.weight"};

std::vector<std::string> target_parameters(const JsonNode& root) {
  std::vector<std::string> names;
  const auto list = root.find("target_parameters");
  if (!list)
    return {};
  for (const JsonNode& each : list->elements()) {
    names.push_back(each.string());
    if (std::none_of(
            kParameters.begin(), kParameters.end(), [&](const auto& known) {
              return names.back().ends_with(known);
            }))
      each.fail(fmt::format(
          "expected parameters that end with {}",
          fmt::join(kParameters, ", ")));
  }
  return names;
}

// What rank_pattern or alpha_pattern, by regular expressions of names, say of
// experts' parameters: PEFT's own have their names at the end.
std::map<std::string, double> pattern(const JsonNode& root, const char* key) {
  std::map<std::string, double> values;
  const auto node = root.find(key);
  if (!node || asks_for_nothing(node->value()))
    return values;
  for (const auto& [name, value] : node->value().items()) {
    const bool is_gate_up = name.ends_with(kGateUp);
    const bool is_of_all =
        name.find_first_of("0123456789") == std::string::npos;
    if (!value.is_number() || !is_of_all ||
        (!is_gate_up && name != ".*\\.down_proj"))
      node->fail(fmt::format(
          "{} is not supported here, but of all experts' {} and {}",
          show_json(node->value()),
          kGateUp,
          kDown));
    values[is_gate_up ? kGateUp : kDown] = value.get<double>();
  }
  return values;
}

// As PEFT writes them: of "all-linear" the last parts of the names.
std::vector<std::string> targets_of(
    const std::vector<ParameterRow>& rows,
    const AdapterOptions& options) {
  std::set<std::string> targets(options.targets.begin(), options.targets.end());
  if (targets.erase(kAllLinear) > 0) {
    for (const ParameterRow& row : rows) {
      const std::string module = adapted_module(row.name);
      targets.insert(module.substr(module.rfind('.') + 1));
    }
  }
  return {targets.begin(), targets.end()};
}

// PEFT takes no dropout for routers and experts, even where it only reads.
double dropout_of(const AdapterExport& request) {
  return linear_without_magnitude(
             describe_model(request.model), request.options)
                 .empty()
             ? request.options.dropout
             : 0;
}

json config_of(
    const AdapterExport& request,
    const std::vector<ParameterRow>& rows) {
  return {
      {"alpha_pattern", json::object()},
      {"auto_mapping", nullptr},
      {"base_model_name_or_path", request.base_model},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"layers_pattern", nullptr},
      {"layers_to_transform", nullptr},
      {"lora_alpha", request.options.alpha},
      {"lora_dropout", dropout_of(request)},
      {"modules_to_save", nullptr},
      {"peft_type", "LORA"},
      {"r", request.options.rank},
      {"rank_pattern", json::object()},
      {"revision", nullptr},
      {"target_modules", targets_of(rows, request.options)},
      {"task_type", "CAUSAL_LM"},
      {"use_dora", request.options.use_dora},
      {"use_rslora", request.options.use_rslora}};
}

void write_tensors(
    const fs::path& path,
    const std::vector<ParameterRow>& rows,
    const AdapterExport& request) {
  std::vector<TensorSpec> specs;
  for (const ParameterRow& row : rows)
    specs.push_back(
        {stored_adapter_name(row.name),
         SafetensorsDtype::kF32,
         {row.shape.begin(), row.shape.end()}});
  SafetensorsWriter writer(path, std::move(specs));
  for (const TensorSpec& spec : writer.order()) {
    const torch::Tensor tensor =
        request.read(own_adapter_name(spec.name)).contiguous();
    writer.write_next(
        {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()});
  }
  writer.commit();
}

}  // namespace

std::vector<ParameterRow> adapter_rows(
    const DecoderConfig& model,
    const AdapterOptions& adapter) {
  ModelDescription description = describe_model(model);
  description.adapter = adapter;
  std::vector<ParameterRow> rows = list_parameters(description);
  std::erase_if(rows, [](const ParameterRow& row) {
    return row.stored_in != StoredIn::kAdapter;
  });
  return rows;
}

AdapterFolder::AdapterFolder(const fs::path& folder, const DecoderConfig& model)
    : file_(checked_folder(folder) / kTensorFile) {
  const std::string name = (folder / kConfigFile).string();
  const std::string text = read_text_file(name);
  const JsonDocument document(text, {"adapter", name});
  const JsonNode root = document.root();
  check_known(root);
  options_.rank = root.at("r").integer(1, std::numeric_limits<int32_t>::max());
  options_.alpha = number_at(root, "lora_alpha");
  options_.use_rslora = root.boolean_at("use_rslora", false);
  options_.use_dora = root.boolean_at("use_dora", false);
  if (root.find("lora_dropout"))
    options_.dropout = number_at(root, "lora_dropout");
  if (const auto base = root.find("base_model_name_or_path"))
    base_model_ = base->string();
  pattern(root, "rank_pattern");  // the tensors' shapes say it
  const std::string base =
      base_model_.empty()
          ? ""
          : fmt::format("; it was trained beside '{}'", base_model_);
  parts_ = locate_adapter(
      file_,
      model,
      {options_.rank,
       options_.use_dora,
       target_parameters(root),
       target_modules(root)},
      fmt::format(
          "[adapter] '{}' is not one of this model{}", folder.string(), base));
  const std::map<std::string, double> alphas = pattern(root, "alpha_pattern");
  check_alphas(folder, alphas);
  set_scales(alphas);
  std::set<std::string> modules;
  for (const auto& [row, part] : parts_)
    modules.insert(adapted_module(row));
  options_.targets.assign(modules.begin(), modules.end());
  check_magnitudes(folder, model);
}

void AdapterFolder::check_alphas(
    const fs::path& folder,
    const std::map<std::string, double>& alphas) const {
  for (const auto& [parameter, alpha] : alphas) {
    for (const auto& [row, part] : parts_) {
      const std::string module = adapted_module(row);
      if (part.parameter.empty() && module.ends_with("." + parameter) &&
          alpha != options_.alpha)
        throw DataError(fmt::format(
            "[adapter] '{}': alpha_pattern gives '{}' an alpha of its own, {} "
            "instead of {}, which only parameters of experts have here",
            folder.string(),
            module,
            alpha,
            options_.alpha));
    }
  }
}

void AdapterFolder::set_scales(const std::map<std::string, double>& alphas) {
  const double scale = options_.scale();
  int64_t highest = options_.rank;
  for (const auto& [row, part] : parts_) {
    if (part.parameter.empty())
      continue;
    AdapterOptions own = options_;
    own.rank = part.rank;
    if (const auto alpha = alphas.find(part.parameter); alpha != alphas.end())
      own.alpha = alpha->second;
    factors_[part.parameter] = own.scale() / scale;
    highest = std::max(highest, part.rank);
  }
  if (highest == options_.rank)
    return;
  options_.rank = highest;
  options_.alpha = scale * static_cast<double>(highest);
  options_.use_rslora = false;
}

void AdapterFolder::check_magnitudes(
    const fs::path& folder,
    const DecoderConfig& model) const {
  const std::string linear =
      linear_without_magnitude(describe_model(model), options_);
  if (options_.use_dora && !linear.empty())
    throw DataError(fmt::format(
        "[adapter] '{}' has use_dora and adapts '{}', but routers and experts "
        "have no magnitudes here",
        folder.string(),
        linear));
}

torch::Tensor AdapterFolder::read_whole(const std::string& name) const {
  const StoredAdapterPart& part = parts_.at(name);
  torch::Tensor values = read_part(part);
  check_finite(values, part.tensor->name, [&] { return file_.path(); });
  if (part.rank == 0)
    return values;
  const bool is_b = name.ends_with(kLoraB);
  const auto factor = factors_.find(part.parameter);
  if (is_b && factor != factors_.end() && factor->second != 1)
    values = values * factor->second;
  const int64_t missing = options_.rank - part.rank;
  if (missing == 0)
    return values;
  return is_b ? torch::constant_pad_nd(values, {0, missing})
              : torch::constant_pad_nd(values, {0, 0, 0, missing});
}

void AdapterFolder::read(const Param& param) const {
  const torch::NoGradGuard no_grad;
  torch::Tensor(param.tensor)
      .copy_(
          take_shard(read_whole(param.name), param.cut.slice, param.cut.shape));
}

int64_t export_adapter(const AdapterExport& request) {
  check_free(request.out);
  const std::vector<ParameterRow> rows =
      adapter_rows(request.model, request.options);
  const fs::path temporary = with_suffix(
      request.out.has_filename() ? request.out : request.out.parent_path(),
      ".tmp");
  try {
    fs::remove_all(temporary);
    fs::create_directories(temporary);
    write_text_file(
        temporary / kConfigFile, config_of(request, rows).dump(2) + "\n");
    write_tensors(temporary / kTensorFile, rows, request);
    sync_directory(temporary);
    replace_directory(temporary, request.out);
  } catch (const fs::filesystem_error& error) {
    throw StorageError(fmt::format(
        "[adapter] cannot write '{}': {}",
        request.out.string(),
        error.code().message()));
  }
  int64_t numel = 0;
  for (const ParameterRow& row : rows)
    numel += row.numel();
  return numel;
}

torch::Tensor merged_weight(
    const torch::Tensor& weight,
    const std::string& module,
    const AdapterOptions& options,
    const std::function<torch::Tensor(const std::string& name)>& read) {
  const torch::NoGradGuard no_grad;
  return ops::adapted_weight(
      weight.to(torch::kFloat),
      {.a = read(module + kLoraA),
       .b = read(module + kLoraB),
       .scale = options.scale(),
       .magnitude =
           options.use_dora ? read(module + kLoraMagnitude) : torch::Tensor()});
}

}  // namespace brigade
