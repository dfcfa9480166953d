// What a checkpoint holds: where the run stood, under which layout it was
// saved, the model, and whether all of its weights are there.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "brigade/base/error.h"
#include "brigade/base/readable.h"
#include "brigade/checkpoint/adapter_folder.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/config/train_config.h"
#include "brigade/data/training_data.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/report/run_record.h"
#include "brigade/run/base_model.h"
#include "brigade/run/checkpoint_folder.h"
#include "brigade/run/part_use.h"
#include "brigade/run/run_options.h"
#include "brigade/tokenizer/tokenizer.h"
#include "brigade/topology/parallel_dims.h"
#include "cli/inspect.h"

namespace brigade::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string progress(const CheckpointManifest& manifest) {
  return fmt::format(
      "{} of {} steps, {} tokens",
      grouped(static_cast<uint64_t>(manifest.step)),
      grouped(static_cast<uint64_t>(
          last_step_of(manifest.config, {manifest.step, manifest.tokens}))),
      grouped(static_cast<uint64_t>(manifest.tokens)));
}

std::string layout(const CheckpointManifest& manifest) {
  const ParallelDims dims = dims_of(manifest.config);
  // Stage 0 is not mentioned, and older checkpoints know no stages.
  const int64_t zero =
      config_number(manifest.config, "distributed", "zero_stage", 0);
  const std::string sharded =
      zero > 0 ? fmt::format(", zero stage {}", zero) : "";
  const double ranks = dims.rank_count();
  return fmt::format(
      "{} ({:.0f} rank{}{}); any other may continue it",
      dims.product(),
      ranks,
      ranks == 1 ? "" : "s",
      sharded);
}

// "2", or of weights that change "1 to 0.2 by step".
std::string weight_text(const Json& weight) {
  const auto number = [](const Json& value) {
    return value.is_number() ? value.get<double>() : 1.0;
  };
  if (!weight.is_array() || weight.empty())
    return fmt::format("{}", number(weight));
  return fmt::format(
      "{} to {} by {}",
      number(weight.front().value("weight", Json())),
      number(weight.back().value("weight", Json())),
      weight.front().contains("step") ? "step" : "tokens");
}

// What the run has seen, and will have seen, of each part of its data.
Rows part_rows(const CheckpointManifest& manifest) {
  const Json mixture = config_value(manifest.config, "dataset", "mixture");
  if (!mixture.is_array() || mixture.empty())
    return {};
  Rows rows;
  try {
    const TrainConfig config =
        parse_train_config(
            manifest.config.dump(),
            {.path = kManifestFile,
             .world_size = static_cast<int>(manifest.writers)})
            .config;
    if (!config.model.decoder)
      return {};
    const TrainingData data = open_training_data(training_data_options(config));
    for (const PartUse& use :
         count_part_use(config, data, manifest.step, manifest.samples))
      rows.emplace_back("", describe(use));
  } catch (const Error&) {
    rows.emplace_back("", "(its datasets are not here to be counted)");
  }
  return rows;
}

std::string data(const CheckpointManifest& manifest) {
  const Json text = config_value(manifest.config, "dataset", "text");
  const Json mixture = config_value(manifest.config, "dataset", "mixture");
  std::vector<std::string> names;
  if (mixture.is_array() && !mixture.empty()) {
    for (const Json& part : mixture)
      names.push_back(fmt::format(
          "{} (weight {})",
          part.value("name", std::string("?")),
          weight_text(part.value("weight", Json()))));
  } else if (text.is_array()) {
    for (const Json& path : text)
      names.push_back(path.is_string() ? path.get<std::string>() : "?");
  } else {
    names.push_back(config_text(manifest.config, "dataset", "name", "?"));
  }
  return fmt::format(
      "{}; sequences of {} tokens, seed {}",
      fmt::join(names, ", "),
      config_number(manifest.config, "training", "seq_length", 1),
      config_number(manifest.config, "training", "seed", 1));
}

std::string tokenizer(const Checkpoint& checkpoint) {
  const std::string& name = checkpoint.manifest().tokenizer;
  if (name.empty())
    return "not recorded";
  try {
    return load_tokenizer(checkpoint.tokenizer())->description();
  } catch (const Error& error) {
    return fmt::format("{}: {}", name, error.what());
  }
}

