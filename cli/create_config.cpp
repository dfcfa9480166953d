// brigade create-config: a run's config from picotron's options, with what it
// comes to. --out_dir DIR --exp_name NAME writes DIR/NAME/config.json.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/config/keys.h"
#include "brigade/files/file.h"
#include "brigade/json/node.h"
#include "brigade/metrics/metrics.h"
#include "brigade/model_spec/llama_config.h"
#include "brigade/model_spec/parameter_table.h"
#include "cli/commands.h"
#include "cli/config_memory.h"
#include "cli/hub.h"
#include "cli/options.h"

namespace brigade::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct CreateArguments {
  fs::path out_dir = "tmp";
  std::string exp_name = "dummy_exp";
  fs::path base;  // --template
  bool overwrite = false;
  int dp = 1, tp = 1, pp = 1, cp = 1;
  std::string pp_engine = "1f1b";
  int zero_stage = 0;
  std::string model_name = "HuggingFaceTB/SmolLM-360M-Instruct";
  std::optional<int64_t> layers, heads, kv_heads;
  std::string dtype;
  int64_t grad_acc_steps = 1;
  int64_t micro_batch_size = 1;
  int64_t seq_len = 1024;
  std::optional<int64_t> total_train_steps;
  std::string dataset;
  std::string subset_name;
  bool use_wandb = false;
  bool use_cpu = false;
  bool use_fused_adam = false;
  std::vector<std::string> overrides;
};

json read_template(const fs::path& path) {
  if (path.empty())
    return json::object();
  const std::string text = read_text_file(path);
  const JsonDocument document(
      text, {.module = "create-config", .file = path.string()});
  return document.root().value();
}

json make_config(const CreateArguments& arguments) {
  json config = read_template(arguments.base);
  json& distributed = config["distributed"];
  distributed["dp_size"] = arguments.dp;
  distributed["tp_size"] = arguments.tp;
  distributed["pp_size"] = arguments.pp;
  distributed["cp_size"] = arguments.cp;
  distributed["pp_engine"] = arguments.pp_engine;
  if (arguments.zero_stage > 0)
    distributed["zero_stage"] = arguments.zero_stage;
  if (arguments.use_cpu)
    distributed["use_cpu"] = true;
  json& model = config["model"];
  if (!model.contains("config"))
    model["name"] = arguments.model_name;
  const auto put = [&](const char* key, const std::optional<int64_t>& value) {
    if (value)
      model[key] = *value;
  };
  put("num_hidden_layers", arguments.layers);
  put("num_attention_heads", arguments.heads);
  put("num_key_value_heads", arguments.kv_heads);
  if (!arguments.dtype.empty())
    model["dtype"] = arguments.dtype;
  if (arguments.use_fused_adam)
    model["use_fused_adam"] = true;
  json& training = config["training"];
  training["seq_length"] = arguments.seq_len;
  training["micro_batch_size"] = arguments.micro_batch_size;
  training["gradient_accumulation_steps"] = arguments.grad_acc_steps;
  if (arguments.total_train_steps)
    training["total_train_steps"] = *arguments.total_train_steps;
  json& dataset = config["dataset"];
  if (!arguments.dataset.empty())
    dataset["name"] = arguments.dataset;
  if (!arguments.subset_name.empty())
    dataset["subset_name"] = arguments.subset_name;
  if (dataset.is_null())
    config.erase("dataset");
  json& logging = config["logging"];
  logging["run_name"] = arguments.exp_name;
  if (arguments.use_wandb)
    logging["use_wandb"] = true;
  return config;
}

