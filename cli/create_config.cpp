#include "cli/create_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "brigade/base/error.h"
#include "brigade/base/shell_word.h"
#include "brigade/config/given.h"
#include "brigade/data/whole_text.h"
#include "brigade/files/file.h"
#include "brigade/files/output_path.h"
#include "brigade/files/read_once.h"
#include "brigade/metrics/metrics.h"
#include "brigade/model_spec/parameter_table.h"
#include "cli/config_memory.h"
#include "cli/hub.h"
#include "cli/options.h"
#include "cli/standard_streams.h"

namespace brigade::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Its groups are objects of keys that exist.
json read_template(const fs::path& path) {
  if (path.empty())
    return json::object();
  std::vector<std::string> problems;
  const std::string text =
      is_open_input(path) ? read_whole_text(path) : read_text_file(path);
  auto file = read_config_json(text, path.string(), problems);
  GivenValues ignored;
  if (file)
    collect_file(*file, path.string(), ignored, problems);
  if (!problems.empty())
    throw ConfigError(problems);
  return *file;
}

// What is of one run alone stays out of the next one made from a template.
void leave_run_folders(json& config) {
  for (const auto& [group, key] :
       {std::pair("checkpoint", "save_dir"), std::pair("logging", "run_dir")}) {
    if (config.contains(group))
      config[group].erase(key);
  }
}

void put_layout(const CreateConfigArguments& arguments, json& distributed) {
  for (const Axis axis : kNamedAxes)
    distributed[size_key_of(axis)] = arguments.dims[axis];
  distributed["pp_engine"] = arguments.pp_engine;
  if (arguments.zero_stage)
    distributed["zero_stage"] = *arguments.zero_stage;
  if (arguments.use_cpu) {
    distributed["use_cpu"] = true;
    distributed["backend"] = "gloo";
  }
}

void put_model(const CreateConfigArguments& arguments, json& model) {
  const bool is_named = arguments.model_name || !model.contains("config");
  if (is_named) {
    model.erase("config");
    model["name"] = arguments.model_name.value_or(kDefaultModel);
  }
  // As create_config.py: the model's own where none is given, whatever the
  // template says of another model.
  const auto put = [&](const char* key, const std::optional<int64_t>& value) {
    if (value)
      model[key] = *value;
    else if (is_named)
      model.erase(key);
  };
  put("num_hidden_layers", arguments.layers);
  put("num_attention_heads", arguments.heads);
  put("num_key_value_heads", arguments.kv_heads);
  if (!arguments.dtype.empty())
    model["dtype"] = arguments.dtype;
  if (arguments.use_fused_adam)
    model["use_fused_adam"] = true;
}

json make_config(const CreateConfigArguments& arguments) {
  json config = read_template(arguments.base);
  leave_run_folders(config);
  for (const char* group : {"distributed", "model", "training", "logging"})
    config.emplace(group, json::object());
  put_layout(arguments, config["distributed"]);
  put_model(arguments, config["model"]);
  json& training = config["training"];
  training["seq_length"] = arguments.seq_len;
  training["micro_batch_size"] = arguments.micro_batch_size;
  training["gradient_accumulation_steps"] = arguments.grad_acc_steps;
  if (arguments.total_train_steps)
    training["total_train_steps"] = *arguments.total_train_steps;
  if (!arguments.dataset.empty())
    config["dataset"]["name"] = arguments.dataset;
  if (!arguments.subset_name.empty())
    config["dataset"]["subset_name"] = arguments.subset_name;
  json& logging = config["logging"];
  logging["run_name"] = arguments.exp_name;
  if (arguments.use_wandb)
    logging["use_wandb"] = true;
  return config;
}

// The values of the config and the command line. What is wrong in either is
// reported by parse_train_config().
GivenValues given_values(
    const json& config,
    const std::vector<std::string>& overrides) {
  GivenValues given;
  std::vector<std::string> ignored;
  collect_file(config, "", given, ignored);
  for (const std::string& text : overrides)
    collect_override({text}, given, ignored);
  return given;
}

bool names_dataset(const GivenValues& given) {
  for (const char* key : {"name", "mixture", "text"}) {
    const auto found = given.find(find_config_key("dataset", key));
    if (found != given.end() && !found->second.value.empty() &&
        found->second.value != nlohmann::json(""))
      return true;
  }
  return false;
}

// More have not been built, and advice about layouts takes its time.
constexpr int kMostRanks = 1 << 20;

int count_ranks(const CreateConfigArguments& arguments) {
  if (arguments.dims.rank_count() > kMostRanks) {
    std::vector<std::string> sizes;
    for (const Axis axis : kNamedAxes)
      sizes.push_back(
          fmt::format("--{} {}", to_string(axis), arguments.dims[axis]));
    throw ConfigError(fmt::format(
        "[create-config] {} are more than {} ranks",
        fmt::join(sizes, " * "),
        kMostRanks));
  }
  return arguments.dims.world_size();
}

