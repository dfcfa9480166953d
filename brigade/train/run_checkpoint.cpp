#include "brigade/train/run_checkpoint.h"

#include <fmt/format.h>

#include <utility>

#include "brigade/base/error.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/hugging_face_export.h"
#include "brigade/data/dataset_info.h"
#include "brigade/train/layout.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

TensorPart part_of(
    const std::string& prefix,
    const ParamState& state,
    const torch::Tensor& tensor) {
  const ParamShard& shard = state.shard;
  return {
      prefix + state.name,
      shard.dim == kNotCut ? -1 : shard.dim,
      shard.begin,
      shard.end,
      tensor};
}

// The optimizer's tensors of one parameter. A float32 weight is its own master.
std::vector<TensorPart> optimizer_parts(const ParamState& state) {
  std::vector<TensorPart> parts{
      part_of("exp_avg.", state, state.exp_avg),
      part_of("exp_avg_sq.", state, state.exp_avg_sq)};
  if (state.master_low.defined()) {
    parts.push_back(part_of("master.", state, state.weight));
    parts.back().master_low = state.master_low;
  }
  return parts;
}

// What generation will need: the tokenizer that was named, made the dataset or
// came with the model.
std::string find_tokenizer(const TrainConfig& config) {
  if (!config.dataset.tokenizer.empty())
    return config.dataset.tokenizer;
  const std::string dataset = config.dataset.mixture.empty()
                                  ? config.dataset.name
                                  : config.dataset.mixture.front().name;
  const auto info = read_dataset_info(dataset_prefix(dataset));
  if (info && !info->tokenizer.empty())
    return info->tokenizer;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (fs::exists(config.model.folder / name))
      return (config.model.folder / name).string();
  }
  return {};
}

// The files that come with the run: they make the checkpoint one that can
// generate, and that can be exported as the model came.
void attach_files(const TrainConfig& config, CheckpointToSave& checkpoint) {
  const std::string tokenizer = find_tokenizer(config);
  checkpoint.manifest.tokenizer = tokenizer;
  if (!tokenizer.empty() && fs::exists(tokenizer)) {
    checkpoint.manifest.tokenizer = "tokenizer";
    for (const FileToCopy& file :
         find_tokenizer_files(tokenizer, config.model.folder))
      checkpoint.attachments[file.source] = "tokenizer/" + file.name;
  }
  const fs::path generation = config.model.folder / kGenerationConfig;
  if (!config.model.folder.empty() && fs::exists(generation))
    checkpoint.attachments[generation] = kGenerationConfig;
}

bool is_stored_here(const ParamState& state) {
  return state.shard.is_first_replica && !state.is_copy_for_head;
}

}  // namespace

void save_run(
    const fs::path& directory,
    const TrainConfig& config,
    const ProcessMesh& mesh,
    const std::vector<std::unique_ptr<StageRuntime>>& stages,
    const RunPosition& position) {
  const Coordinate& here = mesh.coordinate();
  CheckpointToSave checkpoint;
  CheckpointManifest& manifest = checkpoint.manifest;
  manifest.step = position.steps;
  manifest.tokens = position.tokens;
  manifest.dtype = to_string(config.model.dtype);
  manifest.model = to_hugging_face_json(model_of(config), manifest.dtype);
  manifest.model_source = config.model.source;
  manifest.config = to_json(config);
  manifest.writers = mesh.dims().pp * mesh.dims().tp;
  attach_files(config, checkpoint);
  const bool writes = here.dp == 0 && here.cp == 0;
  if (writes) {
    for (const auto& stage : stages) {
      for (const ParamState& state : stage->states()) {
        if (!is_stored_here(state))
          continue;
        checkpoint.weights.push_back(part_of("", state, state.weight));
        for (TensorPart& part : optimizer_parts(state))
          checkpoint.optimizer.push_back(std::move(part));
      }
    }
  }
  const int writer = writes ? here.pp * mesh.dims().tp + here.tp : -1;
  save_checkpoint(directory, std::move(checkpoint), writer, *mesh.world());
}

RunPosition load_run(
    const TrainConfig& config,
    const std::vector<std::unique_ptr<StageRuntime>>& stages) {
  const Checkpoint checkpoint(config.checkpoint.load_path);
  const CheckpointManifest& manifest = checkpoint.manifest();
  const auto expected = to_hugging_face_json(model_of(config), manifest.dtype);
  if (manifest.model != expected) {
    std::string differences;
    for (const auto& [key, value] : expected.items()) {
      if (!manifest.model.contains(key) || manifest.model[key] != value) {
        differences += fmt::format(
            "\n  {}: {} in the checkpoint, {} in the config",
            key,
            manifest.model.value(key, nlohmann::json()).dump(),
            value.dump());
      }
    }
    throw DataError(fmt::format(
        "[checkpoint] '{}' holds another model:{}",
        checkpoint.directory().string(),
        differences));
  }
  if (manifest.dtype != to_string(config.model.dtype)) {
    throw DataError(fmt::format(
        "[checkpoint] '{}' was trained in {}, but model.dtype is {}",
        checkpoint.directory().string(),
        manifest.dtype,
        to_string(config.model.dtype)));
  }
  for (const auto& stage : stages) {
    for (const ParamState& state : stage->states()) {
      checkpoint.read(part_of("", state, state.weight));
      for (const TensorPart& part : optimizer_parts(state))
        checkpoint.read(part);
    }
    stage->optimizer().set_steps(manifest.step);
  }
  return {manifest.step, manifest.tokens};
}

}  // namespace brigade
