#include "brigade/config/train_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "brigade/base/error.h"
#include "brigade/base/hash.h"
#include "brigade/base/parse_number.h"
#include "brigade/config/given.h"
#include "brigade/config/keys.h"
#include "brigade/config/rules.h"
#include "brigade/files/file.h"
#include "brigade/files/tokenizer_names.h"
#include "brigade/files/usual_path.h"
#include "brigade/json/parse.h"

namespace brigade {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Problems = std::vector<std::string>;

// What is wrong with text that no file and no folder can have as its name.
std::optional<std::string> find_text_problem(
    const ConfigKey& key,
    const json& value) {
  if (!value.is_string())
    return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  if (text.find('\0') != std::string::npos)
    return "the text must not hold a NUL byte";
  if (text.empty() && key.dotted() == "logging.run_dir")
    return "a folder needs a name; leave the key out for runs/RUN_NAME";
  return std::nullopt;
}

void apply(const GivenValues& given, TrainConfig& config, Problems& problems) {
  for (const ConfigKey& key : config_keys()) {
    const auto found = given.find(&key);
    if (found == given.end())
      continue;
    const GivenValue& value = found->second;
    if (const auto expected = key.set(config, value.value)) {
      problems.push_back(fmt::format(
          "[config] {} = {} ({}): {}",
          key.pointer(),
          key.is_secret ? "\"***\"" : shown_value(value),
          value.place,
          *expected));
    } else if (const auto problem = find_text_problem(key, value.value)) {
      problems.push_back(
          introduce_problem(key.pointer(), value.value, value.place) +
          *problem);
    }
  }
}

void fill_in(
    const GivenValues& given,
    TrainConfig& config,
    Problems& problems) {
  if (config.logging.run_dir.empty()) {
    if (config.logging.run_name.empty()) {
      const GivenValue& name = given.at(find_config_key("logging", "run_name"));
      problems.push_back(
          introduce_problem("/logging/run_name", name.value, name.place) +
          "a run needs a name; leave the key out for \"run\"");
    }
    config.logging.run_dir = "runs/" + config.logging.run_name;
  }
  if (config.checkpoint.save_dir.empty())
    config.checkpoint.save_dir = config.logging.run_dir + "/checkpoints";
  if (config.dataset.text)
    config.dataset.name.clear();
}

// Whether nothing was reported about the values at these places. Rules that
// involve several values are checked only then: what follows from a first
// problem would confuse.
bool are_sound(
    const Problems& problems,
    std::initializer_list<std::string_view> pointers) {
  const auto is_about = [](const std::string& problem, std::string_view place) {
    const std::string begin = fmt::format("[config] {}", place);
    return problem.starts_with(begin + " ") || problem.starts_with(begin + "/");
  };
  return std::ranges::none_of(problems, [&](const std::string& problem) {
    return std::ranges::any_of(pointers, [&](std::string_view pointer) {
      return is_about(problem, pointer);
    });
  });
}

// A run that asks for GPUs must not train on CPUs instead. Where the config
// does not say, the machine decides.
void choose_device(const Gpus& gpus, TrainConfig& config, Problems& problems) {
  DistributedConfig& distributed = config.distributed;
  if (!are_sound(problems, {"/distributed/use_cpu", "/distributed/backend"}) ||
      distributed.use_cpu == true)
    return;
  const bool is_nccl = distributed.backend == Backend::kNccl;
  const bool follows = !distributed.backend;
  if (!distributed.use_cpu && !is_nccl && !(follows && gpus.missing.empty()))
    return;
  if (!gpus.missing.empty()) {
    problems.push_back(fmt::format(
        "[config] {}: {}; or set /distributed/use_cpu to true to train on CPUs "
        "over gloo",
        distributed.use_cpu ? "/distributed/use_cpu = false"
                            : "/distributed/backend = \"nccl\"",
        gpus.missing));
    return;
  }
  distributed.use_cpu = false;
  if (!is_nccl && !follows) {
    problems.push_back(fmt::format(
        "[config] /distributed/backend = \"{}\" moves what is on CPUs, but "
        "/distributed/use_cpu is false; leave it out to use nccl",
        to_string(*distributed.backend)));
  }
  if (config.model.kernels == ops::Kernels::kCpu &&
      are_sound(problems, {"/model/kernels"})) {
    problems.emplace_back(
        "[config] /model/kernels = \"cpu\" computes on CPUs, but this run is "
        "on GPUs; set it to \"auto\", or /distributed/use_cpu to true");
  }
}

// What is said of a schedule in steps and in another way.
void check_lr_shape(const LrScheduleOptions& lr, Problems& problems) {
  const auto refuse = [&](const char* key, double value, const char* instead) {
    if (value > 0)
      problems.push_back(fmt::format(
          "[config] /training/{} = {} has no meaning with "
          "/training/lr_schedule = \"{}\", {}; leave it out",
          key,
          value,
          to_string(lr.decay),
          instead));
  };
  if (lr.decay == LrDecay::kTrapezoid) {
    refuse(
        "warmup_steps",
        static_cast<double>(lr.warmup_steps),
        "whose warm-up is warmup_fraction");
    constexpr double kRounding = 1e-9;
    if (lr.warmup_fraction + lr.decay_fraction > 1 + kRounding)
      problems.push_back(fmt::format(
          "[config] /training/warmup_fraction = {} and "
          "/training/decay_fraction = {} are more than the whole run; lower "
          "one, so that their sum is at most 1",
          lr.warmup_fraction,
          lr.decay_fraction));
  }
  if (lr.decay == LrDecay::kConstant && lr.minimum <= lr.peak &&
      are_sound(problems, {"/training/learning_rate"}))
    refuse("min_learning_rate", lr.minimum, "which does not fall");
  if (lr.decay != LrDecay::kTable)
    return;
  if (!lr.table && are_sound(problems, {"/training/lr_table"}))
    problems.emplace_back(
        "[config] /training/lr_schedule = \"table\" without "
        "/training/lr_table; give its points, such as [{\"step\": 0, "
        "\"factor\": 0.01}, {\"step\": 100, \"factor\": 1}]");
  constexpr const char* kInTable = "whose points say all";
  refuse("warmup_steps", static_cast<double>(lr.warmup_steps), kInTable);
  refuse("min_learning_rate", lr.minimum, kInTable);
}

void check_training(const TrainingConfig& training, Problems& problems) {
  if (training.lr.minimum > training.lr.peak &&
      are_sound(
          problems, {"/training/learning_rate", "/training/min_learning_rate"}))
    problems.push_back(fmt::format(
        "[config] /training/min_learning_rate = {} is above "
        "/training/learning_rate = {}",
        training.lr.minimum,
        training.lr.peak));
  check_lr_shape(training.lr, problems);
}

void check_checkpoint(const CheckpointConfig& checkpoint, Problems& problems) {
  if (checkpoint.keep_every > 0 && checkpoint.keep_last == 0 &&
      are_sound(problems, {"/checkpoint/keep_last"}))
    problems.push_back(fmt::format(
        "[config] /checkpoint/keep_every = {} keeps checkpoints beside those "
        "of /checkpoint/keep_last, which is 0 and keeps all; set keep_last",
        checkpoint.keep_every));
  if (!checkpoint.allow_changes)
    return;
  for (const std::string& name : *checkpoint.allow_changes) {
    const size_t dot = name.find('.');
    const std::string group = name.substr(0, dot);
    const std::string key =
        dot == std::string::npos ? std::string() : name.substr(dot + 1);
    if (find_config_key(group, key) == nullptr) {
      problems.push_back(fmt::format(
          "[config] /checkpoint/allow_changes names \"{}\", which is no key; "
          "the nearest is \"{}\"",
          name,
          nearest_config_key(group, key).dotted()));
    }
  }
}

void check_logging(const TrainConfig& config, Problems& problems) {
  const auto& steps = config.logging.trace_steps;
  if (!steps || !are_sound(problems, {"/training/total_train_steps"}))
    return;
  for (const int step : *steps) {
    if (step > config.training.total_train_steps) {
      problems.push_back(fmt::format(
          "[config] /logging/trace_steps has step {}, but "
          "/training/total_train_steps is {}",
          step,
          config.training.total_train_steps));
    }
  }
}

void check_text(const DatasetConfig& dataset, Problems& problems) {
  std::error_code error;
  for (const std::string& path : *dataset.text) {
    if (!fs::exists(path, error))
      problems.push_back(fmt::format(
          "[config] /dataset/text names \"{}\", but there is no such file or "
          "folder",
          path));
  }
  if (!dataset.mixture.empty())
    problems.emplace_back(
        "[config] /dataset/text and /dataset/mixture are both given; leave one "
        "out");
}

void check_dataset(const DatasetConfig& dataset, Problems& problems) {
  std::error_code error;
  if (const auto loop = loop_in(dataset.tokenizer))
    problems.push_back(fmt::format(
        "[config] /dataset/tokenizer = \"{}\": {}",
        dataset.tokenizer,
        describe_loop(*loop)));
  else if (
      !dataset.tokenizer.empty() && dataset.tokenizer != "bytes" &&
      !fs::exists(dataset.tokenizer, error))
    problems.push_back(fmt::format(
        "[config] /dataset/tokenizer = \"{}\": there is no such file or "
        "folder; leave it out to use the dataset's own tokenizer",
        dataset.tokenizer));
  if (dataset.shuffle_block > 0 && !dataset.shuffle)
    problems.push_back(fmt::format(
        "[config] /dataset/shuffle_block = {} has no meaning with "
        "/dataset/shuffle = false; set shuffle to true, or leave it out",
        dataset.shuffle_block));
  if (dataset.text)
    check_text(dataset, problems);
  if (!are_sound(
          problems, {"/dataset/name", "/dataset/mixture", "/dataset/text"}))
    return;
  if (dataset.text)
    return;
  if (dataset.name.empty() && dataset.mixture.empty())
    problems.emplace_back(
        "[config] /dataset/name is not given; set it to a dataset made by "
        "`brigade prepare`, or give /dataset/mixture, or text as it is as "
        "/dataset/text");
  if (!dataset.name.empty() && !dataset.mixture.empty())
    problems.push_back(fmt::format(
        "[config] /dataset/name = \"{}\" and /dataset/mixture are both given; "
        "leave one out",
        dataset.name));
}

// The command line's text takes the place of the file's dataset.
void refuse_name_beside_text(
    const GivenValues& given,
    const DatasetConfig& dataset,
    Problems& problems) {
  if (!dataset.text || dataset.name.empty())
    return;
  const GivenValue& name = given.at(find_config_key("dataset", "name"));
  const GivenValue& text = given.at(find_config_key("dataset", "text"));
  if (name.origin == ValueOrigin::kFile &&
      text.origin == ValueOrigin::kCommandLine)
    return;
  problems.push_back(
      introduce_problem("/dataset/name", name.value, name.place) +
      "/dataset/text is given too; leave one out");
}

// Packed documents never see one another, so that they learn what they would by
// themselves.
void keep_packed_documents_apart(
    const GivenValues& given,
    DatasetConfig& dataset,
    Problems& problems) {
  if (dataset.packing == Packing::kNone)
    return;
  const bool is_given =
      given.contains(find_config_key("dataset", "reset_attention"));
  if (is_given && !dataset.reset_attention &&
      are_sound(problems, {"/dataset/reset_attention"}))
    problems.push_back(fmt::format(
        "[config] /dataset/reset_attention = false with /dataset/packing = "
        "\"{}\", whose documents do not see one another; leave "
        "reset_attention out, or set packing to \"none\"",
        to_string(dataset.packing)));
  dataset.reset_attention = true;
  if (dataset.document_epochs)
    problems.push_back(fmt::format(
        "[config] /dataset/document_epochs = true has no meaning with "
        "/dataset/packing = \"{}\", which puts documents in new places in "
        "every epoch with /dataset/shuffle; leave one out",
        to_string(dataset.packing)));
}

void check_environment(
    const EnvironmentConfig& environment,
    Problems& problems) {
  if (!environment.OMP_NUM_THREADS)
    return;
  const std::string& text = *environment.OMP_NUM_THREADS;
  if (parse_number<int>(text).value_or(0) < 1)
    problems.push_back(fmt::format(
        "[config] /environment/OMP_NUM_THREADS = \"{}\": expected a number of "
        "threads >= 1, as text",
        text));
}

std::vector<ResolvedValue> resolved_values(
    const GivenValues& given,
    const TrainConfig& config) {
  std::vector<ResolvedValue> values;
  for (const ConfigKey& key : config_keys()) {
    ResolvedValue resolved{.key = key.dotted(), .value = key.get(config)};
    if (key.is_secret && !resolved.value.is_null())
      resolved.value = "***";
    const auto found = given.find(&key);
    const bool is_given =
        found != given.end() && !found->second.value.is_null();
    if (is_given)
      resolved.origin = found->second.origin;
    else
      resolved.note = key.default_note;
    values.push_back(std::move(resolved));
  }
  return values;
}

std::vector<std::string> ignored_keys(
    const GivenValues& given,
    const TrainConfig& config) {
  const TrainConfig defaults;
  std::vector<std::string> ignored;
  for (const ConfigKey& key : config_keys()) {
    const bool means_nothing = !key.ignored_because.empty() &&
                               given.contains(&key) &&
                               key.get(config) != key.get(defaults);
    if (means_nothing)
      ignored.push_back(key.pointer() + ": " + key.ignored_because);
  }
  const DistributedConfig& distributed = config.distributed;
  // picotron takes the backend from use_cpu alone.
  if (distributed.use_cpu == true && distributed.backend == Backend::kNccl)
    ignored.emplace_back(
        "/distributed/backend: use_cpu is true, so it is gloo");
  return ignored;
}

}  // namespace

