#include "brigade/gguf/import_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/files/replace_directory.h"
#include "brigade/gguf/blocks.h"
#include "brigade/gguf/model_entries.h"
#include "brigade/gguf/model_tensors.h"
#include "brigade/gguf/tokenizer_files.h"
#include "brigade/safetensors/writer.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// q8_0 is no type of safetensors: its values become float32.
GgufType type_in_folder(GgufType type) {
  return type == GgufType::kQ8_0 ? GgufType::kF32 : type;
}

struct FolderDtype {
  SafetensorsDtype dtype;
  std::string name;  // as config.json says it
};

FolderDtype dtype_in_folder(GgufType type) {
  switch (type_in_folder(type)) {
    case GgufType::kF16:
      return {SafetensorsDtype::kF16, "float16"};
    case GgufType::kBF16:
      return {SafetensorsDtype::kBF16, "bfloat16"};
    default:
      return {SafetensorsDtype::kF32, "float32"};
  }
}

class Import {
 public:
  Import(const fs::path& path, const ImportProgress& on_progress)
      : file_(path),
        config_(read_gguf_config(file_)),
        rows_(list_parameters(config_)),
        on_progress_(on_progress) {
    check_tensors();
  }

  ImportedModel write(const fs::path& folder) {
    const std::string dtype = dtype_in_folder(stored(rows_.front()).type).name;
    const json config = to_hugging_face_json(config_, dtype);
    write_text_file(folder / "config.json", config.dump(2) + "\n");
    json generation = {{"_from_model_config", true}};
    for (const char* key : {"bos_token_id", "eos_token_id"}) {
      if (!config.at(key).is_null())
        generation[key] = config.at(key);
    }
    write_text_file(
        folder / "generation_config.json", generation.dump(2) + "\n");
    const auto files = tokenizer_files(file_);
    for (const auto& [name, text] : files)
      write_text_file(folder / name, text);
    write_weights(folder);
    return {
        .parameters = parameter_count(config_),
        .architecture = gguf_architecture(config_.architecture),
        .dtype = dtype,
        .has_tokenizer = !files.empty()};
  }

 private:
  GgufFile file_;
  DecoderConfig config_;
  std::vector<ParameterRow> rows_;
  const ImportProgress& on_progress_;

  const GgufTensor& stored(const ParameterRow& row) const {
    return *file_.find(tensor_form(row, config_).name);
  }

  // Its part of the tensor that has it.
  std::span<const std::byte> data_of(const ParameterRow& row) const {
    const GgufTensor& tensor = stored(row);
    if (row.expert == kNoExpert)
      return tensor.data;
    const auto experts = static_cast<size_t>(config_.experts->num_experts);
    const size_t bytes = tensor.data.size() / experts;
    return tensor.data.subspan(static_cast<size_t>(row.expert) * bytes, bytes);
  }

  // Those of the model, all of them and no others.
  void check_tensors() const {
    std::vector<std::string> problems;
    std::set<std::string> expected{kRopeDivisors};
    for (const ParameterRow& row : rows_) {
      const TensorForm form = tensor_form(row, config_);
      const std::string& name = form.name;
      const std::vector<uint64_t>& shape = form.shape;
      // Those of a layer have one tensor, which is looked at once.
      if (!expected.insert(name).second)
        continue;
      const GgufTensor* tensor = file_.find(name);
      if (tensor == nullptr) {
        problems.push_back(fmt::format("'{}' is missing", name));
      } else if (tensor->shape != shape) {
        problems.push_back(fmt::format(
            "'{}' is [{}], expected [{}]",
            name,
            fmt::join(tensor->shape, ", "),
            fmt::join(shape, ", ")));
      }
    }
    for (const GgufTensor& tensor : file_.tensors()) {
      if (!expected.contains(tensor.name) && !is_of_further_tokens(tensor.name))
        problems.push_back(fmt::format("'{}' is surplus", tensor.name));
    }
    if (!problems.empty()) {
      throw DataError(fmt::format(
          "[gguf] the tensors of '{}' are not those of its model: {}",
          file_.path().string(),
          fmt::join(problems, "; ")));
    }
  }

  // Whether it belongs to a layer behind the last: GLM-4-MoE's, which predict
  // further tokens.
  bool is_of_further_tokens(std::string_view tensor) const {
    constexpr std::string_view kLayer = "blk.";
    int64_t layer = -1;
    if (config_.architecture == Architecture::kGlm4Moe &&
        tensor.starts_with(kLayer))
      std::from_chars(
          tensor.data() + kLayer.size(), tensor.data() + tensor.size(), layer);
    return layer >= config_.num_hidden_layers;
  }

  void write_weights(const fs::path& folder) const {
    std::map<std::string, const ParameterRow*> by_name;
    std::vector<TensorSpec> specs;
    uint64_t total_bytes = 0;
    for (const ParameterRow& row : rows_) {
      by_name[row.name] = &row;
      specs.push_back(
          {row.name,
           dtype_in_folder(stored(row).type).dtype,
           {row.shape.begin(), row.shape.end()}});
      total_bytes += size_bytes(specs.back());
    }
    SafetensorsWriter writer(folder / "model.safetensors", specs);
    uint64_t done_bytes = 0;
    for (const TensorSpec& spec : writer.order()) {
      const ParameterRow& row = *by_name.at(spec.name);
      const GgufTensor& tensor = stored(row);
      std::vector<float> values(static_cast<size_t>(row.numel()));
      decode_gguf(data_of(row), tensor.type, values);
      from_gguf(tensor_form(row, config_), row.shape, values);
      writer.write_next(
          encode_gguf(values, type_in_folder(tensor.type), tensor.name));
      done_bytes += size_bytes(spec);
      if (on_progress_)
        on_progress_(done_bytes, total_bytes);
    }
    writer.commit();
  }
};

}  // namespace

ImportedModel import_gguf(
    const fs::path& path,
    const fs::path& out,
    const ImportProgress& on_progress) {
  if (fs::exists(out)) {
    throw ConfigError(fmt::format(
        "[gguf] --out '{}' exists already; give another folder", out.string()));
  }
  Import import(path, on_progress);
  // "folder/" has no name of its own to put ".tmp" after.
  const FolderUnderConstruction folder(
      out.has_filename() ? out : out.parent_path(), "gguf");
  ImportedModel result = import.write(folder.path());
  folder.commit();
  return result;
}

}  // namespace brigade
