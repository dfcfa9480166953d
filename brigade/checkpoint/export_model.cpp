#include "brigade/checkpoint/export_model.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/checkpoint/adapter_folder.h"
#include "brigade/checkpoint/align_token_ids.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/hugging_face.h"
#include "brigade/checkpoint/hugging_face_export.h"
#include "brigade/checkpoint/torch_dtype.h"
#include "brigade/checkpoint/verify.h"
#include "brigade/files/file.h"
#include "brigade/files/tokenizer_names.h"
#include "brigade/json/node.h"
#include "brigade/model_spec/adapter.h"
#include "brigade/model_spec/decoder_config.h"
#include "brigade/model_spec/model_description.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/model_spec/upcycle.h"
#include "brigade/options/optimizer.h"
#include "brigade/run/base_model.h"
#include "brigade/safetensors/folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

SafetensorsDtype stored_dtype(const std::string& dtype, const fs::path& file) {
  if (dtype == "float32")
    return SafetensorsDtype::kF32;
  if (dtype == "bfloat16")
    return SafetensorsDtype::kBF16;
  throw DataError(fmt::format(
      "[export] {}: /dtype: \"{}\": expected \"float32\" or \"bfloat16\"",
      file.string(),
      dtype));
}

std::vector<FileToCopy> tokenizer_of(const Checkpoint& checkpoint) {
  const std::string& tokenizer = checkpoint.manifest().tokenizer;
  if (tokenizer.empty() || tokenizer == "bytes")
    return {};
  if (!is_bare_file_name(tokenizer)) {
    throw DataError(fmt::format(
        "[export] the manifest of '{}' names the tokenizer '{}', which is "
        "outside the checkpoint",
        checkpoint.directory().string(),
        tokenizer));
  }
  return find_tokenizer_files(checkpoint.directory() / tokenizer);
}

// A model that is to be exported, wherever it comes from.
struct ModelToExport {
  fs::path directory;
  fs::path file;  // that describes it
  DecoderConfig config;
  json source;        // as to_hugging_face_json() takes it
  std::string dtype;  // it is written in
  // Reads a tensor in any dtype.
  std::function<torch::Tensor(const std::string& name)> read;
  std::vector<FileToCopy> tokenizer;
  bool was_trained = false;  // by a run, on texts of that tokenizer
};

// The same model with experts.
ModelToExport upcycle(ModelToExport model, const ExportOptions& options) {
  model.config = upcycled(model.config, *options.upcycle);
  const ModelDescription description = describe_model(model.config);
  std::map<std::string, ParameterRow> rows;
  for (const ParameterRow& row : list_parameters(model.config))
    rows[row.name] = row;
  const torch::Dtype dtype =
      torch_dtype(stored_dtype(model.dtype, model.file), "");
  model.read = [=, dense = std::move(model.read)](const std::string& name) {
    const ParameterRow& row = rows.at(name);
    const std::string source = dense_name_of(row, description);
    return source.empty() ? options.initial_router(row).to(dtype)
                          : dense(source);
  };
  return model;
}

// Those that stay float32 in a model of any dtype.
std::set<std::string> float32_names(const std::vector<ParameterRow>& rows) {
  std::set<std::string> names;
  for (const ParameterRow& row : rows) {
    if (row.is_float32)
      names.insert(row.name);
  }
  return names;
}

json read_object(const fs::path& file) {
  const std::string text = read_text_file(file);
  const JsonDocument document(
      text, {.module = "export", .file = file.string()});
  document.root().require_object();
  return document.root().value();
}