std::string files(const Checkpoint& checkpoint) {
  uint64_t size_bytes = 0;
  for (const std::string& name : checkpoint.manifest().files)
    size_bytes += fs::file_size(checkpoint.directory() / name);
  return fmt::format(
      "{} with tensors, {}, written by {} rank{}",
      checkpoint.manifest().files.size(),
      readable_bytes(static_cast<double>(size_bytes)),
      checkpoint.manifest().writers,
      checkpoint.manifest().writers == 1 ? "" : "s");
}

// Whether the model's weights, or an adapter's, are all there; names the first
// that is not.
std::string completeness(
    const CheckpointManifest& manifest,
    const DecoderConfig& config,
    const std::map<std::string, const CheckpointTensor*>& stored) {
  std::vector<std::string> missing;
  const bool is_adapter = !manifest.base_model.empty();
  const auto params = is_adapter
                          ? adapter_rows(config, adapter_of_run(manifest))
                          : list_parameters(config);
  for (const ParameterRow& param : params) {
    const auto found = stored.find(param.name);
    const bool is_there = found != stored.end() && found->second->is_whole &&
                          std::equal(
                              param.shape.begin(),
                              param.shape.end(),
                              found->second->shape.begin(),
                              found->second->shape.end(),
                              [](int64_t wanted, uint64_t is) {
                                return static_cast<uint64_t>(wanted) == is;
                              });
    if (!is_there)
      missing.push_back(param.name);
  }
  if (missing.empty())
    return is_adapter ? fmt::format(
                            "all {} of the adapter, whose base model is '{}'",
                            params.size(),
                            manifest.base_model)
                      : fmt::format("all {} of the model", params.size());
  return fmt::format(
      "INCOMPLETE: {} of the {}'s {} are missing, cut or of another shape, "
      "such as {}",
      missing.size(),
      is_adapter ? "adapter" : "model",
      params.size(),
      missing.front());
}

// The steps of the checkpoints that lie beside one.
std::vector<int64_t> steps_beside(const fs::path& directory) {
  std::vector<int64_t> steps;
  for (const CheckpointEntry& entry : brigade::list_checkpoints(
           fs::absolute(directory).lexically_normal().parent_path())) {
    if (fs::exists(entry.directory / kManifestFile))
      steps.push_back(entry.step);
  }
  return steps;
}

}  // namespace

void inspect_checkpoint(
    const fs::path& folder,
    const InspectArguments& arguments) {
  const Checkpoint checkpoint(folder);
  const CheckpointManifest& manifest = checkpoint.manifest();
  const DecoderConfig config = checkpoint.model("inspect");

  const std::vector<CheckpointTensor> tensors = checkpoint.tensors();
  std::map<std::string, const CheckpointTensor*> stored;
  std::vector<CheckpointTensor> weights;
  std::map<std::string, uint64_t> optimizer;  // bytes by kind
  for (const CheckpointTensor& tensor : tensors) {
    stored[tensor.name] = &tensor;
    // "exp_avg." of "exp_avg.model.norm.weight".
    if (tensor.is_state)
      optimizer[tensor.name.substr(0, tensor.name.find('.') + 1)] +=
          tensor.size_bytes;
    if (!tensor.is_state || arguments.list_all)
      weights.push_back(tensor);
  }
  std::vector<std::string> kinds;
  for (const auto& [kind, size_bytes] : optimizer)
    kinds.push_back(fmt::format(
        "{}* {}", kind, readable_bytes(static_cast<double>(size_bytes))));

  Rows rows = {
      {"checkpoint", checkpoint.directory().string()},
      {"trained", progress(manifest)},
      {"saved under", layout(manifest)}};
  for (auto& row : model_rows(config))
    rows.push_back(std::move(row));
  rows.insert(
      rows.end(), {{"dtype", manifest.dtype}, {"data", data(manifest)}});
  for (auto& row : part_rows(manifest))
    rows.push_back(std::move(row));
  rows.insert(
      rows.end(),
      {{"tokenizer", tokenizer(checkpoint)},
       {"files", files(checkpoint)},
       {"weights", completeness(manifest, config, stored)},
       {"optimizer",
        kinds.empty() ? "none" : fmt::format("{}", fmt::join(kinds, ", "))}});
  const auto steps = steps_beside(checkpoint.directory());
  if (steps.size() > 1)
    rows.emplace_back("steps saved", fmt::format("{}", fmt::join(steps, ", ")));
  print_rows(rows);
  fmt::print("\n");
  print_tensors(weights, arguments.list_all);
}

}  // namespace brigade::cli
