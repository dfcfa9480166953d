#include "brigade/data_parallel/wrapped_memory.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace brigade {
namespace {

// Ranks that are threads have some each.
struct AllWrapped {
  std::mutex mutex;
  std::vector<const WrappedMemory*> modules;

  static AllWrapped& instance() {
    static AllWrapped all;
    return all;
  }
};

// Of memory that lies together, as parameters' does.
std::pair<int64_t, int64_t> range_of(const torch::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.element_size());
  const int64_t begin = tensor.storage_offset() * bytes;
  return {begin, begin + tensor.numel() * bytes};
}

}  // namespace

WrappedMemory::WrappedMemory(
    const std::vector<Param>& params,
    FlatWeights weights)
    : weights_(weights) {
  for (const Param& param : params) {
    if (!param.tensor.has_storage() || param.tensor.numel() == 0)
      continue;
    const auto [begin, end] = range_of(param.tensor);
    places_.push_back(
        {.name = param.name,
         .storage = param.tensor.storage().getWeakStorageImpl(),
         .begin = begin,
         .end = end,
         .trains = param.tensor.requires_grad()});
  }
  AllWrapped& all = AllWrapped::instance();
  const std::lock_guard lock(all.mutex);
  all.modules.push_back(this);
}

WrappedMemory::~WrappedMemory() {
  AllWrapped& all = AllWrapped::instance();
  const std::lock_guard lock(all.mutex);
  std::erase(all.modules, this);
}

std::string WrappedMemory::name_of_sharer(
    const Param& param,
    FlatWeights weights) {
  if (!param.tensor.has_storage() || param.tensor.numel() == 0)
    return {};
  AllWrapped& all = AllWrapped::instance();
  const std::lock_guard lock(all.mutex);
  for (const WrappedMemory* module : all.modules) {
    if (weights != FlatWeights::kMove && module->weights_ != FlatWeights::kMove)
      continue;
    for (const Place& place : module->places_) {
      if ((place.trains || param.tensor.requires_grad()) &&
          shares(place, param.tensor))
        return place.name;
    }
  }
  return {};
}

bool WrappedMemory::shares(const Place& place, const torch::Tensor& tensor) {
  // One that is gone has no memory, and keeps its address while it is known.
  if (place.storage._unsafe_get_target() !=
      tensor.storage().unsafeGetStorageImpl())
    return false;
  const auto [begin, end] = range_of(tensor);
  return begin < place.end && place.begin < end;
}

}  // namespace brigade