// A size in two places would be checked against the wrong number of ranks.
void refuse_sizes(const std::vector<std::string>& overrides) {
  for (const std::string& text : overrides) {
    for (const Axis axis : kNamedAxes) {
      const std::string begin =
          fmt::format("distributed.{}=", size_key_of(axis));
      if (text.starts_with(begin))
        throw ConfigError(fmt::format(
            "[create-config] '{}': give it as --{} {}",
            text,
            to_string(axis),
            text.substr(begin.size())));
    }
  }
}

LoadedConfig load(
    const json& config,
    const CreateConfigArguments& arguments,
    bool has_data) {
  LoadOptions options;
  options.path = arguments.base.empty()
                     ? arguments.out_dir / arguments.exp_name / "config.json"
                     : arguments.base;
  options.overrides = config_overrides(
      {.path = {}, .nproc = {}, .overrides = arguments.overrides});
  options.world_size = count_ranks(arguments);
  options.find_model = cached_model_finder();
  options.gpus = gpus_elsewhere();
  // The rest is checked all the same. Not written.
  if (!has_data)
    options.overrides.push_back({"dataset.name=DATASET"});
  return parse_train_config(config.dump(2), options);
}

// Downloads the model's config.json where it is not here, if asked to; says so
// where it stays unknown, since the config is valid without.
void print_model(TrainConfig& config, const CreateConfigArguments& arguments) {
  std::string reason = "--download fetches its config.json from the hub";
  if (arguments.downloads || !arguments.hf_token.empty()) {
    try {
      fetch_model_if_missing(config, arguments.hf_token);
    } catch (const Error& error) {
      const bool is_offline = hub_options(process_environment()).network ==
                              HubOptions::Network::kOffline;
      if (!is_offline && error.code() != ExitCode::kData)
        throw;
      reason = error.what();
    }
  }
  if (!config.model.decoder)
    fmt::print(
        "memory per rank    not known, since '{}' is not on this machine: {}\n",
        config.model.name,
        reason);
  if (!config.model.decoder)
    return;
  fmt::print(
      "parameters         {}\n",
      readable(static_cast<double>(parameter_count(*config.model.decoder))));
  fmt::print("{}", describe_memory(config));
}

void print_batch(const TrainConfig& run) {
  fmt::print(
      "layout             {} = {} ranks, {}, zero stage {}\n"
      "global batch       {} sequences, {} tokens per step: {} * "
      "micro-batch {} * {} accumulated\n",
      run.parallel_dims().product(),
      run.parallel_dims().world_size(),
      to_string(run.distributed.pp_engine),
      run.distributed.zero_stage,
      sequences_per_step(run),
      tokens_per_step(run),
      run.distributed.dims.product(kBatchAxes),
      run.training.micro_batch_size,
      run.training.gradient_accumulation_steps);
}

}  // namespace

namespace {

// Throws ConfigError for names that no folder or no config can have.
void require_names(const CreateConfigArguments& arguments) {
  const std::string last = fs::path(arguments.exp_name).filename().string();
  if (last.empty() || last == "." || last == "..")
    throw ConfigError(fmt::format(
        "[create-config] --exp_name '{}' is no name: give the run's, such as "
        "test",
        arguments.exp_name));
  std::vector<std::string> problems;
  for (const std::string& text :
       {arguments.exp_name,
        arguments.model_name.value_or(""),
        arguments.dtype,
        arguments.pp_engine,
        arguments.dataset,
        arguments.subset_name}) {
    if (auto problem = find_utf8_problem(text, "command line"))
      problems.push_back(std::move(*problem));
  }
  if (!problems.empty())
    throw ConfigError(problems);
}

}  // namespace

void create_config(const CreateConfigArguments& arguments) {
  require_names(arguments);
  const fs::path folder = arguments.out_dir / arguments.exp_name;
  const fs::path path = folder / "config.json";
  if (fs::exists(path) && !arguments.overwrite)
    throw ConfigError(fmt::format(
        "[create-config] '{}' is there already; choose another --exp_name, or "
        "replace it with --overwrite",
        path.string()));
  refuse_sizes(arguments.overrides);
  check_can_make(folder);
  json config = make_config(arguments);
  const GivenValues given = given_values(config, arguments.overrides);
  const bool has_data = names_dataset(given);
  LoadedConfig loaded = load(config, arguments, has_data);
  for (const auto& [key, value] : given)
    config[key->group][key->name] = value.value;

  print_batch(loaded.config);
  print_model(loaded.config, arguments);
  std::fflush(stdout);
  print_ignored_keys(loaded);
  print_warnings(loaded);
  if (!arguments.hf_token.empty())
    note(
        "note: --hf_token is not written; set HF_TOKEN in the environment "
        "where training downloads\n");
  if (!has_data)
    note(
        "warning: no dataset is named; --dataset PREFIX, or dataset.name= of "
        "`brigade train`\n");
  std::error_code error;
  fs::create_directories(folder, error);  // the write says why it failed
  write_text_file(path, config.dump(2) + "\n");
  fmt::print(
      "wrote {}\nnext: brigade train --config {} --nproc {}\n",
      path.string(),
      shell_path(path.string()),
      loaded.config.parallel_dims().world_size());
}

}  // namespace brigade::cli
