// brigade export --run DIR --gguf FILE [--merge]
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/export_model.h"
#include "brigade/checkpoint/stored_values.h"
#include "brigade/checkpoint/verify.h"
#include "brigade/files/file.h"
#include "brigade/files/output_path.h"
#include "brigade/files/tokenizer_names.h"
#include "brigade/gguf/format.h"
#include "brigade/gguf/write_model.h"
#include "brigade/json/node.h"
#include "brigade/model_spec/parameter_table.h"
#include "cli/named_run.h"
#include "cli/rate_bar.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

namespace fs = std::filesystem;

namespace {

// What is exported, and where its parts are.
struct GgufSource {
  std::optional<Checkpoint> checkpoint;  // absent: a Hugging Face folder
  fs::path directory;  // of the base model where an adapter is merged
  DecoderConfig model;
  std::string tokenizer;  // as load_tokenizer() takes it; "": none
  std::string dtype;
};

nlohmann::json read_json_of_export(const fs::path& path) {
  const std::string text = read_text_file(path);
  return JsonDocument(text, {"export", path.string()}).root().value();
}

GgufSource open_source(const ExportArguments& arguments, RateBar& bar) {
  GgufSource source;
  const std::string& path = arguments.run;
  if (is_hugging_face(path)) {
    source.directory = path;
    const fs::path file = source.directory / "config.json";
    const nlohmann::json config = read_json_of_export(file);
    source.model =
        require_decoder_config(config, file.string() + ": ", "export");
    source.tokenizer = find_tokenizer_file(path).empty() ? "" : path;
    for (const char* key : {"torch_dtype", "dtype"}) {
      if (config.contains(key) && config[key].is_string())
        source.dtype = config[key].get<std::string>();
    }
    return source;
  }
  source.checkpoint.emplace(path);
  source.directory = source.checkpoint->directory();
  const std::string reason = find_reason_to_reject(
      source.directory, VerifyLevel::kFull, bar.labelled("verifying"));
  if (!reason.empty())
    throw DataError(reason);
  const CheckpointManifest& manifest = source.checkpoint->manifest();
  const bool has_adapter = !manifest.base_model.empty();
  if (has_adapter && !arguments.merges)
    throw ConfigError(fmt::format(
        "[export] '{}' holds an adapter: --merge writes the model with it in "
        "its weights",
        source.directory.string()));
  if (arguments.merges && !has_adapter)
    throw ConfigError(fmt::format(
        "[export] '{}' is no adapter's run: there is nothing to merge",
        source.directory.string()));
  source.model = source.checkpoint->model("export");
  source.dtype = manifest.dtype;
  source.tokenizer = source.checkpoint->tokenizer();
  if (has_adapter)
    source.directory = manifest.base_model;
  return source;
}

// config.json's, and those that only generation_config.json has.
TokenIds token_ids_of(const GgufSource& source) {
  TokenIds ids{
      .vocab_size = source.model.vocab_size,
      .bos = source.model.bos_token_id,
      .eos = source.model.eos_token_ids};
  const fs::path generation = source.directory / "generation_config.json";
  if (!fs::is_regular_file(generation))
    return ids;
  const nlohmann::json eos =
      read_json_of_export(generation).value("eos_token_id", nlohmann::json());
  const auto add = [&](const nlohmann::json& id) {
    if (id.is_number_integer() &&
        std::count(ids.eos.begin(), ids.eos.end(), id.get<int64_t>()) == 0)
      ids.eos.push_back(id.get<int64_t>());
  };
  if (!eos.is_array())
    add(eos);
  for (const nlohmann::json& id :
       eos.is_array() ? eos : nlohmann::json::array())
    add(id);
  return ids;
}

ReadValues values_of(
    const GgufSource& source,
    const ExportArguments& arguments) {
  if (!arguments.adapter.empty())
    return values_with_adapter(source.directory, arguments.adapter);
  if (arguments.merges)
    return values_with_adapter(*source.checkpoint);
  return source.checkpoint
             ? values_of_checkpoint(*source.checkpoint, source.model)
             : values_of_folder(source.directory, source.model);
}

GgufType matrix_type(const std::string& name, const GgufSource& source) {
  if (!name.empty())
    return *gguf_type_named(name);
  if (source.dtype == "bfloat16")
    return GgufType::kBF16;
  return source.dtype == "float16" ? GgufType::kF16 : GgufType::kF32;
}

}  // namespace

void export_gguf(const ExportArguments& arguments) {
  check_writable(arguments.gguf, kGgufMagic);
  RateBar bar;
  const GgufSource source = open_source(arguments, bar);
  GgufModel model;
  model.config = source.model;
  model.name = fs::path(arguments.gguf).stem().string();
  model.type = matrix_type(arguments.type, source);
  require_gguf(model.config, model.type);
  model.tokenizer = tokenizer_entries(source.tokenizer, token_ids_of(source));
  const ReadValues values = values_of(source, arguments);
  const auto total = static_cast<uint64_t>(parameter_count(model.config));
  uint64_t done = 0;
  model.read = [&](const std::string& name) {
    std::vector<float> read = values(name);
    done += read.size();
    bar.show("exporting", done * sizeof(float), total * sizeof(float));
    return read;
  };
  write_gguf_model(arguments.gguf, model);
  bar.clear();
  fmt::print(
      "{}: {} parameters, {}\n", arguments.gguf, total, name_of(model.type));
  if (source.tokenizer.empty())
    fmt::print("No tokenizer was written: the model has none.\n");
  for (const std::string& note : model.tokenizer.notes)
    fmt::print("Note: {}.\n", note);
}

}  // namespace brigade::cli
