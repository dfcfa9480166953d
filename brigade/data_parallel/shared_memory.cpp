#include "brigade/data_parallel/shared_memory.h"

#include <algorithm>
#include <mutex>
#include <tuple>

namespace brigade {
namespace {

// The place of each element in its storage.
torch::Tensor places_of(const torch::Tensor& tensor, int64_t count) {
  return torch::arange(count)
      .as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset())
      .reshape({-1});
}

// Precondition: their spans overlap.
bool have_common_element(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.is_non_overlapping_and_dense() && b.is_non_overlapping_and_dense())
    return true;
  if (a.element_size() != b.element_size())
    return true;
  const auto bytes = static_cast<int64_t>(a.element_size());
  const int64_t count = std::max(MemorySpan(a).end, MemorySpan(b).end) / bytes;
  return torch::isin(places_of(a, count), places_of(b, count))
      .any()
      .item<bool>();
}

// The wrapped modules of the process; ranks that are threads each have some.
struct AllWrapped {
  std::mutex mutex;
  std::vector<const WrappedMemory*> modules;

  static AllWrapped& instance() {
    static AllWrapped all;
    return all;
  }
};

}  // namespace

MemorySpan::MemorySpan(const torch::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0)
    return;
  int64_t last = tensor.storage_offset();
  for (int64_t d = 0; d < tensor.dim(); ++d)
    last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto bytes = static_cast<int64_t>(tensor.element_size());
  storage = tensor.storage().unsafeGetStorageImpl();
  begin = tensor.storage_offset() * bytes;
  end = (last + 1) * bytes;
}

std::vector<std::string> names_of_sharers(const std::vector<State>& tensors) {
  std::vector<MemorySpan> spans;
  std::vector<size_t> order;
  for (size_t i = 0; i < tensors.size(); ++i) {
    spans.emplace_back(tensors[i].tensor);
    if (spans.back().storage != nullptr)
      order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tie(spans[a].storage, spans[a].begin) <
           std::tie(spans[b].storage, spans[b].begin);
  });
  std::vector<std::string> sharers(tensors.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t a = order[i];
    for (size_t j = i + 1; j < order.size(); ++j) {
      const size_t b = order[j];
      if (!spans[a].overlaps(spans[b]))
        break;
      if (tensors[a].tensor.is_same(tensors[b].tensor) ||
          !have_common_element(tensors[a].tensor, tensors[b].tensor))
        continue;
      if (sharers[a].empty())
        sharers[a] = tensors[b].name;
      if (sharers[b].empty())
        sharers[b] = tensors[a].name;
    }
  }
  return sharers;
}

WrappedMemory::WrappedMemory(std::span<const Param> params, FlatWeights weights)
    : weights_(weights) {
  for (const Param& param : params) {
    const MemorySpan span(param.tensor);
    if (span.storage != nullptr)
      places_.push_back(
          {.name = param.name,
           .span = span,
           .trains = param.tensor.requires_grad(),
           .storage = param.tensor.storage().getWeakStorageImpl()});
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
  const MemorySpan span(param.tensor);
  if (span.storage == nullptr)
    return {};
  AllWrapped& all = AllWrapped::instance();
  const std::lock_guard lock(all.mutex);
  for (const WrappedMemory* module : all.modules) {
    if (weights != FlatWeights::kMove && module->weights_ != FlatWeights::kMove)
      continue;
    for (const Place& place : module->places_) {
      if ((place.trains || param.tensor.requires_grad()) &&
          place.span.overlaps(span))
        return place.name;
    }
  }
  return {};
}

}  // namespace brigade
