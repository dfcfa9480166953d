#include "brigade/checkpoint/hugging_face.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/checkpoint/torch_dtype.h"

namespace brigade {
namespace {

// `shard` as it lies in the stored tensor, which may hold others before it.
ShardSpec within_stored(const ShardSpec& shard, const StoredTensor& place) {
  ShardSpec spec = shard;
  if (!spec.full_shape.empty()) {
    spec.full_shape[0] = static_cast<int64_t>(place.stored->shape[0]);
    spec.ranges[0].begin += place.first_row;
    spec.ranges[0].end += place.first_row;
  }
  return spec;
}

// A copy of the part, contiguous and in the stored dtype. The copy also gives
// the alignment that the file does not promise.
torch::Tensor read_part(
    const SafetensorsTensor& stored,
    const ShardSpec& spec) {
  const auto item = static_cast<int64_t>(item_bytes(stored.dtype));
  torch::Tensor part =
      torch::empty(spec.shape(), torch_dtype(stored.dtype, stored.name));
  auto* to = static_cast<std::byte*>(part.data_ptr());
  const std::byte* from = stored.data.data();
  for_each_run(spec, [&](int64_t source, int64_t destination, int64_t numel) {
    std::memcpy(
        to + destination * item,
        from + source * item,
        static_cast<size_t>(numel * item));
  });
  return part;
}

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

void FolderWeights::read(const WeightTarget& target) const {
  const torch::NoGradGuard no_grad;
  const auto found = located_.find(target.name);
  BRIGADE_ASSERT(
      found != located_.end(), "target '{}' is not expected", target.name);
  const ShardSpec spec = within_stored(target.shard, found->second);
  BRIGADE_ASSERT(
      target.destination.sizes().vec() == spec.shape(),
      "the destination of '{}' is not {}",
      target.name,
      to_string(target.shard));
  const torch::Tensor part = read_part(*found->second.stored, spec);
  check_finite(folder_, *found->second.stored, part);
  target.destination.copy_(part);
  release_pages(found->second.stored->data);
}

void load_weights(
    const SafetensorsFolder& folder,
    const std::vector<ParameterRow>& expected,
    const std::vector<WeightTarget>& targets) {
  const FolderWeights weights(folder, expected);
  for (const WeightTarget& target : targets)
    weights.read(target);
}

std::string dtype_of_config(const nlohmann::json& config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (config.contains(key) && config[key] == "bfloat16")
      return "bfloat16";
  }
  return "float32";
}

}  // namespace brigade
