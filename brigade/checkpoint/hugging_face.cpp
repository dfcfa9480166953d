#include "brigade/checkpoint/hugging_face.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "brigade/base/check.h"
#include "brigade/checkpoint/param_parts.h"
#include "brigade/checkpoint/torch_dtype.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// Takes the pages of a tensor that was read out of this process, so that the
// mapping does not grow to the size of the file. They stay in the page cache.
void release_pages(std::span<const std::byte> data) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(data.data());
  const uintptr_t first = (address + page - 1) / page * page;
  const uintptr_t last = (address + data.size()) / page * page;
  if (last > first) {
    ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }
}

fs::path file_of(
    const SafetensorsFolder& folder,
    const SafetensorsTensor& stored) {
  const auto& files = folder.files();
  const auto file =
      std::find_if(files.begin(), files.end(), [&](const auto& candidate) {
        return candidate.find(stored.name) == &stored;
      });
  return file == files.end() ? folder.path() : file->path();
}

}  // namespace

FolderWeights::FolderWeights(
    const SafetensorsFolder& folder,
    const std::vector<ParameterRow>& expected)
    : folder_(folder), located_(locate_tensors(folder, expected)) {}

void FolderWeights::read(const State& part) const {
  const torch::NoGradGuard no_grad;
  const auto found = located_.find(part.name);
  BRIGADE_ASSERT(found != located_.end(), "'{}' is not expected", part.name);
  const auto& [stored, slice] = found->second;
  torch::Tensor all = as_tensor(*stored);
  if (all.dim() > part.tensor.dim())
    all = all.flatten(0, 1);  // experts
  const torch::Tensor whole = take_slice(all, slice);
  // clang 14 captures no structured binding.
  const auto file = [this, &tensor = *stored] {
    return file_of(folder_, tensor);
  };
  check_finite(take_slice(whole, part.slice), stored->name, file);
  part.tensor.copy_(take_shard(whole, part.slice, part.tensor.sizes()));
  release_pages(stored->data);
}

void load_weights(
    const SafetensorsFolder& folder,
    const std::vector<ParameterRow>& expected,
    const std::vector<State>& parts) {
  const FolderWeights weights(folder, expected);
  for (const State& part : parts)
    weights.read(part);
}

void load_pretrained(
    const std::filesystem::path& folder,
    const DecoderConfig& decoder,
    std::span<const Param> params) {
  std::vector<State> parts;
  for (const Param& param : params) {
    if (param.row->stored_in != StoredIn::kAdapter)
      parts.push_back(part_of("", param, param.tensor));
  }
  load_weights(SafetensorsFolder(folder), list_parameters(decoder), parts);
}

std::string dtype_of_config(const nlohmann::json& config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (config.contains(key) && config[key] == "bfloat16")
      return "bfloat16";
  }
  return "float32";
}

}  // namespace brigade