LoadedConfig parse_train_config(
    const std::string& json_text,
    const LoadOptions& options) {
  Problems problems;
  const std::string source = options.path.string();
  const auto file = read_config_json(json_text, source, problems);
  if (!file)
    throw ConfigError(problems);

  GivenValues given;
  collect_file(*file, source, given, problems);
  if (!file->is_object())
    throw ConfigError(problems);
  for (const ConfigOverride& override : options.overrides)
    collect_override(override, given, problems);

  LoadedConfig loaded;
  TrainConfig& config = loaded.config;
  apply(given, config, problems);
  refuse_name_beside_text(given, config.dataset, problems);
  fill_in(given, config, problems);
  choose_device(options.gpus, config, problems);
  check_training(config.training, problems);
  check_dataset(config.dataset, problems);
  keep_packed_documents_apart(given, config.dataset, problems);
  check_checkpoint(config.checkpoint, problems);
  check_logging(config, problems);
  check_environment(config.environment, problems);
  // A model or a layout out of values that are wrong by themselves would only
  // repeat what was said.
  const bool values_are_sound = problems.empty();
  const bool model_is_sound = std::none_of(
      problems.begin(), problems.end(), [](const std::string& problem) {
        return problem.starts_with("[config] /model");
      });
  if (model_is_sound)
    find_decoder_config(options.find_model, config, problems);
  if (values_are_sound)
    lay_out(options.world_size, config, problems);
  if (!problems.empty())
    throw ConfigError(problems);

  loaded.values = resolved_values(given, config);
  loaded.ignored = ignored_keys(given, config);
  return loaded;
}

