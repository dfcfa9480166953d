#include "brigade/checkpoint/stored_values.h"

#include <map>
#include <optional>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/checkpoint/hugging_face.h"
#include "brigade/model_spec/parameter_table.h"

namespace brigade {
namespace {

std::map<std::string, ParameterRow> rows_by_name(const DecoderConfig& config) {
  std::map<std::string, ParameterRow> rows;
  for (ParameterRow& row : list_parameters(config))
    rows.emplace(row.name, std::move(row));
  return rows;
}

// One unit of the model (an embedding, a layer, the head) in memory.
class FolderValues {
 public:
  FolderValues(const std::filesystem::path& folder, const DecoderConfig& config)
      : folder_(folder), table_(list_parameters(config)) {}

  std::vector<float> read(const std::string& name) {
    if (!loaded_.contains(name))
      load_unit_of(name);
    const auto found = loaded_.find(name);
    BRIGADE_ASSERT(found != loaded_.end(), "{} is no parameter", name);
    return values_in(found->second);
  }

 private:
  SafetensorsFolder folder_;
  std::vector<ParameterRow> table_;
  std::map<std::string, torch::Tensor> loaded_;

  void load_unit_of(const std::string& name) {
    std::optional<ModelUnit> unit;
    for (const ParameterRow& row : table_) {
      if (row.name == name)
        unit = row.unit();
    }
    loaded_.clear();
    std::vector<State> parts;
    for (const ParameterRow& row : table_) {
      if (!unit || row.unit() != *unit)
        continue;
      const auto tensor = torch::empty(row.shape, torch::kFloat);
      loaded_.emplace(row.name, tensor);
      parts.push_back({.name = row.name, .tensor = tensor});
    }
    load_weights(folder_, table_, parts);
  }
};

}  // namespace

std::vector<float> values_in(const torch::Tensor& tensor) {
  const auto* first = tensor.data_ptr<float>();
  return {first, first + tensor.numel()};
}

ReadValues values_of_checkpoint(
    const Checkpoint& checkpoint,
    const DecoderConfig& config) {
  const auto rows = std::make_shared<const std::map<std::string, ParameterRow>>(
      rows_by_name(config));
  return [&checkpoint, rows](const std::string& name) {
    const auto tensor = torch::empty(rows->at(name).shape, torch::kFloat);
    checkpoint.read({.name = name, .tensor = tensor});
    return values_in(tensor);
  };
}

ReadValues values_of_folder(
    const std::filesystem::path& folder,
    const DecoderConfig& config) {
  const auto values = std::make_shared<FolderValues>(folder, config);
  return [values](const std::string& name) { return values->read(name); };
}

}  // namespace brigade
