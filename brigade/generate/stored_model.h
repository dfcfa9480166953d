// A trained model on disk: a checkpoint of Brigade, or a Hugging Face folder;
// of an adapter's run, or with an adapter's folder, the base model and the
// adapter.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "brigade/checkpoint/adapter_folder.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/generate/model_place.h"
#include "brigade/model/decoder_model.h"
#include "brigade/run/find_damage.h"
#include "brigade/tokenizer/tokenizer.h"

namespace brigade {

class StoredModel {
 public:
  // Throws DataError naming what is wrong or missing.
  explicit StoredModel(const ModelPlace& place);

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
  // What open_tokenizer() opens: "bytes", a file or a folder; "": it has none.
  const std::string& tokenizer(const std::string& spec) const {
    return spec.empty() ? tokenizer_ : spec;
  }
  // The tokens that end a text: the tokenizer's, and those that config.json and
  // generation_config.json name. Throws DataError for a file of these that is
  // no JSON object.
  std::set<int64_t> end_tokens(const Tokenizer& tokenizer) const;
  // This rank's part, for inference: `config` is inference_config()'s for the
  // mesh's dims. Replicas (dp, cp) hold the same, but for experts that they
  // divide. Throws DataError when a tensor is missing.
  std::shared_ptr<DecoderModel> load(
      const TrainConfig& config,
      const ProcessMesh& mesh) const;

 private:
  std::filesystem::path directory_;
  std::optional<Checkpoint> checkpoint_;  // absent: a Hugging Face folder
  // The folder of the base model's weights, where they are not in checkpoint_.
  std::filesystem::path base_;
  std::optional<AdapterFolder> adapter_folder_;
  AdapterOptions adapter_;  // without a rank: it has none
  nlohmann::json config_;
  DecoderConfig model_;
  std::string dtype_;
  std::string tokenizer_;
};

}  // namespace brigade
