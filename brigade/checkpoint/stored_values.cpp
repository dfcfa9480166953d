#include "brigade/checkpoint/stored_values.h"

#include <map>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/checkpoint/hugging_face.h"
#include "brigade/model_spec/parameter_table.h"

namespace brigade {
namespace {

// Each of the model's parameters, as `read` fills it.
ReadValues values_by(
    const DecoderConfig& config,
    std::function<void(const State& whole)> read) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (ParameterRow& row : list_parameters(config))
    shapes.emplace(row.name, std::move(row.shape));
  return [shapes = std::move(shapes),
          read = std::move(read)](const std::string& name) {
    const auto shape = shapes.find(name);
    BRIGADE_ASSERT(shape != shapes.end(), "{} is no parameter", name);
    const auto whole = torch::empty(shape->second, torch::kFloat);
    read({.name = name, .tensor = whole});
    return values_in(whole);
  };
}

}  // namespace

std::vector<float> values_in(const torch::Tensor& tensor) {
  const auto* first = tensor.data_ptr<float>();
  return {first, first + tensor.numel()};
}

ReadValues values_of_checkpoint(
    const Checkpoint& checkpoint,
    const DecoderConfig& config) {
  return values_by(
      config, [&checkpoint](const State& whole) { checkpoint.read(whole); });
}

ReadValues values_of_folder(
    const std::filesystem::path& folder,
    const DecoderConfig& config) {
  const auto open =
      std::make_shared<const OpenFolder>(folder, list_parameters(config));
  return values_by(
      config, [open](const State& whole) { open->weights.read(whole); });
}

}  // namespace brigade
