#include "brigade/checkpoint/hugging_face_export.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "brigade/base/error.h"
#include "brigade/checkpoint/hugging_face_names.h"
#include "brigade/checkpoint/torch_dtype.h"
#include "brigade/files/file.h"
#include "brigade/files/replace_directory.h"
#include "brigade/safetensors/writer.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

using Shard = std::vector<TensorSpec>;

// A tensor of the folder, and what it is made of.
struct FolderTensor {
  TensorSpec spec;
  // One, which is the tensor; or the matrices of a layer's experts, of which
  // each has its rows (ParameterRow::stack_row).
  std::vector<ParameterRow> rows;
};

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

// The tensors of a whole model in the table's order; experts together stand
// where the first one would. `dtype`: that of all rows but the float32 ones.
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

// Cuts the tensors into shards in the model's order, each as full as it can be.
std::vector<Shard> plan_shards(
    const std::vector<FolderTensor>& tensors,
    uint64_t max_shard_bytes) {
  std::vector<Shard> shards(1);
  uint64_t shard_bytes = 0;
  for (const FolderTensor& tensor : tensors) {
    const uint64_t bytes = size_bytes(tensor.spec);
    if (!shards.back().empty() && shard_bytes + bytes > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(tensor.spec);
    shard_bytes += bytes;
  }
  return shards;
}

std::string shard_name(size_t index, size_t count) {
  return count == 1 ? kSafetensorsFile
                    : fmt::format(
                          "model-{:05}-of-{:05}.safetensors", index + 1, count);
}

// The parameter, contiguous, if it is what the header promises.
torch::Tensor read_checked(
    const HuggingFaceExport& request,
    const ParameterRow& row,
    SafetensorsDtype dtype) {
  const torch::Tensor tensor = request.read(row.name).contiguous();
  if (tensor.sizes().vec() != row.shape ||
      tensor.scalar_type() != torch_dtype(dtype, row.name)) {
    throw DataError(fmt::format(
        "[export] '{}' is {} [{}] in the checkpoint, but the model's is {} "
        "[{}]",
        row.name,
        c10::toString(tensor.scalar_type()),
        fmt::join(tensor.sizes(), ", "),
        name_of(dtype),
        fmt::join(row.shape, ", ")));
  }
  return tensor;
}

torch::Tensor read_whole(
    const HuggingFaceExport& request,
    const FolderTensor& tensor) {
  const auto& [name, dtype, shape] = tensor.spec;
  if (tensor.rows.size() == 1)
    return read_checked(request, tensor.rows.front(), dtype);
  const torch::Tensor whole = torch::empty(
      std::vector<int64_t>(shape.begin(), shape.end()),
      torch_dtype(dtype, name));
  const torch::Tensor matrix = whole.flatten(0, 1);
  for (const ParameterRow& row : tensor.rows)
    matrix.narrow(0, row.stack_row, row.shape.at(0))
        .copy_(read_checked(request, row, dtype));
  return whole;
}

void write_weights(const HuggingFaceExport& request, const fs::path& folder) {
  const std::vector<FolderTensor> tensors =
      list_folder_tensors(request.tensors, request.dtype, request.experts);
  std::map<std::string, const FolderTensor*> by_name;
  for (const FolderTensor& tensor : tensors)
    by_name.emplace(tensor.spec.name, &tensor);
  const std::vector<Shard> shards =
      plan_shards(tensors, request.max_shard_bytes);
  json weight_map = json::object();
  uint64_t total_bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    SafetensorsWriter writer(folder / name, shards[i]);
    for (const TensorSpec& spec : writer.order()) {
      const torch::Tensor tensor = read_whole(request, *by_name.at(spec.name));
      writer.write_next(
          {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()});
      weight_map[spec.name] = name;
      total_bytes += tensor.nbytes();
    }
    writer.commit();
  }
  if (shards.size() > 1) {
    const json index = {
        {"metadata", {{"total_size", total_bytes}}},
        {"weight_map", weight_map}};
    write_text_file(folder / kSafetensorsIndex, index.dump(2) + "\n");
  }
}

}  // namespace

json generation_config(const json& config) {
  json generation = {{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (config.contains(key) && !config[key].is_null())
      generation[key] = config[key];
  }
  return generation;
}

void check_free(const fs::path& out) {
  std::error_code ignored;
  if (fs::exists(out) && !fs::is_empty(out, ignored)) {
    throw ConfigError(fmt::format(
        "[export] --out '{}' holds something already; give another folder",
        out.string()));
  }
}

void export_hugging_face(const HuggingFaceExport& request) {
  // "folder/" has no name of its own to put ".tmp" after.
  const fs::path out =
      request.out.has_filename() ? request.out : request.out.parent_path();
  check_free(out);
  const FolderUnderConstruction folder(out, "export");
  write_text_file(folder.path() / "config.json", request.config.dump(2) + "\n");
  for (const FileToCopy& file : request.files)
    folder.copy(file.source, file.name);
  for (const auto& [name, content] : request.texts) {
    if (!fs::exists(folder.path() / name))
      write_text_file(folder.path() / name, content);
  }
  if (!fs::exists(folder.path() / kGenerationConfig)) {
    write_text_file(
        folder.path() / kGenerationConfig,
        generation_config(request.config).dump(2) + "\n");
  }
  write_weights(request, folder.path());
  folder.commit();
}

}  // namespace brigade
