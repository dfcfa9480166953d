// From a checkpoint of a run, or a Hugging Face folder, to a Hugging Face
// folder as Brigade writes it.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/hugging_face_export.h"
#include "brigade/checkpoint/stored_values.h"
#include "brigade/model_spec/upcycle.h"
#include "brigade/options/expert_tensors.h"

namespace brigade {

struct ExportedModel {
  int64_t parameters = 0;
  std::optional<int64_t> step;  // of a checkpoint
  std::string dtype;
  std::string tokenizer;  // a checkpoint's manifest's; "": it names none
  bool has_tokenizer = false;
  bool is_adapter = false;  // `parameters` are its alone
};

struct ExportOptions {
  uint64_t max_shard_bytes = kDefaultShardBytes;
  // "float32" or "bfloat16", to which the weights are rounded; "": a
  // checkpoint's own, or what a folder's config says (dtype_of_config()).
  std::string dtype;
  // An adapter becomes part of the weights, W + scale B A in float32, rounded
  // once; without, an adapter's run is written as AdapterFolder reads it.
  bool merges_adapter = false;
  // A folder with the adapter of a Hugging Face folder; with merges_adapter.
  std::filesystem::path adapter;
  // kFused is a ConfigError for a model without experts and for an adapter.
  ExpertTensors experts = ExpertTensors::kSeparate;
  // A model with experts is written, made of the dense one.
  std::optional<UpcycleOptions> upcycle;
  // The whole weight that a router begins with; with upcycle.
  std::function<torch::Tensor(const ParameterRow& router)> initial_router;
  // The tokenizer's: what ends and begins a text. A run's model has them in
  // config.json and generation_config.json, a folder's where config.json has
  // none.
  std::optional<int64_t> bos_token_id, eos_token_id;
  // Called while a checkpoint is verified and while tensors are written.
  std::function<
      void(const char* what, uint64_t done_bytes, uint64_t total_bytes)>
      on_progress;
  // Name in the folder -> content; written where no file has that name.
  std::map<std::string, std::string> more_files;
};

// Writes `out` (hugging_face_export.h) from a checkpoint, a folder of them or a
// run folder. Without options.dtype every tensor has the bytes that the
// checkpoint holds; config.json keeps the keys of the config that the model
// came with; its generation_config.json and tokenizer files come along.
// merges_adapter says what becomes of an adapter's run. Throws DataError when
// the checkpoint holds no such model, ConfigError for options that do not go
// with it, and what export_hugging_face() throws.
ExportedModel export_checkpoint(
    const std::filesystem::path& checkpoint,
    const std::filesystem::path& out,
    const ExportOptions& options = {});

// The same from a folder with config.json and safetensors: the model under one
// set of names and in one dtype, however the folder names and divides it.
// Throws the DataError of FolderWeights() too.
ExportedModel export_folder(
    const std::filesystem::path& folder,
    const std::filesystem::path& out,
    const ExportOptions& options = {});

// The weights of a model with an adapter in them, W + scale B A in float32,
// from the checkpoint of an adapter's run, which must outlive the result.
ReadValues values_with_adapter(const Checkpoint& checkpoint);

// The same from a Hugging Face folder and one with an adapter. Throws DataError
// where they do not go together.
ReadValues values_with_adapter(
    const std::filesystem::path& folder,
    const std::filesystem::path& adapter);

}  // namespace brigade