LoadedConfig load_train_config(const LoadOptions& options) {
  std::string text;
  try {
    text = read_text_file(options.path);
  } catch (const DataError& error) {
    throw ConfigError(fmt::format(
        "{}; --config names the JSON file of a run, such as "
        "examples/quickstart.json",
        error.what()));
  }
  return parse_train_config(text, options);
}

std::string tokenizer_of_text(const TrainConfig& config) {
  if (!config.dataset.tokenizer.empty())
    return config.dataset.tokenizer;
  const fs::path& folder = config.model.folder;
  return find_tokenizer_file(folder).empty() ? "bytes" : folder.string();
}

int64_t sequences_per_step(const TrainConfig& config) {
  return config.distributed.dims.batch_parts() *
         config.training.micro_batch_size *
         config.training.gradient_accumulation_steps;
}

int64_t tokens_per_step(const TrainConfig& config) {
  return sequences_per_step(config) * config.training.seq_length;
}

int64_t last_step(const TrainConfig& config, int64_t steps, int64_t tokens) {
  const TrainingConfig& training = config.training;
  if (!training.max_tokens)
    return training.total_train_steps;
  const int64_t left = std::max<int64_t>(0, *training.max_tokens - tokens);
  return std::min(
      training.total_train_steps, steps + left / tokens_per_step(config));
}

json to_json(const TrainConfig& config) {
  json file = json::object();
  for (const ConfigKey& key : config_keys())
    file[key.group][key.name] = key.is_secret ? json() : key.get(config);
  // An absent mixture is one that is not there.
  if (config.dataset.mixture.empty())
    file["dataset"].erase("mixture");
  return file;
}

json config_facts(const TrainConfig& config) {
  json file = to_json(config);
  file.erase("environment");
  return file;
}

std::string config_hash(const TrainConfig& config) {
  // nlohmann's objects are sorted by key.
  return fmt::format("{:016x}", fnv1a_64(json_to_text(config_facts(config))));
}

}  // namespace brigade