// group.key=value, which load_train_config() has checked, into the file.
void apply(const std::vector<std::string>& overrides, json& config) {
  for (const std::string& text : overrides) {
    const size_t dot = text.find('.');
    const size_t equals = text.find('=');
    const std::string value = text.substr(equals + 1);
    const std::string group = text.substr(0, dot);
    const std::string name = text.substr(dot + 1, equals - dot - 1);
    const ConfigKey* key = find_config_key(group, name);
    const json parsed = json::parse(value, nullptr, false);
    const bool is_text = parsed.is_discarded() || (key && key->is_text);
    config[group][name] = is_text ? json(value) : parsed;
  }
}

// Downloads the model's config.json where it is not here; says so where that
// is not possible, since the config is valid without.
void print_model(LoadedConfig& loaded) {
  TrainConfig& config = loaded.config;
  try {
    fetch_model_if_missing(config);
  } catch (const DataError& error) {
    fmt::print(
        "memory per rank    not known, since '{}' is not on this machine: {}\n",
        config.model.name,
        error.what());
    return;
  }
  if (!config.model.llama)
    return;
  fmt::print(
      "parameters         {}\n",
      readable(static_cast<double>(parameter_count(*config.model.llama))));
  fmt::print("{}", describe_memory(config));
}

bool names_dataset(
    const json& config,
    const std::vector<std::string>& overrides) {
  const auto names = [](const std::string& text) {
    return text.starts_with("dataset.name=") ||
           text.starts_with("dataset.mixture=");
  };
  return config.value(json::json_pointer("/dataset/name"), "") != "" ||
         std::any_of(overrides.begin(), overrides.end(), names);
}

void create_config(const CreateArguments& arguments) {
  const fs::path folder = arguments.out_dir / arguments.exp_name;
  const fs::path path = folder / "config.json";
  if (fs::exists(path) && !arguments.overwrite)
    throw ConfigError(fmt::format(
        "[create-config] '{}' is there already; choose another --exp_name, or "
        "replace it with --overwrite",
        path.string()));
  json config = make_config(arguments);
  ConfigArguments given{
      .path = path.string(), .nproc = {}, .overrides = arguments.overrides};
  LoadOptions options;
  options.path = path;
  options.overrides = config_overrides(given);
  options.world_size =
      arguments.dp * arguments.tp * arguments.pp * arguments.cp;
  options.find_model = cached_model_finder();
  // The rest is checked all the same. Not written.
  const bool has_dataset = names_dataset(config, arguments.overrides);
  if (!has_dataset)
    options.overrides.push_back({"dataset.name=DATASET"});
  LoadedConfig loaded = parse_train_config(config.dump(2), options);
  apply(arguments.overrides, config);

  const TrainConfig& run = loaded.config;
  const int64_t sequences = run.training.micro_batch_size *
                            run.training.gradient_accumulation_steps *
                            run.distributed.dp_size;
  fmt::print(
      "layout             {} = {} ranks, {}, zero stage {}\n"
      "global batch       {} sequences, {} tokens per step: dp {} * "
      "micro-batch "
      "{} * {} accumulated\n",
      run.parallel_dims().product(),
      run.parallel_dims().world_size(),
      arguments.pp_engine,
      run.distributed.zero_stage,
      sequences,
      sequences * run.training.seq_length,
      run.distributed.dp_size,
      run.training.micro_batch_size,
      run.training.gradient_accumulation_steps);
  print_model(loaded);
  std::fflush(stdout);
  print_ignored_keys(loaded);
  print_warnings(loaded);
  if (!has_dataset)
    fmt::print(
        stderr,
        "warning: no dataset is named; --dataset PREFIX, or dataset.name= of "
        "`brigade train`\n");
  std::error_code error;
  fs::create_directories(folder, error);
  write_text_file(path, config.dump(2) + "\n");
  fmt::print(
      "wrote {}\nnext: brigade train --config {} --nproc {}\n",
      path.string(),
      path.string(),
      run.parallel_dims().world_size());
}

