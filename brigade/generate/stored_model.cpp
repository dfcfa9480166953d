#include "brigade/generate/stored_model.h"

#include <fmt/format.h>

#include <vector>

#include "brigade/base/error.h"
#include "brigade/checkpoint/hugging_face.h"
#include "brigade/checkpoint/param_parts.h"
#include "brigade/checkpoint/verify.h"
#include "brigade/config/model_layout.h"
#include "brigade/files/file.h"
#include "brigade/files/tokenizer_names.h"
#include "brigade/generate/limited_tokenizer.h"
#include "brigade/json/parse.h"
#include "brigade/json/python_json.h"
#include "brigade/model/from_config.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/run/base_model.h"
#include "brigade/safetensors/folder.h"

namespace brigade {

namespace fs = std::filesystem;

namespace {

// `ids`: one, several or null, as Hugging Face writes eos_token_id.
void add_end_tokens(const nlohmann::json& config, std::set<int64_t>& ids) {
  const auto found = config.find("eos_token_id");
  if (found == config.end())
    return;
  if (found->is_number_integer())
    ids.insert(found->get<int64_t>());
  for (const auto& each : *found) {
    if (found->is_array() && each.is_number_integer())
      ids.insert(each.get<int64_t>());
  }
}

}  // namespace

StoredModel::StoredModel(const ModelPlace& place) {
  const auto& [path, adapter] = place;
  if (is_model_folder(path)) {
    directory_ = path;
    const std::string name = (path / "config.json").string();
    const std::string text = read_text_file(name);
    config_ = parse_python_json(text, {"model", name});
    model_ = require_decoder_config(config_, name + ": ", "model");
    dtype_ = dtype_of_config(config_);
    tokenizer_ = find_tokenizer_file(path).empty() ? "" : path.string();
  } else {
    checkpoint_.emplace(path);
    directory_ = checkpoint_->directory();
    const CheckpointManifest& manifest = checkpoint_->manifest();
    config_ = manifest.model;
    model_ = checkpoint_->model("model");
    dtype_ = manifest.dtype;
    tokenizer_ = checkpoint_->tokenizer();
    if (!manifest.base_model.empty()) {
      base_ = manifest.base_model;
      adapter_ = adapter_of_run(manifest);
      check_base_model(manifest, directory_);
    }
  }
  if (adapter.empty())
    return;
  if (adapter_.is_used())
    throw ConfigError(fmt::format(
        "[adapter] '{}' is an adapter's run already; give the base model to "
        "use '{}' with it",
        directory_.string(),
        adapter.string()));
  adapter_folder_.emplace(adapter, model_);
  adapter_ = adapter_folder_->options();
}

void StoredModel::verify(Communicator& world, const HashProgress& on_progress)
    const {
  if (!checkpoint_)
    return;
  const std::string reason =
      find_reason_to_reject(directory_, VerifyLevel::kFull, world, on_progress);
  if (!reason.empty())
    throw DataError(reason);
}

std::unique_ptr<Tokenizer> StoredModel::open_tokenizer(
    const std::string& spec) const {
  const std::string& name = tokenizer(spec);
  if (name.empty()) {
    throw ConfigError(fmt::format(
        "'{}' names no tokenizer; give --tokenizer", directory_.string()));
  }
  return std::make_unique<LimitedTokenizer>(
      load_tokenizer(name), model_.vocab_size);
}

std::set<int64_t> StoredModel::end_tokens(const Tokenizer& tokenizer) const {
  std::set<int64_t> ids;
  if (tokenizer.eos_id())
    ids.insert(*tokenizer.eos_id());
  add_end_tokens(config_, ids);
  const fs::path path = directory_ / "generation_config.json";
  if (fs::exists(path)) {
    const auto json = parse_json_or_nothing(read_text_file(path));
    if (!json || !json->is_object())
      throw DataError(fmt::format(
          "[generate] '{}' does not hold a JSON object", path.string()));
    add_end_tokens(*json, ids);
  }
  return ids;
}

std::shared_ptr<DecoderModel> StoredModel::load(
    const TrainConfig& config,
    const ProcessMesh& mesh) const {
  auto context = std::make_shared<ModelContext>(model_context(config, mesh));
  context->description.adapter = adapter_;
  context->set_whole_sequences();  // replicas do not share one
  const ModelPart part = stage_parts(config, mesh.coordinate())
                             .at(static_cast<size_t>(mesh.coordinate().pp));
  auto model = std::make_shared<DecoderModel>(context, part);
  // Nothing trains; beside an adapter the weights must not want to.
  for (const torch::Tensor& weight : model->parameters())
    weight.set_requires_grad(false);

  const auto weights = model->named_parameters();
  std::vector<Param> params;
  for (const ParameterRow& row : list_parameters(context->description, part))
    params.push_back(make_param(
        row,
        part,
        shard_parameter(
            row, mesh.dims(), mesh.coordinate(), TokenLayout::kReplicated),
        weights[row.name].detach()));
  const fs::path folder = checkpoint_ ? base_ : directory_;
  if (!folder.empty())
    load_pretrained(folder, model_of(config), params);
  for (const Param& param : params) {
    const bool is_of_adapter = param.row->stored_in == StoredIn::kAdapter;
    if (is_of_adapter && adapter_folder_)
      adapter_folder_->read(param);
    else if (is_of_adapter || folder.empty())
      checkpoint_->read(part_of("", param, param.tensor));
  }
  return model;
}

}  // namespace brigade
