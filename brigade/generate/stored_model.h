// A trained model on disk: a checkpoint of Brigade, or a Hugging Face folder.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/verify.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/model/decoder_model.h"
#include "brigade/tokenizer/tokenizer.h"

namespace brigade {

class StoredModel {
 public:
  // `path`: what Checkpoint takes, or a folder with config.json and safetensors
  // files. Throws DataError naming what is wrong or missing.
  explicit StoredModel(const std::filesystem::path& path);

  const std::filesystem::path& directory() const { return directory_; }
  // Hugging Face's config.json.
  const nlohmann::json& config() const { return config_; }
  // What it says, the defaults of absent and null keys included.
  const DecoderConfig& model() const { return model_; }
  // "float32" or "bfloat16": in which it is computed.
  const std::string& dtype() const { return dtype_; }
  // As load_tokenizer() takes it; "": it has none.
  const std::string& tokenizer() const { return tokenizer_; }

  // Throws DataError where a checkpoint's files are not those that were saved.
  // Collective. `on_progress` is of this rank's share.
  void verify(Communicator& world, const HashProgress& on_progress = {}) const;
  // `spec`, or without one the model's own. Throws ConfigError where it has
  // none; its encode() throws DataError for a token that the model has no row
  // for (limited_tokenizer.h).
  std::unique_ptr<Tokenizer> open_tokenizer(const std::string& spec) const;
  // This rank's part, for inference: `config` is inference_config()'s for the
  // mesh's dims. Replicas (dp, cp) hold the same. Throws DataError when a
  // tensor is missing.
  std::shared_ptr<DecoderModel> load(
      const TrainConfig& config,
      const ProcessMesh& mesh) const;

 private:
  std::filesystem::path directory_;
  std::optional<Checkpoint> checkpoint_;  // absent: a Hugging Face folder
  nlohmann::json config_;
  DecoderConfig model_;
  std::string dtype_;
  std::string tokenizer_;
};

}  // namespace brigade
