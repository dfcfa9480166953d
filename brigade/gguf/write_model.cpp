#include "brigade/gguf/write_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/gguf/blocks.h"
#include "brigade/gguf/model_entries.h"
#include "brigade/gguf/model_tensors.h"
#include "brigade/gguf/writer.h"
#include "brigade/model_spec/parameter_table.h"

namespace brigade {
namespace {

// Routers choose by small differences.
GgufTensorSpec
spec_of(const ParameterRow& row, const DecoderConfig& config, GgufType type) {
  TensorForm form = tensor_form(row, config);
  const bool is_matrix =
      form.shape.size() > 1 && row.role != ParameterRole::kRouter;
  return {
      std::move(form.name),
      is_matrix ? type : GgufType::kF32,
      std::move(form.shape)};
}

// A tensor of the file, and the parameters whose values it has one after
// another.
struct TensorToWrite {
  GgufTensorSpec spec;
  std::vector<ParameterRow> rows;
};

std::vector<TensorToWrite> tensors_of(const GgufModel& model) {
  std::vector<TensorToWrite> tensors;
  std::map<std::string, size_t> by_name;
  for (const ParameterRow& row : list_parameters(model.config)) {
    GgufTensorSpec spec = spec_of(row, model.config, model.type);
    const auto [place, is_new] = by_name.emplace(spec.name, tensors.size());
    if (is_new)
      tensors.push_back({std::move(spec), {}});
    tensors[place->second].rows.push_back(row);
  }
  return tensors;
}

std::vector<std::byte> data_of(
    const TensorToWrite& tensor,
    const GgufModel& model) {
  std::vector<std::byte> data;
  for (const ParameterRow& row : tensor.rows) {
    std::vector<float> values = model.read(row.name);
    if (static_cast<int64_t>(values.size()) != row.numel()) {
      throw DataError(fmt::format(
          "[gguf] '{}' has {} values, expected {}",
          row.name,
          values.size(),
          row.numel()));
    }
    to_gguf(tensor_form(row, model.config), row.shape, values);
    const auto bytes = encode_gguf(values, tensor.spec.type, row.name);
    data.insert(data.end(), bytes.begin(), bytes.end());
  }
  return data;
}

std::vector<GgufEntry> all_entries(const GgufModel& model) {
  std::vector<GgufEntry> entries = {
      {"general.architecture",
       std::string(gguf_architecture(model.config.architecture))},
      {"general.type", std::string("model")},
      {"general.name", model.name},
      {"general.quantization_version", uint32_t{2}},
      {"general.file_type", gguf_file_type(model.type)}};
  for (const GgufEntry& entry : model_entries(model.config))
    entries.push_back(entry);
  for (const GgufEntry& entry : model.tokenizer.entries)
    entries.push_back(entry);
  return entries;
}

}  // namespace

void require_gguf(const DecoderConfig& config, GgufType type) {
  const auto reasons = reasons_against_gguf(config);
  if (!reasons.empty()) {
    throw ConfigError(fmt::format(
        "[gguf] llama.cpp does not compute this model: {}",
        fmt::join(reasons, "; ")));
  }
  for (const ParameterRow& row : list_parameters(config)) {
    if (!data_bytes(spec_of(row, config, type))) {
      throw ConfigError(fmt::format(
          "[gguf] '{}' has rows of {} values, which {} cannot hold: it takes "
          "multiples of {}; use --type f16",
          row.name,
          row.shape.back(),
          name_of(type),
          block_numel(type)));
    }
  }
}

void write_gguf_model(
    const std::filesystem::path& path,
    const GgufModel& model) {
  require_gguf(model.config, model.type);
  const std::vector<TensorToWrite> tensors = tensors_of(model);
  const std::vector<float> divisors = rope_divisors(model.config);
  std::vector<GgufTensorSpec> specs;
  if (!divisors.empty())
    specs.push_back({kRopeDivisors, GgufType::kF32, {divisors.size()}});
  for (const TensorToWrite& tensor : tensors)
    specs.push_back(tensor.spec);
  GgufWriter writer(path, all_entries(model), specs);
  if (!divisors.empty())
    writer.write_next(encode_gguf(divisors, GgufType::kF32, kRopeDivisors));
  for (const TensorToWrite& tensor : tensors)
    writer.write_next(data_of(tensor, model));
  writer.commit();
}

}  // namespace brigade