ExportedModel write_folder(
    const ModelToExport& given,
    const fs::path& out,
    const ExportOptions& options) {
  const ModelToExport model = options.upcycle ? upcycle(given, options) : given;
  if (options.experts == ExpertTensors::kFused && !model.config.experts)
    throw ConfigError(fmt::format(
        "[export] --experts fused: {} describes a {}, which has no experts; "
        "leave it out",
        model.file.string(),
        name_of(model.config.architecture).class_name));
  HuggingFaceExport request;
  request.out = out;
  request.files = model.tokenizer;
  request.config =
      to_hugging_face_json(model.config, model.dtype, model.source);
  request.texts = options.more_files;
  const fs::path generation_file = model.directory / kGenerationConfig;
  const bool has_generation = fs::exists(generation_file);
  json generation;
  const bool sets_ids =
      model.was_trained && (options.bos_token_id || options.eos_token_id);
  if (sets_ids)
    generation = has_generation ? read_object(generation_file)
                                : generation_config(request.config);
  const auto put = [&](const char* key, const std::optional<int64_t>& id) {
    if (id && (!request.config.contains(key) || request.config[key].is_null()))
      request.config[key] = *id;
  };
  if (sets_ids && align_token_ids(
                      options.bos_token_id,
                      options.eos_token_id,
                      request.config,
                      generation)) {
    request.texts[kGenerationConfig] = generation.dump(2) + "\n";
  } else {
    put("bos_token_id", options.bos_token_id);
    put("eos_token_id", options.eos_token_id);
    if (has_generation)
      request.files.push_back({generation_file, kGenerationConfig});
  }
  request.tensors = list_parameters(model.config);
  request.dtype = stored_dtype(model.dtype, model.file);
  request.experts = options.experts;
  const int64_t parameters = parameter_count(model.config);
  uint64_t done_bytes = 0;
  const uint64_t total_bytes =
      static_cast<uint64_t>(parameters) * item_bytes(request.dtype);
  const std::set<std::string> wide = float32_names(request.tensors);
  request.read = [&](const std::string& name) {
    torch::Tensor tensor = model.read(name);
    if (wide.contains(name))
      tensor = tensor.to(torch::kFloat);
    else if (!options.dtype.empty())
      tensor = tensor.to(torch_dtype(request.dtype, name));
    done_bytes += tensor.nbytes();
    if (options.on_progress)
      options.on_progress("exporting", done_bytes, total_bytes);
    return tensor;
  };
  request.max_shard_bytes = options.max_shard_bytes;
  export_hugging_face(request);
  return {
      .parameters = parameters,
      .dtype = model.dtype,
      .has_tokenizer = !model.tokenizer.empty()};
}

// Where PEFT will look for an adapter's base model: that of a downloaded one is
// no folder of this machine's cache, but the id, which others know.
std::string base_model_of(const CheckpointManifest& manifest) {
  const fs::path folder = manifest.base_model;
  std::string id;
  if (manifest.config.is_object())
    id = manifest.config.value("/model/name"_json_pointer, id);
  std::string cached = "models--" + id;
  if (const size_t slash = cached.find('/'); slash != std::string::npos)
    cached.replace(slash, 1, "--");
  return folder.parent_path().parent_path().filename() == cached
             ? id
             : manifest.base_model;
}

// What is merged into a model's weights.
struct MergedAdapter {
  AdapterOptions options;
  std::function<torch::Tensor(const std::string& name)> read;
};

// The model in a Hugging Face folder.
ModelToExport model_in_folder(
    const fs::path& path,
    const std::string& wanted_dtype,
    const std::optional<MergedAdapter>& adapter) {
  const fs::path file = path / "config.json";
  const json source = read_object(file);
  const DecoderConfig config =
      require_decoder_config(source, file.string() + ": ", "export");
  const std::string dtype =
      wanted_dtype.empty() ? dtype_of_config(source) : wanted_dtype;
  const torch::Dtype torch_type = torch_dtype(stored_dtype(dtype, file), "");
  const std::vector<ParameterRow> rows = list_parameters(config);
  std::map<std::string, std::vector<int64_t>> shapes;
  const std::set<std::string> wide = float32_names(rows);
  for (const ParameterRow& row : rows)
    shapes[row.name] = row.shape;
  std::set<std::string> adapted;  // weights
  if (adapter) {
    for (const ParameterRow& row : adapter_rows(config, adapter->options))
      adapted.insert(adapted_module(row.name) + ".weight");
  }
  const auto open = std::make_shared<const OpenFolder>(path, rows);
  return {
      .directory = path,
      .file = file,
      .config = config,
      .source = source,
      .dtype = dtype,
      .read =
          [=](const std::string& name) {
            const bool is_merged = adapted.contains(name);
            torch::Tensor whole = torch::empty(
                shapes.at(name),
                is_merged || wide.contains(name) ? torch::kFloat : torch_type);
            open->weights.read({.name = name, .tensor = whole});
            if (!is_merged)
              return whole;
            const std::string module =
                name.substr(0, name.size() - std::strlen(".weight"));
            return merged_weight(whole, module, adapter->options, adapter->read)
                .to(torch_type);
          },
      .tokenizer = find_tokenizer_file(path).empty()
                       ? std::vector<FileToCopy>()
                       : find_tokenizer_files(path)};
}

// Whether the weights that a run stores are averages, no longer its masters.
bool stores_averages(const json& config) {
  const auto training = config.find("training");
  if (training == config.end() || !training->is_object())
    return false;
  return training->value("ema_decay", json(0)) != 0 ||
         training->value("optimizer", json()) ==
             to_string(OptimizerKind::kScheduleFreeAdamW);
}

// The adapter that a run trained, in float32: of bf16 the whole master.
MergedAdapter adapter_in(const Checkpoint& checkpoint) {
  const bool has_masters = !stores_averages(checkpoint.manifest().config);
  return {
      .options = adapter_of_run(checkpoint.manifest()),
      .read = [&checkpoint, has_masters](const std::string& name) {
        const std::string master = "master." + name;
        const bool reads_master = has_masters && checkpoint.contains(master);
        return checkpoint.read_whole(reads_master ? master : name)
            .to(torch::kFloat);
      }};
}

