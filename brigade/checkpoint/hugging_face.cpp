#include "brigade/checkpoint/hugging_face.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/checkpoint/param_parts.h"
#include "brigade/checkpoint/torch_dtype.h"

namespace brigade {
namespace {

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

// Throws DataError naming the first value that is not finite: training would
// only find out at its first loss.
void check_finite(
    const SafetensorsFolder& folder,
    const SafetensorsTensor& stored,
    const torch::Tensor& part) {
  const torch::Tensor is_finite = part.isfinite();
  if (is_finite.all().item<bool>())
    return;
  const auto file = std::find_if(
      folder.files().begin(),
      folder.files().end(),
      [&](const SafetensorsFile& candidate) {
        return candidate.find(stored.name) == &stored;
      });
  throw DataError(fmt::format(
      "[hugging_face] tensor '{}' in '{}' has {} values that are not finite; "
      "the file is damaged, or of a training that diverged",
      stored.name,
      file == folder.files().end() ? folder.path().string()
                                   : file->path().string(),
      is_finite.logical_not().sum().item<int64_t>()));
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
  check_finite(folder_, *stored, take_slice(whole, part.slice));
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