void add_layout(CLI::App& command, CreateArguments& arguments) {
  const auto add_size = [&](const char* name, int& value, const char* help) {
    command.add_option(name, value, help)
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
  };
  add_size("--tp", arguments.tp, "Tensor parallel ranks");
  add_size("--cp", arguments.cp, "Context parallel ranks");
  add_size("--dp", arguments.dp, "Data parallel ranks");
  add_size("--pp", arguments.pp, "Pipeline parallel ranks");
  command
      .add_option(
          "--pp_engine,--pp-engine", arguments.pp_engine, "Pipeline schedule")
      ->capture_default_str();
  command
      .add_option(
          "--zero_stage,--zero-stage",
          arguments.zero_stage,
          "What dp x cp ranks divide between them")
      ->check(CLI::Range(0, 3))
      ->capture_default_str();
  command
      .add_option(
          "--grad_acc_steps,--grad-acc-steps",
          arguments.grad_acc_steps,
          "Micro-batches per step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      .add_option(
          "--mbs", arguments.micro_batch_size, "Sequences of a micro-batch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      .add_option(
          "--seq_len,--seq-len", arguments.seq_len, "Tokens of a sequence")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

void add_model(CLI::App& command, CreateArguments& arguments) {
  command
      .add_option(
          "--model_name,--model-name",
          arguments.model_name,
          "An id of the Hugging Face hub, or a folder with config.json")
      ->capture_default_str();
  command.add_option(
      "--num_hidden_layers,--num-hidden-layers",
      arguments.layers,
      "In place of the model's own");
  command.add_option(
      "--num_attention_heads,--num-attention-heads",
      arguments.heads,
      "In place of the model's own");
  command.add_option(
      "--num_key_value_heads,--num-key-value-heads",
      arguments.kv_heads,
      "In place of the model's own");
  command.add_option(
      "--dtype", arguments.dtype, "float32 or bfloat16 (default: float32)");
  command.add_flag(
      "--use_fused_adam,--use-fused-adam",
      arguments.use_fused_adam,
      "Accepted: it is always fused");
}

}  // namespace

void add_create_config(CLI::App& app) {
  auto arguments = std::make_shared<CreateArguments>();
  CLI::App* command = app.add_subcommand(
      "create-config", "Write a run's config, and say what it comes to");
  command
      ->add_option(
          "--out_dir,--out-dir",
          arguments->out_dir,
          "The folder of the configs")
      ->type_name("DIR")
      ->default_str("tmp");
  command
      ->add_option(
          "--exp_name,--exp-name", arguments->exp_name, "The run's name")
      ->capture_default_str();
  command
      ->add_option(
          "--template",
          arguments->base,
          "A config to start from (default: none)")
      ->type_name("FILE");
  command->add_flag(
      "--overwrite", arguments->overwrite, "Replace a config that is there");
  add_layout(*command, *arguments);
  add_model(*command, *arguments);
  command
      ->add_option(
          "--total_train_steps,--total-train-steps",
          arguments->total_train_steps,
          "Steps (default: 200)")
      ->check(CLI::PositiveNumber);
  command->add_option("--dataset", arguments->dataset, "As dataset.name")
      ->type_name("PREFIX");
  command->add_option(
      "--subset_name,--subset-name",
      arguments->subset_name,
      "As dataset.subset_name");
  command->add_flag(
      "--use_wandb,--use-wandb", arguments->use_wandb, "As logging.use_wandb");
  command->add_flag(
      "--use_cpu,--use-cpu", arguments->use_cpu, "As distributed.use_cpu");
  command
      ->add_option(
          "overrides", arguments->overrides, "Any further values of the config")
      ->type_name("group.key=value");
  command->footer(
      "Example: brigade create-config --out_dir runs --exp_name test --tp 2 "
      "--dp 2 --pp 2\n         --model_name HuggingFaceTB/SmolLM-135M --mbs 4 "
      "--seq_len 512\n\nThe names with _ are those of picotron's "
      "create_config.py.");
  command->callback([arguments] { create_config(*arguments); });
}

}  // namespace brigade::cli
