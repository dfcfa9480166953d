#include "brigade/gguf/write_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "brigade/base/error.h"
#include "brigade/gguf/blocks.h"
#include "brigade/gguf/model_entries.h"
#include "brigade/gguf/model_tensors.h"
#include "brigade/gguf/writer.h"
#include "brigade/model_spec/parameter_table.h"

namespace brigade {
namespace {

GgufTensorSpec
spec_of(const ParameterRow& row, const DecoderConfig& config, GgufType type) {
  return {
      tensor_form(row, config).name,
      row.shape.size() > 1 ? type : GgufType::kF32,
      {row.shape.begin(), row.shape.end()}};
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
  const std::vector<ParameterRow> rows = list_parameters(model.config);
  const std::vector<float> divisors = rope_divisors(model.config);
  std::vector<GgufTensorSpec> specs;
  if (!divisors.empty())
    specs.push_back({kRopeDivisors, GgufType::kF32, {divisors.size()}});
  for (const ParameterRow& row : rows)
    specs.push_back(spec_of(row, model.config, model.type));
  GgufWriter writer(path, all_entries(model), specs);
  if (!divisors.empty())
    writer.write_next(encode_gguf(divisors, GgufType::kF32, kRopeDivisors));
  for (const ParameterRow& row : rows) {
    std::vector<float> values = model.read(row.name);
    if (static_cast<int64_t>(values.size()) != row.numel()) {
      throw DataError(fmt::format(
          "[gguf] '{}' has {} values, expected {}",
          row.name,
          values.size(),
          row.numel()));
    }
    to_gguf(tensor_form(row, model.config), row.shape, values);
    const GgufType type = spec_of(row, model.config, model.type).type;
    writer.write_next(encode_gguf(values, type, row.name));
  }
  writer.commit();
}

}  // namespace brigade
