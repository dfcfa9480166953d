// What brigade plan reads: the model and the machine.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "brigade/base/error.h"
#include "brigade/base/units.h"
#include "brigade/config/train_config.h"
#include "brigade/data/whole_text.h"
#include "brigade/files/file.h"
#include "brigade/files/read_once.h"
#include "brigade/files/usual_path.h"
#include "brigade/json/node.h"
#include "brigade/model_spec/decoder_config.h"
#include "brigade/report/run_record.h"
#include "cli/config_memory.h"
#include "cli/named_run.h"
#include "cli/plan.h"

namespace brigade::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

Json read_json_file(const fs::path& path) {
  const std::string text =
      is_open_input(path) ? read_whole_text(path) : read_text_file(path);
  const JsonDocument document(text, {.module = "plan", .file = path.string()});
  return document.root().value();
}

// The Hugging Face config inside a training config, with what the latter has in
// place of the model's own, or the file itself.
NamedModelConfig hugging_face_config(const NamedModelConfig& file) {
  const auto model = file.config.find("model");
  if (model == file.config.end() || !model->is_object() ||
      !model->contains("config"))
    return file;
  ModelConfig over;
  const auto number = [&](const char* key, std::optional<int64_t>& value) {
    if (const Json given = config_value(file.config, "model", key);
        given.is_number_integer())
      value = given.get<int64_t>();
  };
  number("num_hidden_layers", over.num_hidden_layers);
  number("num_attention_heads", over.num_attention_heads);
  number("num_key_value_heads", over.num_key_value_heads);
  return {
      with_model_overrides(over, model->at("config")),
      file.place + "/model/config"};
}

// `value` becomes the choice that the config's training.KEY names.
template <typename Enum>
void read_choice(const Json& file, const char* key, Enum& value) {
  value =
      find_choice<Enum>(config_text(file, "training", key, "")).value_or(value);
}

// What a training config asks of the head: its loss may be another than
// cross-entropy.
planner::HeadWork head_work(const Json& file) {
  LossOptions loss;
  read_choice(file, "loss", loss.kind);
  return planner::HeadWork::of(
      loss,
      loss.kind == LossKind::kDistill
          ? teacher_tokens_of(config_text(file, "dataset", "teacher", ""))
          : 0);
}

// The optimizer of a training config; else AdamW.
OptimizerOptions optimizer_of(const Json& file) {
  OptimizerOptions options;
  read_choice(file, "optimizer", options.kind);
  read_choice(file, "optimizer_state_dtype", options.moments);
  const auto number = [&](const char* key, double& value) {
    if (const Json given = config_value(file, "training", key);
        given.is_number())
      value = given.get<double>();
  };
  number("sgd_momentum", options.sgd.momentum);
  number("ema_decay", options.ema_decay);
  return options;
}

// What of a training config the memory and the time of a layout depend on,
// besides the layout: for the config that is written.
Json counted_training(const Json& file) {
  Json counted = Json::object();
  for (const char* key :
       {"optimizer",
        "optimizer_state_dtype",
        "sgd_momentum",
        "ema_decay",
        "loss"}) {
    if (const Json given = config_value(file, "training", key);
        !given.is_null())
      counted[key] = given;
  }
  return counted;
}

machine::Machine read_machine(const std::string& given) {
  if (!is_open_input(given) && !has_file(given))
    return machine::find_machine(given);
  std::vector<std::string> problems;
  machine::Machine machine =
      machine::parse_machine(read_json_file(given), given + ": ", problems);
  if (!problems.empty())
    throw ConfigError(problems);
  if (machine.name.empty())
    machine.name = fs::path(given).stem();
  if (machine.device.name.empty())
    machine.device.name = machine.name;
  return machine;
}

}  // namespace

Model read_model(const std::string& given) {
  const fs::path path = given;
  std::error_code error;
  if (!is_open_input(path) && !fs::exists(path, error))
    throw ConfigError(fmt::format(
        "[plan] '{}': there is no such file; give a Hugging Face config.json "
        "or a training config with --model, or a run, a checkpoint or a "
        "Hugging Face folder with --run",
        given));
  const bool is_folder = fs::is_directory(path, error);
  const NamedModelConfig found =
      is_folder ? read_model_config(path)
                : NamedModelConfig{read_json_file(path), path.string() + ": "};
  // A folder is called by the last name in its path, also with a / at its end.
  const fs::path folder =
      (fs::absolute(path) / (is_folder ? "" : "..")).lexically_normal();
  const std::string name = is_folder || path.filename() == "config.json"
                               ? folder.parent_path().filename()
                               : path.stem();
  const auto [config, place] = hugging_face_config(found);
  std::vector<std::string> problems;
  const DecoderConfig decoder = parse_decoder_config(config, place, problems);
  if (!problems.empty())
    throw ConfigError(problems);
  return {
      .shape = planner::shape_of(decoder, name),
      .positions = decoder.max_position_embeddings,
      .config = config,
      .head = head_work(found.config),
      .optimizer = optimizer_of(found.config),
      .training = counted_training(found.config)};
}

planner::Training make_training(
    const PlanArguments& arguments,
    const Model& model) {
  planner::Training training;
  training.shape = model.shape;
  training.head = model.head;
  training.set_machine(read_machine(arguments.machine));
  const auto dtype = find_choice<machine::ProductDtype>(arguments.dtype);
  if (!dtype || training.machine.device.peak(*dtype) <= 0)
    throw ConfigError(fmt::format(
        "[plan] --dtype {}: {} has no such products",
        arguments.dtype,
        training.machine.device.name));
  if (*dtype == machine::ProductDtype::kFp32)
    training.precision = planner::Precision::fp32();
  training.precision.products = *dtype;
  training.precision.keep_states_of(
      model.optimizer,
      *dtype == machine::ProductDtype::kFp32 ? WeightWidth::k32Bit
                                             : WeightWidth::k16Bit);
  constexpr int64_t kLongest = 8192;
  constexpr int64_t kBatchTokens = 4 * MiB;
  training.batch.sequence_tokens = arguments.sequence_tokens > 0
                                       ? arguments.sequence_tokens
                                       : std::min(model.positions, kLongest);
  training.batch.sequences =
      arguments.sequences > 0
          ? arguments.sequences
          : std::max<int64_t>(
                arguments.devices,
                kBatchTokens / training.batch.sequence_tokens);
  return training;
}

}  // namespace brigade::cli