MergedAdapter adapter_for(const fs::path& model, const fs::path& adapter) {
  const ModelToExport base = model_in_folder(model, "", {});
  const auto folder =
      std::make_shared<const AdapterFolder>(adapter, base.config);
  return {
      .options = folder->options(), .read = [folder](const std::string& name) {
        return folder->read_whole(name);
      }};
}

ReadValues merged_values(const fs::path& base, const MergedAdapter& adapter) {
  const ModelToExport model = model_in_folder(base, "float32", adapter);
  return
      [model](const std::string& name) { return values_in(model.read(name)); };
}

ExportedModel export_adapter_of_run(
    const Checkpoint& checkpoint,
    const fs::path& out,
    const ExportOptions& options) {
  const CheckpointManifest& manifest = checkpoint.manifest();
  const MergedAdapter adapter = adapter_in(checkpoint);
  if (options.merges_adapter) {
    check_base_model(manifest, checkpoint.directory());
    ModelToExport merged = model_in_folder(
        manifest.base_model,
        options.dtype.empty() ? manifest.dtype : options.dtype,
        adapter);
    // The one that it was trained with, whose chat template may be another.
    std::vector<FileToCopy> tokenizer = tokenizer_of(checkpoint);
    if (!tokenizer.empty())
      merged.tokenizer = std::move(tokenizer);
    merged.was_trained = true;
    return write_folder(merged, out, options);
  }
  const char* useless =
      options.upcycle                                 ? "--upcycle"
      : options.experts == ExpertTensors::kFused      ? "--experts fused"
      : !options.dtype.empty()                        ? "--dtype"
      : options.max_shard_bytes != kDefaultShardBytes ? "--shard-gb"
                                                      : nullptr;
  if (useless != nullptr)
    throw ConfigError(fmt::format(
        "[export] {}: '{}' is an adapter's run, which is written as PEFT's "
        "one file of float32; leave it out, or merge it with --merge",
        useless,
        checkpoint.directory().string()));
  return {
      .parameters = export_adapter(
          {.out = out,
           .model = checkpoint.model("export"),
           .options = adapter.options,
           .base_model = base_model_of(manifest),
           .read = adapter.read}),
      .dtype = "float32",
      .is_adapter = true};
}

}  // namespace

ExportedModel export_checkpoint(
    const fs::path& path,
    const fs::path& out,
    const ExportOptions& options) {
  check_free(out);
  const Checkpoint checkpoint(path);
  const fs::path& directory = checkpoint.directory();
  const std::string reason = find_reason_to_reject(
      directory,
      VerifyLevel::kFull,
      [&](uint64_t done_bytes, uint64_t total_bytes) {
        if (options.on_progress)
          options.on_progress("verifying", done_bytes, total_bytes);
      });
  if (!reason.empty())
    throw DataError(reason);
  const CheckpointManifest& manifest = checkpoint.manifest();
  if (!manifest.base_model.empty()) {
    ExportedModel exported = export_adapter_of_run(checkpoint, out, options);
    exported.step = manifest.step;
    exported.tokenizer = manifest.tokenizer;
    return exported;
  }
  if (options.merges_adapter)
    throw ConfigError(fmt::format(
        "[export] '{}' is no adapter's run: there is nothing to merge",
        directory.string()));
  ExportedModel exported = write_folder(
      {.directory = directory,
       .file = directory / kManifestFile,
       .config = checkpoint.model("export"),
       .source = manifest.model_source,
       .dtype = options.dtype.empty() ? manifest.dtype : options.dtype,
       .read =
           [&](const std::string& name) { return checkpoint.read_whole(name); },
       .tokenizer = tokenizer_of(checkpoint),
       .was_trained = true},
      out,
      options);
  exported.step = manifest.step;
  exported.tokenizer = manifest.tokenizer;
  return exported;
}

ExportedModel export_folder(
    const fs::path& path,
    const fs::path& out,
    const ExportOptions& options) {
  check_free(out);
  std::optional<MergedAdapter> merged;
  if (options.merges_adapter)
    merged = adapter_for(path, options.adapter);
  return write_folder(
      model_in_folder(path, options.dtype, merged), out, options);
}

ReadValues values_with_adapter(const Checkpoint& checkpoint) {
  check_base_model(checkpoint.manifest(), checkpoint.directory());
  return merged_values(
      checkpoint.manifest().base_model, adapter_in(checkpoint));
}

ReadValues values_with_adapter(
    const fs::path& folder,
    const fs::path& adapter) {
  return merged_values(folder, adapter_for(folder, adapter));
}

}  // namespace brigade
