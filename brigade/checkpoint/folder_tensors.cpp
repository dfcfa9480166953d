#include "brigade/checkpoint/folder_tensors.h"

#include <map>

#include "brigade/checkpoint/hugging_face_names.h"

namespace brigade {
namespace {

// [experts, rows of each, columns].
std::vector<uint64_t> stacked_shape(const std::vector<ParameterRow>& rows) {
  const auto experts = static_cast<uint64_t>(rows.back().expert + 1);
  uint64_t all_rows = 0;
  for (const ParameterRow& row : rows)
    all_rows += static_cast<uint64_t>(row.shape.at(0));
  return {
      experts,
      all_rows / experts,
      static_cast<uint64_t>(rows.front().shape.at(1))};
}

}  // namespace

std::vector<FolderTensor> list_folder_tensors(
    const std::vector<ParameterRow>& model,
    SafetensorsDtype dtype,
    ExpertTensors experts) {
  std::vector<FolderTensor> tensors;
  std::map<std::string, size_t> stacks;  // by name, of `tensors`
  for (const ParameterRow& row : model) {
    const bool is_fused = experts == ExpertTensors::kFused;
    const bool is_stacked = is_fused && !row.stack.empty();
    const std::string& name = is_stacked ? row.stack : row.name;
    if (is_stacked) {
      const auto [found, is_new] = stacks.emplace(name, tensors.size());
      if (!is_new) {
        tensors[found->second].rows.push_back(row);
        continue;
      }
    }
    FolderTensor& tensor = tensors.emplace_back();
    tensor.spec = {
        is_fused ? name_in_memory(name) : name,
        row.is_float32 ? SafetensorsDtype::kF32 : dtype,
        {row.shape.begin(), row.shape.end()}};
    tensor.rows.push_back(row);
  }
  for (const auto& [name, index] : stacks)
    tensors[index].spec.shape = stacked_shape(tensors[index].rows);
  return tensors;
}

}  // namespace brigade
